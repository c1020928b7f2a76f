"""The part of a plan for one level and node type."""

from __future__ import annotations

from hopline.engine.level import Level
from hopline.engine.source import RowRead, RowSource
from hopline.engine.state_cache import NO_STAMPS
from hopline.sampling import Block
from hopline.types import FloatArray, IdArray, StampArray


class LevelPlan:
    """Rows of one level and node type that a batch needs.

    Attributes:
        level: the level that computes them.
        ids: int64 [n] distinct global ids.
        out: float32 [n, state_dim]; rows from the state cache are filled already.
        missing: int64 [m] positions in `ids` to compute; None means all of them.
        compute: int64 [m] ids to compute.
        own_rows: int64 [>= m] rows of `compute` one level below (global ids where that level is raw).
        blocks, rows: for each of the level's links, the sampled edges and their sources' rows one
            level below, int64 [>= edges] (global ids where that level is raw).
        raw: the raw rows of `compute` where they come from a source, else None.
        stamps: float64 [n] of the rows in `out`; [0] where rows do not age.
    """

    __slots__ = ("blocks", "compute", "ids", "level", "missing", "out", "own_rows", "raw", "rows", "stamps")

    def __init__(
        self,
        level: Level,
        ids: IdArray,
        out: FloatArray,
        missing: IdArray | None,
        compute: IdArray,
        stamps: StampArray = NO_STAMPS,
    ) -> None:
        self.level = level
        self.ids = ids
        self.out = out
        self.missing = missing
        self.compute = compute
        self.own_rows = compute
        self.blocks: list[Block] = []
        self.rows: list[IdArray] = []
        self.raw: RawRead | None = None
        self.stamps = stamps


class RawRead(RowRead):
    """Raw rows that a plan reads from a source.

    Attributes:
        reader: the level whose state the rows are (a raw level), or whose `features` input they fill.
    """

    __slots__ = ("reader",)

    def __init__(self, reader: Level, source: RowSource, ids: IdArray, out: FloatArray) -> None:
        super().__init__(source, ids, out)
        self.reader = reader
