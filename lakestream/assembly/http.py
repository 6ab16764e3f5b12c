"""The HTTP listener on top of the core, and the figures that it publishes."""

import socket
from collections.abc import Callable

from lakestream.assembly.core import Core
from lakestream.assembly.kafka import KafkaParts
from lakestream.assembly.publishing import publish_server, publish_state, publish_streams
from lakestream.metadata.checkpoint import dump_in_a_fork
from lakestream.metadata.command_pages import command_page
from lakestream.metadata.describe import describe_brokers, describe_state
from lakestream.metadata.export import Exports
from lakestream.metrics import Metrics
from lakestream.protocol.http.guard import host_names
from lakestream.protocol.http.limits import HttpLimits
from lakestream.protocol.http.server import HttpServer, HttpSources
from lakestream.settings import Settings, data_uri

ROUND_MS = 15_000
"""The duration of one round of the collector, which lists a bucket and deletes."""


def build_http(core: Core, kafka: KafkaParts, metrics: Metrics, ready: Callable[[], str | None]) -> HttpServer:
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
    """The allowed host names: those of the settings, and the machine's own."""
    own = settings.http_host, settings.advertised_host, settings.kafka_host, socket.gethostname()
    return HttpLimits(
        hosts=host_names([*own, *settings.http_allowed_hosts.split(",")]),
        connections=settings.http_max_connections,
        connections_per_address=settings.http_max_connections_per_address,
        body_bytes=settings.http_body_bytes,
    )


def collected_after_ms(settings: Settings) -> int:
    """The age at which a dead WAL object is certainly gone: two rounds of the collector after its grace."""
    return settings.collector_grace_ms + 2 * (settings.collector_interval_ms + ROUND_MS)
