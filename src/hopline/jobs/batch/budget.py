"""Decides how a level is computed within the memory limit of a run.

Rows of the level below are read at random. If they fit in memory, they are read in place, mapped. If they
do not, each thread works on so few destinations at a time that the distinct rows which these read fit a
buffer, and reads them into it in file order: each page once for each piece of work, never at random. The
arithmetic is the same, and so is every bit of the result.
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
    """The data that computing a level reads.

    Attributes:
        what: name of the level, for messages.
        base_bytes: of the files below.
        row_bytes: of one row of each of them, together.
        out_bytes: of a computed row.
        fanout: neighbours of a row at most, over all edge types, with the row itself.
        usual: average of `fanout`.
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
    """The sizes of the pieces of work; see `LevelWork`."""

    compact_edges: int = 0
    span_rows: int = SPAN_ROWS


def pace(reads: Reads, limit_bytes: int, threads: int, taken_bytes: int) -> Pace:
    """Choose the sizes of the pieces that each thread works on.

    Args:
        limit_bytes: of resident memory; 0 means no limit.
        taken_bytes: memory of the process before it works: libraries, kernels, the model.

    Raises:
        BatchError: the limit is too small for the largest neighbourhood; the message names a sufficient
            limit.
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
            f"{reads.fanout:,} rows; it needs {_mib(enough)}{fewer}"
        )
    return Pace(edges, max(SPAN_ROWS, int(edges / reads.usual)))


def _mib(num_bytes: float) -> str:
    return f"{-int(-num_bytes // (1 << 20))}MiB"
