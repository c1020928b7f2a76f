"""Vector code of a layer's attention, written as LLVM instructions; see `lanes` for why and how.

A score is a sum of a * leaky(m) over the channels of m = source + target + edge, and leaky(m) is
0.6 m + 0.4 |m| for a slope of 0.2. The first part is linear: each source's is computed once for all nodes
that attend to it, an edge's needs as many products as it has numbers, and the target's is the same in all
of its scores, which a softmax cancels. So each channel needs only |m| and one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hopline_mesh.model.emit import FAST, FLOAT, HALVES, I32, I64, LANES, QUAD, VECTOR, Emit, Value
from hopline_mesh.model.lanes import AHEAD, HAS_AVX512, HAS_BFLOAT16

#: LeakyReLU with a slope of 0.2 as a line and an absolute value.
LINE, FOLD = 0.6, 0.4
#: Numbers of heads and channels for which there is vector code.
VECTOR_HEADS = ((4, 32), (4, 16), (2, 32), (2, 16))
#: Largest score whose exponential, and sums of such, are normal float32 numbers without a shift.
_SAFE_SCORE = 60.0


def make_linear(heads: int, channels: int) -> Any:
    """The linear part of the scores of those who are listened to.

    `linear(rows, attention, begin, end, out)`: for rows begin to end of `heads` times `channels` numbers
    four numbers each, of heads that there are not 0. Addresses are those of row 0.
    """
    per_head = channels // LANES
    vectors = heads * per_head

    def linear(typingctx: Any, rows: Any, attention: Any, begin: Any, end: Any, out: Any) -> Any:
        signature = types.void(*[types.int64] * 5)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = Emit(builder)
            rows, attention, begin, end, out = args
            factors = [
                builder.fmul(emit.load(emit.at(attention, 4 * LANES * v)), emit.number(LINE))
                for v in range(vectors)
            ]

            def of_row(k: Value) -> list[Value]:
                i = builder.add(begin, k)
                row = emit.at(rows, emit.times(i, 4 * LANES * vectors))
                parts = [emit.number(0.0)] * QUAD.count
                for v in range(vectors):
                    part = emit.load(emit.at(row, 4 * LANES * v))
                    parts[v // per_head] = emit.fma(part, factors[v], parts[v // per_head])
                emit.store(emit.four_sums(parts), emit.at(out, emit.times(i, 4 * QUAD.count)))
                return []

            emit.loop(builder.sub(end, begin), [], of_row)
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(linear)


@intrinsic
def halve_edges(typingctx: Any, e: Any, d_edge: Any, usual: Any, begin: Any, end: Any, out: Any) -> Any:
    """How far edges' numbers are from the usual ones, as bfloat16, filled up with 0 to whole fours.

    Of rows begin to end; `e` and `out` are addresses of row 0. Not to be run everywhere, as `many_halves`.
    """
    signature = types.void(*[types.int64] * 6)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(builder)
        e, d_edge, usual, begin, end, out = args
        groups = builder.ashr(emit.at(d_edge, 3), ir.Constant(I64, 2))

        def of_row(k: Value) -> list[Value]:
            i = builder.add(begin, k)
            row = emit.at(e, emit.times(builder.mul(i, d_edge), 4))
            into = emit.at(out, emit.times(builder.mul(i, groups), 2 * QUAD.count))

            def of_group(q: Value) -> list[Value]:
                step = emit.times(q, 4 * QUAD.count)
                there = builder.sub(d_edge, emit.times(q, QUAD.count))
                four = emit.load_some(emit.at(row, step), there)
                other = builder.fsub(four, emit.load(emit.at(usual, step), QUAD))
                halves = emit.rounded(emit.shuffle(other, other, [0, 1, 2, 3] * (LANES // 4)))
                pairs = builder.bitcast(halves, ir.VectorType(I64, LANES // 4))
                pair = builder.extract_element(pairs, ir.Constant(I32, 0))
                emit.store(pair, emit.at(into, emit.times(q, 2 * QUAD.count)))
                return []

            emit.loop(groups, [], of_group)
            return []

        def of_two(k: Value) -> list[Value]:
            place = emit.times(k, LANES)
            there = builder.sub(builder.mul(builder.sub(end, begin), eight), place)
            pair = emit.load_some(emit.at(first, emit.times(place, 4)), there, VECTOR)
            halves = emit.rounded(builder.fsub(pair, usual_of_two))
            emit.store_some(halves, emit.at(into, emit.times(place, 2)), there)
            return []

        if HAS_BFLOAT16:
            eight = ir.Constant(I64, LANES // 2)
            with builder.if_else(builder.icmp_signed("==", d_edge, eight)) as (two_rows, one_row):
                with two_rows:
                    first = emit.at(e, emit.times(builder.mul(begin, eight), 4))
                    into = emit.at(out, emit.times(builder.mul(begin, eight), 2))
                    half = emit.load(usual, ir.VectorType(FLOAT, LANES // 2))
                    usual_of_two = emit.shuffle(half, half, [k % 8 for k in range(LANES)])
                    count = emit.at(builder.mul(builder.sub(end, begin), eight), LANES - 1)
                    emit.loop(builder.ashr(count, ir.Constant(I64, 4)), [], of_two)
                with one_row:
                    emit.loop(builder.sub(end, begin), [], of_row)
        return context.get_dummy_value()

    return signature, codegen


def make_attend(heads: int, channels: int, *, all_at_once: bool = HAS_AVX512) -> Any:
    """Attention of many nodes with up to four heads of so many channels.

    Each step loops over all nodes, because lists are short, and a node's scores, exponentials and sums
    depend on each other, while nodes are independent.

    Args:
        all_at_once: whether there are registers for all heads; else heads are computed in order.
    """
    per_head = channels // LANES
    vectors = heads * per_head
    row_bytes = 4 * LANES * vectors
    at_once = vectors if all_at_once else per_head
    groups_of_vectors = [range(v, v + at_once) for v in range(0, vectors, at_once)]
    steps = [4 * LANES * v for v in range(vectors)]

    def attend(
        typingctx: Any, indptr: Any, others: Any, edges: Any, begin: Any, end: Any, source: Any,
        linear: Any, target: Any, attention: Any, e: Any, d_edge: Any, edge_weight: Any, edge_linear: Any,
        usual: Any, edge_start: Any, edge_halves: Any, scores: Any, own: Any, bias: Any, slope: Any,
        out: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(*[types.int64] * 19, types.float32, types.int64)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = Emit(builder)
            indptr, others, edges, begin, end, source, linear, target, attention = args[:9]
            e, d_edge, edge_weight, edge_linear, usual, edge_start, edge_halves, scores = args[9:17]
            own, bias, slope, out = args[17:]
            factors = [
                builder.fmul(emit.load(emit.at(attention, step)), emit.number(FOLD)) for step in steps
            ]
            groups = builder.ashr(emit.at(d_edge, 3), ir.Constant(I64, 2))

            def whole(address: Value, k: Value) -> Value:
                """An int32 of a list."""
                return builder.sext(emit.load(emit.at(address, emit.times(k, 4)), I32), I64)

            first = whole(indptr, begin)
            num_nodes = builder.sub(end, begin)

            def place_of(p: Value) -> Value:
                """Where an entry's scores lie."""
                return emit.at(scores, emit.times(builder.sub(p, first), 4 * QUAD.count))

            def add_whole(p: Value, held: range, many: Sequence[Value]) -> Sequence[Value]:
                """What an edge's numbers add to its linear part, and to the vectors that are held."""
                numbers = emit.at(e, emit.times(builder.mul(whole(edges, p), d_edge), 4))

                def add_group(k: Value, *many: Value) -> list[Value]:
                    step = emit.times(k, 4 * QUAD.count)
                    there = builder.sub(d_edge, emit.times(k, QUAD.count))
                    four = emit.load_some(emit.at(numbers, step), there)
                    other = builder.fsub(four, emit.load(emit.at(usual, step), QUAD))

                    def add_all() -> Sequence[Value]:
                        line, *mixed = many
                        for q in range(QUAD.count):
                            row = emit.at(emit.times(k, QUAD.count), q)
                            number = emit.shuffle(other, other, [q] * LANES)
                            four_numbers = emit.shuffle(other, other, [q] * QUAD.count)
                            factor = emit.load(emit.at(edge_linear, emit.times(row, 4 * QUAD.count)), QUAD)
                            line = emit.fma(four_numbers, factor, line)
                            weights = emit.at(edge_weight, emit.times(row, row_bytes))
                            mixed = [
                                emit.fma(number, emit.load(emit.at(weights, steps[v])), one)
                                for v, one in zip(held, mixed, strict=True)
                            ]
                        return [line, *mixed]

                    return emit.when(emit.any_set(other), many, add_all)

                found: Sequence[Value] = emit.loop(groups, many, add_group)
                return found

            def add_halves(p: Value, held: range, many: Sequence[Value]) -> Sequence[Value]:
                """As for float32 numbers, for those of `halve_edges`, with weights in pairs too."""
                numbers = emit.at(
                    edge_halves, emit.times(builder.mul(whole(edges, p), groups), 2 * QUAD.count)
                )

                def add_group(k: Value, *many: Value) -> list[Value]:
                    four = emit.at(numbers, emit.times(k, 2 * QUAD.count))

                    def add_all() -> Sequence[Value]:
                        line, *mixed = many
                        for q in range(QUAD.count // 2):
                            row = emit.at(emit.times(k, QUAD.count // 2), q)
                            pair = emit.splat(emit.load(emit.at(four, 4 * q), I32))
                            four_pairs = emit.shuffle(pair, pair, range(QUAD.count))
                            factors = emit.at(edge_linear, emit.times(row, 8 * QUAD.count))
                            for part in (0, 4 * QUAD.count):
                                line = emit.add_four_pairs(four_pairs, emit.at(factors, part), line)
                            weights = emit.at(edge_weight, emit.times(row, row_bytes))
                            mixed = [
                                emit.add_pairs(pair, emit.load(emit.at(weights, steps[v]), HALVES), one)
                                for v, one in zip(held, mixed, strict=True)
                            ]
                        return [line, *mixed]

                    is_set = builder.icmp_unsigned("!=", emit.load(four, I64), ir.Constant(I64, 0))
                    return emit.when(is_set, many, add_all)

                found: Sequence[Value] = emit.loop(groups, many, add_group)
                return found

            def add_edge(p: Value, held: range, many: Sequence[Value]) -> Sequence[Value]:
                if not HAS_BFLOAT16:
                    return add_whole(p, held, many)
                are_halves = builder.icmp_signed("!=", edge_halves, ir.Constant(I64, 0))
                return emit.either(
                    are_halves, lambda: add_halves(p, held, many), lambda: add_whole(p, held, many)
                )

            def of_node(k: Value) -> tuple[Value, Value, Value]:
                """A node's row in bytes, its first entry, and how many entries it has."""
                i = builder.add(begin, k)
                p = whole(indptr, i)
                return emit.times(i, row_bytes), p, builder.sub(whole(indptr, emit.at(i, 1)), p)

            def score_node(k: Value, largest: Value) -> list[Value]:
                row_at, first_entry, count = of_node(k)
                targets = [
                    builder.fadd(
                        emit.load(emit.at(emit.at(target, row_at), step)),
                        emit.load(emit.at(edge_start, step)),
                        flags=FAST,
                    )
                    for step in steps
                ]

                def score(q: Value, largest: Value) -> list[Value]:
                    p = builder.add(first_entry, q)
                    later = emit.at(p, AHEAD)
                    emit.prefetch(emit.at(source, emit.times(whole(others, later), row_bytes)), row_bytes)
                    other = whole(others, p)
                    row = emit.at(source, emit.times(other, row_bytes))
                    line = emit.load(emit.at(linear, emit.times(other, 4 * QUAD.count)), QUAD)
                    parts = [emit.number(0.0)] * QUAD.count
                    for held in groups_of_vectors:
                        ends = [
                            builder.fadd(emit.load(emit.at(row, steps[v])), targets[v], flags=FAST)
                            for v in held
                        ]
                        more, *mixed = add_edge(p, held, [line, *ends])
                        line = line if held[0] else more  # once, not for every head
                        for v, one in zip(held, mixed, strict=True):
                            head, size = v // per_head, emit.magnitude(one)
                            parts[head] = (
                                builder.fmul(size, factors[v], flags=FAST)
                                if v % per_head == 0
                                else emit.fma(size, factors[v], parts[head])
                            )
                    quad = builder.fadd(emit.four_sums(parts), line, flags=FAST)
                    emit.store(quad, place_of(p))
                    return [emit.max(largest, emit.magnitude(quad))]

                found: list[Value] = emit.loop(count, [largest], score)
                return found

            def lower_node(k: Value) -> list[Value]:
                """Have a node's highest scores be 0, which changes no share."""
                _, first_entry, count = of_node(k)

                def higher(q: Value, highest: Value) -> list[Value]:
                    return [emit.max(highest, emit.load(place_of(builder.add(first_entry, q)), QUAD))]

                (highest,) = emit.loop(count, [emit.number(-3.0e38, QUAD)], higher)

                def lower(q: Value) -> list[Value]:
                    place = place_of(builder.add(first_entry, q))
                    emit.store(builder.fsub(emit.load(place, QUAD), highest, flags=FAST), place)
                    return []

                emit.loop(count, [], lower)
                return []

            def exponential(k: Value) -> list[Value]:
                place = emit.at(scores, emit.times(k, 4 * LANES))
                emit.store(emit.exp(emit.max(emit.load(place), emit.number(-87.0))), place)
                return []

            def weigh_node(k: Value) -> list[Value]:
                row_at, first_entry, count = of_node(k)
                sums: list[Value] = []
                total = emit.number(0.0, QUAD)
                for held in groups_of_vectors:

                    def weigh(q: Value, total: Value, *sums: Value, held: range = held) -> list[Value]:
                        p = builder.add(first_entry, q)
                        row = emit.at(source, emit.times(whole(others, p), row_bytes))
                        place = place_of(p)
                        quad = emit.load(place, QUAD)
                        shares = {
                            head: emit.splat(emit.load(emit.at(place, 4 * head), FLOAT))
                            for head in sorted({v // per_head for v in held})
                        }
                        return [
                            builder.fadd(total, quad, flags=FAST),
                            *(
                                emit.fma(shares[v // per_head], emit.load(emit.at(row, steps[v])), one)
                                for v, one in zip(held, sums, strict=True)
                            ),
                        ]

                    nothing = [emit.number(0.0, QUAD), *[emit.number(0.0)] * len(held)]
                    total, *more = emit.loop(count, nothing, weigh)
                    sums += more
                inverse = builder.fdiv(emit.number(1.0, QUAD), emit.max(total, emit.number(1e-30, QUAD)))
                for v in range(vectors):
                    share = emit.shuffle(inverse, inverse, [v // per_head] * LANES)
                    value = emit.fma(sums[v], share, emit.load(emit.at(bias, steps[v])))
                    mine = emit.load(emit.at(emit.at(own, row_at), steps[v]))
                    value = builder.fadd(value, mine, flags=FAST)
                    emit.store(emit.leaky(value, slopes), emit.at(emit.at(out, row_at), steps[v]))
                return []

            slopes = emit.splat(slope)
            (largest,) = emit.loop(num_nodes, [emit.number(0.0, QUAD)], score_node)
            with builder.if_then(emit.any_above(largest, _SAFE_SCORE), likely=False):
                emit.loop(num_nodes, [], lower_node)
            entries = builder.sub(whole(indptr, end), first)
            emit.loop(builder.ashr(emit.at(entries, 3), ir.Constant(I64, 2)), [], exponential)
            emit.loop(num_nodes, [], weigh_node)
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(attend)


#: `attend(indptr, others, edges, begin, end, source, linear, target, attention, e, d_edge, edge_weight,
#: edge_linear, usual, edge_start, edge_halves, scores, own, bias, slope, out)`: rows begin to end of a
#: layer; addresses are those of row 0. `linear` has the rows of `make_linear`. Only what an edge's numbers
#: differ from the `usual` ones is multiplied; `edge_start` is what those add. `edge_weight` has a row for
#: each number and `edge_linear` four numbers, filled up with 0 to whole fours as `usual` is. Where
#: `edge_halves` is not 0 it has the rows of `halve_edges`, and weights are pairs of bfloat16: a row for
#: each two numbers, and four pairs twice in `edge_linear`, whose sum is the weight. `scores` has room for 4
#: numbers of each entry of these rows, and 12 more.
attend_4x32, linear_4x32 = make_attend(4, 32), make_linear(4, 32)
attend_4x16, linear_4x16 = make_attend(4, 16), make_linear(4, 16)
attend_2x32, linear_2x32 = make_attend(2, 32), make_linear(2, 32)
attend_2x16, linear_2x16 = make_attend(2, 16), make_linear(2, 16)
