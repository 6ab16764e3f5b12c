"""Settings to a running broker: its parts are put together, and it runs until it is stopped."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from lakestream.assembly.command_log import share_command_log
from lakestream.assembly.core import Core, build_core
from lakestream.assembly.http import build_http
from lakestream.assembly.kafka import build_kafka
from lakestream.assembly.publishing import publish_upkeep
from lakestream.broker import Broker, Listener, Parts
from lakestream.metadata.checkpoint import dump_in_a_fork
from lakestream.metrics import Metrics
from lakestream.model.kernels import record_loops
from lakestream.process import allocator
from lakestream.process.garbage import keep_collections_short, sweep_now_and_then
from lakestream.process.readiness import Announcement, announce
from lakestream.settings import Settings
from lakestream.stream.groups.lags import GroupLags
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.long_topics import LongTopics
from lakestream.stream.housekeeping.merging import MoveLimits
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.housekeeping.retention import Expiry, Retention
from lakestream.stream.housekeeping.upkeep import Upkeep, UpkeepSchedule

log = logging.getLogger(__name__)

SWITCH_S = 0.001
"""With Python's default, 5 ms, a thread whose write is done waits that long for a busy event loop."""


def run(settings: Settings, broker_id: int, ready_fd: int | None = None, log_socket: str = "") -> int:
    """Run one broker in this process until SIGTERM; returns its exit code. `log_socket`: shares its command log."""
    import uvloop

    allocator.tune_allocator()
    sys.setswitchinterval(SWITCH_S)
    record_loops.warm()
    allocator.release_compiler_pages()
    return uvloop.run(_run(settings, broker_id, ready_fd, log_socket))


async def _run(settings: Settings, broker_id: int, ready_fd: int | None, log_socket: str) -> int:
    core = await build_core(settings, broker_id)
    sharing = await share_command_log(core.command_log, log_socket) if log_socket else None
    kafka, metrics = build_kafka(core), Metrics()
    http = build_http(core, kafka, metrics, lambda: broker.ready())
    broker = build_broker(core, [kafka.server, http], metrics)
    await broker.listen()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, broker.stop)

    def on_ready() -> None:
        log.info("serving kafka=%s http=%s", kafka.server.address, http.address)
        _warn_of_missing_tables(core)
        keep_collections_short()
        if ready_fd is not None:
            announce(ready_fd, Announcement(broker_id, kafka.server.address, http.address, os.getpid()))

    code = await broker.run(on_ready)
    if sharing is not None:
        await sharing.close()
    if core.lake is not None:
        await core.lake.history.close()
    return code


def build_broker(core: Core, listeners: Sequence[Listener], metrics: Metrics) -> Broker:
    """The broker with everything that runs beside its listeners."""
    mover = Mover(core.replica, core.wal, core.cache, core.rules.of, MoveLimits())
    core.membership.settled = lambda: (core.appender.settled(), mover.settled())
    upkeep = build_upkeep(core, mover, metrics)
    groups = core.streams.groups
    return Broker(
        Parts(
            command_log=core.command_log,
            wal=core.wal,
            replica=core.replica,
            membership=core.membership,
            appender=core.appender,
            waiting=core.waiting,
            listeners=listeners,
            background=[
                groups.run,
                upkeep.run,
                lambda: sweep_now_and_then(lambda: core.appender.stats.ticks, core.clock),
            ],
            before_drain=groups.stop,
            dump=dump_in_a_fork,
        ),
        core.settings.drain_ms / 1000,
    )


def build_upkeep(core: Core, mover: Mover, metrics: Metrics) -> Upkeep:
    settings = core.settings
    collector = Collector(core.replica, core.command_log, core.wal, core.cache, settings.collector_grace_ms)
    collector.on_cache_empty = lambda: asyncio.to_thread(allocator.give_back)
    expiry = Expiry(producers_ms=settings.producer_id_expiration_ms, offsets_ms=settings.offsets_retention_ms)
    retention = Retention(core.replica, core.rules.of, core.clock, expiry)
    lags = GroupLags(core.replica)
    publish_upkeep(metrics, collector, retention, mover, lags)
    schedule = UpkeepSchedule(
        collect_s=settings.collector_interval_ms / 1000, retention_s=settings.log_retention_check_interval_ms / 1000
    )
    purge = core.lake.purge if core.lake is not None else None
    return Upkeep(core.membership, collector, retention, mover, schedule, LongTopics(core.replica), purge, lags)


def _warn_of_missing_tables(core: Core) -> None:
    if core.lake is None and any(stream.landed for stream in core.replica.state.streams.by_id.values()):
        log.warning("some records are in tables only and cannot be read: start with --tables")
