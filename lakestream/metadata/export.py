"""The whole state for a tool that checks it from outside: one consistent moment, and where the bytes of it lie."""

import msgspec

from lakestream.errors import Corrupt
from lakestream.metadata.checkpoint import dump_in_a_fork
from lakestream.metadata.replica import Replica

STATE_PATH = "/metadata/state"
"""Where a broker's HTTP port gives it out."""


class Exported(msgspec.Struct, frozen=True, array_like=True):
    """A state as a checkpoint's bytes, the URI of the folder or bucket of the cluster, and the collector's patience."""

    root: str
    collected_after_ms: int
    """A WAL object that nobody needs is gone after so long, if the collector works."""
    checkpoint: bytes


async def export(replica: Replica, root: str, collected_after_ms: int) -> bytes:
    """The state, folded to the end of the log first. Raises Retry."""
    await replica.catch_up()
    return msgspec.msgpack.encode(Exported(root, collected_after_ms, await dump_in_a_fork(replica.state)))


def unpack_export(data: bytes) -> Exported:
    try:
        return msgspec.msgpack.decode(data, type=Exported)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"this is no exported state: {error}") from error
