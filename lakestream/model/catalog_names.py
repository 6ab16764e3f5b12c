"""Names and places of the catalog: which namespaces, table names and locations may be, and where tables live.

Everything that a stranger may write into a request ends here before it becomes a key of the store: a location is
inside the warehouse step by step or it is nothing.
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
_UNFIT_IN_PLACE = re.compile(r"[\x00-\x1f\x7f\\?#]")
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


@dataclass(frozen=True, slots=True)
class Warehouse:
    """The folder, by its full URI, that all tables of the catalog lie in."""

    uri: str

    def path_of(self, uri: str) -> str | None:
        """The way from the warehouse to this place; None if the place is not strictly inside, or not plainly so."""
        base, place = canonical(self.uri).rstrip("/") + "/", canonical(uri).rstrip("/")
        if len(uri) > MAX_LOCATION or not place.startswith(base) or _UNFIT_IN_PLACE.search(place):
            return None
        path = place[len(base) :]
        return path if all(step not in ("", ".", "..") for step in path.split("/")) else None

    def place_for(self, namespace: str, name: str, uuid: str) -> str:
        """Where a new table lives. The uuid makes it unique: no table ever finds the files of one that was before."""
        steps = [fit(level) for level in namespace.split(SEPARATOR)]
        return "/".join([self.uri.rstrip("/"), *steps, f"{fit(name)}-{uuid}"])


def warehouse_uri(root: str, cluster: str) -> str:
    """Where the tables of a cluster lie, in the folder or bucket of its records."""
    return f"{root}/{cluster}/tables"


def fit(name: str) -> str:
    """A name as one step of a path that every store and engine takes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].lstrip(".") or "_"
