"""The board of a Kafka server: adds the handlers to what connections of every protocol share."""

from collections.abc import Mapping

from lakestream.protocol.kafka.connections.calls import Handler, ProduceHandler, RunTaker, TakesRuns
from lakestream.protocol.kafka.wire import apis
from lakestream.protocol.serving.admission import Limits
from lakestream.protocol.serving.board import ConnectionBoard
from lakestream.protocol.serving.client_warnings import ClientWarnings


class KafkaBoard(ConnectionBoard):
    """Adds the handlers by API key; Produce has its own, which may take up runs of requests."""

    def __init__(
        self,
        *,
        limits: Limits,
        handlers: Mapping[int, Handler],
        produce: ProduceHandler,
        unsupported_version: Handler | None,
        warnings: ClientWarnings,
    ) -> None:
        super().__init__(limits, warnings)
        self.stats.requests[0] = 0
        self.handlers = handlers
        self.produce = produce
        self.take_run: RunTaker | None = produce.take_run if isinstance(produce, TakesRuns) else None
        self.unsupported_version = unsupported_version
        self.produce_versions = (max(apis.APIS[0].min_version, apis.APIS[0].readable_from), apis.APIS[0].max_version)
