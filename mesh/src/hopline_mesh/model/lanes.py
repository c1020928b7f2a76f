"""Vector code of the encoder's inner loops, written as LLVM instructions.

Loops that LLVM vectorises automatically keep neither the target row nor the attention vector in registers,
and add up each head lane by lane. Here both are explicit, for vectors of 16 float32 numbers; LLVM splits
them if the CPU's are shorter. Addresses are int64; nothing is checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hopline.kernels.cpu_level import features
from hopline_mesh.model.emit import FLOAT, HALVES, I32, I64, LANES, VECTOR, Emit, Value

HAS_AVX512 = "avx512f" in features()
#: Columns of a block of packed weights: two vectors.
PANEL = 2 * LANES
#: Rows and columns of the larger tile of a product: as many as there are registers for their sums.
TILE_ROWS, TILE_COLUMNS = (12, PANEL) if HAS_AVX512 else (6, LANES)
#: Whether the processor multiplies bfloat16 numbers: two products in the time of one.
HAS_BFLOAT16 = "avx512bf16" in features()
#: Entries ahead of which a row is asked for. Lists have so many entries of room at their end.
AHEAD = 6


def make_tile(rows: int, columns: int, *, halves: bool = False) -> Any:
    """One block of a product, of float32 or of pairs of bfloat16, which lie as float32 do."""
    vectors = range(columns // LANES)
    kind, lane = (HALVES, I32) if halves else (VECTOR, FLOAT)

    def tile(
        typingctx: Any, a: Any, a_step: Any, depth: Any, b: Any, start: Any, start_step: Any, c: Any,
        c_step: Any, slope: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(*[types.int64] * 8, types.float32)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = Emit(builder)
            add_product = emit.add_pairs if halves else emit.fma
            a, a_step, depth, b, start, start_step, c, c_step, slope = args
            starts = [emit.at(start, emit.times(start_step, r)) for r in range(rows)]
            sums = [emit.load(emit.at(s, 4 * LANES * v)) for s in starts for v in vectors]
            lines = [emit.at(a, emit.times(a_step, r)) for r in range(rows)]

            def body(k: Value, *sums: Value) -> list[Value]:
                panel = emit.at(b, emit.times(k, 4 * PANEL))
                weights = [emit.load(emit.at(panel, 4 * LANES * v), kind) for v in vectors]
                result = []
                for r in range(rows):
                    one = emit.splat(emit.load(emit.at(lines[r], emit.times(k, 4)), lane))
                    result += [add_product(one, weights[v], sums[len(vectors) * r + v]) for v in vectors]
                return result

            sums = emit.loop(depth, sums, body)
            slopes = emit.splat(slope)

            def put(bent: bool) -> None:
                for r in range(rows):
                    line = emit.at(c, emit.times(c_step, r))
                    for v in vectors:
                        y = sums[len(vectors) * r + v]
                        emit.store(emit.leaky(y, slopes) if bent else y, emit.at(line, 4 * LANES * v))

            # Most products are not bent, and take so little that this shows.
            is_bent = builder.fcmp_ordered("!=", slope, ir.Constant(FLOAT, 1.0))
            with builder.if_else(is_bent) as (bent, straight):
                with bent:
                    put(True)
                with straight:
                    put(False)
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(tile)


#: `tile(a, a_step, depth, b, start, start_step, c, c_step, slope)`: c = max(y, slope * y) of
#: y = start + a @ b, for `TILE_COLUMNS` columns, of a single row for 32. `a` has rows of `a_step` bytes and
#: `depth` columns, `b` is packed [depth, 32]; a `start_step` of 0 starts all rows with the same bias.
many_rows = make_tile(TILE_ROWS, TILE_COLUMNS)
one_row = make_tile(1, PANEL)
#: As `tile`, for bfloat16: `depth` counts pairs, `b` is packed [depth, 32, 2]. On CPUs without bfloat16
#: they are compiled as something else, and must not be run.
many_halves = make_tile(TILE_ROWS, TILE_COLUMNS, halves=HAS_BFLOAT16)
one_half = make_tile(1, PANEL, halves=HAS_BFLOAT16)


@intrinsic
def round_row(typingctx: Any, row: Any, columns: Any, out: Any) -> Any:
    """So many float32 as bfloat16, filled up with 0 to whole vectors; as `many_halves` not to be run
    everywhere."""
    signature = types.void(types.int64, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(builder)
        row, columns, out = args

        def body(k: Value) -> list[Value]:
            there = builder.sub(columns, emit.times(k, LANES))
            vector = emit.load_some(emit.at(row, emit.times(k, 4 * LANES)), there, VECTOR)
            emit.store(emit.rounded(vector), emit.at(out, emit.times(k, 2 * LANES)))
            return []

        if HAS_BFLOAT16:
            vectors = builder.sdiv(emit.at(columns, LANES - 1), ir.Constant(I64, LANES))
            emit.loop(vectors, [], body)
        return context.get_dummy_value()

    return signature, codegen
