"""The header of a Kafka v2 record batch: where its fields lie, reading them, and the few that a broker writes.

     0 baseOffset i64       8 batchLength i32 (of all that follows it)   12 partitionLeaderEpoch i32   16 magic i8
    17 crc u32 (CRC32C of byte 21 to the end)   21 attributes i16   23 lastOffsetDelta i32   27 baseTimestamp i64
    35 maxTimestamp i64    43 producerId i64   51 producerEpoch i16   53 baseSequence i32   57 recordCount i32
    61 records

The base offset and the leader epoch lie outside the CRC, so that they can be stamped into a batch without reading its
records.
"""

import struct
from enum import IntEnum

from fastcrc import crc32

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
PREFIX_SIZE = 12
"""baseOffset and batchLength, which batchLength does not count."""
MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
CHECKED_POSITION = 21
"""Where the attributes begin, and with them what the CRC covers."""
MAX_TIMESTAMP_POSITION = 35
LEADER_EPOCH = 0
"""Never changes, so that no client sees a truncation when its broker changes (L7)."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER = -1


class Codec(IntEnum):
    """How the records of a batch are compressed, as the low bits of its attributes say it."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Fault(IntEnum):
    """Why a batch is refused: the reason of a `Rejected`. The numbers lie apart from those of model/reasons.py."""

    CORRUPT = 101
    """The bytes are not what the producer sent, or no batch at all: CRC, length, compressed body."""
    NOT_ONE_BATCH = 102
    """No batch, a part of one, several, or one of an old format."""
    INVALID_RECORD = 103
    """The bytes arrived as sent, but header and records contradict each other or the rules for producers."""
    UNSUPPORTED_COMPRESSION = 104
    TOO_LARGE = 105
    INVALID_TIMESTAMP = 106
    INVALID_EPOCH = 107
    NO_KEY = 108
    """Records without keys in a topic that is compacted by keys."""


class BatchInfo:
    """The fields of a batch that an append needs. Slots, since one is made for each batch of the hot path."""

    __slots__ = (
        "attributes",
        "base_sequence",
        "count",
        "length",
        "max_timestamp",
        "min_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        count: int,
        length: int,
        attributes: int,
        min_timestamp: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
    ) -> None:
        self.count = count
        self.length = length
        self.attributes = attributes
        self.min_timestamp = min_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def control(self) -> bool:
        return self.attributes & CONTROL != 0

    def __repr__(self) -> str:
        return f"BatchInfo({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


def length_of(view: memoryview, start: int) -> int:
    """The whole length of the batch at `start`, as its header says."""
    return int(_INT32.unpack_from(view, start + 8)[0]) + PREFIX_SIZE


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int) -> None:
    """Write the base offset, and the leader epoch (L7), into the batch at `position`. The CRC covers neither."""
    # Two short writes are faster than reading the length between them and writing all 16 bytes.
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + 12, LEADER_EPOCH)


def restamp_log_append_time(buffer: bytearray | memoryview, start: int, length: int, timestamp: int) -> None:
    """Give every record of the batch one broker's time (L19).

    As Kafka does it: the type in the attributes, the time as maxTimestamp; the base timestamp stays as produced.
    """
    attributes = _INT16.unpack_from(buffer, start + CHECKED_POSITION)[0]
    _INT16.pack_into(buffer, start + CHECKED_POSITION, attributes | LOG_APPEND_TIME)
    restamp_max_timestamp(buffer, start, length, timestamp)


def restamp_max_timestamp(buffer: bytearray | memoryview, start: int, length: int, timestamp: int) -> None:
    """Write another maxTimestamp and do the CRC again."""
    _INT64.pack_into(buffer, start + MAX_TIMESTAMP_POSITION, timestamp)
    _UINT32.pack_into(buffer, start + CRC_POSITION, checksum(memoryview(buffer), start, length))


def give_append_time(buffer: bytearray | memoryview, start: int, length: int, timestamp: int) -> None:
    """If a broker stamped the batch, give it this append time (L19)."""
    stamped = buffer[start + CHECKED_POSITION + 1] & LOG_APPEND_TIME
    if stamped and _INT64.unpack_from(buffer, start + MAX_TIMESTAMP_POSITION)[0] != timestamp:
        restamp_max_timestamp(buffer, start, length, timestamp)


def checksum(view: memoryview, start: int, length: int) -> int:
    """The CRC32C that belongs into the header of the batch at `start`."""
    return crc32.iscsi(view[start + CHECKED_POSITION : start + length])


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
