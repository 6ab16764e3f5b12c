"""Names and places of the catalog: which namespaces, table names and locations may be, and where tables live.

Names and locations of requests are checked here before they become keys of the store: each step of a location has to
lie inside the warehouse.
"""

import re
from dataclasses import dataclass

SEPARATOR = "\x1f"
"""Between the levels of a namespace, as in the REST protocol."""
STREAMS = "streams"
"""The namespace of the topics' tables."""
MAX_NAME = 255
MAX_LEVELS = 16
MAX_LOCATION = 2048
RESERVED_PREFIX = "lakestream."
"""Properties that only Lakestream writes."""

_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\]")
_UNFIT_IN_PLACE = re.compile(r"[\x00-\x1f\x7f\\?#%]")
"""Some engines take `%2e%2e` for `..`, others for a name, so such a place is ambiguous."""
METADATA_SUFFIX = ".metadata.json"
_ALIASES = (("s3a://", "s3://"), ("s3n://", "s3://"))


def name_problem(name: str) -> str:
    """Why this cannot name a table or one level of a namespace, or nothing."""
    if not name or name in (".", ".."):
        return f"{name!r} is no name"
    if len(name) > MAX_NAME:
        return f"a name has at most {MAX_NAME} characters"
    if _UNFIT.search(name):
        return "a name has no slashes and no control characters"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name has to be valid Unicode"
    return ""


def namespace_problem(namespace: str) -> str:
    """Why these levels cannot be a namespace, or nothing."""
    levels = namespace.split(SEPARATOR)
    if len(levels) > MAX_LEVELS:
        return f"a namespace has at most {MAX_LEVELS} levels"
    return next((problem for level in levels if (problem := name_problem(level))), "")


def parent_of(namespace: str) -> str:
    return namespace.rpartition(SEPARATOR)[0]


def shown(namespace: str, name: str = "") -> str:
    """An identifier as people write it."""
    return ".".join([*namespace.split(SEPARATOR), name] if name else namespace.split(SEPARATOR))


def canonical(uri: str) -> str:
    """One spelling of a location: engines write `file:/x` for `file:///x`, and s3a for s3."""
    for alias, scheme in _ALIASES:
        if uri.startswith(alias):
            return scheme + uri[len(alias) :]
    if uri.startswith("file:/") and not uri.startswith("file://"):
        return "file://" + uri[len("file:") :]
    return uri


def root_of(metadata_location: str) -> str:
    """The folder of a table whose metadata file lies there."""
    return metadata_location.rpartition("/")[0].removesuffix("/metadata")


def within(folder: str, uri: str) -> bool:
    """Whether a file, or a folder, lies in this one."""
    return f"{canonical(uri)}/".startswith(f"{canonical(folder).rstrip('/')}/")


def overlap(one: str, other: str) -> bool:
    """Whether one folder is the other, or lies in it."""
    one, other = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return one.startswith(other) or other.startswith(one)


def path_below(folder: str, uri: str) -> str | None:
    """The way from a folder to a place; None if the place is not strictly inside, or not plainly so."""
    base, place = canonical(folder).rstrip("/") + "/", canonical(uri).rstrip("/")
    path = place[len(base) :]
    if len(uri) > MAX_LOCATION or not place.startswith(base) or _UNFIT_IN_PLACE.search(path):
        return None
    return path if all(step not in ("", ".", "..") for step in path.split("/")) else None


def is_own_version(location: str, uri: str) -> bool:
    """Whether this is a metadata file in the metadata folder of the table that lies at `location`."""
    path = path_below(f"{location.rstrip('/')}/metadata", uri)
    return path is not None and "/" not in path and path.endswith(METADATA_SUFFIX)


def carries_id(folder: str, uuid: str) -> bool:
    """Whether a folder was named after this table, as `Warehouse.place_for` does: no other table's has its name."""
    return bool(uuid) and folder.rstrip("/").lower().endswith(f"-{uuid.lower()}")


@dataclass(frozen=True, slots=True)
class Warehouse:
    """The folder, by its full URI, that the tables of the catalog lie in.

    Users' own tables may also lie below `allowed` folders, a stream's never does.
    """

    uri: str
    allowed: tuple[str, ...] = ()

    def path_of(self, uri: str) -> str | None:
        """The way from the warehouse to this place; None if the place is not strictly inside, or not plainly so."""
        return path_below(self.uri, uri)

    def admits(self, uri: str) -> bool:
        """Whether a user's table may have files at this place."""
        return any(path_below(folder, uri) is not None for folder in (self.uri, *self.allowed))

    def of_streams(self, uri: str) -> bool:
        """Whether a place lies in the folder of the topics' tables, is that folder, or holds it.

        Some file systems take `Streams` for the same folder.
        """
        return overlap(canonical(uri).casefold(), canonical(f"{self.uri.rstrip('/')}/{STREAMS}").casefold())

    def place_for(self, namespace: str, name: str, uuid: str) -> str:
        """Where a new table lives. The uuid makes it unique: no table ever finds the files of one that was before."""
        levels = namespace.split(SEPARATOR)
        steps = [fit(level) for level in levels]
        if levels[0] != STREAMS and steps[0].casefold() == STREAMS:
            steps[0] = f"_{steps[0]}"
        return "/".join([self.uri.rstrip("/"), *steps, f"{fit(name)}-{uuid}"])


def warehouse_uri(root: str, cluster: str) -> str:
    """Where the tables of a cluster lie, in the folder or bucket of its records."""
    return f"{root}/{cluster}/tables"


def fit(name: str) -> str:
    """A name as one step of a path that every store and engine takes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].lstrip(".") or "_"
