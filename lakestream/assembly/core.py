"""Settings to the layers below the protocols: state, write-ahead log, streams, groups, tables."""

import os
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING

from lakestream.assembly.command_log import open_command_log
from lakestream.assembly.wal import open_wal
from lakestream.interfaces import Clock, CommandLog, Wal
from lakestream.metadata.membership import Membership, Timing
from lakestream.metadata.replica import Replica
from lakestream.model.commands import Register
from lakestream.model.configs import kafka_names, topic_defaults
from lakestream.model.levels import NEWEST
from lakestream.process.clock import SystemClock, system_random
from lakestream.settings import Settings
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.groups.coordinator import GroupCoordinator
from lakestream.stream.limits import AppendLimits, ReadLimits
from lakestream.stream.reader import Reader
from lakestream.stream.rules import Rules
from lakestream.stream.streams import FrontDoor
from lakestream.stream.waiting import Waiting

if TYPE_CHECKING:
    from lakestream.assembly.lake import Lake


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
    waiting: Waiting
    streams: FrontDoor
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
    appender = Appender(replica, wal, cache, clock, append_limits)
    reader = Reader(replica, wal, cache, ReadLimits(cache_bytes=settings.cache_bytes), history)
    waiting = Waiting(replica)
    rules = Rules(replica, topic_defaults(kafka_names(asdict(settings).items())))
    membership = Membership(replica, clock, random, about(settings), timing(settings))
    groups = GroupCoordinator(replica, settings, clock, random, lambda: membership.current)
    return Core(
        settings=settings,
        clock=clock,
        random=random,
        command_log=command_log,
        wal=wal,
        replica=replica,
        cache=cache,
        appender=appender,
        waiting=waiting,
        streams=FrontDoor(replica, appender, reader, waiting, rules, groups),
        rules=rules,
        membership=membership,
        lake=lake,
    )


def build_lake(settings: Settings, replica: Replica, clock: Clock, random: Random) -> "Lake | None":
    """The parts for tables; without the setting `tables` none of their modules is imported."""
    if not settings.tables:
        return None
    from lakestream.assembly.lake import Lake

    return Lake(settings, replica, clock, random)


def about(settings: Settings) -> Register:
    """The registration of this broker; incarnation and cluster are filled in later."""
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
