"""Plain loads and stores for compiled code, and the addresses they need.

They spare the compiled loops the boxing of arrays and their index arithmetic, in which a negative index counts from the
end. An address is good only while its caller holds the buffer. Compiled code is cached by the file that it stands in: a
change here reaches record_loops.py and frames.py only once they change too.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_Generator = tuple[Any, Callable[..., Any]]


def address_of(buffer: bytes | bytearray | memoryview) -> int:
    """Where the bytes of a buffer lie. Valid only while the caller keeps the buffer and does not resize it."""
    # ctypes is five times faster, but takes only writable buffers.
    if isinstance(buffer, bytearray | memoryview) and len(buffer) and not memoryview(buffer).readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return int(np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0])


def _load(_typing: Any, _address: Any) -> _Generator:  # pragma: no cover (called when compiling, not from a cache)
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64), generate


def _store(bits: int) -> Callable[[Any, Any, Any], _Generator]:
    def store(_typing: Any, _address: Any, _value: Any) -> _Generator:  # pragma: no cover (as above)
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.trunc(arguments[1], kind) if bits < 64 else arguments[1]
            # The address need not be a multiple of the width.
            builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


load: Any = intrinsic(_load)
"""The byte at an address, as an int64."""
store32: Any = intrinsic(_store(32))
"""Write the low half of an int64 at an address."""
store64: Any = intrinsic(_store(64))
"""Write an int64 at an address."""
