"""Processor instructions that Numba has no name for: prefetch, number formats, compare-and-swap, fences.

Knows LLVM, nothing of graphs. Random rows of a large matrix are bound by memory latency: asking for
a row a few iterations before it is read raised one core's rate from 3.4 to 5.5 GB/s (log/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.kernels import cpu_level
from hopline.kernels.jit import njit

#: Bytes of a cache line on x86-64 and most arm64.
LINE_BYTES = 64


def _prefetch(builder: Any, address: Any) -> None:
    i32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    # read, keep in all cache levels, data cache
    builder.call(function, [address, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array.flat[index]` of a C-contiguous array. Never faults."""
    signature = types.void(array, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        _prefetch(builder, builder.bitcast(builder.gep(struct.data, [args[1]]), cgutils.voidptr_t))
        return context.get_dummy_value()

    return signature, codegen


def _of_number(result: Any, argument: Any, lower: Callable[[Any, Any], Any]) -> Any:
    """An intrinsic of one number: `lower` makes its code from the builder and the value."""

    def of_number(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return lower(builder, args[0])

        return result(argument), codegen

    return intrinsic(of_number)


#: An int64 address as a pointer, for `carray`. The caller keeps its array alive.
pointer = _of_number(types.voidptr, types.int64, lambda b, at: b.inttoptr(at, cgutils.voidptr_t))
#: The float32 number whose bits are those of a uint32.
float_of_bits = _of_number(types.float32, types.uint32, lambda b, bits: b.bitcast(bits, ir.FloatType()))
#: Number of set bits of a uint64, int64.
count_ones = _of_number(types.int64, types.uint64, lambda b, word: b.ctpop(word))
#: The float32 of a float16 number's bits, an int16; exact. Vectorises (F16C on x86-64).
float_of_half = _of_number(
    types.float32, types.int16, lambda b, bits: b.fpext(b.bitcast(bits, ir.HalfType()), ir.FloatType())
)


@intrinsic  # type: ignore[untyped-decorator]
def compare_exchange(typingctx: Any, array: Any, index: Any, expected: Any, desired: Any) -> Any:
    """Set `array.flat[index]` to `desired` if it is `expected`, in one step for all processes; did it?

    Of a C-contiguous array of integers. Also a full fence.
    """
    signature = types.boolean(array, types.int64, array.dtype, array.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.gep(struct.data, [args[1]])
        outcome = builder.cmpxchg(address, args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(outcome, 1)

    return signature, codegen


def _fence(ordering: str) -> Any:
    def fence(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), codegen

    return intrinsic(fence)


#: Loads after it are not moved before loads that precede it.
acquire_fence = _fence("acquire")
#: Stores before it are not moved after stores that follow it.
release_fence = _fence("release")
#: Nothing is moved across it, nor is a load before an earlier store.
full_fence = _fence("seq_cst")


@intrinsic  # type: ignore[untyped-decorator]
def address_of(typingctx: Any, array: Any) -> Any:
    """The int64 address of an array's first element. The caller keeps the array alive."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(struct.data, ir.IntType(64))

    return types.int64(array), codegen


@njit(inline="always")
def borrowed(array):  # type: ignore[no-untyped-def]
    """A C-contiguous array without a count of references, for loops that hand arrays to other kernels.

    Each such hand-over of a counted array costs two atomic instructions. The caller keeps `array` alive.
    """
    return carray(pointer(address_of(array)), array.shape, array.dtype)


def _load(bits: int, result: Any) -> Any:
    def load(builder: Any, address: Any) -> Any:
        loaded = builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()), align=1)
        return builder.zext(loaded, ir.IntType(64)) if bits < 64 else loaded

    return _of_number(result, types.int64, load)


#: The byte at an int64 address, as int64; four bytes, as int64; eight, as uint64: none need be aligned,
#: nothing is checked. An address costs no count of references, as an array does in every branch.
load_byte = _load(8, types.int64)
load_half = _load(32, types.int64)
load_word = _load(64, types.uint64)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_at(typingctx: Any, address: Any) -> Any:
    """`prefetch` of an int64 address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _prefetch(builder, builder.inttoptr(args[0], cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def nth_one(typingctx: Any, word: Any, n: Any) -> Any:
    """Place of the n-th set bit of a uint64, from 0: int64 in [0, 64]; n must be in [0, 63].

    One instruction to put bit n there and one to find it, where the processor has BMI2 and is fast at it;
    else n steps that clear the lowest bit.
    """
    signature = types.int64(types.uint64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        word, n = args
        if _HAS_DEPOSIT:
            deposit = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(i64, [i64, i64]), "llvm.x86.bmi.pdep.64"
            )
            found = builder.call(deposit, [builder.shl(ir.Constant(i64, 1), n), word])
        else:
            rest = cgutils.alloca_once_value(builder, word)
            with cgutils.for_range(builder, n):
                left = builder.load(rest)
                builder.store(builder.and_(left, builder.sub(left, ir.Constant(i64, 1))), rest)
            found = builder.load(rest)
        return builder.cttz(found, ir.Constant(ir.IntType(1), 0))

    return signature, codegen


#: `pdep`. Numba keys its cache by the kind of CPU that it compiles for.
_HAS_DEPOSIT = "bmi2" in cpu_level.features()
