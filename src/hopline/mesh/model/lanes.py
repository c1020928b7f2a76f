"""Vector code of the encoder's inner loops, written as LLVM instructions.

Loops that LLVM vectorises by itself keep neither the listener's row nor the attention vector in registers,
and add up each head lane by lane. Here both are said outright, for vectors of 16 float32 numbers; LLVM
splits them where the processor's are shorter. Addresses are int64; nothing is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic

from hopline.mesh.model.emit import FAST, FLOAT, HALVES, I32, I64, LANES, QUAD, VECTOR, Emit, Value

HAS_AVX512 = bool(get_host_cpu_features().get("avx512f"))
#: Columns of a block of packed weights: two vectors.
PANEL = 2 * LANES
#: Rows and columns of the larger tile of a product: as many as there are registers for their sums.
TILE_ROWS, TILE_COLUMNS = (12, PANEL) if HAS_AVX512 else (6, LANES)
#: Whether the processor multiplies bfloat16 numbers: two products in the time of one.
HAS_BFLOAT16 = bool(get_host_cpu_features().get("avx512bf16"))
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
            for r in range(rows):
                line = emit.at(c, emit.times(c_step, r))
                for v in vectors:
                    y = emit.leaky(sums[len(vectors) * r + v], slopes)
                    emit.store(y, emit.at(line, 4 * LANES * v))
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(tile)


#: `tile(a, a_step, depth, b, start, start_step, c, c_step, slope)`: c = max(y, slope * y) of
#: y = start + a @ b, for `TILE_COLUMNS` columns, of a single row for 32. `a` has rows of `a_step` bytes and
#: `depth` columns, `b` is packed [depth, 32]; a `start_step` of 0 starts all rows with the same bias.
many_rows = make_tile(TILE_ROWS, TILE_COLUMNS)
one_row = make_tile(1, PANEL)
#: The same of bfloat16: `depth` counts pairs, `b` is packed [depth, 32, 2]. Where the processor has none
#: they are compiled as something else, and not to be run.
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


@intrinsic
def decode_edge(
    typingctx: Any, caller: Any, callee: Any, inner_bytes: Any, g: Any, d_temporal: Any,
    temporal_weight: Any, inner: Any, num_groups: Any, weight: Any, bias: Any, out: Any, query: Any,
    z: Any, z_bytes: Any, link_bias: Any, link: Any,
) -> Any:  # fmt: skip
    """What one edge's ends say of it: its numbers, in groups of four, and the logit that it is there.

    `caller` and `callee` are rows of `inner_bytes`, whose sum is the hidden layer but for the edge's own
    temporal row `g`; `inner` is scratch of as many bytes. `query` and `z` are rows of `z_bytes`.
    """
    kinds = [types.int64] * 16
    kinds[14] = types.float32
    signature = types.void(*kinds)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(builder)
        caller, callee, inner_bytes, g, d_temporal, temporal_weight, inner, num_groups = args[:8]
        weight, bias, out, query, z, z_bytes, link_bias, link = args[8:]
        gentle = emit.number(0.2)

        def hidden(step: Value | int) -> Value:
            """Sixteen of the hidden layer's numbers."""
            mixed = builder.fadd(
                emit.load(emit.at(caller, step)), emit.load(emit.at(callee, step)), flags=FAST
            )

            def add_temporal(q: Value, mixed: Value) -> list[Value]:
                number = emit.splat(emit.load(emit.at(g, emit.times(q, 4)), FLOAT))
                row = builder.add(temporal_weight, builder.mul(q, inner_bytes))
                return [emit.fma(number, emit.load(emit.at(row, step)), mixed)]

            (mixed,) = emit.loop(d_temporal, [mixed], add_temporal)
            return emit.leaky(mixed, gentle)

        def rows_of(k: Value) -> list[Value]:
            return [
                builder.add(weight, builder.mul(emit.at(emit.times(k, 4), r), inner_bytes))
                for r in range(4)
            ]

        def finish(k: Value, sums: Sequence[Value]) -> list[Value]:
            step = emit.times(k, 16)
            quad = builder.fadd(emit.four_sums(sums), emit.load(builder.add(bias, step), QUAD), flags=FAST)
            emit.store(quad, builder.add(out, step))
            return []

        def in_registers() -> None:
            parts = [hidden(4 * LANES * v) for v in (0, 1)]

            def group(k: Value) -> list[Value]:
                sums = []
                for row in rows_of(k):
                    total = builder.fmul(parts[0], emit.load(row), flags=FAST)
                    sums.append(emit.fma(parts[1], emit.load(emit.at(row, 4 * LANES)), total))
                return finish(k, sums)

            emit.loop(num_groups, [], group)

        def through_memory() -> None:
            blocks = builder.ashr(inner_bytes, ir.Constant(I64, 6))

            def keep(k: Value) -> list[Value]:
                step = emit.times(k, 4 * LANES)
                emit.store(hidden(step), builder.add(inner, step))
                return []

            emit.loop(blocks, [], keep)

            def group(k: Value) -> list[Value]:
                rows = rows_of(k)

                def add_block(q: Value, *sums: Value) -> list[Value]:
                    step = emit.times(q, 4 * LANES)
                    part = emit.load(builder.add(inner, step))
                    return [
                        emit.fma(part, emit.load(builder.add(row, step)), total)
                        for row, total in zip(rows, sums, strict=True)
                    ]

                return finish(k, emit.loop(blocks, [emit.number(0.0)] * 4, add_block))

            emit.loop(num_groups, [], group)

        is_usual = builder.icmp_signed("==", inner_bytes, ir.Constant(I64, 2 * 4 * LANES))
        with builder.if_else(is_usual) as (then, otherwise):
            with then:
                in_registers()
            with otherwise:
                through_memory()

        def add_product(q: Value, total: Value) -> list[Value]:
            step = emit.times(q, 4 * LANES)
            return [emit.fma(emit.load(builder.add(query, step)), emit.load(builder.add(z, step)), total)]

        z_blocks = builder.ashr(z_bytes, ir.Constant(I64, 6))
        (product,) = emit.loop(z_blocks, [emit.number(0.0)], add_product)
        quad = emit.fold(product)
        logit = link_bias
        for lane in range(4):
            logit = builder.fadd(logit, builder.extract_element(quad, ir.Constant(I32, lane)), flags=FAST)
        emit.store(logit, link)
        return context.get_dummy_value()

    return signature, codegen
