"""Where everything of one sweep lies: places in int64 arrays of addresses and counts, one for each table.

As `model/plan.py`: one array instead of thirty arguments, and a second thread can read it.
"""

from __future__ import annotations

#: Arrays of a table by the name of its attribute, in the order of their places.
ARRAYS = (
    "kinds", "clip", "pooled", "typical", "still", "polarity", "threshold", "histogram",
    "offset", "anchor", "level", "spread", "wobble", "seen", "fitted", "total", "count", "slope", "sharp",
    "gain", "factor", "peak", "slow", "near", "moved", "quiet", "score", "dev", "mark", "ring", "held",
    "block_amount", "block_plain", "block_still", "block_clip", "block_pooled", "block_per",
)  # fmt: skip
(
    KINDS, CLIP, POOLED, TYPICAL, STILL, POLARITY, THRESHOLD, HISTOGRAM,
    OFFSET, ANCHOR, LEVEL, SPREAD, WOBBLE, SEEN, FITTED, TOTAL, COUNT, SLOPE, SHARP,
    GAIN, FACTOR, PEAK, SLOW, NEAR, MOVED, QUIET, SCORE, DEV, MARK, RING, HELD,
    BLOCK_AMOUNT, BLOCK_PLAIN, BLOCK_STILL, BLOCK_CLIP, BLOCK_POOLED, BLOCK_PER,
) = range(37)  # fmt: skip

#: Sizes of the table, and what a step sets. Where SENT is a column, VALUES are made of MEASURED_VALUES as
#: the sweep comes to them; see `calls.Pending`. ABSENT counts intervals, of services only. EXPECTED is
#: where the model's rows lie, 0 where there are none.
(
    SIZE, ROOM, WIDTH, MODELLED, WINDOW, HELD_ROWS, BINS, LOAD, PIECE, NUM_ROWS,
    WARM_UP, POS, AGO, RECENT, HELD_AT, HOLD, LEARN,
    VALUES, ROWS, SLOTS, INPUTS, TEMPORAL, NUMBERS, COUNTS, LARGEST, SECOND_HISTOGRAM, FOUND,
    MEASURED_VALUES, MEASURED_WIDTH, CALLERS, SENT, ABSENT, SCRATCH, SCRATCH_BYTES,
    EXPECTED, EXPECTED_BYTES, NUM_PLACES,
) = range(37, 74)  # fmt: skip

#: Of the numbers, float64: seconds of an interval, and how fast levels drift.
INTERVAL_S, DRIFT = range(2)
#: Of a thread's counts, int64: values measured, values that should have been, rows without a window, and
#: series out of bounds. Each thread has a separate cache line.
MEASURED, KNOWN, YOUNG, OUT, LINE = 0, 1, 2, 3, 8
#: Series out of bounds that a thread can note.
MOST_FOUND = 4096

#: The plan of a step: which phases, the model's plan and the counters of its phases with their lengths.
BITS, MODEL_PLAN, MODEL_PLACES, MODEL_CONTROL, MODEL_WORDS, STEP_PLACES = range(6)
#: Its phases, in their order; what is done along with the first, piece by piece.
OBSERVE, MODEL, JUDGE, NUM_PHASES = range(4)
GATHER = 4
