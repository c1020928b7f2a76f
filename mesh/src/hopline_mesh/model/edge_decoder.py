"""Vector code of the edge decoder, written as LLVM instructions; see `lanes` for why and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hopline_mesh.model.emit import FAST, FLOAT, I32, I64, LANES, QUAD, Emit, Value
from hopline_mesh.model.lanes import AHEAD

#: Sizes for which `decode_usual` is: columns of a hidden layer, numbers of an edge, its temporal columns.
USUAL_INNER, USUAL_NUMBERS, USUAL_TEMPORAL = 2 * LANES, QUAD.count, 4


def _end_of(emit: Emit, ends: Value, edge: Value, rows: Value, row_bytes: int | Value) -> Value:
    """The row of an edge's end."""
    builder = emit.builder
    node = builder.sext(emit.load(emit.at(ends, emit.times(edge, 4)), I32), I64)
    step = ir.Constant(I64, row_bytes) if isinstance(row_bytes, int) else row_bytes
    return emit.at(rows, builder.mul(node, step))


@intrinsic
def decode_usual(
    typingctx: Any, sources: Any, targets: Any, begin: Any, end: Any, last: Any, caller: Any, callee: Any,
    g: Any, temporal_weight: Any, weight: Any, bias: Any, out: Any,
) -> Any:  # fmt: skip
    """`decode_edge` of edges begin to end, of the usual sizes: all weights stay in registers.

    Addresses are those of row 0, or of edge 0; `last` is the last edge of all.
    """
    signature = types.void(*[types.int64] * 12)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(builder)
        sources, targets, begin, end, last, caller, callee, g, temporal_weight, weight, bias, out = args
        halves, row_bytes = range(USUAL_INNER // LANES), 4 * USUAL_INNER

        def rows_at(address: Value, rows: int) -> list[list[Value]]:
            return [
                [emit.load(emit.at(address, row_bytes * row + 4 * LANES * v)) for v in halves]
                for row in range(rows)
            ]

        of_time, of_numbers = rows_at(temporal_weight, USUAL_TEMPORAL), rows_at(weight, USUAL_NUMBERS)
        start, gentle = emit.load(bias, QUAD), emit.number(0.2)

        def decode(k: Value) -> list[Value]:
            edge = builder.add(begin, k)
            later = emit.at(edge, AHEAD)
            later = builder.select(builder.icmp_signed("<", later, last), later, last)
            for ends, rows in ((sources, caller), (targets, callee)):
                emit.prefetch(_end_of(emit, ends, later, rows, row_bytes), row_bytes)
            ours, theirs = (
                _end_of(emit, ends, edge, rows, row_bytes)
                for ends, rows in ((sources, caller), (targets, callee))
            )
            mixed = [
                builder.fadd(
                    emit.load(emit.at(ours, 4 * LANES * v)), emit.load(emit.at(theirs, 4 * LANES * v)),
                    flags=FAST,
                )
                for v in halves
            ]  # fmt: skip
            times = emit.at(g, emit.times(edge, 4 * USUAL_TEMPORAL))
            for q in range(USUAL_TEMPORAL):
                number = emit.splat(emit.load(emit.at(times, 4 * q), FLOAT))
                mixed = [emit.fma(number, of_time[q][v], one) for v, one in zip(halves, mixed, strict=True)]
            hidden = [emit.leaky(one, gentle) for one in mixed]
            sums = []
            for row in of_numbers:
                total = builder.fmul(hidden[0], row[0], flags=FAST)
                sums.append(emit.fma(hidden[1], row[1], total))
            quad = builder.fadd(emit.four_sums(sums), start, flags=FAST)
            emit.store(quad, emit.at(out, emit.times(edge, 4 * USUAL_NUMBERS)))
            return []

        emit.loop(builder.sub(end, begin), [], decode)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def link_edges(
    typingctx: Any, sources: Any, targets: Any, begin: Any, end: Any, query: Any, z: Any, row_bytes: Any,
    bias: Any, out: Any,
) -> Any:  # fmt: skip
    """Logits that there are edges begin to end: `query` of the caller times `z` of the callee, and a bias.

    Addresses are those of row 0, or of edge 0.
    """
    kinds = [types.int64] * 9
    kinds[7] = types.float32
    signature = types.void(*kinds)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(builder)
        sources, targets, begin, end, query, z, row_bytes, bias, out = args
        blocks = builder.ashr(row_bytes, ir.Constant(I64, 6))

        def link(k: Value) -> list[Value]:
            edge = builder.add(begin, k)
            asked = _end_of(emit, sources, edge, query, row_bytes)
            there = _end_of(emit, targets, edge, z, row_bytes)

            def add_product(q: Value, total: Value) -> list[Value]:
                step = emit.times(q, 4 * LANES)
                return [emit.fma(emit.load(emit.at(asked, step)), emit.load(emit.at(there, step)), total)]

            (product,) = emit.loop(blocks, [emit.number(0.0)], add_product)
            quad, logit = emit.fold(product), bias
            for lane in range(QUAD.count):
                part = builder.extract_element(quad, ir.Constant(I32, lane))
                logit = builder.fadd(logit, part, flags=FAST)
            emit.store(logit, emit.at(out, emit.times(edge, 4)))
            return []

        emit.loop(builder.sub(end, begin), [], link)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def decode_edge(
    typingctx: Any, caller: Any, callee: Any, inner_bytes: Any, g: Any, d_temporal: Any,
    temporal_weight: Any, inner: Any, num_groups: Any, weight: Any, bias: Any, out: Any,
) -> Any:  # fmt: skip
    """What one edge's ends say of its numbers, in groups of four.

    `caller` and `callee` are rows of `inner_bytes`, whose sum is the hidden layer but for the edge's own
    temporal row `g`; `inner` is scratch of as many bytes.
    """
    signature = types.void(*[types.int64] * 11)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(builder)
        caller, callee, inner_bytes, g, d_temporal, temporal_weight, inner, num_groups = args[:8]
        weight, bias, out = args[8:]
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
        return context.get_dummy_value()

    return signature, codegen
