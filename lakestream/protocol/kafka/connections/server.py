"""The Kafka listener. It knows no API: handlers are given to it, by API key."""

import logging
from collections.abc import Mapping

from lakestream.interfaces import Clock
from lakestream.protocol.kafka.connections.calls import Handler, ProduceHandler
from lakestream.protocol.kafka.connections.connection import Connection
from lakestream.protocol.kafka.connections.shared_board import KafkaBoard
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.client_warnings import ClientWarnings
from lakestream.protocol.serving.server import ConnectionServer

log = logging.getLogger(__name__)


class KafkaServer(ConnectionServer):
    """Kafka's protocol on one address.

    `unsupported_version` answers ApiVersions of a version that we do not know: it is called with version 0 in its
    context and None as the request, and returns an ApiVersionsResponse with error 35.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        produce: ProduceHandler,
        limits: Limits,
        clock: Clock,
        unsupported_version: Handler | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        address: str = "",
    ) -> None:
        board = KafkaBoard(
            limits=limits,
            handlers=handlers,
            produce=produce,
            unsupported_version=unsupported_version,
            warnings=ClientWarnings(clock, log),
        )
        super().__init__(board, lambda: Connection(board), clock, log, host=host, port=port, address=address)
