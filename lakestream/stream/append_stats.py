"""The appender's counters, for the metrics."""

from lakestream.metrics import ACK_SECONDS, Histogram


class AppendStats:
    """Plain figures that metrics read."""

    __slots__ = ("ack_seconds", "acked_batches", "acked_bytes", "acked_records", "failed_ticks", "ticks")

    def __init__(self) -> None:
        self.ticks = 0
        self.acked_batches = 0
        self.acked_bytes = 0
        self.acked_records = 0
        self.failed_ticks = 0
        self.ack_seconds = Histogram(ACK_SECONDS.buckets)
