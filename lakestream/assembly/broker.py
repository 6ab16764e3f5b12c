"""Settings to running parts: the only file that names concrete backends, and where everything is put together."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING

from lakestream.assembly.command_log import open_command_log, share_command_log
from lakestream.assembly.publishing import publish_server, publish_state, publish_streams, publish_upkeep
from lakestream.broker import Broker, Parts
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.checkpoint import dump_in_a_fork
from lakestream.metadata.command_pages import command_page
from lakestream.metadata.describe import describe_brokers, describe_state
from lakestream.metadata.export import Exports
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.metrics import Metrics
from lakestream.model.commands import Register
from lakestream.model.configs import kafka_names, topic_defaults
from lakestream.model.kernels import record_loops
from lakestream.model.levels import NEWEST
from lakestream.process import allocator
from lakestream.process.clock import SystemClock, system_random
from lakestream.process.garbage import keep_collections_short, sweep_now_and_then
from lakestream.process.readiness import Announcement, announce
from lakestream.protocol.http.guard import host_names
from lakestream.protocol.http.limits import HttpLimits
from lakestream.protocol.http.server import HttpServer, HttpSources
from lakestream.protocol.kafka.acls import AclApis
from lakestream.protocol.kafka.configs import ConfigApis
from lakestream.protocol.kafka.connections.calls import Handler
from lakestream.protocol.kafka.connections.server import KafkaServer
from lakestream.protocol.kafka.creation import TokenBucket, TopicMaker
from lakestream.protocol.kafka.fetch import FetchApi
from lakestream.protocol.kafka.fetch_sessions import Sessions
from lakestream.protocol.kafka.group_offsets import GroupOffsetApis
from lakestream.protocol.kafka.groups import GroupApis
from lakestream.protocol.kafka.metadata import MetadataApis
from lakestream.protocol.kafka.offsets import OffsetApis
from lakestream.protocol.kafka.produce import ProduceApi
from lakestream.protocol.kafka.producers import ProducerApis
from lakestream.protocol.kafka.replicas import ReplicaApis
from lakestream.protocol.kafka.topic_partitions import TopicPartitionApis
from lakestream.protocol.kafka.topics import TopicApis
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.answer_budget import AnswerRoom
from lakestream.settings import Settings, data_folder, data_uri
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.groups.coordinator import GroupCoordinator
from lakestream.stream.groups.lags import GroupLags
from lakestream.stream.groups.offsets import GroupOffsets
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.long_topics import LongTopics
from lakestream.stream.housekeeping.merging import MoveLimits
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.housekeeping.retention import Expiry, Retention
from lakestream.stream.housekeeping.upkeep import Schedule, Upkeep
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.rules import Rules
from lakestream.stream.waiting import Waiting

if TYPE_CHECKING:
    from lakestream.assembly.lake import Lake

log = logging.getLogger(__name__)

PRODUCE = 0
ROUND_MS = 15_000
"""What a round of the collector may take itself: it lists a bucket, and deletes."""
SWITCH_S = 0.001
"""A write that is done should not wait 5 ms, Python's default, until a busy event loop lets its thread go on."""


async def open_wal(settings: Settings) -> Wal:
    """The place for bytes that `data` names."""
    if settings.data == "memory:":
        from lakestream.data.memory import MemoryWal

        return MemoryWal()
    folder = data_folder(settings)
    if folder is not None:
        from lakestream.data.folder import FolderWal

        return FolderWal(folder, clock=SystemClock())
    from lakestream.data.opening import open_object_store

    return await open_object_store(settings.data, linger_ms=settings.linger_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The layers below the protocols, put together and not yet running."""

    settings: Settings
    clock: Clock
    random: Random
    command_log: CommandLog
    wal: Wal
    replica: Replica
    cache: Cache
    appender: Appender
    reader: Reader
    waiting: Waiting
    rules: Rules
    membership: Membership
    lake: "Lake | None"


async def build_core(settings: Settings, broker_id: int) -> Core:
    clock, random = SystemClock(), system_random()
    command_log = await open_command_log(settings)
    wal = await open_wal(settings)
    replica = Replica(command_log, wal, clock, broker_id)
    cache = Cache(settings.cache_bytes)
    lake = build_lake(settings, replica, clock, random)
    history = lake.history if lake is not None else None
    append_limits = AppendLimits(
        tick_bytes=settings.tick_max_bytes,
        under_way_bytes=settings.memory_bytes // 2,
        uploads=settings.ticks_in_flight if wal.linger_ms else 1,
    )
    return Core(
        settings=settings,
        clock=clock,
        random=random,
        command_log=command_log,
        wal=wal,
        replica=replica,
        cache=cache,
        appender=Appender(replica, wal, cache, clock, append_limits),
        reader=Reader(replica, wal, cache, ReadLimits(cache_bytes=settings.cache_bytes), history),
        waiting=Waiting(replica),
        rules=Rules(replica, topic_defaults(kafka_names(asdict(settings).items()))),
        membership=Membership(replica, clock, random, about(settings), timing(settings)),
        lake=lake,
    )


def build_lake(settings: Settings, replica: Replica, clock: Clock, random: Random) -> "Lake | None":
    """What tables need, where there are any; else nothing of it is even imported."""
    if not settings.tables:
        return None
    from lakestream.assembly.lake import Lake

    return Lake(settings, replica, clock, random)


def about(settings: Settings) -> Register:
    """How this broker introduces itself; incarnation and cluster are filled in when it registers."""
    host, port = settings.advertised_host or settings.kafka_host, settings.advertised_port or settings.kafka_port
    http = f"{settings.http_host}:{settings.http_port}"
    return Register(b"", "", "broker", host, port, http, os.getpid(), NEWEST)


def timing(settings: Settings) -> Timing:
    return Timing(
        heartbeat_s=settings.broker_heartbeat_ms / 1000,
        session_s=settings.broker_session_ms / 1000,
        checkpoint_commands=settings.checkpoint_every,
        checkpoint_bytes=settings.checkpoint_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """The Kafka protocol on top of the core."""

    server: KafkaServer
    produce: ProduceApi
    fetch: FetchApi
    groups: GroupCoordinator


def build_kafka(core: Core) -> Kafka:
    settings, replica = core.settings, core.replica
    shown = kafka_names(asdict(settings).items())
    per_minute = TokenBucket(core.clock, settings.auto_create_topics_per_minute)
    maker = TopicMaker(replica, shown, core.random, per_minute, settings.auto_create_topics_per_request)
    groups = GroupCoordinator(replica, settings, core.clock, core.random, lambda: core.membership.current)
    offsets = GroupOffsets(replica, groups)
    produce = ProduceApi(replica, core.appender, core.rules, core.clock)
    named = settings.max_fetch_session_partitions
    sessions = Sessions(core.random, core.clock, most_partitions=named)
    room = AnswerRoom(settings.fetch_max_bytes, settings.memory_bytes, lambda: server.unsent_bytes)
    fetch = FetchApi(replica, core.reader, core.waiting, sessions, core.clock, room)
    handlers: dict[int, Handler] = {}
    metadata = MetadataApis(replica, maker, lambda: [PRODUCE, *handlers])
    for family in (
        metadata,
        fetch,
        TopicApis(replica, maker, shown),
        ConfigApis(replica, shown),
        OffsetApis(replica, core.reader),
        ProducerApis(replica),
        GroupApis(replica, groups, offsets),
        GroupOffsetApis(replica, offsets, settings.offset_metadata_max_bytes),
        TopicPartitionApis(replica),
        ReplicaApis(replica, data_uri(settings), data_folder(settings)),
        AclApis(),
    ):
        handlers |= family.handlers()
    server = KafkaServer(handlers, produce, limits(settings), core.clock, metadata.unsupported_version)
    return Kafka(server=server, produce=produce, fetch=fetch, groups=groups)


def limits(settings: Settings) -> Limits:
    return Limits(
        max_frame_bytes=settings.socket_request_max_bytes,
        memory_bytes=settings.memory_bytes,
        unsent_bytes=settings.memory_bytes,
        max_connections=settings.max_connections,
        idle_timeout_s=settings.connections_max_idle_ms / 1000,
    )


def build_http(core: Core, kafka: Kafka, metrics: Metrics, ready: Callable[[], str | None]) -> HttpServer:
    replica, lake = core.replica, core.lake
    publish_server(metrics, kafka.server)
    publish_streams(metrics, core.appender, kafka.produce, kafka.fetch, core.cache)
    publish_state(metrics, replica, ready)
    if lake is not None:
        lake.publish(metrics)
    about_data = data_uri(core.settings), collected_after_ms(core.settings)
    exports = Exports(replica, dump_in_a_fork, core.clock, core.random, about_data)
    sources = HttpSources(
        ready=ready,
        brokers=lambda: describe_brokers(replica.state),
        metadata=lambda: describe_state(replica.state),
        commands=lambda after, limit, wait_s: command_page(core.command_log, after, limit, wait_s),
        metrics=metrics,
        mounts={"/iceberg": lake.catalog} if lake is not None else {},
        tail=lake.tail if lake is not None else None,
        state=exports.page,
        tails=lake.tails if lake is not None else None,
        tables=lake.table_sources() if lake is not None else None,
    )
    return HttpServer(sources, core.settings.http_host, core.settings.http_port, http_limits(core.settings))


def http_limits(settings: Settings) -> HttpLimits:
    """The names that this broker has in the settings are its own, and so is the machine's."""
    own = settings.http_host, settings.advertised_host, settings.kafka_host, socket.gethostname()
    return HttpLimits(
        hosts=host_names([*own, *settings.http_allowed_hosts.split(",")]),
        connections=settings.http_max_connections,
        connections_per_address=settings.http_max_connections_per_address,
        body_bytes=settings.http_body_bytes,
    )


def collected_after_ms(settings: Settings) -> int:
    """When a WAL object that nobody needs is certainly gone: two rounds of the collector after its grace."""
    return settings.collector_grace_ms + 2 * (settings.collector_interval_ms + ROUND_MS)


def build_upkeep(core: Core, mover: Mover, metrics: Metrics) -> Upkeep:
    settings = core.settings
    collector = Collector(core.replica, core.command_log, core.wal, core.cache, settings.collector_grace_ms)
    collector.emptied = lambda: asyncio.to_thread(allocator.give_back)
    expiry = Expiry(producers_ms=settings.producer_id_expiration_ms, offsets_ms=settings.offsets_retention_ms)
    retention = Retention(core.replica, core.rules.of, core.clock, expiry)
    lags = GroupLags(core.replica)
    publish_upkeep(metrics, collector, retention, mover, lags)
    schedule = Schedule(
        collect_s=settings.collector_interval_ms / 1000, retention_s=settings.log_retention_check_interval_ms / 1000
    )
    purge = core.lake.purge if core.lake is not None else None
    return Upkeep(core.membership, collector, retention, mover, schedule, LongTopics(core.replica), purge, lags)


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
    kafka = build_kafka(core)
    metrics = Metrics()
    http = build_http(core, kafka, metrics, lambda: broker.ready())
    mover = Mover(core.replica, core.wal, core.cache, core.rules.of, MoveLimits())
    upkeep = build_upkeep(core, mover, metrics)
    broker = Broker(
        Parts(
            command_log=core.command_log,
            wal=core.wal,
            replica=core.replica,
            membership=core.membership,
            appender=core.appender,
            waiting=core.waiting,
            kafka=kafka.server,
            http=http,
            background=[
                kafka.groups.run,
                upkeep.run,
                lambda: sweep_now_and_then(lambda: core.appender.stats.ticks, core.clock),
            ],
            before_drain=kafka.groups.stop,
            dump=dump_in_a_fork,
        ),
        settings.drain_ms / 1000,
    )
    core.membership.settled = lambda: (core.appender.settled(), mover.settled())
    kafka.server.close_connections()
    await kafka.server.start(settings.kafka_host, settings.kafka_port)
    await http.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, broker.stop)

    def on_ready() -> None:
        me = about(settings)
        log.info("serving kafka=%s:%d http=%s", me.host, me.port, me.http)
        if core.lake is None and any(stream.landed for stream in core.replica.state.streams.by_id.values()):
            log.warning("some records are in tables only and cannot be read: start with --tables")
        keep_collections_short()
        if ready_fd is not None:
            announce(ready_fd, Announcement(broker_id, f"{me.host}:{me.port}", me.http, os.getpid()))

    code = await broker.run(on_ready)
    if sharing is not None:
        await sharing.close()
    if core.lake is not None:
        await core.lake.history.close()
    return code
