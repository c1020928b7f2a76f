"""A step's passes over all series, and the model's between them, piece by piece: compiled, for two threads.

Pieces of a phase are slots of the call paths' table, then of the services'; between phases each thread
waits for the other. Which thread takes a piece does not change what comes of it.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import carray
from numpy.typing import NDArray

from hopline.kernels.intrinsics import address_of, pointer
from hopline.kernels.jit import njit
from hopline_mesh.model import plan as model_at
from hopline_mesh.model.passes import work
from hopline_mesh.model.second import (
    await_pieces,
    await_work,
    close_pass,
    join,
    leave,
    open_pass,
    take_piece,
    wait_idle,
)
from hopline_mesh.model.threads import DONE, PHASE_WORDS, PHASES, fetch_add, write
from hopline_mesh.roster import SlotArray
from hopline_mesh.tagae import plan as at
from hopline_mesh.tagae.calls import add_rows
from hopline_mesh.tagae.kernels import MIN_WINDOW, judge, observe
from hopline_mesh.tagae.rows import gather_row
from hopline_mesh.tagae.usual import BLOCK

Plan = NDArray[np.int64]
Floats = NDArray[np.float32]
#: Of a block of slots: values float32 [BLOCK, F], doubts float32 [BLOCK, F] and [BLOCK], which series are
#: usual int8 [BLOCK * F], and places int32 [BLOCK * F].
Scratch = tuple[Floats, Floats, Floats, NDArray[np.int8], NDArray[np.int32]]
#: See `outcome`.
Outcome = tuple[int, int, int, int, float]

#: Deviations are clipped to this as inputs of the model.
MAX_INPUT = np.float32(4.0)


@njit(nogil=True, cache=True)
def floats(plan: Plan, place: int) -> NDArray[np.float32]:
    """A table's array of float32 [slots, F]."""
    return carray(pointer(plan[place]), (plan[at.SIZE], plan[at.WIDTH]), np.float32)


@njit(nogil=True, cache=True)
def whole_numbers(plan: Plan, place: int) -> NDArray[np.int32]:
    """A table's array of int32 [slots, F]."""
    return carray(pointer(plan[place]), (plan[at.SIZE], plan[at.WIDTH]), np.int32)


@njit(nogil=True, cache=True)
def column_floats(plan: Plan, place: int) -> NDArray[np.float32]:
    """A table's array of float32 [F]."""
    return carray(pointer(plan[place]), (plan[at.WIDTH],), np.float32)


@njit(nogil=True, cache=True)
def of_block(plan: Plan, place: int) -> NDArray[np.bool_]:
    """What is to be known of the columns, for a block of slots: bool [BLOCK * F]."""
    return carray(pointer(plan[place]), (BLOCK * plan[at.WIDTH],), np.bool_)


@njit(nogil=True, cache=True)
def floats_of_block(plan: Plan, place: int) -> NDArray[np.float32]:
    """As `of_block`, for float32: float32 [BLOCK * F]."""
    return carray(pointer(plan[place]), (BLOCK * plan[at.WIDTH],), np.float32)


@njit(nogil=True, cache=True)
def fitted_of(plan: Plan) -> NDArray[np.int8]:
    """int8 [slots, F]."""
    return carray(pointer(plan[at.FITTED]), (plan[at.SIZE], plan[at.WIDTH]), np.int8)


@njit(nogil=True, cache=True)
def counts_of(plan: Plan, thread: int) -> NDArray[np.int64]:
    """int64 [LINE], of one thread."""
    return carray(pointer(plan[at.COUNTS] + 8 * at.LINE * thread), (at.LINE,), np.int64)


@njit(nogil=True, cache=True)
def largest_of(plan: Plan, thread: int) -> NDArray[np.float64]:
    """float64 [1], the largest score that one thread saw."""
    return carray(pointer(plan[at.LARGEST] + 8 * at.LINE * thread), (1,), np.float64)


@njit(nogil=True, cache=True)
def held_of(plan: Plan) -> NDArray[np.int8]:
    """int8 [HOLD, slots, F]."""
    return carray(pointer(plan[at.HELD]), (plan[at.HELD_ROWS], plan[at.ROOM], plan[at.WIDTH]), np.int8)


@njit(nogil=True, cache=True)
def marks_of(plan: Plan) -> NDArray[np.int8]:
    """int8 [slots, F]."""
    return carray(pointer(plan[at.MARK]), (plan[at.SIZE], plan[at.WIDTH]), np.int8)


@njit(nogil=True, cache=True)
def others_of(plan: Plan, thread: int) -> NDArray[np.int32]:
    """int32 [BLOCK * F], scratch of one thread."""
    return carray(
        pointer(plan[at.SCRATCH] + thread * plan[at.SCRATCH_BYTES]), (BLOCK * plan[at.WIDTH],), np.int32
    )


@njit(nogil=True, cache=True)
def scratch_of(plan: Plan, thread: int) -> Scratch:
    """Memory of `kernels.observe` for one thread; see `scratch_bytes`."""
    width = plan[at.WIDTH]
    step = 4 * BLOCK * width
    first = plan[at.SCRATCH] + thread * plan[at.SCRATCH_BYTES] + step
    return (
        carray(pointer(first), (BLOCK, width), np.float32),
        carray(pointer(first + step), (BLOCK, width), np.float32),
        carray(pointer(first + 2 * step), (BLOCK,), np.float32),
        carray(pointer(first + 2 * step + 4 * BLOCK), (BLOCK * width,), np.int8),
        others_of(plan, thread),
    )


@njit(nogil=True, cache=True)
def follow_columns(plan: Plan) -> None:
    """Have what a block is to know of its columns be as the columns have it now."""
    width = plan[at.WIDTH]
    pooled, threshold = column_floats(plan, at.POOLED), column_floats(plan, at.THRESHOLD)
    pools = carray(pointer(plan[at.BLOCK_POOLED]), (BLOCK, width), np.float32)
    per = carray(pointer(plan[at.BLOCK_PER]), (BLOCK, width), np.float32)
    for f in range(width):
        score = np.float32(1.0) / threshold[f]
        if pools[0, f] != pooled[f] or per[0, f] != score:
            pools[:, f] = pooled[f]
            per[:, f] = score


def scratch_bytes(width: int) -> int:
    """Memory of one thread for blocks of a table of so many columns."""
    return 4 * BLOCK * (3 * width + 1) + BLOCK * width


@njit(nogil=True, cache=True)
def model_of(step: Plan) -> Plan:
    """The plan of the model's pass."""
    return carray(pointer(step[at.MODEL_PLAN]), (step[at.MODEL_PLACES],), np.int64)


@njit(nogil=True, cache=True)
def observe_piece(plan: Plan, nodes: Plan, first: int, last: int, thread: int) -> None:
    """`kernels.observe` of slots first to last of a table; `nodes` is the services' plan."""
    width, window = plan[at.WIDTH], plan[at.WINDOW]
    values = carray(pointer(plan[at.VALUES]), (plan[at.NUM_ROWS], width), np.float32)
    rows = carray(pointer(plan[at.ROWS]), (plan[at.SIZE],), np.int32)
    if plan[at.SENT] >= 0:
        measured = (plan[at.NUM_ROWS], plan[at.MEASURED_WIDTH])
        add_rows(
            first, last, rows, values, carray(pointer(plan[at.MEASURED_VALUES]), measured, np.float32),
            carray(pointer(plan[at.CALLERS]), (plan[at.NUM_ROWS],), np.int32), plan[at.SENT],
            carray(pointer(nodes[at.ROWS]), (nodes[at.SIZE],), np.int32),
            carray(pointer(nodes[at.VALUES]), (nodes[at.NUM_ROWS], nodes[at.WIDTH]), np.float32),
            nodes[at.LOAD],
        )  # fmt: skip
    if plan[at.ABSENT]:
        absent = carray(pointer(plan[at.ABSENT]), (plan[at.SIZE],), np.int32)
        for i in range(first, last):
            absent[i] = 0 if rows[i] >= 0 else absent[i] + 1
    numbers = carray(pointer(plan[at.NUMBERS]), (2,), np.float64)
    num_measured, num_known = observe(
        first, last, values, rows,
        carray(pointer(plan[at.KINDS]), (width,), np.int8),
        plan[at.LOAD], column_floats(plan, at.CLIP),
        numbers[at.INTERVAL_S], plan[at.WARM_UP], numbers[at.DRIFT],
        plan[at.POS], plan[at.AGO], plan[at.RECENT], window,
        floats(plan, at.OFFSET), floats(plan, at.ANCHOR), floats(plan, at.LEVEL), floats(plan, at.SPREAD),
        floats(plan, at.WOBBLE), column_floats(plan, at.POOLED), column_floats(plan, at.TYPICAL),
        whole_numbers(plan, at.SEEN), fitted_of(plan),
        carray(pointer(plan[at.RING]), (window, plan[at.ROOM], width), np.int16),
        whole_numbers(plan, at.TOTAL), whole_numbers(plan, at.COUNT),
        floats(plan, at.SLOW), floats(plan, at.NEAR), floats(plan, at.MOVED),
        column_floats(plan, at.THRESHOLD), held_of(plan), plan[at.HELD_AT],
        floats(plan, at.SCORE), floats(plan, at.DEV), marks_of(plan),
        of_block(plan, at.BLOCK_AMOUNT), of_block(plan, at.BLOCK_PLAIN), of_block(plan, at.BLOCK_STILL),
        floats_of_block(plan, at.BLOCK_CLIP), floats_of_block(plan, at.BLOCK_POOLED),
        floats_of_block(plan, at.BLOCK_PER), scratch_of(plan, thread),
    )  # fmt: skip
    counts = counts_of(plan, thread)
    counts[at.MEASURED] += num_measured
    counts[at.KNOWN] += num_known


@njit(nogil=True, cache=True)
def gather_piece(plan: Plan, first: int, last: int, thread: int) -> None:
    """The model's inputs of slots first to last; counts those that have no window yet."""
    width, num_rows = plan[at.WIDTH], plan[at.NUM_ROWS]
    rows = carray(pointer(plan[at.ROWS]), (plan[at.SIZE],), np.int32)
    modelled = plan[at.MODELLED]
    x = carray(pointer(plan[at.INPUTS]), (num_rows, 2 * modelled), np.float32)
    h = carray(pointer(plan[at.TEMPORAL]), (num_rows, modelled), np.float32)
    slow, near, slope = floats(plan, at.SLOW), floats(plan, at.NEAR), floats(plan, at.SLOPE)
    count, load = whole_numbers(plan, at.COUNT), plan[at.LOAD]
    young = 0
    for i in range(first, last):
        row = np.int64(rows[i])
        if row >= 0:
            gather_row(slow, near, slope, load, i, MAX_INPUT, x, h, row)
            column = 0
            while column < width and count[i, column] < MIN_WINDOW:
                column += 1
            young += int(column == width)
    counts_of(plan, thread)[at.YOUNG] += young


@njit(nogil=True, cache=True)
def expected_of(plan: Plan) -> Floats:
    """The model's expected values, float32 [n, columns]; rows in memory may be longer."""
    num_rows = plan[at.NUM_ROWS] if plan[at.EXPECTED] else 0
    return carray(pointer(plan[at.EXPECTED]), (num_rows, plan[at.EXPECTED_BYTES] // 4), np.float32)


@njit(nogil=True, cache=True)
def judge_piece(plan: Plan, first: int, last: int, thread: int) -> None:
    """`kernels.judge` of slots first to last."""
    width = plan[at.WIDTH]
    counts = counts_of(plan, thread)
    found = carray(pointer(plan[at.FOUND] + 8 * at.MOST_FOUND * thread), (at.MOST_FOUND, 2), np.int32)
    histogram = plan[at.SECOND_HISTOGRAM] if thread else plan[at.HISTOGRAM]
    bins = plan[at.BINS]
    number, largest = judge(
        first, last, marks_of(plan), floats(plan, at.SLOW), floats(plan, at.NEAR), floats(plan, at.MOVED),
        carray(pointer(plan[at.STILL]), (width,), np.bool_), plan[at.LOAD],
        floats(plan, at.SLOPE), floats(plan, at.SHARP), expected_of(plan),
        carray(pointer(plan[at.ROWS]), (plan[at.SIZE],), np.int32), MAX_INPUT, floats(plan, at.GAIN),
        carray(pointer(plan[at.POLARITY]), (width, 2), np.float32), column_floats(plan, at.THRESHOLD),
        floats(plan, at.FACTOR), floats(plan, at.QUIET), whole_numbers(plan, at.SEEN), fitted_of(plan),
        plan[at.WARM_UP],
        held_of(plan), plan[at.HELD_AT], plan[at.HOLD], plan[at.HOLD] >= 4, plan[at.LEARN],
        floats(plan, at.SCORE), floats(plan, at.DEV),
        carray(pointer(histogram), (width, bins), np.int64), floats(plan, at.PEAK),
        found[min(counts[at.OUT], at.MOST_FOUND):], others_of(plan, thread),
    )  # fmt: skip
    counts[at.OUT] += number
    most = largest_of(plan, thread)
    most[0] = max(most[0], largest)


@njit(nogil=True, cache=True)
def piece_of(step: Plan, plan: Plan, nodes: Plan, phase: int, first: int, last: int, thread: int) -> None:
    """One piece of one phase of a table; `nodes` is the services' plan."""
    if phase == at.OBSERVE:
        observe_piece(plan, nodes, first, last, thread)
        if step[at.BITS] >> at.GATHER & 1:
            gather_piece(plan, first, last, thread)
    else:
        judge_piece(plan, first, last, thread)


@njit(nogil=True, cache=True)
def young_services(nodes: Plan) -> int:
    """Services without a window, once all are gathered."""
    return counts_of(nodes, 0)[at.YOUNG] + counts_of(nodes, 1)[at.YOUNG]


@njit(nogil=True, cache=True)
def sweep(step: Plan, nodes: Plan, edges: Plan, control: Plan, thread: int) -> None:
    """All phases of `step`; what the other thread has taken is waited for between them.

    If an interval is observed and judged in one call, but has services without a window, it is only
    observed.
    """
    for phase in range(at.NUM_PHASES):
        if not step[at.BITS] >> phase & 1:
            continue
        if phase > at.OBSERVE and step[at.BITS] >> at.OBSERVE & 1 and young_services(nodes):
            return  # what the model reads of these comes from their neighbours first
        if phase == at.MODEL:
            counters = carray(pointer(step[at.MODEL_CONTROL]), (step[at.MODEL_WORDS],), np.int64)
            work(model_of(step), counters, thread)
            continue
        edge_pieces = (edges[at.SIZE] + edges[at.PIECE] - 1) // edges[at.PIECE]
        node_pieces = (nodes[at.SIZE] + nodes[at.PIECE] - 1) // nodes[at.PIECE]
        # Half of the call paths, all services, the other half: each thread begins with call paths.
        half, pieces = edge_pieces // 2, edge_pieces + node_pieces
        place = PHASES + PHASE_WORDS * phase
        taken = 0
        while True:
            piece = take_piece(control, place, pieces, thread, taken)
            if piece < 0:
                break
            taken += 1
            is_nodes = half <= piece < half + node_pieces
            plan = nodes if is_nodes else edges
            if piece >= half:
                piece -= half if is_nodes else node_pieces
            first = piece * plan[at.PIECE]
            last = min(plan[at.SIZE], first + plan[at.PIECE])
            piece_of(step, plan, nodes, phase, first, last, thread)
            fetch_add(control, place + DONE, 1)
        await_pieces(control, place, pieces)


@njit(nogil=True, cache=True)
def reset(step: Plan) -> None:
    """Nothing of the model's phases is taken."""
    counters = carray(pointer(step[at.MODEL_CONTROL]), (step[at.MODEL_WORDS],), np.int64)
    for place in range(PHASES, len(counters)):
        write(counters, place, 0)


@njit(nogil=True, cache=True)
def outcome(step: Plan, nodes: Plan, edges: Plan) -> Outcome:
    """Counts of both threads: measured, known, young services, out of bounds; the largest score."""
    measured, known, out, largest = 0, 0, 0, 0.0
    for plan in (nodes, edges):
        for thread in range(2):
            counts = counts_of(plan, thread)
            measured += counts[at.MEASURED]
            known += counts[at.KNOWN]
            out += counts[at.OUT]
            largest = max(largest, largest_of(plan, thread)[0])
        if step[at.BITS] >> at.JUDGE & 1 and plan[at.LEARN]:
            size = plan[at.WIDTH] * plan[at.BINS]
            first = carray(pointer(plan[at.HISTOGRAM]), (size,), np.int64)
            second = carray(pointer(plan[at.SECOND_HISTOGRAM]), (size,), np.int64)
            for k in range(size):
                first[k] += second[k]
                second[k] = 0
    return measured, known, young_services(nodes), out, largest


@njit(nogil=True, cache=True)
def run(step: Plan, nodes: Plan, edges: Plan, control: Plan, is_shared: bool, more: bool) -> Outcome:
    """All phases, with the second thread's help or without; `control` is no other's, then.

    Args:
        more: another sweep comes soon.
    """
    if step[at.BITS] >> at.MODEL & 1:
        reset(step)
        model = model_of(step)
        nodes[at.EXPECTED], nodes[at.EXPECTED_BYTES] = model[model_at.NODE_OUT], model[model_at.NODE_BYTES]
        edges[at.EXPECTED], edges[at.EXPECTED_BYTES] = model[model_at.EDGE_OUT], model[model_at.EDGE_BYTES]
    if is_shared:
        open_pass(control, at.NUM_PHASES, more)
    else:
        for place in range(PHASES, len(control)):
            write(control, place, 0)
    sweep(step, nodes, edges, control, 0)
    if is_shared:
        close_pass(control)
    return outcome(step, nodes, edges)


@njit(nogil=True, cache=True)
def order_judging(nodes: Plan, edges: Plan, warm_up: int, held_at: int, hold: int, learn: int) -> None:
    """Write how to judge; see `kernels.judge`."""
    for plan in (nodes, edges):
        plan[at.WARM_UP], plan[at.HELD_AT], plan[at.HOLD], plan[at.LEARN] = warm_up, held_at, hold, learn


@njit(nogil=True, cache=True)
def take_in(
    step: Plan, nodes: Plan, edges: Plan, control: Plan, is_shared: bool, node_values: Floats,
    edge_values: Floats, measured: Floats, callers: SlotArray, sent: int, bits: int, warm_up: int, pos: int,
    ago: int, recent: int, interval_s: float, drift: float, held_at: int, hold: int, learn: int,
) -> Outcome:  # fmt: skip
    """Observe one interval, and judge it if `bits` has that flag; resets the counts.

    One call, since each costs some microseconds.

    Args:
        node_values, edge_values: float32 [n, F], contiguous.
        measured, callers, sent: what the call paths' values are to be made of, as `calls.Pending` has it;
            `sent` is -1 if they are complete already.
        bits to drift: see `kernels.observe`; held_at to learn: see `kernels.judge`.

    Returns: see `outcome`. Nothing was judged where services are young.
    """
    if is_shared:
        wait_idle(control)
    nodes[at.VALUES], edges[at.VALUES] = address_of(node_values), address_of(edge_values)
    edges[at.MEASURED_VALUES], edges[at.CALLERS] = address_of(measured), address_of(callers)
    edges[at.MEASURED_WIDTH], edges[at.SENT] = measured.shape[1], sent
    step[at.BITS] = bits
    for plan in (nodes, edges):
        plan[at.WARM_UP], plan[at.POS], plan[at.AGO], plan[at.RECENT] = warm_up, pos, ago, recent
        numbers = carray(pointer(plan[at.NUMBERS]), (2,), np.float64)
        numbers[at.INTERVAL_S], numbers[at.DRIFT] = interval_s, drift
        for thread in range(2):
            counts_of(plan, thread)[:] = 0
            largest_of(plan, thread)[0] = 0.0
        follow_columns(plan)
    order_judging(nodes, edges, warm_up, held_at, hold, learn)
    return run(step, nodes, edges, control, is_shared, not bits >> at.JUDGE & 1)


@njit(nogil=True, cache=True)
def judge_all(
    step: Plan, nodes: Plan, edges: Plan, control: Plan, is_shared: bool, bits: int, warm_up: int,
    held_at: int, hold: int, learn: int,
) -> Outcome:  # fmt: skip
    """Judge the interval that was taken in; see `kernels.judge`. Returns: see `outcome`."""
    if is_shared:
        wait_idle(control)
    step[at.BITS] = bits
    order_judging(nodes, edges, warm_up, held_at, hold, learn)
    return run(step, nodes, edges, control, is_shared, False)


@njit(nogil=True, cache=True)
def serve(step: Plan, nodes: Plan, edges: Plan, control: Plan) -> None:
    """The main loop of the second thread; ends at the stop signal."""
    seen = await_work(control, 0)
    while seen >= 0:
        if join(control):
            sweep(step, nodes, edges, control, 1)
        leave(control)
        seen = await_work(control, seen)
