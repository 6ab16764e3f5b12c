"""Settings: where each value comes from, what is refused and how it is said."""

from pathlib import Path

import pytest

from lakestream.cli.serve import check_catalog
from lakestream.process.ports import check_exposure
from lakestream.settings import Settings, SettingsError, from_json, load, sqlite_path, table, to_json, unchosen_metadata


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    (tmp_path / "lakestream.toml").write_text("kafka_port = 1\nhttp_port = 2\nbrokers = 3\n")
    environ = {"LAKESTREAM_KAFKA_PORT": "10", "LAKESTREAM_HTTP_PORT": "20"}
    loaded = load({"kafka_port": 100, "brokers": None}, environ, folder=tmp_path)
    values = loaded.settings
    assert (values.kafka_port, values.http_port, values.brokers, values.num_partitions) == (100, 20, 3, 1)
    origins = [loaded.origins[name] for name in ("kafka_port", "http_port", "brokers", "num_partitions")]
    file = f"file {tmp_path / 'lakestream.toml'}"
    assert origins == ["flag --kafka-port", "environment LAKESTREAM_HTTP_PORT", file, "default"]


def test_the_file_is_found_by_flag_then_by_environment_then_by_its_name(tmp_path: Path) -> None:
    for name, port in (("a.toml", 1), ("b.toml", 2), ("lakestream.toml", 3)):
        (tmp_path / name).write_text(f"kafka_port = {port}")
    environ = {"LAKESTREAM_CONFIG": "b.toml"}
    assert load({}, environ, "a.toml", tmp_path).settings.kafka_port == 1
    assert load({}, environ, None, tmp_path).settings.kafka_port == 2
    assert load({}, {}, None, tmp_path).settings.kafka_port == 3
    with pytest.raises(SettingsError, match=r"no settings file .*c\.toml"):
        load({}, {}, "c.toml", tmp_path)


def test_kafkas_dotted_names_are_understood_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "lakestream.toml").write_text('num.partitions = 7\n[log]\nretention.ms = "2d"\nlevel = "debug"\n')
    settings = load({}, {}, folder=tmp_path).settings
    assert (settings.num_partitions, settings.log_retention_ms, settings.log_level) == (7, 172_800_000, "debug")


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_right_one(tmp_path: Path) -> None:
    (tmp_path / "lakestream.toml").write_text("kafka_prot = 1\n")
    with pytest.raises(SettingsError, match=r"no setting 'kafka_prot'; did you mean 'kafka_port'\?"):
        load({}, {}, folder=tmp_path)


def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "lakestream.toml").write_text("kafka_port = = 1\n")
    with pytest.raises(SettingsError, match=r"lakestream\.toml is not valid TOML"):
        load({}, {}, folder=tmp_path)


def test_unknown_variables_are_reported_but_harmless(tmp_path: Path) -> None:
    loaded = load({}, {"LAKESTREAM_SERVICE_HOST": "10.0.0.1", "LAKESTREAM_BOOTSTRAP": "x:1"}, folder=tmp_path)
    assert loaded.ignored == ("LAKESTREAM_SERVICE_HOST",)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cache_bytes", "128MiB", 128 << 20),
        ("cache_bytes", "64m", 64 << 20),
        ("cache_bytes", "1_000", 1000),
        ("offsets_retention_ms", "7d", 604_800_000),
        ("linger_ms", "2s", 2000),
        ("log_retention_ms", "-1", -1),
        ("auto_create_topics_enable", "off", False),
        ("auto_create_topics_enable", "1", True),
        ("log_message_timestamp_type", "logappendtime", "LogAppendTime"),
    ],
)
def test_values_may_be_written_as_people_write_them(tmp_path: Path, name: str, text: str, value: object) -> None:
    loaded = load({}, {f"LAKESTREAM_{name.upper()}": text}, folder=tmp_path)
    assert getattr(loaded.settings, name) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("kafka_port", "70000", "between 0 and 65535"),
        ("kafka_port", "8k", "expected a whole number, not"),
        ("linger_ms", "2 weeks", "with a unit if you like"),
        ("brokers", "0", "between 1 and"),
        ("auto_create_topics_enable", "maybe", "true or false"),
        ("log_level", "loud", "none of debug, info"),
        ("data", "hdfs://x/y", "use a folder, s3://"),
        ("data", "s3://", "names no bucket; write s3://BUCKET/PREFIX"),
        ("data", "gs:///x", "names no bucket"),
        ("data", "az:x", "names no bucket"),
        ("broker_heartbeat_ms", "8000", "at least twice"),
        ("umask", "rwx", "octal digits"),
        ("umask", "777", "leave all to the owner"),
        ("group_min_session_timeout_ms", "2000000", "is above"),
    ],
)
def test_values_that_cannot_be_are_refused_with_what_would_be_right(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        load({}, {f"LAKESTREAM_{name.upper()}": text}, folder=tmp_path)


def test_the_metadata_lies_in_the_data_folder_unless_told_otherwise(tmp_path: Path) -> None:
    def path(**flags: str) -> Path | None:
        return sqlite_path(load(flags, {}, folder=tmp_path).settings.metadata)

    assert path(data=str(tmp_path / "d")) == tmp_path / "d" / "metadata.sqlite"
    assert path(metadata=f"sqlite://{tmp_path}/m.db") == tmp_path / "m.db"
    assert path(metadata=str(tmp_path / "m.db")) == tmp_path / "m.db"
    assert path(data="memory:") is None
    remote = path(data="s3://bucket/prefix")
    assert remote is not None and remote.name == "metadata.sqlite"


def test_a_command_log_that_lies_somewhere_by_chance_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def unchosen(**flags: str) -> Path | None:
        return unchosen_metadata(load(flags, {}, folder=tmp_path).settings)

    assert unchosen(data="s3://bucket") == tmp_path / "lakestream-metadata" / "metadata.sqlite"
    assert unchosen(data="s3://bucket", metadata="sqlite:///var/log.sqlite") is None
    assert unchosen() is None and unchosen(data="memory:") is None


def test_memory_cannot_be_shared_by_several_brokers(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="one broker only"):
        load({"data": "memory:", "brokers": 2}, {}, folder=tmp_path)


def test_tables_are_on_where_others_can_read_the_store_and_nowhere_else(tmp_path: Path) -> None:
    assert load({}, {}, folder=tmp_path).settings.tables
    assert not load({"data": "memory:"}, {}, folder=tmp_path).settings.tables
    with pytest.raises(SettingsError, match="tables need a store"):
        load({"data": "memory:", "tables": True}, {}, folder=tmp_path)


def test_a_child_gets_the_very_settings_of_its_supervisor(tmp_path: Path) -> None:
    settings = load({"kafka_port": 1234, "data": "s3://bucket"}, {}, folder=tmp_path).settings
    assert from_json(to_json(settings)) == settings


def test_every_setting_has_a_type_a_default_and_a_line_of_doc() -> None:
    rows = table()
    assert list(rows) == list(Settings.__slots__)
    for row in rows.values():
        assert type(row.default) is row.kind
        assert row.doc.endswith(".") or row.doc.endswith(")."), row.name
        assert len(row.doc) <= 120 and "\n" not in row.doc


def test_a_catalog_that_nobody_knows_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="'nosuch' is no URI, PyIceberg's configuration has no catalog"):
        check_catalog(Settings(tables=True, catalog="nosuch"))
    check_catalog(Settings(tables=False, catalog="nosuch"))
    check_catalog(Settings(tables=True))
    check_catalog(Settings(tables=True, catalog="http://127.0.0.1:1"))
    check_catalog(Settings(tables=True, catalog="nosuch", catalog_properties="type=rest,uri=http://127.0.0.1:1"))
    monkeypatch.setenv("PYICEBERG_CATALOG__NOSUCH__URI", "http://127.0.0.1:1")
    check_catalog(Settings(tables=True, catalog="nosuch"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "broker.example.com", "[2001:db8::1]"])
@pytest.mark.parametrize("name", ["kafka_host", "http_host"])
def test_other_machines_are_let_in_only_where_the_operator_says_so(name: str, host: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} = .*asks no client for a password.*--allow-unauthenticated"):
        check_exposure(Settings(**{name: host}))  # type: ignore[arg-type]
    check_exposure(Settings(**{name: host}, allow_unauthenticated=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "a.localhost"])
def test_the_own_machine_needs_no_such_word(host: str) -> None:
    check_exposure(Settings(kafka_host=host, http_host=host))
