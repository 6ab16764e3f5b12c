"""The Kafka listener on top of the core."""

from dataclasses import asdict, dataclass

from lakestream.assembly.core import Core, about
from lakestream.model.configs import kafka_names
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
from lakestream.protocol.kafka.quotas import QuotaApis
from lakestream.protocol.kafka.replicas import ReplicaApis
from lakestream.protocol.kafka.topic_partitions import TopicPartitionApis
from lakestream.protocol.kafka.topics import TopicApis
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.answer_budget import AnswerBudget
from lakestream.settings import Settings, data_folder, data_uri

PRODUCE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaParts:
    """The Kafka listener, and the handlers whose figures are published."""

    server: KafkaServer
    produce: ProduceApi
    fetch: FetchApi


def build_kafka(core: Core) -> KafkaParts:
    settings, replica = core.settings, core.replica
    shown = kafka_names(asdict(settings).items())
    per_minute = TokenBucket(core.clock, settings.auto_create_topics_per_minute)
    maker = TopicMaker(replica, shown, core.random, per_minute, settings.auto_create_topics_per_request)
    streams = core.streams
    produce = ProduceApi(streams, core.clock)
    named = settings.max_fetch_session_partitions
    sessions = Sessions(core.random, core.clock, most_partitions=named)
    room = AnswerBudget(settings.fetch_max_bytes, settings.memory_bytes, lambda: server.unsent_bytes)
    fetch = FetchApi(streams, sessions, core.clock, room)
    handlers: dict[int, Handler] = {}
    metadata = MetadataApis(replica, maker, lambda: [PRODUCE, *handlers])
    for family in (
        metadata,
        fetch,
        TopicApis(replica, maker, shown),
        ConfigApis(replica, shown),
        OffsetApis(streams),
        ProducerApis(replica),
        GroupApis(streams),
        GroupOffsetApis(streams, settings.offset_metadata_max_bytes),
        TopicPartitionApis(replica),
        ReplicaApis(replica, data_uri(settings), data_folder(settings)),
        AclApis(),
        QuotaApis(),
    ):
        handlers |= family.handlers()
    me = about(settings)
    server = KafkaServer(
        handlers,
        produce,
        limits(settings),
        core.clock,
        metadata.unsupported_version,
        host=settings.kafka_host,
        port=settings.kafka_port,
        address=f"{me.host}:{me.port}",
    )
    return KafkaParts(server=server, produce=produce, fetch=fetch)


def limits(settings: Settings) -> Limits:
    return Limits(
        max_frame_bytes=settings.socket_request_max_bytes,
        memory_bytes=settings.memory_bytes,
        unsent_bytes=settings.memory_bytes,
        max_connections=settings.max_connections,
        idle_timeout_s=settings.connections_max_idle_ms / 1000,
    )
