"""Consumers of one group in a simulation: they join, sync, send heartbeats and commit through the coordinator.

The auditor checks their commits as the commands are folded: generations never go back, and within a generation each
partition has one owner (L30).
"""

import asyncio

from lakestream.errors import Fenced, Rejected, Retry, Unknown
from lakestream.model.groups.membership import coordinator
from lakestream.model.groups.offsets import CommitOffsets
from lakestream.model.reasons import Reason
from lakestream.stream.groups.waiting_members import Joined, JoinRequest, MemberIdRequired, Synced, SyncRequest
from lakestream.testing.simulation.clients import Client
from lakestream.testing.simulation.cluster import SimulatedCluster, Wire
from lakestream.testing.simulation.ledger import Violation
from lakestream.testing.simulation.node import Node

SESSION_MS = 3_000
REBALANCE_MS = 4_000
JOIN_S = 12.0
LOOK_AGAIN = (Reason.NOT_COORDINATOR, Reason.COORDINATOR_UNAVAILABLE)
START_OVER = (Reason.UNKNOWN_GROUP_MEMBER, Reason.FENCED_INSTANCE, Reason.STALE_GENERATION, Reason.UNKNOWN_GROUP)


class GroupConsumer(Client):
    """One consumer of a group."""

    def __init__(
        self, cluster: SimulatedCluster, name: str, group: str, streams: list[int], instance: str | None
    ) -> None:
        super().__init__(cluster, name)
        self._group = group
        self._streams = streams
        self._instance = instance
        self._id = ""
        self._joined: Joined | None = None
        self._owned: list[int] = []

    @property
    def generation(self) -> int:
        """The generation that this consumer has joined; 0 while it is in none."""
        return self._joined.generation if self._joined is not None else 0

    async def run(self) -> None:
        while True:
            try:
                if self._joined is None:
                    await self._join()
                await self._work()
                await asyncio.sleep(self.chance.uniform(0.2, 0.8))
            except Rejected as error:
                self._handle_rejection(error)
                await asyncio.sleep(0.1)
            except (Retry, Unknown, Fenced):
                self.drop_wire()
                await asyncio.sleep(0.1)

    def _handle_rejection(self, error: Rejected) -> None:
        if isinstance(error, MemberIdRequired):
            self._id = error.member_id
        elif error.reason in LOOK_AGAIN:
            self.drop_wire()
        elif error.reason in START_OVER:
            self._id, self._joined = "", None
        elif error.reason == Reason.REBALANCING:
            self._joined = None
        else:
            raise Violation(f"{self.name} was refused for reason {error.reason}") from error

    async def _wire_to_coordinator(self) -> Wire:
        """A connection to the coordinator, as some broker's state names it; that state may be old."""
        if self._wire is None or self._wire.broken:
            found = await self.wire().call(self._find, self.timeout_s)
            self.drop_wire()
            if found is None:
                raise Retry("no broker coordinates the group")
            self._wire = Wire(self.cluster, self.cluster.seats[found], self.chance)
        return self._wire

    async def _find(self, node: Node) -> int | None:
        return coordinator(node.replica.state, self._group)

    async def _join(self) -> None:
        request = JoinRequest(
            group=self._group,
            member_id=self._id,
            instance=self._instance,
            client_id=self.name,
            client_host="host",
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[("range", b"")],
            needs_member_id=True,
            may_skip_assignment=True,
        )
        wire = await self._wire_to_coordinator()
        place: Joined = await wire.call(lambda node: node.groups.join(request), JOIN_S)
        self._id = place.member_id
        self._owned = await self._sync(wire, place)
        self._joined = place

    async def _sync(self, wire: Wire, place: Joined) -> list[int]:
        """Sync; the leader assigns the partitions, one to each member in turn."""
        shares: dict[str, list[int]] = {member_id: [] for member_id, _, _ in place.members}
        for index, stream in enumerate(self._streams if shares else []):
            list(shares.values())[index % len(shares)].append(stream)
        request = SyncRequest(
            group=self._group,
            generation=place.generation,
            member_id=place.member_id,
            instance=self._instance,
            protocol_type=None,
            protocol=None,
            assignments=[(member_id, bytes(share)) for member_id, share in shares.items()],
        )
        synced: Synced = await wire.call(lambda node: node.groups.sync(request), JOIN_S)
        return list(synced.assignment)

    async def _work(self) -> None:
        place = self._joined
        assert place is not None
        if self.chance.random() < 0.03:
            await asyncio.sleep(self.chance.uniform(2, 8))  # a zombie: the group may go on without it
        wire = await self._wire_to_coordinator()
        for stream in self._owned:
            offsets = [(stream, place.generation, -1, "")]
            body = CommitOffsets(self._group, place.generation, place.member_id, self._instance, offsets)
            await wire.call(lambda node, b=body: node.offsets.commit(b), self.timeout_s)  # type: ignore[misc]
        await wire.call(
            lambda node: node.groups.heartbeat(self._group, place.generation, place.member_id, self._instance),
            self.timeout_s,
        )
