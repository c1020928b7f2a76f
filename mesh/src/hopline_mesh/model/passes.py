"""The compiled pass: products, attention, decoders, for rows `begin` to `end` of a plan.

Within a layer each node needs only its own row and rows of the previous layer, so products of the next
layer follow attention while a row is in the cache. Between layers all rows must be complete: a pass has one
phase for the first products, one for each layer and one for the edges.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from hopline.kernels.intrinsics import address_of, pointer
from hopline.kernels.jit import njit
from hopline_mesh.model import plan as at
from hopline_mesh.model.attention import (
    attend_2x16,
    attend_2x32,
    attend_4x16,
    attend_4x32,
    halve_edges,
    linear_2x16,
    linear_2x32,
    linear_4x16,
    linear_4x32,
)
from hopline_mesh.model.edge_decoder import (
    USUAL_INNER,
    USUAL_NUMBERS,
    USUAL_TEMPORAL,
    decode_edge,
    decode_usual,
    link_edges,
)
from hopline_mesh.model.lanes import TILE_ROWS
from hopline_mesh.model.products import (
    Plan,
    factor,
    multiply_by,
    products,
    state_products,
)
from hopline_mesh.model.second import (
    await_pieces,
    await_work,
    close_pass,
    join,
    leave,
    open_pass,
    take_piece,
)
from hopline_mesh.model.threads import DONE, PHASE_WORDS, PHASES, fetch_add

_ONE = np.float32(1.0)
_GENTLE = np.float32(0.2)
#: Number of nodes whose attention is computed together: their neighbours' rows stay in the first cache.
FEW = TILE_ROWS


@njit(nogil=True, cache=True)
def note_address(plan: Plan, place: int, array: NDArray[Any]) -> None:
    """Where an array lies; a third of the time that `ctypes.data` takes."""
    plan[place] = address_of(array)


@njit(nogil=True, cache=True)
def scores_of(plan: Plan, rounded: int) -> int:
    """Address of scratch for entries' scores, after that for rounded rows and target rows."""
    return rounded + plan[at.ROUNDED_BYTES] + 2 * FEW * plan[at.HEADS] * plan[at.CHANNELS] * 4


@njit(nogil=True, cache=True)
def linear_scores(plan: Plan, layer: int, begin: int, end: int) -> None:
    """Compute the linear part of the source scores in a layer; see `attention`."""
    here = at.LAYERS + at.LAYER_PLACES * layer
    heads, channels = plan[at.HEADS], plan[at.CHANNELS]
    source, attention = plan[here + at.SOURCE_ROWS], plan[here + at.ATTENTION]
    linear = plan[here + at.LINEAR_ROWS]
    if heads == 4 and channels == 32:
        linear_4x32(source, attention, begin, end, linear)
    elif heads == 4 and channels == 16:
        linear_4x16(source, attention, begin, end, linear)
    elif heads == 2 and channels == 32:
        linear_2x32(source, attention, begin, end, linear)
    elif heads == 2 and channels == 16:
        linear_2x16(source, attention, begin, end, linear)


@njit(nogil=True, cache=True)
def first_products(plan: Plan, begin: int, end: int, rounded: int) -> None:
    """What the first layer needs of the inputs; `rounded` is the address of this thread's scratch."""
    d_in = plan[at.D_IN]
    products(plan, 0, factor(plan, plan[at.X], d_in, begin, end, rounded), d_in, begin, end)
    linear_scores(plan, 0, begin, end)
    if plan[at.EDGE_HALVES]:  # of as many edges as these are of all rows
        n, e = plan[at.NUM_NODES], plan[at.NUM_EDGES]
        halve_edges(
            plan[at.E], plan[at.D_EDGE], plan[at.USUAL_EDGE], begin * e // n, end * e // n,
            plan[at.EDGE_HALVES],
        )  # fmt: skip


@njit(nogil=True, cache=True)
def next_products(plan: Plan, layer: int, begin: int, end: int, rounded: int) -> None:
    """What a later layer needs of the state below it; `rounded` is the address of this thread's scratch."""
    state_products(plan, layer, begin, end, rounded)
    linear_scores(plan, layer, begin, end)


@njit(nogil=True, cache=True)
def listening_rows(plan: Plan, layer: int, begin: int, end: int, rounded: int, into: int) -> int:
    """Compute target rows of a layer, with the temporal term, and each node's own term.

    A few rows, right before attention reads them: they stay in the first cache.

    Args:
        rounded: address of this thread's scratch; into: address of room for two blocks of rows.

    Returns: address of row 0 of the own terms.
    """
    here = at.LAYERS + at.LAYER_PLACES * layer
    width, d_t = plan[at.HEADS] * plan[at.CHANNELS] * 4, plan[at.D_TEMPORAL]
    without = plan[here + at.SOURCE_ROWS] if plan[at.SHARED] else plan[here + at.TARGET_ROWS]
    h = factor(plan, plan[at.H], d_t, begin, end, rounded + plan[at.ROUNDED_TEMPORAL])
    multiply_by(
        plan, h, d_t, plan[here + at.W_TEMPORAL], width, without, width, into - begin * width, _ONE,
        begin, end,
    )  # fmt: skip
    if layer:
        return plan[here + at.OWN_ROWS]
    own = into + FEW * width - begin * width
    multiply_by(plan, h, d_t, plan[at.W_OWN_TEMPORAL], width, plan[at.NOTHING], 0, own, _ONE, begin, end)
    if plan[at.OWN_INPUTS]:
        d_in = plan[at.D_IN]
        x = factor(plan, plan[at.X], d_in, begin, end, rounded)
        multiply_by(plan, x, d_in, plan[at.W_OWN], width, own, width, own, _ONE, begin, end)
    return own


@njit(nogil=True, cache=True)
def attend_rows(plan: Plan, layer: int, begin: int, end: int, rounded: int) -> None:
    """A layer's state of rows begin to end; `rounded` is the address of this thread's scratch."""
    here = at.LAYERS + at.LAYER_PLACES * layer
    heads, channels = plan[at.HEADS], plan[at.CHANNELS]
    width = heads * channels * 4
    slope = _ONE if layer + 1 == plan[at.NUM_LAYERS] else _GENTLE
    indptr, others, edges = plan[here + at.INDPTR], plan[here + at.OTHERS], plan[here + at.EDGES]
    block = rounded + plan[at.ROUNDED_BYTES]
    source, scores = plan[here + at.SOURCE_ROWS], scores_of(plan, rounded)
    result, attention, bias = plan[here + at.RESULT_ROWS], plan[here + at.ATTENTION], plan[here + at.BIAS]
    e, edge_weight, edge_linear = plan[at.E], plan[here + at.W_EDGE], plan[here + at.EDGE_LINEAR]
    linear, edge_halves = plan[here + at.LINEAR_ROWS], plan[at.EDGE_HALVES]
    usual, edge_start = plan[at.USUAL_EDGE], plan[here + at.EDGE_START]
    d_edge = plan[at.D_EDGE] if layer < plan[at.EDGE_LAYERS] else 0
    for first in range(begin, end, FEW):
        last = min(end, first + FEW)
        own = listening_rows(plan, layer, first, last, rounded, block)
        target = block - first * width
        if heads == 4 and channels == 32:
            attend_4x32(
                indptr, others, edges, first, last, source, linear, target, attention, e, d_edge,
                edge_weight, edge_linear, usual, edge_start, edge_halves, scores, own, bias, slope, result,
            )  # fmt: skip
        elif heads == 4 and channels == 16:
            attend_4x16(
                indptr, others, edges, first, last, source, linear, target, attention, e, d_edge,
                edge_weight, edge_linear, usual, edge_start, edge_halves, scores, own, bias, slope, result,
            )  # fmt: skip
        elif heads == 2 and channels == 32:
            attend_2x32(
                indptr, others, edges, first, last, source, linear, target, attention, e, d_edge,
                edge_weight, edge_linear, usual, edge_start, edge_halves, scores, own, bias, slope, result,
            )  # fmt: skip
        elif heads == 2 and channels == 16:
            attend_2x16(
                indptr, others, edges, first, last, source, linear, target, attention, e, d_edge,
                edge_weight, edge_linear, usual, edge_start, edge_halves, scores, own, bias, slope, result,
            )  # fmt: skip
        else:
            starts = carray(pointer(indptr), (last + 1,), np.int32)
            for i in range(first, last):
                entry, row = np.int64(starts[i]), i * width
                attend_any(
                    source, target + row, attention, others + 4 * entry, edges + 4 * entry,
                    np.int64(starts[i + 1]) - entry, e, d_edge, edge_weight, usual, edge_start, scores,
                    own + row, bias, slope, result + row, heads, channels, plan[at.HALVES],
                )  # fmt: skip


@njit(nogil=True, cache=True)
def as_half(number: float) -> float:
    """A float32 rounded to bfloat16: to the nearest, to even where there are two."""
    bits = np.float32(number).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    half = np.uint32((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000))
    return half.view(np.float32)  # type: ignore[return-value]


@njit(nogil=True, cache=True)
def attend_any(
    source: int, target: int, attention: int, others: int, edges: int, count: int, e: int, d_edge: int,
    edge_weight: int, usual: int, edge_start: int, scores: int, own: int, bias: int, slope: float, out: int,
    heads: int, channels: int, halves: int,
) -> None:  # fmt: skip
    """`attention.attend_4x32` of one row, for any number of heads and channels; not as fast."""
    width = heads * channels
    targets = carray(pointer(target), (width,), np.float32)
    factors = carray(pointer(attention), (width,), np.float32)
    entries = carray(pointer(others), (count,), np.int32)
    numbers = carray(pointer(edges), (count,), np.int32)
    owns = carray(pointer(own), (width,), np.float32)
    biases = carray(pointer(bias), (width,), np.float32)
    result = carray(pointer(out), (width,), np.float32)
    weights = carray(pointer(edge_weight), (d_edge, width), np.float32)
    usually = carray(pointer(usual), (d_edge,), np.float32)
    starts = carray(pointer(edge_start), (width,), np.float32)
    for head in range(heads):
        marks = carray(pointer(scores), (count,), np.float32)
        highest = np.float32(-3.0e38)
        for p in range(count):
            row = carray(pointer(source + 4 * width * np.int64(entries[p])), (width,), np.float32)
            edge = carray(pointer(e + 4 * d_edge * np.int64(numbers[p])), (d_edge,), np.float32)
            score = np.float32(0.0)
            for c in range(head * channels, (head + 1) * channels):
                mixed = row[c] + (targets[c] + starts[c])
                for q in range(d_edge):
                    number = edge[q] - usually[q]
                    mixed += (as_half(number) if halves else number) * weights[q, c]
                score += max(mixed, _GENTLE * mixed) * factors[c]
            marks[p] = score
            highest = max(highest, score)
        total = np.float32(0.0)
        for p in range(count):
            marks[p] = math.exp(marks[p] - highest)
            total += marks[p]
        for c in range(head * channels, (head + 1) * channels):
            value = owns[c] + biases[c]
            for p in range(count):
                row = carray(pointer(source + 4 * width * np.int64(entries[p])), (width,), np.float32)
                value += row[c] * (marks[p] / total)
            result[c] = max(value, slope * value)


@njit(nogil=True, cache=True)
def embed(plan: Plan, begin: int, end: int, rounded: int) -> None:
    """Embeddings of the last layer's state; 0 for masked rows."""
    depth = plan[at.HEADS] * plan[at.CHANNELS]
    state = plan[at.LAYERS + at.LAYER_PLACES * (plan[at.NUM_LAYERS] - 1) + at.RESULT_ROWS]
    out = plan[at.OUT_BYTES]
    below = factor(plan, state, depth, begin, end, rounded)
    multiply_by(plan, below, depth, plan[at.W_OUT], out, plan[at.B_OUT], 0, plan[at.Z], _ONE, begin, end)
    if plan[at.MASK]:
        mask = carray(pointer(plan[at.MASK]), (plan[at.NUM_NODES],), np.uint8)
        z = carray(pointer(plan[at.Z]), (plan[at.NUM_NODES], out // 4), np.float32)
        for i in range(begin, end):
            if mask[i] == 0:
                z[i] = np.float32(0)


@njit(nogil=True, cache=True)
def decode_nodes(plan: Plan, begin: int, end: int, rounded: int) -> None:
    """The nodes' numbers, and what the edges need of each end."""
    out, inner = plan[at.OUT_BYTES], plan[at.DECODER_BYTES]
    nothing, depth = plan[at.NOTHING], out // 4
    below = factor(plan, plan[at.Z], depth, begin, end, rounded)
    if plan[at.WITH_LINKS]:
        multiply_by(plan, below, depth, plan[at.W_LINK], out, nothing, 0, plan[at.QUERY], _ONE, begin, end)
    multiply_by(
        plan,
        below,
        depth,
        plan[at.W_CALLER],
        inner,
        plan[at.B_CALLER],
        0,
        plan[at.CALLER],
        _ONE,
        begin,
        end,
    )
    multiply_by(plan, below, depth, plan[at.W_CALLEE], inner, nothing, 0, plan[at.CALLEE], _ONE, begin, end)
    hidden = plan[at.NODE_HIDDEN]
    multiply_by(
        plan, below, depth, plan[at.W_HIDDEN], inner, plan[at.B_HIDDEN], 0, hidden, _GENTLE, begin, end
    )
    below = factor(plan, hidden, inner // 4, begin, end, rounded)
    multiply_by(
        plan, below, inner // 4, plan[at.W_NODES], plan[at.NODE_BYTES], plan[at.B_NODES], 0,
        plan[at.NODE_OUT], _ONE, begin, end,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def decode_edges(plan: Plan, begin: int, end: int, scores: int) -> None:
    """The edges' numbers, and their logits where they are asked for; `scores` is scratch."""
    out, inner, row = plan[at.OUT_BYTES], plan[at.DECODER_BYTES], plan[at.EDGE_BYTES]
    sources, targets, d_temporal = plan[at.SOURCES], plan[at.TARGETS], plan[at.D_EDGE_TEMPORAL]
    if inner == 4 * USUAL_INNER and row == 4 * USUAL_NUMBERS and d_temporal == USUAL_TEMPORAL:
        decode_usual(
            sources, targets, begin, end, plan[at.NUM_EDGES] - 1, plan[at.CALLER], plan[at.CALLEE],
            plan[at.G], plan[at.W_EDGE_TEMPORAL], plan[at.W_EDGES], plan[at.B_EDGES], plan[at.EDGE_OUT],
        )  # fmt: skip
    else:
        callers = carray(pointer(sources), (plan[at.NUM_EDGES],), np.int32)
        callees = carray(pointer(targets), (plan[at.NUM_EDGES],), np.int32)
        for k in range(begin, end):
            decode_edge(
                plan[at.CALLER] + np.int64(callers[k]) * inner,
                plan[at.CALLEE] + np.int64(callees[k]) * inner,
                inner,
                plan[at.G] + 4 * d_temporal * k,
                d_temporal,
                plan[at.W_EDGE_TEMPORAL],
                scores,
                row // 16,
                plan[at.W_EDGES],
                plan[at.B_EDGES],
                plan[at.EDGE_OUT] + row * k,
            )
    if plan[at.WITH_LINKS]:
        link_bias = carray(pointer(plan[at.LINK_BIAS]), (1,), np.float32)[0]
        link_edges(sources, targets, begin, end, plan[at.QUERY], plan[at.Z], out, link_bias, plan[at.LINKS])


@njit(nogil=True, cache=True)
def piece_of(plan: Plan, phase: int, begin: int, end: int, thread: int) -> None:
    """Rows (or edges, in the last phase) begin to end of one phase."""
    layers = plan[at.NUM_LAYERS]
    rounded = plan[at.SCRATCH] + thread * plan[at.SCRATCH_BYTES]
    if phase == 0:
        first_products(plan, begin, end, rounded)
    elif phase <= layers:
        attend_rows(plan, phase - 1, begin, end, rounded)
        if phase < layers:
            next_products(plan, phase, begin, end, rounded)
        else:
            embed(plan, begin, end, rounded)
            if plan[at.PHASE_BITS] >> (layers + at.DECODE_EDGES) & 1:
                decode_nodes(plan, begin, end, rounded)
    elif phase == layers + at.DECODE_NODES:
        decode_nodes(plan, begin, end, rounded)
    else:
        decode_edges(plan, begin, end, scores_of(plan, rounded))


@njit(nogil=True, cache=True)
def work(plan: Plan, control: Plan, thread: int) -> None:
    """All phases, piece by piece; what the other thread has taken is waited for between phases."""
    layers = plan[at.NUM_LAYERS]
    for phase in range(layers + at.PHASES_BESIDE):
        if not plan[at.PHASE_BITS] >> phase & 1:
            continue
        of_edges = phase == layers + at.DECODE_EDGES
        count = plan[at.NUM_EDGES] if of_edges else plan[at.NUM_NODES]
        size = plan[at.EDGE_PIECE] if of_edges else plan[at.ROW_PIECE]
        pieces = (count + size - 1) // size
        place = PHASES + PHASE_WORDS * phase
        taken = 0
        while True:
            piece = take_piece(control, place, pieces, thread, taken)
            if piece < 0:
                break
            taken += 1
            piece_of(plan, phase, piece * size, min(count, (piece + 1) * size), thread)
            fetch_add(control, place + DONE, 1)
        await_pieces(control, place, pieces)


@njit(nogil=True, cache=True)
def run_alone(plan: Plan) -> None:
    """A pass by the calling thread."""
    layers = plan[at.NUM_LAYERS]
    for phase in range(layers + at.PHASES_BESIDE):
        if plan[at.PHASE_BITS] >> phase & 1:
            of_edges = phase == layers + at.DECODE_EDGES
            count = plan[at.NUM_EDGES] if of_edges else plan[at.NUM_NODES]
            size = plan[at.EDGE_PIECE] if of_edges else plan[at.ROW_PIECE]
            for begin in range(0, count, size):
                piece_of(plan, phase, begin, min(count, begin + size), 0)


@njit(nogil=True, cache=True)
def run_shared(plan: Plan, control: Plan) -> None:
    """A pass with the second thread's help; `second.wait_idle` came before the plan was changed."""
    open_pass(control, plan[at.NUM_LAYERS] + at.PHASES_BESIDE, False)
    work(plan, control, 0)
    close_pass(control)


@njit(nogil=True, cache=True)
def serve(plan: Plan, control: Plan) -> None:
    """The main loop of the second thread; ends at the stop signal."""
    seen = await_work(control, 0)
    while seen >= 0:
        if join(control):
            work(plan, control, 1)
        leave(control)
        seen = await_work(control, seen)
