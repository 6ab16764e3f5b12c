"""The only check of a produced batch: no header that contradicts its records is ever appended.

What is checked is what Kafka's broker checks, and a little more where Kafka leaves a lie to the consumers.
"""

from fastcrc import crc32

from lakestream.errors import Rejected
from lakestream.model.batches import header
from lakestream.model.batches.compression import decompress
from lakestream.model.batches.header import (
    CHECKED_POSITION,
    CODEC_MASK,
    HEADER_SIZE,
    MAGIC,
    PREFIX_SIZE,
    BatchInfo,
    Fault,
)
from lakestream.model.kernels import record_loops
from lakestream.model.kernels.pointers import address_of

_unpack_header = header.HEADER.unpack_from
_check_records = record_loops.check_records
_iscsi = crc32.iscsi
_LEAST_SIZE = PREFIX_SIZE + 14
"""Of a message of the oldest format."""
_NOT_FOR_PRODUCERS = header.LOG_APPEND_TIME | header.CONTROL | header.DELETE_HORIZON


def check_batch(
    view: memoryview, start: int, length: int, address: int, max_decompressed: int, keyed: bool = False
) -> BatchInfo:
    """Check the producer's batch at `start` of `view`, whose first byte lies at `address`. Raises Rejected (Fault).

    `keyed`: every record has to have a key. A wrong maxTimestamp is corrected in place, as Kafka does: Sarama's
    producers left it at -1 for years.
    """
    if length < HEADER_SIZE or start + length > len(view):
        raise _no_batch(view, start, length)
    (
        base_offset, batch_length, _, magic, crc, attributes, last_delta, base_timestamp, max_timestamp, producer_id,
        epoch, sequence, count,
    ) = _unpack_header(view, start)  # fmt: skip
    if magic != MAGIC or batch_length != length - PREFIX_SIZE:
        raise _no_batch(view, start, length)
    if base_offset:
        raise Rejected(Fault.INVALID_RECORD, f"the base offset is {base_offset}: a producer leaves it at 0")
    if crc != _iscsi(view[start + CHECKED_POSITION : start + length]):
        raise Rejected(Fault.CORRUPT, "CRC mismatch")
    if attributes & _NOT_FOR_PRODUCERS:
        _refuse_attributes(attributes)
    if count < 1 or last_delta != count - 1:
        raise Rejected(Fault.INVALID_RECORD, f"{count} records with a last offset delta of {last_delta}")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        fault = Fault.INVALID_EPOCH if epoch < 0 else Fault.INVALID_RECORD
        raise Rejected(fault, f"producer {producer_id} with epoch {epoch}, sequence {sequence}")
    if attributes & CODEC_MASK:
        body = decompress(attributes & CODEC_MASK, view[start + HEADER_SIZE : start + length], max_decompressed)
        at, size = address_of(body), len(body)
    else:
        at, size = address + start + HEADER_SIZE, length - HEADER_SIZE
    wrong, least, greatest = _check_records(at, size, count, base_timestamp)
    if wrong:
        raise Rejected(Fault.INVALID_RECORD, _WRONG[wrong])
    if keyed and not record_loops.all_keyed(at, size, count):
        raise Rejected(Fault.NO_KEY, "a topic that is compacted takes no record without a key")
    if greatest != max_timestamp:
        if view.readonly:
            raise Rejected(Fault.INVALID_RECORD, f"maxTimestamp is {max_timestamp}, the records' is {greatest}")
        header.restamp_max_timestamp(view, start, length, greatest)
    return BatchInfo(count, length, attributes, least, greatest, producer_id, epoch, sequence)


def _no_batch(view: memoryview, start: int, length: int) -> Rejected:
    """The fault in the frame of a batch, in Kafka's terms: impossible sizes and formats are corruption."""
    length = min(length, len(view) - start)
    size = header.length_of(view, start) if length >= PREFIX_SIZE else _LEAST_SIZE
    magic = view[start + header.MAGIC_POSITION] if length > header.MAGIC_POSITION else MAGIC
    if size < _LEAST_SIZE or magic > MAGIC or (magic == MAGIC and size < HEADER_SIZE and size <= length):
        return Rejected(Fault.CORRUPT, f"a batch of {size} bytes in record format {magic}")
    if magic != MAGIC:
        return Rejected(Fault.NOT_ONE_BATCH, f"record format {magic}; only format {MAGIC} is taken")
    return Rejected(Fault.NOT_ONE_BATCH, f"one whole batch was expected: it says {size} bytes of {length}")


def _refuse_attributes(attributes: int) -> None:
    if attributes & header.CONTROL:
        raise Rejected(Fault.INVALID_RECORD, "producers do not write control records")
    if attributes & header.LOG_APPEND_TIME:
        raise Rejected(Fault.INVALID_TIMESTAMP, "producers do not set the timestamp type to LogAppendTime")
    raise Rejected(Fault.INVALID_RECORD, "producers do not set a delete horizon")


_WRONG = {
    record_loops.BAD_VARINT: "a varint that is too long",
    record_loops.OUT_OF_BOUNDS: "a record, or a part of it, runs over its end",
    record_loops.BAD_LENGTH: "a negative length",
    record_loops.BAD_OFFSET_DELTA: "offset deltas that do not count up from 0",
    record_loops.BAD_TIMESTAMP: "a timestamp beyond 64 bits",
    record_loops.BYTES_LEFT_OVER: "bytes after the last record, or after a record's last field",
}
