"""How a level is computed inside the memory that a run may take.

Rows of the level below are read at random. Where they fit, they are read where they lie, mapped. Where they
do not, each thread works on so many destinations at once that the distinct rows which these read fit a
buffer, and reads them into it in the order of the file: each page once for each piece of work, never at
random. The arithmetic is the same, and so is every bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from hopline.errors import BatchError
from hopline.jobs.batch.memory import HIGH
from hopline.jobs.batch.rows import EDGE_BYTES, PIECE_EDGES, PIECE_ROWS
from hopline.jobs.batch.work import SPAN_ROWS

#: Of a thread: ONNX Runtime's arena, the interpreter's objects, and pages that stay mapped for a while.
_THREAD_BYTES = 24 << 20
#: Padded entries of a block stage's call (engine/stage.py), which copies the rows that they name.
_BLOCK_ENTRIES = 16_384


@dataclass(frozen=True)
class Reads:
    """What computing a level reads.

    Attributes:
        what: for messages.
        base_bytes: of the files below.
        row_bytes: of one row of each of them, together.
        out_bytes: of a row that is computed.
        fanout: neighbours of a row at most, over all edge types, with the row itself.
        usual: the same on average.
        block: the stage pads neighbours into blocks.
    """

    what: str
    base_bytes: int
    row_bytes: int
    out_bytes: int
    fanout: int
    usual: float
    block: bool


@dataclass(frozen=True)
class Pace:
    """How much is worked on at once; see `LevelWork`."""

    compact_edges: int = 0
    span_rows: int = SPAN_ROWS


def pace(reads: Reads, limit_bytes: int, threads: int, taken_bytes: int) -> Pace:
    """How much each thread works on at once.

    Args:
        limit_bytes: of resident memory; 0 means no limit.
        taken_bytes: what the process takes before it works: libraries, kernels, the model.

    Raises:
        BatchError: the limit is too small for the largest neighbourhood; the message names enough.
    """
    if not limit_bytes:
        return Pace()
    piece = max(min(PIECE_EDGES, PIECE_ROWS * reads.fanout), reads.fanout)
    fixed = _THREAD_BYTES + SPAN_ROWS * reads.out_bytes
    if reads.block:
        fixed += 3 * max(_BLOCK_ENTRIES, reads.fanout) * max(reads.row_bytes, 4)
    room = HIGH * limit_bytes - taken_bytes
    if reads.base_bytes + threads * (fixed + piece * EDGE_BYTES) <= room:
        return Pace()
    of_edge = reads.row_bytes + EDGE_BYTES + reads.out_bytes / reads.usual
    edges = int((room / threads - fixed) // of_edge)
    if edges < reads.fanout:
        enough = (taken_bytes + threads * (fixed + reads.fanout * of_edge)) / HIGH
        alone = (taken_bytes + fixed + reads.fanout * of_edge) / HIGH
        fewer = f", or {_mib(alone)} with --threads 1" if threads > 1 else ""
        raise BatchError(
            f"--memory {_mib(limit_bytes)} is too little for {reads.what}, whose largest neighbourhood is "
            f"{reads.fanout:,} rows; it takes {_mib(enough)}{fewer}"
        )
    return Pace(edges, max(SPAN_ROWS, int(edges / reads.usual)))


def _mib(num_bytes: float) -> str:
    return f"{-int(-num_bytes // (1 << 20))}MiB"
