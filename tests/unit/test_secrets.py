"""Secrets: marked in the settings, given by files, and shown nowhere."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakestream.cli.main import cli
from lakestream.cli.pipeline import conf_in
from lakestream.data.tables.iceberg.pyiceberg_catalog import CatalogAddress, PyIcebergCatalog
from lakestream.errors import LakestreamError
from lakestream.pipeline.spark.java import Java
from lakestream.pipeline.spark.jvm import command, properties_file
from lakestream.process import logs
from lakestream.protocol.kafka.configs import SENSITIVE
from lakestream.redaction import MASK, Redactor, mask_urls, secrets_in
from lakestream.settings import Settings, SettingsError, known_secrets, load, table
from tests.support.serve_process import clean_environment

PROPERTIES = "token=s3cr3t-token,warehouse=lake"


@pytest.fixture
def own_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_every_secret_setting_can_come_from_a_file_by_flag_variable_and_settings_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("# of the lake's catalog\ntoken=s3cr3t-token\nwarehouse=lake\n")
    (tmp_path / "lakestream.toml").write_text("catalog_properties_file = 'secret'\n")
    secret = [name for name, row in table().items() if row.secret]
    assert secret == ["catalog", "catalog_properties"]
    in_file = load({}, {}, folder=tmp_path)
    by_variable = load({}, {"LAKESTREAM_CATALOG_PROPERTIES_FILE": "secret"}, folder=tmp_path)
    by_flag = load({"catalog_properties_file": "secret"}, {}, folder=tmp_path)
    for loaded in (in_file, by_variable, by_flag):
        assert loaded.settings.catalog_properties == PROPERTIES and loaded.ignored == ()
    assert in_file.origins["catalog_properties"] == f"file {tmp_path / 'lakestream.toml'}"
    assert by_variable.origins["catalog_properties"] == "environment LAKESTREAM_CATALOG_PROPERTIES_FILE"
    assert by_flag.origins["catalog_properties"] == "flag --catalog-properties-file"


def test_a_secret_given_twice_or_by_a_file_that_is_not_there_is_refused_without_naming_it(tmp_path: Path) -> None:
    variables = {"LAKESTREAM_CATALOG_PROPERTIES": PROPERTIES, "LAKESTREAM_CATALOG_PROPERTIES_FILE": "x"}
    with pytest.raises(SettingsError, match="are both given") as twice:
        load({}, variables, folder=tmp_path)
    assert "s3cr3t" not in str(twice.value)
    with pytest.raises(SettingsError, match=r"--catalog-file: .*nowhere cannot be read: No such file"):
        load({"catalog_file": "nowhere"}, {}, folder=tmp_path)
    with pytest.raises(SettingsError, match="no setting 'data_file'"):
        (tmp_path / "lakestream.toml").write_text("data_file = 'x'\n")
        load({}, {}, folder=tmp_path)


@pytest.mark.parametrize("place", ["s3://me:s3cr3t@bucket/x", "az://box/x?sig=s3cr3t"])
def test_a_place_for_records_carries_no_password_since_locations_are_public(tmp_path: Path, place: str) -> None:
    with pytest.raises(SettingsError, match="a password has no place in") as refused:
        load({"data": place}, {}, folder=tmp_path)
    assert "s3cr3t" not in str(refused.value)
    assert load({"data": "abfss://box@account.dfs.core.windows.net/x"}, {}, folder=tmp_path).settings.data


def test_config_masks_secrets(tmp_path: Path) -> None:
    flags = ["--catalog", "postgresql://me:s3cr3t@db/lake", "--catalog-properties", PROPERTIES]
    for form in ([], ["--json"]):
        shown = CliRunner().invoke(cli, ["config", *flags, *form]).output
        assert "s3cr3t" not in shown and f"postgresql://me:{MASK}@db/lake" in shown and MASK in shown


def test_a_kafka_client_is_shown_no_secret() -> None:
    assert {"catalog", "catalog.properties", "data", "metadata"} == SENSITIVE


def test_what_settings_and_addresses_are_printed_as_holds_no_secret() -> None:
    settings = Settings(catalog="http://me:s3cr3t@c", catalog_properties=PROPERTIES)
    assert "s3cr3t" not in repr(settings)
    assert "s3cr3t" not in repr(CatalogAddress("http://me:s3cr3t@c", "n", {"token": "s3cr3t-token"}))


@pytest.mark.usefixtures("own_root")
@pytest.mark.parametrize("form", ["json", "logfmt", "human"])
def test_no_log_line_shows_a_secret_wherever_it_comes_from(form: str) -> None:
    settings = Settings(catalog="postgresql://me:pass%20word@db", catalog_properties=PROPERTIES + ',odd-token=qu"ote')
    environ = {"AWS_SECRET_ACCESS_KEY": "aws-key-value", "AWS_ACCESS_KEY_ID": "AKIA", "HOME_TOKEN": "not of a store"}
    stream = io.StringIO()
    logs.configure("info", form, {}, stream, known_secrets(settings, environ))
    log = logging.getLogger("lakestream.test")
    try:
        raise ValueError("refused: Bearer s3cr3t-token")
    except ValueError:
        log.exception("asked %s with aws-key-value", settings.catalog, extra={"url": "http://a:b-b-b@c", "q": 'qu"ote'})
    said = stream.getvalue()
    assert not any(secret in said for secret in ("s3cr3t", "aws-key-value", "pass%20word", "b-b-b", 'qu"ote', 'qu\\"'))
    assert "refused: Bearer" in said and MASK in said


def test_an_error_of_another_catalog_is_told_without_its_token() -> None:
    catalog = PyIcebergCatalog(CatalogAddress("http://127.0.0.1:1", "streams", {"token": "s3cr3t-token"}))

    def fail() -> None:
        raise RuntimeError("GET http://me:hidden@127.0.0.1:1/v1 with s3cr3t-token failed")

    with pytest.raises(LakestreamError) as told:
        catalog._asked(fail, LakestreamError)
    assert str(told.value) == f"RuntimeError: GET http://me:{MASK}@127.0.0.1:1/v1 with {MASK} failed"


def test_names_tell_what_is_secret_and_short_values_are_left_in_texts() -> None:
    found = secrets_in({"s3.secret-access-key": "long-key", "s3.access-key-id": "AKIAAAAA", "x.password": "abc"})
    assert found == ["long-key"] and Redactor(found)("a long-key, abc") == f"a {MASK}, abc"
    assert mask_urls("http://h/p?a=1&access_token=xyz&b=2") == f"http://h/p?a=1&access_token={MASK}&b=2"
    assert mask_urls("a://u:p@ss@h/x b://v:q@i") == f"a://u:{MASK}@h/x b://v:{MASK}@i"


def test_settings_of_spark_are_in_a_file_and_not_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("# keys\nspark.hadoop.fs.s3a.secret.key=s3cr3t=\n")
    conf = conf_in(tmp_path / "conf")
    assert conf == {"spark.hadoop.fs.s3a.secret.key": "s3cr3t="} and conf_in(None) == {}
    argv = command(Java("java", (17,)), "local[2]", "1g", tmp_path)
    assert "s3cr3t" not in " ".join(argv) and "--conf" not in argv
    assert properties_file({"a b": " x\\y\n#"}) == "a\\ b=\\ x\\\\y\\n\\#\n"


def test_what_spark_is_told_in_secret_is_in_no_log_line_of_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net=s3cr3t-word\n")
    (tmp_path / "broken.sqlite").write_bytes(b"no database" * 500)
    argv = [sys.executable, "-m", "lakestream", "pipeline", "--once", "--data", str(tmp_path / "data")]
    argv += ["--metadata", f"sqlite:///{tmp_path}/broken.sqlite", "--conf-file", str(tmp_path / "conf")]
    argv += ["--master", "spark://s3cr3t-word:1"]
    asked = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, check=False)
    assert asked.returncode == 1 and f"pipeline=spark://{MASK}:1" in asked.stderr
    assert "s3cr3t" not in asked.stderr


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("fs.azure.account.key.me.dfs.core.windows.net", True), ("fs.azure.sas.box.me.blob.core.windows.net", True),
        ("fs.azure.account.oauth2.client.secret.me.dfs.core.windows.net", True), ("adls.sas-token.me", True),
        ("fs.azure.account.oauth2.client.id.me.dfs.core.windows.net", False), ("token.refresh-enabled", False),
    ],
)  # fmt: skip
def test_a_secret_is_one_for_whichever_account_its_name_says(name: str, secret: bool) -> None:
    assert bool(secrets_in({name: "a-value"})) is secret


def test_the_listing_says_which_settings_are_secret() -> None:
    listed = json.loads(CliRunner().invoke(cli, ["config", "--json"]).output)
    assert [row["name"] for row in listed if row["secret"]] == ["catalog", "catalog_properties"]


@pytest.mark.parametrize(
    "value", ["postgresql://u:pa/ss-word@host/db", "https://u:pass-word@host:1/x", "oracle://u:p@ss-word@host"]
)
def test_a_password_is_masked_whatever_stands_in_it(value: str) -> None:
    assert "word" not in mask_urls(value) and mask_urls(value).startswith(value.partition(":")[0])


def test_parts_of_secrets_are_masked_where_they_stand_alone() -> None:
    known = secrets_in({
        "credential": "id:half-of-it", "header.Authorization": "Bearer the-token", "uri": "http://u:a%2Fb%2Fc@h",
        "AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=the-key",
    })  # fmt: skip
    told = Redactor(known)("half-of-it the-token a/b/c AccountName=a;AccountKey=the-key")
    assert not any(secret in told for secret in ("half-of-it", "the-token", "a/b/c", "the-key"))
