"""The progress of a batch run, and its report, for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

#: Called with a stage's label, rows done and rows in all.
Advance = Callable[[str, int, int], None]


def silent(label: str, done: int, total: int) -> None:
    """An `Advance` that reports nothing."""


class LevelReport(msgspec.Struct, frozen=True):
    """The report of one (level, node type).

    Attributes:
        rows: that the run needs; computed: in this attempt; copied: of the previous run.
        edges: sampled in this attempt.
        gathered_bytes: of the rows that they read from the level below.
        compact_edges: 0 if rows were read in place; see `work.py`.
    """

    level: int
    node_type: str
    rows: int
    computed: int
    copied: int
    edges: int
    gathered_bytes: int
    seconds: float
    compact_edges: int


class BatchReport(msgspec.Struct, frozen=True):
    """The report of one successful attempt.

    Attributes:
        rows: of the tables that were written.
        recomputed: rows of all levels that were computed in this attempt.
        resumed: an earlier attempt did part of the work.
        rows_per_s: rows of the tables over all seconds of this attempt.
        duplicates: ids that the file of nodes repeats; each is one row.
        kept: the work folder, if it was kept for a later run; else "".
        tables: node types, one for each table.
    """

    model: str
    version: str
    graph_version: str
    exact: bool
    outputs: tuple[str, ...]
    tables: tuple[str, ...]
    rows: int
    recomputed: int
    resumed: bool
    threads: int
    seconds: float
    rows_per_s: float
    peak_rss_bytes: int
    levels: tuple[LevelReport, ...] = ()
    duplicates: int = 0
    kept: str = ""
