"""How the command log is shared: which process opens it, which others reach it, and by which address.

The setting `metadata` is the address: a scheme, a colon, and the place. STORES has one entry for each scheme. A new
store is a module in metadata/stores/ and an entry here.

    memory:        the only broker holds the log in its memory, and no other process reaches it
    sqlite:        one process opens the file, and others reach the log through the Unix socket of that process:
                   a single broker opens it itself, and shares it with the pipeline;
                   several brokers and the pipeline share a process that only owns the file
    owner:         every process of the machine opens the address, which is the socket of the process that has the file

A store that processes reach over a network is shared like `owner:`. This module imports no store before it opens one,
since the time to the ready line counts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lakestream.errors import Unusable
from lakestream.interfaces import CommandLog, RepairableLog
from lakestream.process.clock import SystemClock
from lakestream.settings import Settings, SettingsError, sqlite_path

if TYPE_CHECKING:
    from lakestream.metadata.stores.owner import Owner


class Access(Enum):
    """Which processes can open one log at the same time."""

    ONE_BROKER = "the broker whose memory holds it"
    ONE_PROCESS = "one process, which may share it through a socket"
    EVERY_PROCESS = "every process that has the address"


@dataclass(frozen=True, slots=True)
class LogStore:
    """One kind of command log."""

    access: Access
    open: Callable[[str], Awaitable[CommandLog]]
    """Opens the log at an address. Raises Retry if another process has it."""


async def _open_memory(_address: str) -> CommandLog:
    from lakestream.metadata.stores.memory import MemoryLog, MemoryLogStore

    return MemoryLog(MemoryLogStore())


async def _open_sqlite(address: str) -> CommandLog:
    from lakestream.metadata.stores.sqlite import SqliteLog

    path = sqlite_path(address)
    assert path is not None, "the scheme was looked at"
    path.parent.mkdir(parents=True, exist_ok=True)
    return await SqliteLog.open(path, clock=SystemClock())


async def _open_socket(address: str) -> CommandLog:
    from lakestream.metadata.stores.socket_client import SocketLog

    return await SocketLog.open(address.removeprefix("owner:"))


STORES = {
    "sqlite": LogStore(Access.ONE_PROCESS, _open_sqlite),
    "memory": LogStore(Access.ONE_BROKER, _open_memory),
    "owner": LogStore(Access.EVERY_PROCESS, _open_socket),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSharing:
    """How the processes that `serve` starts share the command log."""

    broker_address: str
    pipeline_address: str
    owned_file: Path | None = None
    """The file that a process of its own owns. That process starts before the brokers, and stops after them."""
    broker_socket: str = ""
    """The socket at which the single broker shares the log that it opens. The pipeline stops before the broker."""


def log_sharing(settings: Settings, socket: str) -> LogSharing:
    """The sharing that these settings ask for; `socket` is a path that is free."""
    own, shared = settings.metadata, f"owner:{socket}"
    if _store(settings).access is not Access.ONE_PROCESS:
        return LogSharing(broker_address=own, pipeline_address=own)
    if settings.brokers > 1:
        return LogSharing(broker_address=shared, pipeline_address=shared, owned_file=log_file(settings))
    if settings.tables:
        return LogSharing(broker_address=own, pipeline_address=shared, broker_socket=socket)
    return LogSharing(broker_address=own, pipeline_address=own)


def log_file(settings: Settings) -> Path | None:
    """The file that holds the command log; None if no file of this machine does."""
    return sqlite_path(settings.metadata)


def check_command_log(settings: Settings) -> None:
    """Raises SettingsError if no store has the address, or if its store cannot serve these processes."""
    alone = _store(settings).access is Access.ONE_BROKER
    if alone and settings.brokers > 1:
        raise SettingsError("memory: serves one broker only, since processes share no memory; use a folder and sqlite:")
    if alone and settings.tables:
        raise SettingsError("tables need a store that Spark can read too, and memory: is none; use a folder or s3://")


async def open_command_log(settings: Settings) -> CommandLog:
    """The command log at the address in `metadata`."""
    return await _store(settings).open(settings.metadata)


async def open_repairable_log(settings: Settings) -> RepairableLog:
    """The command log for an operator's tool. Raises Retry if a process has the log open."""
    opened = await open_command_log(settings)
    if not hasattr(opened, "blank"):
        raise Unusable(f"the command log {settings.metadata} cannot be repaired from here")
    return cast(RepairableLog, opened)


async def share_command_log(command_log: CommandLog, socket: str) -> "Owner":
    """Serve the log that this process has open at `socket`, until the result is closed."""
    from lakestream.metadata.stores.owner import Owner
    from lakestream.metadata.stores.sqlite import SqliteLog

    assert isinstance(command_log, SqliteLog), "only a log that one process opens is shared"
    return await Owner.serve(command_log, socket)


def _store(settings: Settings) -> LogStore:
    scheme = settings.metadata.partition(":")[0]
    if scheme not in STORES:
        raise SettingsError(f"metadata: {settings.metadata!r} is no URL we know; use sqlite:///path or memory:")
    return STORES[scheme]
