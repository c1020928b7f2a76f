"""Two threads that share the work of one pass, handed out in small pieces.

The second thread runs compiled code without the interpreter lock, and sleeps (futex) between passes. Both
threads take pieces of each phase, so a CPU that is busy elsewhere delays only the piece that it holds.
Numba's own pools cost 20 to 50 µs a phase, and the interpreter lock of a Python thread costs more.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I64 = ir.IntType(64)
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
_WAIT, _WAKE = 128, 129  # of this process only

#: Whether a second thread can sleep and be woken here.
HAS_FUTEX = sys.platform == "linux" and _FUTEX >= 0

#: Places in the block by which threads agree, int64; each has a separate cache line.
EPOCH, OPEN, BUSY, STOP, SOON, ASLEEP, PHASES = 0, 8, 16, 24, 32, 40, 48
#: Of a phase: the next piece to take, and how many are done.
PHASE_WORDS, DONE = 16, 8


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@intrinsic
def fetch_add(typingctx: Any, array: Any, index: Any, amount: Any) -> Any:
    """Add to an int64 in one step for all threads; returns what it was."""
    signature = types.int64(array, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return signature, codegen


@intrinsic
def read(typingctx: Any, array: Any, index: Any) -> Any:
    """An int64 that other threads write."""
    signature = types.int64(array, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(place, "seq_cst", 8)

    return signature, codegen


@intrinsic
def write(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Set an int64 that other threads read."""
    signature = types.void(array, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], place, "seq_cst", 8)
        return context.get_dummy_value()

    return signature, codegen


def _futex(operation: int) -> Any:
    def futex(typingctx: Any, array: Any, value: Any) -> Any:
        signature = types.int64(array, types.int64)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(context, builder, signature.args[0], args[0], ir.Constant(_I64, EPOCH))
            syscall = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(_I64, [_I64], var_arg=True), "syscall"
            )
            number, what, none = (ir.Constant(_I64, n) for n in (_FUTEX, operation, 0))
            address = builder.ptrtoint(place, _I64)
            return builder.call(syscall, [number, address, what, args[1], none, none, none])

        return signature, codegen

    return intrinsic(futex)


#: Sleep while the epoch's low half is so; wake so many sleepers.
sleep_while = _futex(_WAIT)
wake = _futex(_WAKE)


@intrinsic
def give_way(typingctx: Any) -> Any:
    """Let another thread of this processor run (`sched_yield`)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield"
        )
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen
