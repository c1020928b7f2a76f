"""Processor instructions that Numba has no name for: prefetch, compare-and-swap and memory fences.

Knows LLVM, nothing of graphs. Random rows of a large matrix are bound by memory latency: asking for
a row a few iterations before it is read raised one core's rate from 3.4 to 5.5 GB/s (docs/log.md).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Bytes of a cache line on x86-64 and most arm64.
LINE_BYTES = 64


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array.flat[index]` of a C-contiguous array. Never faults."""
    signature = types.void(array, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.bitcast(builder.gep(struct.data, [args[1]]), cgutils.voidptr_t)
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32]),
            "llvm.prefetch.p0",
        )
        # read, keep in all cache levels, data cache
        builder.call(function, [address, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic  # type: ignore[untyped-decorator]
def pointer(typingctx: Any, address: Any) -> Any:
    """An int64 address as a pointer, for `carray`. Whoever keeps the address keeps its array alive."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


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
def copy_bytes(typingctx: Any, target: Any, at: Any, source: Any, begin: Any, count: Any) -> Any:
    """target[at : at + count] = source[begin : begin + count], of uint8 arrays that do not overlap.

    One memcpy, 10 times as fast as a loop over bytes. Nothing is checked.
    """
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = context.make_array(signature.args[0])(context, builder, args[0]).data
        come_from = context.make_array(signature.args[2])(context, builder, args[2]).data
        cgutils.raw_memcpy(
            builder, builder.gep(to, [args[1]]), builder.gep(come_from, [args[3]]), args[4], 1
        )
        return context.get_dummy_value()

    return signature, codegen
