"""Vector code of products of whole numbers of eight bits, written as LLVM instructions; see `lanes`.

A row is a scale times whole numbers from -127 to 127, and so is a column of weights: four products to each
lane, where bfloat16 has two. Only what a layer makes for the next one is multiplied so, which is most of
all products. The processor wants one side without sign: 128 is added to each of a row's numbers, and what
that adds to the sums is known before.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.kernels.cpu_level import features
from hopline_mesh.model.emit import FLOAT, I32, LANES, VECTOR, Emit, Value
from hopline_mesh.model.lanes import HAS_BFLOAT16, PANEL, TILE_ROWS

#: Whether the processor multiplies numbers of eight bits: four products in the time of one.
HAS_EIGHT_BITS = HAS_BFLOAT16 and "avx512vnni" in features()
#: The largest whole number, and what is added to those of rows.
LARGEST, SHIFT = 127.0, 128

_INTS = ir.VectorType(I32, LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)


@intrinsic
def quantise_row(typingctx: Any, row: Any, vectors: Any, out: Any, scale: Any) -> Any:
    """So many vectors of float32 as whole numbers plus 128, and the row's scale.

    Not to be run everywhere.
    """
    signature = types.void(*[types.int64] * 4)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not HAS_EIGHT_BITS:
            return context.get_dummy_value()
        emit = Emit(builder)
        row, vectors, out, scale = args

        def larger(k: Value, most: Value) -> list[Value]:
            return [emit.max(most, emit.magnitude(emit.load(emit.at(row, emit.times(k, 4 * LANES)))))]

        (most,) = emit.loop(vectors, [emit.number(1e-30)], larger)
        for size in (8, 4, 2, 1):
            most = emit.max(most, emit.shuffle(most, most, [k ^ size for k in range(LANES)]))
        per = builder.fdiv(emit.number(LARGEST), most)
        largest = builder.extract_element(most, ir.Constant(I32, 0))
        emit.store(builder.fmul(largest, ir.Constant(FLOAT, 1 / LARGEST)), scale)

        def round_all(k: Value) -> list[Value]:
            numbers = emit.load(emit.at(row, emit.times(k, 4 * LANES)))
            whole = builder.fptosi(emit.nearest(builder.fmul(numbers, per)), _INTS)
            shifted = builder.add(whole, ir.Constant(_INTS, [SHIFT] * LANES))
            emit.store(builder.trunc(shifted, _BYTES), emit.at(out, emit.times(k, LANES)))
            return []

        emit.loop(vectors, [], round_all)
        return context.get_dummy_value()

    return signature, codegen


def _make_tile(rows: int) -> Any:
    vectors = range(PANEL // LANES)

    def tile(
        typingctx: Any, a: Any, a_step: Any, fours: Any, b: Any, scales: Any, columns: Any, start: Any,
        bias: Any, c: Any, c_step: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(*[types.int64] * 10)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if not HAS_EIGHT_BITS:
                return context.get_dummy_value()
            emit = Emit(builder)
            a, a_step, fours, b, scales, columns, start, bias, c, c_step = args
            add_fours = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(_INTS, [_INTS, _INTS, _INTS]),
                "llvm.x86.avx512.vpdpbusd.512",
            )
            lines = [emit.at(a, emit.times(a_step, r)) for r in range(rows)]
            sums = [emit.load(emit.at(start, 4 * LANES * v), _INTS) for v in vectors] * rows

            def body(k: Value, *sums: Value) -> list[Value]:
                panel = emit.at(b, emit.times(k, 4 * PANEL))
                weights = [emit.load(emit.at(panel, 4 * LANES * v), _INTS) for v in vectors]
                result = []
                for r in range(rows):
                    one = emit.splat(emit.load(emit.at(lines[r], emit.times(k, 4)), I32))
                    result += [
                        builder.call(add_fours, [sums[len(vectors) * r + v], one, weights[v]])
                        for v in vectors
                    ]
                return result

            sums = emit.loop(fours, sums, body)
            per_column = [emit.load(emit.at(columns, 4 * LANES * v)) for v in vectors]
            biases = [emit.load(emit.at(bias, 4 * LANES * v)) for v in vectors]
            for r in range(rows):
                per_row = emit.splat(emit.load(emit.at(scales, 4 * r), FLOAT))
                line = emit.at(c, emit.times(c_step, r))
                for v in vectors:
                    whole = builder.sitofp(sums[len(vectors) * r + v], VECTOR)
                    y = emit.fma(whole, builder.fmul(per_row, per_column[v]), biases[v])
                    emit.store(y, emit.at(line, 4 * LANES * v))
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(tile)


#: `tile(a, a_step, fours, b, scales, columns, start, bias, c, c_step)`: c = bias + a @ b for 32 columns.
#: `a` has rows of `a_step` bytes as `quantise_row` makes them, four times `fours` of them, with their
#: `scales`; `b` is packed [fours, 32, 4], with the scales of its `columns`; `start` takes off what 128
#: adds.
many_bytes = _make_tile(TILE_ROWS)
one_bytes = _make_tile(1)
