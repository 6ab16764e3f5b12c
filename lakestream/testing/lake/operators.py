"""Operators that request care of tables as `lakestream tables` does: by a command, again if its answer is lost."""

import asyncio

from lakestream.errors import Rejected
from lakestream.model.catalog.care import CareRequest, RequestCare
from lakestream.model.reasons import Reason
from lakestream.testing.lake.care_witness import RowRange
from lakestream.testing.lake.cluster import LakeCluster
from lakestream.testing.simulation.clients import Client
from lakestream.testing.simulation.ledger import Violation

PAUSE_S = (0.1, 2.0)
ANSWERED_S = 60.0
KINDS = ("optimize", "optimize", "expire", "orphans", "delete", "delete", "repair")


class Operator(Client):
    """Requests random care at random times until `stopped`."""

    def __init__(self, cluster: LakeCluster, name: str, topics: list[bytes]) -> None:
        super().__init__(cluster, name)
        self.lake = cluster
        self.stopped = False
        self._topics = topics

    async def run(self) -> None:
        while not self.stopped:
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            if not self.stopped:
                await self.request(self.chance.choice(self._topics), self.chance.choice(KINDS))

    async def request(self, topic_id: bytes, kind: str, **arguments: str) -> bytes:
        """Note a request in the state; returns the request's id."""
        request = self.chance.randbytes(16)
        if not arguments:
            arguments = self._arguments(request, topic_id, kind)
        body = RequestCare(request, topic_id, kind, arguments)
        try:
            await self.ask(lambda node: node.propose(body))
        except Rejected as error:
            if error.reason not in (Reason.UNKNOWN_TOPIC, Reason.CARE_FULL):
                raise Violation(f"{self.name} may request {kind}, but was refused: {error}") from error
        return request

    async def answer(self, request: bytes) -> CareRequest:
        """Wait for the request's end. Raises Violation if it takes more than ANSWERED_S."""
        deadline = self.cluster.loop.time() + ANSWERED_S
        while True:
            one = self.lake.auditor.state.care.requests[request]
            if one.over:
                return one
            if self.cluster.loop.time() > deadline:
                raise Violation(f"a request was not answered in {ANSWERED_S} s: {one}")
            await asyncio.sleep(0.1)

    def _arguments(self, request: bytes, topic_id: bytes, kind: str) -> dict[str, str]:
        match kind:
            case "optimize":
                return {"all": "true"} if self.chance.random() < 0.5 else {}
            case "expire":
                return {"older_than_ms": self.chance.choice(("0", "500", "3000"))}
            case "delete":
                streams = self.lake.auditor.state.topics.by_id[topic_id].streams
                partition = self.chance.randrange(len(streams))
                end = self.lake.auditor.state.streams.by_id[streams[partition]].next
                start = self.chance.randint(0, end)
                span = RowRange(partition, start, start + self.chance.randint(1, 8))
                self.lake.witness.care.spans[request] = span
                return {"where": span.where}
        return {}
