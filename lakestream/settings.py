"""Every setting, in one table: values only, from flags, the environment, one TOML file and defaults, in that order.

The flags of `lakestream serve`, the listing of `lakestream config` and the table in docs/OPERATIONS.md are all made
from the fields of `Settings`. A setting that Kafka knows has Kafka's name, with underscores for the dots.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from lakestream.redaction import has_password, mask_urls, read_secret, secrets_in, store_secrets
from lakestream.setting_values import ENVIRONMENT_PREFIX, INT32_MAX, INT64_MAX, URL, WHOLE, Value, parsed
from lakestream.setting_values import Setting as Setting
from lakestream.setting_values import SettingsError as SettingsError

CONFIG_VARIABLE = "LAKESTREAM_CONFIG"
BOOTSTRAP_VARIABLE = "LAKESTREAM_BOOTSTRAP"
DEFAULT_CONFIG_FILE = "lakestream.toml"
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
FILE_SUFFIX, FILE_FLAG = "_file", "-file"
"""Suffixes of a secret setting's name: the setting for the file that has its value."""
METADATA_FOLDER = "lakestream-metadata"
"""The command log's folder if no setting names one and the data is in a bucket, which cannot hold it."""

T = TypeVar("T", str, int, bool)


def _setting(
    group: str, default: T, doc: str, *, low: int = 0, high: int = INT64_MAX, choices: tuple[str, ...] = (),
    secret: str = "",
) -> T:  # fmt: skip
    metadata = {"group": group, "doc": doc, "low": low, "high": high, "choices": choices, "secret": secret}
    value: Any = field(default=default, metadata=metadata, repr=not secret)
    return value  # type: ignore[no-any-return]


_PLACE, _TOPICS, _GROUPS, _WRITE = "Where", "Topics and records", "Groups and producers", "Memory and writing"
_NET, _META, _LAKE, _LOGS = "Network", "Metadata and upkeep", "Tables", "Logs"
_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one broker runs with; `serve` gives each broker its own ports."""

    data: str = _setting(_PLACE, "./lakestream-data", "Where records live: a folder, s3:// gs:// az:// or memory:.")
    metadata: str = _setting(
        _PLACE, "",
        "The command log: sqlite:///path or memory:. Empty: in the data folder; for a URL ./lakestream-metadata.",
    )  # fmt: skip
    brokers: int = _setting(_PLACE, 1, "How many broker processes `serve` starts.", low=1, high=1000)
    kafka_host: str = _setting(
        _PLACE, "127.0.0.1", "Address that Kafka listeners bind to; 0.0.0.0 for all, with allow_unauthenticated."
    )
    kafka_port: int = _setting(_PLACE, 9092, "First Kafka port; broker N takes the Nth next. 0: free ones.", high=_PORT)
    advertised_host: str = _setting(_PLACE, "", "Host name that clients are told. Empty: kafka_host.")
    advertised_port: int = _setting(_PLACE, 0, "First port that clients are told. 0: kafka_port.", high=_PORT)
    http_host: str = _setting(_PLACE, "127.0.0.1", "Address that HTTP listeners bind to.")
    http_port: int = _setting(_PLACE, 8181, "First HTTP port; broker N takes the Nth next. 0: free ones.", high=_PORT)

    allow_unauthenticated: bool = _setting(
        _PLACE, False, "Bind to addresses that other machines reach, although no client is asked for a password."
    )
    umask: str = _setting(_PLACE, "077", "Permissions that new files do not get, in octal; 027 lets the group read.")

    auto_create_topics_enable: bool = _setting(_TOPICS, True, "Create a topic when a client first asks for it.")
    auto_create_topics_per_request: int = _setting(_TOPICS, 100, "Most topics that one request creates by asking.")
    auto_create_topics_per_minute: int = _setting(
        _TOPICS, 1_000, "Most topics that a broker creates in a minute because clients ask for them."
    )
    num_partitions: int = _setting(_TOPICS, 1, "Partitions of a topic created without a number.", low=1, high=100_000)
    default_replication_factor: int = _setting(
        _TOPICS, 1, "Replication factor shown when none was asked for; the store's durability is what counts.",
        low=1, high=32767,
    )  # fmt: skip
    message_max_bytes: int = _setting(_TOPICS, 1_048_588, "Largest record batch accepted.", low=1, high=INT32_MAX)
    log_message_timestamp_type: str = _setting(
        _TOPICS, "CreateTime", "Whose clock stamps records.", choices=("CreateTime", "LogAppendTime")
    )
    log_retention_ms: int = _setting(_TOPICS, -1, "Age at which records go; -1: never.", low=-1)
    log_retention_bytes: int = _setting(_TOPICS, -1, "Size of a partition above which old records go; -1: any.", low=-1)

    group_min_session_timeout_ms: int = _setting(_GROUPS, 6_000, "Shortest session a group member may ask for.", low=1)
    group_max_session_timeout_ms: int = _setting(_GROUPS, 1_800_000, "Longest session a member may ask for.", low=1)
    group_initial_rebalance_delay_ms: int = _setting(
        _GROUPS, 0, "How long the first rebalance of an empty group waits for more members (Kafka's own default: 3000)."
    )
    group_max_size: int = _setting(_GROUPS, 10_000, "Most members of one group.", low=1, high=INT32_MAX)
    offsets_retention_ms: int = _setting(_GROUPS, 604_800_000, "How long an empty group's offsets are kept.", low=1)
    offset_metadata_max_bytes: int = _setting(_GROUPS, 4_096, "Longest note a client may commit with an offset.")
    producer_id_expiration_ms: int = _setting(_GROUPS, 86_400_000, "Idle time until a producer is forgotten.", low=1)

    linger_ms: int = _setting(_WRITE, 250, "How long a tick gathers, on stores with a price per request.", high=60_000)
    tick_max_bytes: int = _setting(_WRITE, 16 << 20, "Bytes at which a tick is written at once.", low=1 << 16)
    ticks_in_flight: int = _setting(_WRITE, 4, "Ticks that are written at the same time.", low=1, high=64)
    memory_bytes: int = _setting(_WRITE, 128 << 20, "Requests held in memory before sockets are paused.", low=1 << 20)
    cache_bytes: int = _setting(_WRITE, 128 << 20, "Fresh records kept in memory for consumers.")

    max_connections: int = _setting(_NET, 20_000, "Most Kafka connections of one broker; more are closed.", low=1)
    connections_max_idle_ms: int = _setting(_NET, 600_000, "Idle time after which a connection is closed.", low=1)
    socket_request_max_bytes: int = _setting(_NET, 104_857_600, "Largest request accepted.", low=1024, high=INT32_MAX)
    fetch_max_bytes: int = _setting(_NET, 57_671_680, "Most bytes of one fetch answer.", low=1024, high=INT32_MAX)
    max_fetch_session_partitions: int = _setting(
        _NET, 200_000, "Most partitions that the fetch sessions of one broker name; more are fetched without a session."
    )
    http_max_connections: int = _setting(
        _NET, 1000, "Most HTTP connections of one broker; further ones are answered health only.", low=1
    )
    http_max_connections_per_address: int = _setting(_NET, 250, "Most HTTP connections from one client address.", low=1)
    http_body_bytes: int = _setting(_NET, 128 << 20, "Bodies of HTTP requests in memory; more get 503.", low=16 << 20)
    http_allowed_hosts: str = _setting(
        _NET, "", "Further names of the HTTP port, with commas between; *.x.org: all below x.org; *: any."
    )
    drain_ms: int = _setting(_NET, 10_000, "How long a stopping broker may finish its work before it is killed.")

    broker_session_ms: int = _setting(_META, 9_000, "Silence after which a broker counts as dead.", low=100)
    broker_heartbeat_ms: int = _setting(_META, 2_000, "How often a broker says that it lives.", low=10)
    checkpoint_every: int = _setting(_META, 20_000, "Commands between two checkpoints of the state.", low=10)
    checkpoint_bytes: int = _setting(
        _META, 67_108_864, "Bytes of commands after which a checkpoint is taken earlier.", low=1024
    )
    log_retention_check_interval_ms: int = _setting(_META, 30_000, "How often retention is applied.", low=10)
    collector_interval_ms: int = _setting(_META, 60_000, "How often dead WAL objects are looked for.", low=10)
    collector_grace_ms: int = _setting(_META, 600_000, "How long an unreferenced WAL object is still kept.")

    tables: bool = _setting(_LAKE, True, "Turn topics into Iceberg tables, with Spark. Off by default with memory:.")
    table_care: bool = _setting(_LAKE, True, "Rewrite small files, apply retention and remove orphans by itself.")
    table_small_files: int = _setting(_LAKE, 32, "Small files of a table that are made into one.", low=2, high=10_000)
    table_file_bytes: int = _setting(_LAKE, 128 << 20, "How large a table's files become.", low=1 << 20, high=1 << 31)
    table_orphans_ms: int = _setting(_LAKE, 259_200_000, "Age at which others' files that nothing leads to go.")

    table_history_ms: int = _setting(_LAKE, 600_000, "Age up to which every snapshot of a table stays.", low=1)
    table_history_minutes_ms: int = _setting(_LAKE, 3_600_000, "Age up to which one snapshot a minute stays.")
    table_history_hours_ms: int = _setting(_LAKE, 86_400_000, "Age up to which one snapshot an hour stays.")
    table_history_days_ms: int = _setting(_LAKE, 604_800_000, "Age up to which one snapshot a day stays.")
    table_history_removed_ms: int = _setting(_LAKE, 3_600_000, "Age up to which snapshots keep rows that were removed.")

    catalog: str = _setting(
        _LAKE, "", "Another catalog for the tables: a name in PyIceberg's configuration, or a URI. Empty: our own.",
        secret=URL,
    )  # fmt: skip
    catalog_namespace: str = _setting(_LAKE, "streams", "The namespace of the topics' tables in that catalog.")
    catalog_properties: str = _setting(
        _LAKE, "", "Further PyIceberg properties of it: name=value,name=value.", secret=WHOLE
    )
    catalog_allowed_locations: str = _setting(
        _LAKE, "", "Folders outside the data, divided by commas, that users' own tables may lie in. Streams never do."
    )

    log_level: str = _setting(_LOGS, "info", "Least severe line logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = _setting(
        _LOGS, "auto", "auto: for people on a terminal, else logfmt.", choices=("auto", "human", "logfmt", "json")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings, the origin of each, and variables that look like settings but are none."""

    settings: Settings
    origins: Mapping[str, str]
    ignored: tuple[str, ...]


def table() -> dict[str, Setting]:
    """Every setting by its name, in the order in which people should read them."""
    rows: dict[str, Setting] = {}
    for column in fields(Settings):
        default: Any = column.default
        rows[column.name] = Setting(name=column.name, kind=type(default), default=default, **column.metadata)
    return rows


def load(
    flags: Mapping[str, Value | None], environ: Mapping[str, str], config: str | None = None, folder: Path = Path()
) -> Loaded:
    """Flags win over the environment, that over the file, that over defaults. A flag of None was not given."""
    rows = table()
    values: dict[str, Value] = {}
    origins = dict.fromkeys(rows, "default")
    path = _config_path(config, environ, folder)
    if path is not None:
        in_file = dict(_read_file(path))
        for name in in_file:
            _row(rows, name.removesuffix(FILE_SUFFIX) if is_secret_file(name, rows) else name, path)
        for row in rows.values():
            both = row.name, row.name + FILE_SUFFIX
            given = _given(row, in_file, both, (f"{path}: {both[0]}", f"{path}: {both[1]}"), folder)
            if given is not None:
                values[row.name], origins[row.name] = given[0], f"file {path}"
    for row in rows.values():
        variables = row.variable, row.variable + FILE_SUFFIX.upper()
        by_flag = {row.flag: flags.get(row.name), row.flag + FILE_FLAG: flags.get(row.name + FILE_SUFFIX)}
        for kind, source, names in (("environment", environ, variables), ("flag", by_flag, tuple(by_flag))):
            given = _given(row, source, names, names, folder)
            if given is not None:
                values[row.name], origins[row.name] = given[0], f"{kind} {given[1]}"
    known = {row.variable for row in rows.values()} | {CONFIG_VARIABLE, BOOTSTRAP_VARIABLE, CHILD_VARIABLE}
    known |= {row.variable + FILE_SUFFIX.upper() for row in rows.values() if row.secret}
    ignored = tuple(sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known))
    asked = Settings(**values)  # type: ignore[arg-type]
    if origins["tables"] == "default" and "memory:" in (asked.data[:7], asked.metadata[:7]):
        # No other process can read the memory of the broker.
        asked = replace(asked, tables=False)
    settings = _checked(asked)
    return Loaded(settings=settings, origins=origins, ignored=ignored)


def _given(
    row: Setting, source: Mapping[str, Any], names: tuple[str, ...], where: tuple[str, ...], folder: Path
) -> tuple[Value, str] | None:
    """The value that a source gives to a setting, directly or by a file, and which of the two names it used."""
    value, file = source.get(names[0]), source.get(names[1]) if row.secret else None
    if value is not None and file is not None:
        raise SettingsError(f"{where[0]} and {where[1]} are both given; one of them is enough")
    if file is not None:
        try:
            return parsed(row, read_secret(folder / str(file)), where[1]), names[1]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise SettingsError(f"{where[1]}: {folder / str(file)} cannot be read: {reason}") from None
    return None if value is None else (parsed(row, value, where[0]), names[0])


def known_secrets(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """All secret values of this process, which no log line may show."""
    pairs = [part.partition("=") for part in settings.catalog_properties.split(",")]
    properties = {name.strip(): value.strip() for name, _, value in pairs} | {"catalog": settings.catalog}
    return secrets_in({**store_secrets(environ), **properties})


def is_secret_file(name: str, rows: Mapping[str, Setting]) -> bool:
    """Whether the name is that of a secret setting's file, and not of a setting."""
    row = rows.get(name.removesuffix(FILE_SUFFIX)) if name not in rows and name.endswith(FILE_SUFFIX) else None
    return row is not None and row.secret != ""


CHILD_VARIABLE = "LAKESTREAM_CHILD_SETTINGS"
"""The environment variable in which `serve` hands its resolved settings to a child, as JSON."""


def to_json(settings: Settings) -> str:
    return json.dumps({name: getattr(settings, name) for name in table()})


def from_json(text: str) -> Settings:
    return Settings(**json.loads(text))


KEYS: Final = "keys of a store go in the environment (AWS_SECRET_ACCESS_KEY and the like)"
DATA_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "memory")
"""Stores of records, by how their URLs begin."""


def is_url(place: str) -> bool:
    """Whether a data or metadata setting is a URL and no path."""
    return re.match(r"[a-z][a-z0-9+]*:", place) is not None and not place.startswith("file:")


def data_folder(settings: Settings) -> Path | None:
    """The local folder that records live in; None if they live elsewhere."""
    return None if is_url(settings.data) else Path(settings.data.removeprefix("file://"))


def data_uri(settings: Settings) -> str:
    """The folder or bucket that records and tables live in as a URI, without a slash at its end."""
    folder = data_folder(settings)
    return settings.data.rstrip("/") if folder is None else f"file://{folder.absolute()}"


def sqlite_path(url: str) -> Path | None:
    """The file of a sqlite: URL; what follows `sqlite://` is the path. None for another kind of URL."""
    scheme, _, rest = url.partition(":")
    return Path(rest.removeprefix("//")) if scheme == "sqlite" else None


def unchosen_metadata(settings: Settings) -> Path | None:
    """The file of the command log if no setting chose its place, so that it lies in the current folder."""
    path = sqlite_path(settings.metadata)
    beside = Path(METADATA_FOLDER).absolute() / "metadata.sqlite"
    return path if data_folder(settings) is None and path == beside else None


def _config_path(config: str | None, environ: Mapping[str, str], folder: Path) -> Path | None:
    asked = config or environ.get(CONFIG_VARIABLE)
    if asked:
        path = folder / asked
        if not path.is_file():
            raise SettingsError(f"there is no settings file {path}")
        return path
    path = folder / DEFAULT_CONFIG_FILE
    return path if path.is_file() else None


def _read_file(path: Path) -> Iterator[tuple[str, object]]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    yield from _flat("", document)


def _flat(prefix: str, items: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Kafka's dotted names are nested tables in TOML, so that `num.partitions = 3` means num_partitions."""
    for key, value in items.items():
        name = prefix + re.sub(r"[.-]", "_", key)
        if isinstance(value, dict):
            yield from _flat(name + "_", value)
        else:
            yield name, value


def _row(rows: Mapping[str, Setting], name: str, path: Path) -> Setting:
    if name in rows:
        return rows[name]
    near = difflib.get_close_matches(name, rows, n=1, cutoff=0.0)[0]
    raise SettingsError(f"{path}: there is no setting {name!r}; did you mean {near!r}? (`lakestream config` lists all)")


def _checked(settings: Settings) -> Settings:
    """Fill in values that follow from other settings, and refuse values that cannot work together."""
    metadata = settings.metadata
    if not metadata:
        folder = data_folder(settings)
        if settings.data.startswith("memory:"):
            metadata = "memory:"
        else:
            metadata = f"sqlite://{(folder or Path(METADATA_FOLDER)).absolute()}/metadata.sqlite"
    elif not is_url(metadata):
        metadata = f"sqlite://{Path(metadata.removeprefix('file://')).absolute()}"
    for name, place in (("data", settings.data), ("metadata", metadata)):
        if has_password(place):
            raise SettingsError(f"{name}: a password has no place in {mask_urls(place)}: locations are public; {KEYS}")
    if is_url(settings.data) and settings.data.partition(":")[0] not in DATA_SCHEMES:
        raise SettingsError(f"data: {settings.data!r} is no place we know; use a folder, s3://, gs:// or az://")
    if is_url(settings.data) and re.match(r"memory:|\w+://[^/]", settings.data) is None:
        scheme = settings.data.partition(":")[0]
        raise SettingsError(f"data: {settings.data!r} names no bucket; write {scheme}://BUCKET/PREFIX")
    if settings.brokers > 1 and settings.data.startswith("memory:"):
        raise SettingsError("memory: serves one broker only, since processes share no memory; use a folder and sqlite:")
    if settings.tables and settings.data.startswith("memory:"):
        raise SettingsError("tables need a store that Spark can read too, and memory: is none; use a folder or s3://")
    if any("=" not in pair for pair in settings.catalog_properties.split(",") if pair.strip()):
        raise SettingsError("catalog_properties: expected name=value,name=value")
    levels = settings.catalog_namespace.split(".")
    if any(not level.strip() or "/" in level or "\\" in level for level in levels):
        raise SettingsError(f"catalog_namespace: {settings.catalog_namespace!r} is no namespace")
    if re.fullmatch(r"0?[0-7]{3}", settings.umask) is None or int(settings.umask, 8) & 0o700:
        raise SettingsError(f"umask: expected octal digits that leave all to the owner (077), not {settings.umask!r}")
    if settings.broker_session_ms < 2 * settings.broker_heartbeat_ms:
        raise SettingsError("broker_session_ms must be at least twice broker_heartbeat_ms, or live brokers expire")
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise SettingsError("group_min_session_timeout_ms is above group_max_session_timeout_ms")
    return replace(settings, metadata=metadata)
