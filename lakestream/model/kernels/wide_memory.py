"""More loads and stores for the compiled loops of table files: wide, big-endian, block copies, wrapping arithmetic.

They follow pointers.py: addresses are plain integers, good only while the caller holds the buffer. Arithmetic on signed
numbers must not overflow in compiled code, so the hash has its own operations, which may. Compiled code is cached by
its file alone: a change here or in table_columns.py reaches code in other files only once those change too.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_Generator = tuple[Any, Callable[..., Any]]
_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)
_DOUBLE = ir.IntType(128)


def _compiled(function: Any) -> Any:
    """numba's type for an intrinsic tells how it is generated, not how it is called."""
    return intrinsic(function)


def _loader(bits: int, big_endian: bool) -> Any:
    def load(_typing: Any, _address: Any) -> _Generator:  # pragma: no cover (called when compiling, not from a cache)
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            if big_endian:
                value = builder.bswap(value)
            return builder.sext(value, _WORD) if bits < 64 else value

        return types.int64(types.int64), generate

    return _compiled(load)


def _storer(bits: int, big_endian: bool) -> Any:
    def store(_typing: Any, _address: Any, _value: Any) -> _Generator:  # pragma: no cover (as above)
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.trunc(arguments[1], kind) if bits < 64 else arguments[1]
            if big_endian:
                value = builder.bswap(value)
            builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return _compiled(store)


def _copy(_typing: Any, _target: Any, _source: Any, _size: Any) -> _Generator:  # pragma: no cover (as above)
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, _BYTE.as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _mix(_typing: Any, _left: Any, _right: Any) -> _Generator:  # pragma: no cover (as above)
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        left, right = (builder.zext(argument, _DOUBLE) for argument in arguments)
        product = builder.mul(left, right)
        high = builder.trunc(builder.lshr(product, ir.Constant(_DOUBLE, 64)), _WORD)
        return builder.xor(high, builder.trunc(product, _WORD))

    return types.int64(types.int64, types.int64), generate


def _wrapping_add(_typing: Any, _left: Any, _right: Any) -> _Generator:  # pragma: no cover (as above)
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.add(*arguments)

    return types.int64(types.int64, types.int64), generate


load32: Callable[[int], int] = _loader(32, big_endian=False)
"""The int32 at an address."""
load64: Callable[[int], int] = _loader(64, big_endian=False)
"""The int64 at an address."""
load_big16: Callable[[int], int] = _loader(16, big_endian=True)
"""The big-endian int16 at an address."""
load_big32: Callable[[int], int] = _loader(32, big_endian=True)
"""The big-endian int32 at an address."""
load_big64: Callable[[int], int] = _loader(64, big_endian=True)
"""The big-endian int64 at an address."""
store8: Callable[[int, int], None] = _storer(8, big_endian=False)
"""Write the low byte of an int64."""
store_big16: Callable[[int, int], None] = _storer(16, big_endian=True)
"""Write the low two bytes of an int64, the high one first."""
store_big32: Callable[[int, int], None] = _storer(32, big_endian=True)
"""Write the low half of an int64, the high byte first."""
store_big64: Callable[[int, int], None] = _storer(64, big_endian=True)
"""Write an int64, the high byte first."""
copy: Callable[[int, int, int], None] = _compiled(_copy)
"""Copy bytes: target, source, size. They must not overlap."""
mix: Callable[[int, int], int] = _compiled(_mix)
"""Both halves of the 128-bit product of two numbers taken as unsigned, one upon the other."""
wrapping_add: Callable[[int, int], int] = _compiled(_wrapping_add)
"""A sum modulo 2^64."""
