"""The hand-written paths of Produce and Fetch do what the compiled codec and kio do."""

from random import Random
from typing import Any

import pytest

from lakestream.protocol.kafka.messages import fetch, produce
from lakestream.protocol.kafka.wire import apis, codec, fast_answers, fast_requests
from tests.support.kio_codec import kio_bytes, kio_class, random_entity

PRODUCE, FETCH = apis.APIS[0], apis.APIS[1]
ROUNDS = 25
CORRELATION_ID = 1234567


def in_a_slab(frame: bytes) -> tuple[memoryview, int, int]:
    """The frame between others in one buffer, as it comes from a socket."""
    return memoryview(bytearray(b"\xff" * 50 + frame + b"\0" * 50)), 50, 50 + len(frame)


def header(version: int, client_id: bytes | None = b"rdkafka") -> bytes:
    """What stands between correlation id and body."""
    text = b"\xff\xff" if client_id is None else len(client_id).to_bytes(2, "big") + client_id
    return text + (b"\0" if version >= 9 else b"")


ReadProduce = tuple[str | None, int, int, list[tuple[fast_requests.Topic, list[tuple[int, bytes | None]]]]]


def as_read(request: fast_requests.ParsedProduce, view: memoryview) -> ReadProduce:
    """The request with the bytes of its records instead of their places."""
    topics = [
        (topic, [(index, None if size < 0 else bytes(view[start : start + size])) for index, start, size in partitions])
        for topic, partitions in request.topics
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


def as_tuples(request: produce.ProduceRequest, version: int) -> ReadProduce:
    return (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (
                topic.topic_id if version >= 13 else topic.name,
                [(p.index, None if p.records is None else bytes(p.records)) for p in topic.partition_data],
            )
            for topic in request.topic_data
        ],
    )


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_requests_are_read_as_the_codec_reads_them(version: int) -> None:
    parser = fast_requests.ProduceParser()
    for seed in range(ROUNDS):
        data = kio_bytes(random_entity(kio_class(PRODUCE, version, "request"), Random(seed)))
        expected = as_tuples(codec.decode(produce.ProduceRequest, version, version >= 9, data), version)
        view, pos, end = in_a_slab(data)
        assert as_read(fast_requests.parse_produce(view, pos, end, version), view) == expected
        view, pos, end = in_a_slab(header(version) + data)
        assert as_read(parser.parse(view, pos, end, version), view) == expected
        assert as_read(parser.parse(view, pos, end, version), view) == expected


def one_partition(version: int, topic: str, index: int, records: bytes | None) -> bytes:
    request = produce.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            produce.TopicProduceData(
                name=topic,
                topic_id=topic.encode().ljust(16),
                partition_data=[produce.PartitionProduceData(index=index, records=records)],
            )
        ],
    )
    return bytes(codec.encode(request, version, version >= 9))


@pytest.mark.parametrize("version", range(3, 14))
def test_a_connection_that_changes_its_mind_is_never_answered_from_the_remembered_prefix(version: int) -> None:
    rng = Random(version)
    parser = fast_requests.ProduceParser()
    sizes = [None, 0, 1, 126, 127, 128, 16382, 16383, 16384, (1 << 21) + 5]
    for _ in range(150):
        topic, client = rng.choice(["a", "b", "orders"]), rng.choice([None, b"", b"one", b"two"])
        size, index = rng.choice(sizes), rng.randrange(-1, 1 << 31)
        body = one_partition(version, topic, index, None if size is None else bytes(size))
        view, pos, end = in_a_slab(header(version, client) + body)
        request = parser.parse(view, pos, end, version)
        name: fast_requests.Topic = topic.encode().ljust(16) if version >= 13 else topic
        assert (request.acks, request.timeout_ms) == (-1, 30_000)
        ((got_name, ((got_index, _, got_size),)),) = request.topics
        assert (got_name, got_index, got_size) == (name, index, -1 if size is None else size)


def test_produced_records_are_named_by_their_place_in_the_receive_buffer() -> None:
    parser = fast_requests.ProduceParser()
    slab = bytearray(header(9) + one_partition(9, "t", 0, b"before"))
    for _ in range(2):
        _, start, size = parser.parse(memoryview(slab), 0, len(slab), 9).topics[0][1][0]
        assert slab[start : start + size] == b"before"


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 2), (0, 0), (1, 0)])
def test_produce_responses_are_those_of_the_codec(version: int, shape: tuple[int, int]) -> None:
    for seed in range(ROUNDS):
        rng = Random(seed)
        topics: list[tuple[fast_requests.Topic, list[fast_answers.Produced]]] = [
            (rng.randbytes(16) if version >= 13 else f"topic-{t}" * rng.choice([1, 30]), [
                fast_answers.Produced(
                    p, rng.choice([0, -1, 3]), rng.randrange(1 << 62), rng.choice([-1, 5]), rng.randrange(9),
                    rng.choice([None, None, "", "no", "x" * 200]), tuple(rng.sample(range(9), rng.choice([0, 0, 2]))),
                )
                for p in range(shape[1])
            ])
            for t in range(shape[0])
        ]  # fmt: skip
        throttle = rng.choice([0, 77])
        expected = produce.ProduceResponse(
            throttle_time_ms=throttle,
            responses=[
                produce.TopicProduceResponse(**named(topic, "name"), partition_responses=[
                    produce.PartitionProduceResponse(
                        index=p.partition, error_code=p.error_code, base_offset=p.base_offset,
                        log_append_time_ms=p.log_append_time_ms, log_start_offset=p.log_start_offset,
                        error_message=p.error_message, record_errors=[
                            produce.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=p.error_message)
                            for at in p.bad_records
                        ],
                    )
                    for p in partitions
                ])
                for topic, partitions in topics
            ],
        )  # fmt: skip
        frame = fast_answers.encode_produce_response(version, CORRELATION_ID, topics, throttle)
        assert frame == apis.encode_response(PRODUCE, version, CORRELATION_ID, expected)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_requests_are_read_as_the_codec_reads_them(version: int) -> None:
    for seed in range(ROUNDS):
        data = kio_bytes(random_entity(kio_class(FETCH, version, "request"), Random(seed)))
        request = codec.decode(fetch.FetchRequest, version, version >= 12, data)
        by_id = version >= 13
        expected = fast_requests.ParsedFetch(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=request.isolation_level,
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            topics=[(t.topic_id if by_id else t.topic, [wanted(p) for p in t.partitions]) for t in request.topics],
            forgotten=[(t.topic_id if by_id else t.topic, t.partitions) for t in request.forgotten_topics_data],
            rack_id=request.rack_id,
        )
        view, pos, end = in_a_slab(data)
        assert fast_requests.parse_fetch(view, pos, end, version) == expected


def wanted(p: fetch.FetchPartition) -> fast_requests.Wanted:
    return fast_requests.Wanted(
        p.partition,
        p.current_leader_epoch,
        p.fetch_offset,
        p.last_fetched_epoch,
        p.log_start_offset,
        p.partition_max_bytes,
    )


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_responses_are_those_of_the_codec(version: int) -> None:
    for seed in range(ROUNDS):
        rng = Random(seed)
        topics: list[tuple[fast_requests.Topic, list[fast_answers.FetchedPartition]]] = [
            (rng.randbytes(16) if version >= 13 else f"topic-{t}", [fetched(rng, p) for p in range(rng.randrange(4))])
            for t in range(rng.randrange(4))
        ]
        error, session = (rng.choice([0, 70]), rng.randrange(1 << 31)) if version >= 7 else (0, 0)
        expected = fetch.FetchResponse(
            throttle_time_ms=5,
            error_code=error,
            session_id=session,
            responses=[
                fetch.FetchableTopicResponse(
                    **named(topic, "topic"), partitions=[partition_data(p) for p in partitions]
                )
                for topic, partitions in topics
            ],
        )
        parts = fast_answers.encode_fetch_response(version, CORRELATION_ID, 5, error, session, topics)
        assert b"".join(parts) == apis.encode_response(FETCH, version, CORRELATION_ID, expected)


def fetched(rng: Random, index: int) -> fast_answers.FetchedPartition:
    aborted = rng.choice([None, [], [(1, 2)], [(rng.randrange(1 << 62), 9), (3, 4), (5, 6)]])
    records = [rng.randbytes(rng.choice([0, 1, 61, 128, 20_000])) for _ in range(rng.randrange(3))]
    return fast_answers.FetchedPartition(
        index, rng.choice([0, 1]), rng.randrange(1 << 62), 8, 7, records, aborted, rng.choice([-1, 2])
    )


def partition_data(p: fast_answers.FetchedPartition) -> fetch.PartitionData:
    aborted = p.aborted_transactions
    return fetch.PartitionData(
        partition_index=p.partition,
        error_code=p.error_code,
        high_watermark=p.high_watermark,
        last_stable_offset=p.last_stable_offset,
        log_start_offset=p.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [fetch.AbortedTransaction(producer_id=a, first_offset=b) for a, b in aborted],
        preferred_read_replica=p.preferred_read_replica,
        records=b"".join(p.records),
    )


def named(topic: fast_requests.Topic, field: str) -> dict[str, Any]:
    return {field: topic} if isinstance(topic, str) else {"topic_id": topic}


def test_fetched_records_are_handed_on_without_a_copy() -> None:
    batch = memoryview(bytes(1000))
    answer = fast_answers.FetchedPartition(0, 0, 1, 1, 0, [batch, batch])
    parts = fast_answers.encode_fetch_response(16, 1, 0, 0, 0, [(bytes(16), [answer])])
    assert [part is batch for part in parts] == [False, True, True, False]
