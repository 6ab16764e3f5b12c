"""The protocol between brokers and the owner of a command log: frames and their payloads, without I/O.

The bytes are described in docs/formats/command-log.md.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from lakestream.errors import Corrupt, Halted, LakestreamError, Missing, NoRoom, Retry, Unknown
from lakestream.interfaces import CheckpointNote, Logged
from lakestream.metadata.stores.limits import MAX_APPEND_BYTES, MAX_APPEND_COMMANDS, PAGE_BYTES, PAGE_COMMANDS

PROTOCOL_VERSION = 1
MAGIC = b"LKCL"
MAX_REQUEST_BYTES = MAX_APPEND_BYTES + 4 * MAX_APPEND_COMMANDS + 1024
MAX_ANSWER_BYTES = max(PAGE_BYTES, 2 * MAX_APPEND_BYTES) + 4 * PAGE_COMMANDS + 1024
MAX_KEY_BYTES = 65_535

_HEAD = struct.Struct("<IBI")  # length of what follows the length, kind, request
_LENGTH = struct.Struct("<I")
_HELLO = struct.Struct("<4sHQ")  # magic, version, newest sequence (0 from a client)
_SEQUENCE = struct.Struct("<Q")
_APPEND = struct.Struct("<QI")  # after (or the first sequence), number of commands
_READ = struct.Struct("<QI")
_NOTE = struct.Struct("<QH")


class FrameKind(IntEnum):
    """Requests below 64, answers from there on."""

    HELLO = 0
    APPEND = 1
    READ = 2
    SAVE_CHECKPOINT = 3
    CHECKPOINTS = 4
    TRUNCATE = 5
    WELCOME = 64
    APPENDED = 65
    PAGE = 66
    NOTES = 67
    DONE = 68
    FAILED = 69
    NEWS = 70
    """Pushed, with request 0: the log now ends at this sequence."""


class Frame(NamedTuple):
    kind: int
    request: int
    payload: bytes


class Frames:
    """Cuts the bytes of a connection into frames."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._max_frame_bytes = max_frame_bytes

    def feed(self, data: bytes) -> None:
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next(self) -> Frame | None:
        """The next whole frame; None until it has arrived. Raises Corrupt if the bytes cannot be a frame."""
        start = self._position
        available = len(self._buffer) - start
        if available < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if not _HEAD.size - _LENGTH.size <= length <= self._max_frame_bytes:
            raise Corrupt(f"a frame of {length} bytes; the limit is {self._max_frame_bytes}")
        if available < _LENGTH.size + length:
            return None
        _, kind, request = _HEAD.unpack_from(self._buffer, start)
        self._position = start + _LENGTH.size + length
        return Frame(kind, request, bytes(memoryview(self._buffer)[start + _HEAD.size : self._position]))


def frame(kind: FrameKind, request: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(_HEAD.size - _LENGTH.size + len(payload), kind, request) + payload


def encode_hello(last: int = 0) -> bytes:
    return _HELLO.pack(MAGIC, PROTOCOL_VERSION, last)


def decode_hello(payload: bytes) -> int:
    """The newest sequence. Raises Halted for another version of the protocol, Corrupt for another protocol."""
    magic, version, last = _unpack(_HELLO, payload)
    if magic != MAGIC:
        raise Corrupt("this is not the protocol of a command log's owner")
    if version != PROTOCOL_VERSION:
        raise Halted(f"the other side speaks version {version} of the command log's protocol, not {PROTOCOL_VERSION}")
    return int(last)


def encode_sequence(sequence: int) -> bytes:
    return _SEQUENCE.pack(sequence)


def decode_sequence(payload: bytes) -> int:
    return int(_unpack(_SEQUENCE, payload)[0])


def encode_append(commands: Sequence[bytes], after: int) -> bytes:
    return _encode_commands(after, commands)


def decode_append(payload: bytes) -> tuple[list[bytes], int]:
    after, commands = _decode_commands(payload)
    return commands, after


def encode_read(after: int, limit: int) -> bytes:
    return _READ.pack(after, max(0, min(limit, PAGE_COMMANDS)))


def decode_read(payload: bytes) -> tuple[int, int]:
    after, limit = _unpack(_READ, payload)
    return after, limit


def encode_page(page: Sequence[Logged]) -> bytes:
    return _encode_commands(page[0][0] if page else 0, [command for _, command in page])


def decode_page(payload: bytes) -> list[Logged]:
    first, commands = _decode_commands(payload)
    return list(enumerate(commands, first))


def encode_notes(notes: Sequence[CheckpointNote]) -> bytes:
    encoded = []
    for note in notes:
        key = note.key.encode()
        if len(key) > MAX_KEY_BYTES:
            raise ValueError(f"a checkpoint's key of {len(key)} bytes; the limit is {MAX_KEY_BYTES}")
        encoded.append(_NOTE.pack(note.sequence, len(key)) + key)
    return b"".join(encoded)


def decode_notes(payload: bytes) -> list[CheckpointNote]:
    notes = []
    position = 0
    while position < len(payload):
        sequence, length = _unpack(_NOTE, payload, position)
        position += _NOTE.size + length
        if position > len(payload):
            raise Corrupt("a checkpoint's key is longer than its frame")
        notes.append(CheckpointNote(sequence, payload[position - length : position].decode(errors="replace")))
    return notes


_ERRORS: dict[int, type[LakestreamError]] = {1: Retry, 2: Unknown, 3: Missing, 4: Corrupt, 5: Halted, 6: NoRoom}
_ERROR_CODES = {kind: code for code, kind in _ERRORS.items()}


def encode_error(error: LakestreamError) -> bytes:
    return bytes([_ERROR_CODES.get(type(error), _ERROR_CODES[Unknown])]) + str(error).encode()[:4096]


def decode_error(payload: bytes) -> LakestreamError:
    kind = _ERRORS.get(payload[0], Unknown) if payload else Unknown
    return kind(payload[1:].decode(errors="replace"))


def _encode_commands(sequence: int, commands: Sequence[bytes]) -> bytes:
    lengths = struct.pack(f"<{len(commands)}I", *map(len, commands))
    return b"".join((_APPEND.pack(sequence, len(commands)), lengths, *commands))


def _decode_commands(payload: bytes) -> tuple[int, list[bytes]]:
    sequence, number = _unpack(_APPEND, payload)
    position = _APPEND.size + 4 * number
    if position > len(payload):
        raise Corrupt(f"{number} commands announced in a frame of {len(payload)} bytes")
    commands = []
    for length in struct.unpack_from(f"<{number}I", payload, _APPEND.size):
        commands.append(payload[position : position + length])
        position += length
    if position != len(payload):
        raise Corrupt("the commands' lengths do not add up to the frame")
    return sequence, commands


def _unpack(layout: struct.Struct, payload: bytes, position: int = 0) -> tuple[Any, ...]:
    try:
        return layout.unpack_from(payload, position)
    except struct.error:
        raise Corrupt(f"a payload of {len(payload)} bytes is too short") from None
