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

_HAS_AVX512 = bool(get_host_cpu_features().get("avx512f"))
#: Columns of a block of packed weights: two vectors.
PANEL = 2 * LANES
#: Rows and columns of the larger tile of a product: as many as there are registers for their sums.
TILE_ROWS, TILE_COLUMNS = (12, PANEL) if _HAS_AVX512 else (6, LANES)
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
def round_row(typingctx: Any, row: Any, vectors: Any, out: Any) -> Any:
    """So many vectors of float32 as bfloat16; as `many_halves` not to be run everywhere."""
    signature = types.void(types.int64, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(builder)
        row, vectors, out = args

        def body(k: Value) -> list[Value]:
            vector = emit.load(emit.at(row, emit.times(k, 4 * LANES)))
            emit.store(emit.rounded(vector), emit.at(out, emit.times(k, 2 * LANES)))
            return []

        if HAS_BFLOAT16:
            emit.loop(vectors, [], body)
        return context.get_dummy_value()

    return signature, codegen


def make_attend(heads: int, channels: int, *, all_at_once: bool = _HAS_AVX512) -> Any:
    """One node's attention with up to four heads of so many channels.

    Args:
        all_at_once: whether there are registers for all heads; else one after the other.
    """
    per_head = channels // LANES
    vectors = heads * per_head
    row_bytes = 4 * LANES * vectors
    at_once = vectors if all_at_once else per_head
    groups_of_vectors = [range(v, v + at_once) for v in range(0, vectors, at_once)]

    def attend(
        typingctx: Any, source: Any, target: Any, attention: Any, others: Any, edges: Any, count: Any,
        e: Any, d_edge: Any, edge_weight: Any, usual: Any, edge_start: Any, scores: Any, own: Any,
        bias: Any, slope: Any, out: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(*[types.int64] * 14, types.float32, types.int64)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = Emit(builder)
            source, target, attention, others, edges, count = args[:6]
            e, d_edge, edge_weight, usual, edge_start, scores, own, bias, slope, out = args[6:]
            steps = [4 * LANES * v for v in range(vectors)]
            targets = [
                builder.fadd(emit.load(emit.at(target, step)), emit.load(emit.at(edge_start, step)))
                for step in steps
            ]
            factors = [emit.load(emit.at(attention, step)) for step in steps]
            gentle = emit.number(0.2)
            fours = builder.ashr(d_edge, ir.Constant(I64, 2))
            in_fours = emit.times(fours, QUAD.count)
            rest = builder.sub(d_edge, in_fours)

            def row_of(p: Value) -> Value:
                j = builder.sext(emit.load(emit.at(others, emit.times(p, 4)), I32), I64)
                return emit.at(source, emit.times(j, row_bytes))

            def numbers_of(p: Value) -> Value:
                edge = builder.sext(emit.load(emit.at(edges, emit.times(p, 4)), I32), I64)
                return emit.at(e, emit.times(builder.mul(edge, d_edge), 4))

            def other_numbers(numbers: Value, step: Value | int) -> Value:
                """How far four of an edge's numbers are from the usual ones."""
                four = emit.load(emit.at(numbers, step), QUAD)
                return builder.fsub(four, emit.load(emit.at(usual, step), QUAD))

            def add_edge(numbers: Value, held: range, mixed: Sequence[Value]) -> Sequence[Value]:
                """What an edge's numbers add to the vectors that are held."""

                def add(number: Value, q: Value, mixed: Sequence[Value]) -> list[Value]:
                    weights = emit.at(edge_weight, emit.times(q, row_bytes))
                    return [
                        emit.fma(number, emit.load(emit.at(weights, steps[v])), one)
                        for v, one in zip(held, mixed, strict=True)
                    ]

                def add_four(k: Value, *mixed: Value) -> list[Value]:
                    other = other_numbers(numbers, emit.times(k, 4 * QUAD.count))

                    def add_all() -> list[Value]:
                        result = list(mixed)
                        for q in range(QUAD.count):
                            place = emit.at(emit.times(k, QUAD.count), q)
                            result = add(emit.shuffle(other, other, [q] * LANES), place, result)
                        return result

                    return emit.when(emit.any_set(other), mixed, add_all)

                def add_one(k: Value, *mixed: Value) -> list[Value]:
                    place = emit.at(k, in_fours)
                    step = emit.times(place, 4)
                    other = builder.fsub(
                        emit.load(emit.at(numbers, step), FLOAT), emit.load(emit.at(usual, step), FLOAT)
                    )
                    return add(emit.splat(other), place, mixed)

                mixed = emit.loop(fours, mixed, add_four)
                found: Sequence[Value] = emit.loop(rest, mixed, add_one)
                return found

            def score(p: Value, highest: Value) -> list[Value]:
                emit.prefetch(row_of(emit.at(p, AHEAD)), row_bytes)
                emit.prefetch(numbers_of(emit.at(p, AHEAD)), 1)
                row, numbers = row_of(p), numbers_of(p)
                parts = [emit.number(0.0)] * QUAD.count
                for held in groups_of_vectors:
                    ends = [
                        builder.fadd(emit.load(emit.at(row, steps[v])), targets[v], flags=FAST)
                        for v in held
                    ]
                    for v, one in zip(held, add_edge(numbers, held, ends), strict=True):
                        head, gone = v // per_head, emit.leaky(one, gentle)
                        parts[head] = (
                            builder.fmul(gone, factors[v], flags=FAST)
                            if v % per_head == 0
                            else emit.fma(gone, factors[v], parts[head])
                        )
                quad = emit.four_sums(parts)
                emit.store(quad, emit.at(scores, emit.times(p, 4 * QUAD.count)))
                return [emit.max(highest, quad)]

            (highest,) = emit.loop(count, [emit.number(-3.0e38, QUAD)], score)
            for k in range(3):  # fill up the last vector of scores
                emit.store(
                    emit.number(-3.0e38, QUAD),
                    emit.at(scores, emit.times(emit.at(count, k), 4 * QUAD.count)),
                )
            highest16 = emit.shuffle(highest, highest, [0, 1, 2, 3] * 4)

            def exponential(k: Value, total: Value) -> list[Value]:
                place = emit.at(scores, emit.times(k, 4 * LANES))
                below = builder.fsub(emit.load(place), highest16)
                value = emit.exp(emit.max(below, emit.number(-87.0)))
                emit.store(value, place)
                return [builder.fadd(total, value, flags=FAST)]

            groups = builder.ashr(emit.at(count, 3), ir.Constant(I64, 2))
            (total16,) = emit.loop(groups, [emit.number(0.0)], exponential)
            total = emit.fold(total16)

            sums: list[Value] = []
            for held in groups_of_vectors:

                def weigh(p: Value, *sums: Value, held: range = held) -> list[Value]:
                    row = row_of(p)
                    quad = emit.load(emit.at(scores, emit.times(p, 4 * QUAD.count)), QUAD)
                    shares = {
                        head: emit.shuffle(quad, quad, [head] * LANES)
                        for head in sorted({v // per_head for v in held})
                    }
                    return [
                        emit.fma(shares[v // per_head], emit.load(emit.at(row, steps[v])), one)
                        for v, one in zip(held, sums, strict=True)
                    ]

                sums += emit.loop(count, [emit.number(0.0)] * len(held), weigh)
            inverse = builder.fdiv(emit.number(1.0, QUAD), emit.max(total, emit.number(1e-30, QUAD)))
            slopes = emit.splat(slope)
            for v in range(vectors):
                share = emit.shuffle(inverse, inverse, [v // per_head] * LANES)
                value = emit.fma(sums[v], share, emit.load(emit.at(bias, steps[v])))
                value = builder.fadd(value, emit.load(emit.at(own, steps[v])), flags=FAST)
                emit.store(emit.leaky(value, slopes), emit.at(out, steps[v]))
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(attend)


#: `attend(source, target, attention, others, edges, count, e, d_edge, edge_weight, usual, edge_start,
#: scores, own, bias, slope, out)`: one node's row of a layer, from `count` entries of its list.
#: `edge_start` is what an edge with the `usual` numbers adds; only other numbers are multiplied. `scores`
#: has room for count + 3 times 4 numbers. Softmax in two passes: lists are short, rows still in the cache
#: in the second.
attend_4x32 = make_attend(4, 32)
attend_4x16 = make_attend(4, 16)
attend_2x32 = make_attend(2, 32)
attend_2x16 = make_attend(2, 16)


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
