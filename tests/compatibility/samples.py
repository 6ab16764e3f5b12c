"""Records that exercise what a record can be."""

from tests.compatibility.clients.face import Client, Record, Stored

NOON_MS = 1_700_000_000_000


def samples(client: Client, base_ms: int = NOON_MS) -> list[Record]:
    """Nulls, empties, bytes that are no text, headers with repeated names, sizes on both sides of length limits."""
    found = [
        Record(key=b"key", value=b"value", timestamp_ms=base_ms),
        Record(key=None, value=b"no key", timestamp_ms=base_ms + 1),
        Record(key=b"no value", value=None, timestamp_ms=base_ms + 2),
        Record(key=b"", value=b"", timestamp_ms=base_ms + 3),
        Record(key=b"\x00\xff\xfe", value=bytes(range(256)), timestamp_ms=base_ms + 5),
        Record(key=b"out of order", value=b"earlier", timestamp_ms=base_ms + 4),
        Record(
            key=b"headers", value=b"v", timestamp_ms=base_ms + 6,
            headers=(("a", b"1"), ("b", b""), ("a", b"2"), ("\u00fcber", b"\xff\x00")),
        ),
        Record(key=b"k" * 63, value=b"v" * 64, timestamp_ms=base_ms + 7),
        Record(key=b"k" * 8191, value=b"v" * 8192, timestamp_ms=base_ms + 8),
        Record(key=b"large", value=b"0123456789abcdef" * 20_000, timestamp_ms=base_ms + 9),
    ]  # fmt: skip
    if client.nulls:
        found.append(Record(key=None, value=None, timestamp_ms=base_ms + 10, headers=(("none", None), ("x", b"y"))))
    return found


def as_produced(stored: Stored) -> Record:
    """What a producer must have sent for a consumer to see this."""
    return Record(
        key=stored.key, value=stored.value, headers=stored.headers, timestamp_ms=stored.timestamp_ms,
        partition=stored.partition,
    )  # fmt: skip
