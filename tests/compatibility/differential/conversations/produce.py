"""Produce and InitProducerId: what is taken, what is refused, and with which offsets."""

import struct
from typing import Any

from lakestream.model.batches import header as layout
from lakestream.model.batches.header import checksum
from tests.compatibility.differential.entities import plain
from tests.compatibility.differential.peer import BY_NAME, NO_SUCH_ID, MadeTopic, Talk, versions
from tests.support.raw_records import RawRecord, encode

PLAIN = (-1, -1, -1)
TIME = 1_700_000_000_000


def batch(
    *values: bytes | None, producer: tuple[int, int, int] = PLAIN, codec: int = 0, time: int = TIME, **changed: int
) -> bytes:
    """A batch of these values; `changed` overwrites fields of its header, its checksum made right again."""
    made = [RawRecord(offset=index, timestamp=time + index, key=b"k", value=one) for index, one in enumerate(values)]
    return rewritten(encode(made, producer=producer, codec=codec), **changed)


POSITIONS = {
    "base_offset": (">q", 0), "length": (">i", 8), "magic": (">b", 16), "crc": (">I", 17), "attributes": (">h", 21),
    "last_delta": (">i", 23), "max_timestamp": (">q", 35), "count": (">i", 57),
}  # fmt: skip


def rewritten(data: bytes, **changed: int) -> bytes:
    copy = bytearray(data)
    for name, value in changed.items():
        struct.pack_into(POSITIONS[name][0], copy, POSITIONS[name][1], value)
    if changed and "crc" not in changed:
        struct.pack_into(">I", copy, layout.CRC_POSITION, checksum(memoryview(copy), 0, len(copy)))
    return bytes(copy)


def data(topic: MadeTopic, *records: bytes | None, partition: int = 0) -> list[dict[str, Any]]:
    """What a Produce request carries for one topic."""
    return [{**topic.ref, "partition_data": [{"index": partition, "records": one} for one in records]}]


def send(talk: Talk, topic: MadeTopic, records: bytes | None, note: str, version: int = -1, **fields: Any) -> Any:
    given = {"acks": -1, "timeout": 5000, **fields}
    return talk.ask("Produce", version, note, topic_data=data(topic, records), **given)


def ends(talk: Talk, topic: MadeTopic) -> None:
    talk.ask("ListOffsets", -1, "the end", topics=[{**topic.ref, "partitions": [{"timestamp": -1}]}], replica_id=-1)


def acks(talk: Talk) -> None:
    topic = talk.topic()
    for version in versions("Produce"):
        for count in (1, -1):
            send(talk, topic, batch(b"a", b"b"), f"acks={count}", version, acks=count)
        for count in (2, -2, 32767):
            send(talk, topic, batch(b"a"), f"acks={count}", version, acks=count)
    for version in versions("Produce"):
        talk.unanswered("Produce", version, "acks=0", acks=0, timeout=1000, topic_data=data(topic, batch(b"z")))
    ends(talk, topic)


def acks_0_of_what_is_wrong(talk: Talk) -> None:
    topic = talk.topic()
    nowhere = MadeTopic("nowhere", NO_SUCH_ID)
    for note, given in (
        ("unknown topic", data(nowhere, batch(b"z"))),
        ("bad checksum", data(topic, batch(b"z", crc=7))),
        ("unknown partition", data(topic, batch(b"z"), partition=9)),
    ):
        talk.unanswered("Produce", 9, f"acks=0 {note}", acks=0, timeout=1000, topic_data=given)


def unknown_places(talk: Talk) -> None:
    topic = talk.topic()
    nowhere = MadeTopic("nowhere", NO_SUCH_ID)
    for version in versions("Produce"):
        for partition in (1, -1, 99):
            talk.ask(
                "Produce", version, f"partition {partition}", acks=1, timeout=1000,
                topic_data=data(topic, batch(b"a"), partition=partition),
            )  # fmt: skip
        send(talk, nowhere, batch(b"a"), "unknown topic", version)
        talk.ask("Produce", version, "nothing", acks=1, timeout=1000, topic_data=[])
        talk.ask("Produce", version, "no partitions", acks=1, timeout=1000, topic_data=data(topic))
        both = [*data(nowhere, batch(b"a")), *data(topic, batch(b"a"))]
        talk.ask("Produce", version, "one of two", acks=1, timeout=1000, topic_data=both)
    for name in ("", "a b", "x" * 250):
        send(talk, MadeTopic(name, None), batch(b"a"), f"{name!r:.8}", 12)
    send(talk, MadeTopic("", None), batch(b"a"), "zero id", 13)


def a_partition_twice(talk: Talk) -> None:
    twice = data(talk.topic(), batch(b"first"), batch(b"second"))
    talk.each("Produce", "a partition twice", acks=1, timeout=1000, topic_data=twice)


def odd_records(talk: Talk) -> None:
    topic = talk.topic()
    good = batch(b"one", b"two", b"three")
    cases: dict[str, bytes | None] = {
        "empty": b"",
        "two batches": good + good,
        "checksum": batch(b"a", crc=7),
        "magic 0": batch(b"a", magic=0),
        "magic 1": batch(b"a", magic=1),
        "magic 3": batch(b"a", magic=3),
        "magic -1": batch(b"a", magic=-1),
        "cut off": good[:-1],
        "cut off in the header": good[:40],
        "garbage": b"x" * 100,
        "a few bytes": b"abc",
        "length 0": batch(b"a", length=0),
        "length too long": batch(b"a", length=1000),
        "count too high": batch(b"a", count=2),
        "count 0": batch(b"a", count=0),
        "count -1": batch(b"a", count=-1),
        "last delta too high": batch(b"a", last_delta=5),
        "base offset": batch(b"a", base_offset=77),
        "max timestamp": batch(b"a", max_timestamp=5),
        "control": batch(b"a", attributes=0x20),
        "transactional": batch(b"a", attributes=0x10),
        "unknown attributes": batch(b"a", attributes=0x100),
        "codec 5": batch(b"a", attributes=5),
        "not gzip": batch(b"a", attributes=1),
        "trailing byte": rewritten(good + b"x", length=len(good) - 11),
        "null value": batch(None),
    }
    for note, records in cases.items():
        send(talk, topic, records, note)
    for version in versions("Produce"):
        send(talk, topic, batch(b"a", crc=7), "checksum", version)
        send(talk, topic, batch(b"a", count=2), "count too high", version)
    ends(talk, topic)


def bytes_behind_a_batch(talk: Talk) -> None:
    topic = talk.topic()
    send(talk, topic, batch(b"a") + b"xyz", "something behind")
    send(talk, topic, batch(b"a") + batch(b"b")[:30], "half a batch behind")


def what_only_brokers_set(talk: Talk) -> None:
    topic = talk.topic()
    send(talk, topic, batch(b"a", attributes=8), "log append time")
    send(talk, topic, batch(b"a", attributes=0x40), "delete horizon")
    stamped = talk.topic(message_timestamp_type="LogAppendTime")
    send(talk, stamped, batch(b"a", attributes=8), "log append time, which the topic has")


def codecs(talk: Talk) -> None:
    topic = talk.topic()
    for codec in range(5):
        send(talk, topic, batch(b"a" * 100, b"b", codec=codec), f"codec {codec}")
    for version in (3, 6, 7):
        send(talk, topic, batch(b"a", codec=4), "zstd", version)
    ends(talk, topic)


def sizes(talk: Talk) -> None:
    topic = talk.topic(max_message_bytes=200)
    room = 200 - len(batch(b""))
    for size in (room - 2, room - 1, room, room + 1, room + 2, 1000):
        for version in (3, 13):
            send(talk, topic, batch(b"v" * size), f"{size - room} more than the limit", version)
    ends(talk, topic)


def times(talk: Talk) -> None:
    strict = talk.topic(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    for version in versions("Produce"):
        send(talk, strict, batch(b"a", time=TIME), "too old", version)
        send(talk, strict, batch(b"a", b"b", time=4_000_000_000_000), "too new", version)
        send(talk, strict, batch(b"a", time=-1), "none", version)
    usual = talk.topic()
    send(talk, usual, batch(b"a", time=4_000_000_000_000), "far in the future")
    send(talk, usual, batch(b"a", time=0), "1970")
    send(talk, usual, batch(b"a", time=-1), "no time")
    send(talk, usual, batch(b"a", time=-100), "before 1970")
    stamped = talk.topic(message_timestamp_type="LogAppendTime")
    for version in versions("Produce"):
        send(talk, stamped, batch(b"a", b"b"), "LogAppendTime", version)
    for topic in (strict, usual, stamped):
        ends(talk, topic)
    talk.ask(
        "Fetch", 12, "stamped", min_bytes=1, max_wait=1000, max_bytes=10000,
        topics=[{**stamped.ref, "partitions": [{"partition_max_bytes": 10000}]}],
    )  # fmt: skip


def keys_of_compacted_topics(talk: Talk) -> None:
    for policy in ("compact", "compact,delete"):
        topic = talk.topic(cleanup_policy=policy)
        for version in versions("Produce"):
            for codec in (0, 1):
                for keys in ((b"k", b""), (b"k", None), (None,), (None, b"k", None)):
                    made = [RawRecord(offset=i, timestamp=TIME, key=key, value=b"v") for i, key in enumerate(keys)]
                    send(talk, topic, encode(made, producer=PLAIN, codec=codec), f"codec {codec}, keys {keys}", version)
        ends(talk, topic)


def idempotence(talk: Talk) -> None:
    topic = talk.topic(partitions=2)
    (producer, *_) = (one.producer_id for one in talk.each("InitProducerId", transaction_timeout=60000))

    def sent(note: str, epoch: int, sequence: int, count: int = 2, who: int = producer) -> None:
        send(talk, topic, batch(*[b"x"] * count, producer=(who, epoch, sequence)), note)

    sent("first", 0, 0)
    sent("first again", 0, 0)
    sent("second", 0, 2)
    sent("a gap", 0, 6)
    sent("first, late", 0, 0)
    sent("overlap", 0, 3)
    sent("same start, other count", 0, 2, 3)
    for number in range(6):
        sent(f"more {number}", 0, 4 + 2 * number)
    sent("a duplicate within five", 0, 8)
    sent("a duplicate before five", 0, 0)
    sent("new epoch, not from 0", 1, 5)
    sent("new epoch", 1, 0)
    sent("old epoch", 0, 16)
    sent("new epoch, first again", 1, 0)
    sent("epoch skipped", 7, 0)
    sent("negative sequence", 7, -1)
    sent("negative sequence -5", 7, -5)
    sent("negative epoch", -1, 0)
    for version in versions("Produce"):
        records = batch(b"x", producer=(producer, 0, 3))
        send(talk, topic, records, "old epoch", version)
        send(talk, topic, batch(b"x", producer=(producer, 7, 99)), "gap", version)
        send(talk, topic, batch(b"x", b"y", producer=(producer, 7, 0)), "duplicate", version)
    ends(talk, topic)


def producers_that_nobody_knows(talk: Talk) -> None:
    topic = talk.topic()
    for who, epoch, sequence in ((77001, 0, 0), (77002, 0, 5), (77003, 4, 0), (77004, 4, 9), (77005, 0, 2147483647)):
        send(talk, topic, batch(b"x", producer=(who, epoch, sequence)), f"{who}")
    send(talk, topic, batch(b"x", b"y", producer=(77005, 0, 0)), "around the end of sequences")
    send(talk, topic, batch(b"x", b"y", producer=(77006, 0, 2147483647)), "a batch around the end")
    send(talk, topic, batch(b"x", b"y", producer=(77006, 0, 1)), "behind it")
    send(talk, topic, batch(b"x", producer=(-1, 0, 0)), "no id, but a sequence")
    send(talk, topic, batch(b"x", producer=(-2, 0, 0)), "id -2")
    send(talk, topic, batch(b"x", producer=(77008, -3, 0)), "epoch -3")
    send(talk, topic, batch(b"x", producer=(77009, 0, -3)), "sequence -3")
    ends(talk, topic)


def a_producer_without_an_epoch(talk: Talk) -> None:
    send(talk, talk.topic(), batch(b"x", producer=(77007, -1, 0)), "epoch -1")


def pipelined(talk: Talk) -> None:
    """Many requests at once, good and bad ones mixed: answered in order, each by itself."""
    api, topic = BY_NAME["Produce"], talk.topic(partitions=2)
    bad = {3: batch(b"x", crc=7), 9: batch(b"x", base_offset=5), 14: batch(b"x", attributes=0x20), 15: b""}
    for version in versions("Produce"):
        connection = talk.connect()
        for number in range(20):
            records = bad.get(number, batch(b"%d" % number))
            fields = {"acks": 0 if number == 6 else -1, "timeout": 5000, "topic_data": data(topic, records)}
            connection.send(api, version, fields)
        for number in range(20):
            if number != 6:
                header, answer = connection.receive(api, version)
                talk.note(f"Produce v{version} number {number}", [header.correlation_id, plain(answer)])


def init_producer_id(talk: Talk) -> None:
    talk.each("InitProducerId", transaction_timeout=60000)
    talk.each("InitProducerId", "no timeout", transaction_timeout=0)
    talk.each("InitProducerId", "empty transactional id", transactional_id="", transaction_timeout=60000)
    for who, epoch in ((5, 0), (5, -1), (-1, 5), (10**9, 3), (-2, -2)):
        talk.ask(
            "InitProducerId", 5, f"known {who} {epoch}", transaction_timeout=60000, producer_id=who,
            producer_epoch=epoch,
        )  # fmt: skip
    talk.each("InitProducerId", "transactional id", transactional_id="t", transaction_timeout=60000)


def transactional_requests(talk: Talk) -> None:
    topic = talk.topic()
    for version in versions("Produce"):
        send(talk, topic, batch(b"a"), "plain records", version, transactional_id="t")
        records = batch(b"a", producer=(880001, 0, 0), attributes=0x10)
        send(talk, topic, records, "transactional records", version, transactional_id="t")


CONVERSATIONS = (
    acks, acks_0_of_what_is_wrong, unknown_places, a_partition_twice, odd_records, bytes_behind_a_batch,
    what_only_brokers_set, codecs, sizes, times, keys_of_compacted_topics, idempotence, producers_that_nobody_knows,
    a_producer_without_an_epoch, pipelined, init_producer_id, transactional_requests,
)  # fmt: skip
