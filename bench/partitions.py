"""Many partitions: the first record to each of 1,000 new ones, and metadata and produce with 10,000."""

import socket
import struct
import time

from bench.figures import Figure, at_most
from bench.frames import metadata_frame, receive
from bench.yard import Broker, Result, Yard, foreign

NEW = 1_000
MANY_TOPICS = 10


def measure(yard: Yard) -> list[Figure]:
    with yard.fresh() as broker:
        broker.start()
        ours, theirs = [], []
        for _ in range(yard.rounds):
            ours.append(_first_records(yard, broker))
            if yard.kafka is not None and not yard.quick:
                theirs.append(_first_records(yard, yard.kafka))
        figures = [
            Figure(
                name=f"first record to {NEW:,} partitions", unit="s", ours=[one["seconds"] for one in ours],
                bar=at_most(1), note=foreign(ours),
            ),
        ]  # fmt: skip
        if theirs:
            beside = [one["seconds"] for one in theirs]
            figures.append(
                Figure(
                    name=f"first record to {NEW:,} partitions", unit="s", ours=[one["seconds"] for one in ours],
                    base_name="Kafka", base=beside,
                )
            )  # fmt: skip
        return figures + _many(yard, broker)


def _first_records(yard: Yard, broker: Broker) -> Result:
    return _to_each(yard, broker, [yard.topic(broker, NEW)])


def _to_each(yard: Yard, broker: Broker, topics: list[str]) -> Result:
    return yard.client(broker, "each_partition", topics=topics, partitions=NEW, warm_topic=yard.topic(broker, 1))


def _many(yard: Yard, broker: Broker) -> list[Figure]:
    topics = [yard.topic(broker, NEW) for _ in range(MANY_TOPICS)]
    total = f"{NEW * MANY_TOPICS:,} partitions"
    answers = [_metadata_seconds(broker.bootstrap) for _ in range(3)]
    written = _to_each(yard, broker, topics)
    return [
        Figure(name=f"Metadata of {total}", unit="s", ours=answers, bar=at_most(1)),
        Figure(name=f"first record to {total}", unit="s", ours=[written["seconds"]], note=foreign([written])),
    ]


def _metadata_seconds(bootstrap: str) -> float:
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        begin = time.perf_counter()
        connection.sendall(metadata_frame(7))
        answer = receive(connection)
        seconds = time.perf_counter() - begin
    assert struct.unpack_from(">i", answer, 4) == (7,) and len(answer) > NEW * MANY_TOPICS * 10
    return seconds
