"""A simulated cluster whose topics are tables: brokers with history and catalog, pipelines, and one warehouse."""

from random import Random

from lakestream.testing.faults import FaultyLog, FaultyWal
from lakestream.testing.lake.pipeline_node import GRACE_S, EngineFaults, PipelineClasses, PipelineNode, PipelineOptions
from lakestream.testing.lake.record_ledger import RecordLedger
from lakestream.testing.lake.table_store import FaultyTables
from lakestream.testing.lake.table_witness import AuditedTables, TableWitness
from lakestream.testing.simulation.cluster import ClusterFaults, MemberProcess, Seat, SimulatedCluster
from lakestream.testing.simulation.event_loop import Process, SimClock, SimulatedLoop
from lakestream.testing.simulation.node import Classes, NodeOptions


class LakeCluster(SimulatedCluster):
    """The brokers, the pipelines, their stores, and the witnesses."""

    ledger: RecordLedger

    def __init__(
        self, loop: SimulatedLoop, seed: int | str, brokers: int, faults: ClusterFaults, options: NodeOptions,
        classes: Classes, pipeline: PipelineOptions, pipeline_classes: PipelineClasses,
    ) -> None:  # fmt: skip
        super().__init__(loop, seed, brokers, faults, options, classes)
        self.ledger = RecordLedger()
        self.tables = AuditedTables(self.wal, self.violations.append, int(GRACE_S * 1000))
        self.tables.now_ms = SimClock(loop).wall_ms
        self.witness = TableWitness(self.tables, self.auditor, self.ledger, self.violations.append)
        self.engine_faults = pipeline.engine
        self._pipeline = pipeline
        self._pipeline_classes = pipeline_classes
        self.pipelines = [
            Seat(member, SimClock(loop, self.chance.randint(-faults.skew_ms, faults.skew_ms)), f"pipeline-{number}")
            for number, member in enumerate(pipeline.members)
        ]
        self.pipeline_nodes: dict[str, PipelineNode] = {}
        """The latest pipeline of each seat, by the seat's name."""

    @property
    def all_seats(self) -> list[Seat]:
        return [*self.seats, *self.pipelines]

    def _make_member(self, seat: Seat, process: Process) -> MemberProcess:
        log_link = self._link("log", self.faults.log, seat, process)
        wal_link = self._link("wal", self.faults.wal, seat, process)
        tables_link = self._link("tables", self.faults.tables, seat, process)
        seat.links = (log_link, wal_link, tables_link)
        tables = FaultyTables(self.tables, tables_link)
        if seat in self.seats:
            seat.node = self._broker(seat, process, log_link, wal_link, tables)
            return seat.node
        process.separate_pools = True
        node = self.pipeline_nodes[seat.name] = PipelineNode(
            seat.id,
            FaultyLog(self.log, log_link),
            FaultyWal(self.wal, wal_link),
            tables,
            seat.clock,
            Random(f"node-{process.name}-{self.seed}"),
            self._pipeline,
            self._pipeline_classes,
        )
        node.engine.faults = self.engine_faults
        return node

    def heal(self) -> None:
        super().heal()
        self.engine_faults = EngineFaults()
        for node in self.pipeline_nodes.values():
            node.engine.faults = self.engine_faults

    def replace_pipelines(self) -> None:
        """Replace the pipelines by new ones with right clocks, which may remove the files that the old ones left."""
        for seat in self.pipelines:
            seat.clock.skew_ms = 0
            self.kill(seat)
        self.tables.grace_ms = 0  # the operator's requests at the end remove files without a grace
