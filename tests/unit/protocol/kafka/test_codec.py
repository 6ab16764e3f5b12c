"""The rules of the compiled codec that no single message shows."""

import pytest

from lakestream.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lakestream.protocol.kafka.messages.membership import HeartbeatRequest, JoinGroupResponse
from lakestream.protocol.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
)
from lakestream.protocol.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.apis import APIS, decode_request, encode_response
from lakestream.protocol.kafka.wire.framing import Malformed

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")


def test_a_field_that_the_version_does_not_have_is_left_out_and_reads_as_its_default() -> None:
    data = codec.encode(HeartbeatRequest(group_id="g", member_id="m", group_instance_id="i"), 2, flexible=False)
    assert codec.decode(HeartbeatRequest, 2, False, data).group_instance_id is None
    data = codec.encode(HeartbeatRequest(group_id="g", member_id="m", group_instance_id="i"), 3, flexible=False)
    assert codec.decode(HeartbeatRequest, 3, False, data).group_instance_id == "i"


def test_null_is_written_as_empty_where_the_version_has_no_null() -> None:
    answer = JoinGroupResponse(protocol_name=None)
    assert codec.decode(JoinGroupResponse, 6, True, codec.encode(answer, 6, True)).protocol_name == ""
    assert codec.decode(JoinGroupResponse, 7, True, codec.encode(answer, 7, True)).protocol_name is None


def test_null_is_malformed_where_the_version_has_no_null() -> None:
    null_list = b"\xff\xff\xff\xff"
    assert codec.decode(MetadataRequest, 1, False, null_list).topics is None
    with pytest.raises(Malformed):
        codec.decode(MetadataRequest, 0, False, null_list)


def test_bytes_behind_a_message_are_malformed() -> None:
    data = codec.encode(HEARTBEAT, 4, flexible=True)
    assert codec.decode(HeartbeatRequest, 4, True, data) == HEARTBEAT
    with pytest.raises(Malformed, match="1 bytes too many"):
        codec.decode(HeartbeatRequest, 4, True, data + b"\0")


def test_text_that_is_not_utf8_is_malformed() -> None:
    data = codec.encode(HEARTBEAT, 0, flexible=False)
    with pytest.raises(Malformed):
        codec.decode(HeartbeatRequest, 0, False, data.replace(b"g", b"\xff"))


def test_unknown_tagged_fields_are_stepped_over() -> None:
    data = codec.encode(HEARTBEAT, 4, flexible=True)
    assert data[-1] == 0
    tags = b"\2" + b"\0\3abc" + b"\x99\1\0"
    assert codec.decode(HeartbeatRequest, 4, True, data[:-1] + tags) == HEARTBEAT


@pytest.mark.parametrize("tags", [b"\1", b"\1\0", b"\1\0\5abc", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff"])
def test_broken_tagged_fields_are_malformed(tags: bytes) -> None:
    with pytest.raises(Malformed):
        codec.decode(HeartbeatRequest, 4, True, codec.encode(HEARTBEAT, 4, True)[:-1] + tags)


def test_a_known_tagged_field_must_be_as_long_as_it_says() -> None:
    data = codec.encode(ApiVersionsResponse(zk_migration_ready=True), 3, flexible=True)
    assert data.endswith(b"\1\3\1\1")
    with pytest.raises(Malformed):
        codec.decode(ApiVersionsResponse, 3, True, data[:-2] + b"\2\1\1")


def test_tagged_fields_at_their_defaults_are_not_written() -> None:
    plain = codec.encode(ApiVersionsResponse(), 3, flexible=True)
    assert plain[-1] == 0
    answer = ApiVersionsResponse(
        finalized_features_epoch=7, finalized_features=[FinalizedFeatureKey(name="group.version", max_version_level=1)]
    )
    assert codec.decode(ApiVersionsResponse, 3, True, codec.encode(answer, 3, True)) == answer


def test_more_items_than_any_client_sends_are_malformed_though_the_frame_holds_them() -> None:
    count = 2_000_000
    with pytest.raises(Malformed):
        codec.decode(MetadataRequest, 0, False, count.to_bytes(4, "big") + bytes(2 * count))


def test_records_are_a_view_of_the_frame() -> None:
    partition = PartitionProduceData(index=1, records=b"batch")
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    frame = codec.encode(request, 9, flexible=True)
    records = codec.decode(ProduceRequest, 9, True, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    assert records.tobytes() == b"batch"


def test_the_source_of_a_version_can_be_read_by_a_person() -> None:
    assert "m.current_leader_epoch" not in codec.source("encode", FetchPartition, 8, False)
    assert "m.current_leader_epoch" in codec.source("encode", FetchPartition, 9, False)
    assert "rack_id" in codec.source("decode", FetchRequest, 11, False)


def test_a_request_is_read_from_behind_its_header_and_answered_with_a_whole_frame() -> None:
    api = APIS[1]
    request = FetchRequest(max_wait_ms=5, topics=[FetchTopic(topic_id=bytes(range(16)))])
    frame = b"header" + codec.encode(request, 16, flexible=True)
    assert decode_request(api, 16, memoryview(frame), 6) == request


def test_the_response_header_of_api_versions_never_has_tags() -> None:
    answer = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    for version in range(5):
        frame = bytes(encode_response(APIS[18], version, 99, answer))
        assert frame[:8] == (len(frame) - 4).to_bytes(4, "big") + (99).to_bytes(4, "big")
        assert frame[8:] == codec.encode(answer, version, flexible=version >= 3)


def test_flexible_responses_have_a_header_with_tags() -> None:
    frame = bytes(encode_response(APIS[3], 9, 99, APIS[3].response()))
    assert frame[4:9] == (99).to_bytes(4, "big") + b"\0"


def test_produce_below_version_3_is_advertised_but_not_read() -> None:
    assert APIS[0].min_version == 0
    assert [version for version in range(-1, 15) if APIS[0].reads(version)] == list(range(3, 14))
