"""The leader of a partition in responses of Produce and Fetch to a client that asked the wrong broker."""

from lakestream.protocol.kafka.messages.types import Int32, message


@message
class LeaderIdAndEpoch:
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@message
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
