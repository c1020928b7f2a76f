"""What a batch run did, for people and as JSON."""

from __future__ import annotations

import msgspec


class LevelReport(msgspec.Struct, frozen=True):
    """One (level, node type).

    Attributes:
        rows: that the run needs; computed: in this attempt; copied: of the previous run.
        edges: sampled in this attempt.
        gathered_bytes: rows read from the level below for them.
        compact_edges: 0 where rows were read where they lie; see `budget.py`.
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


class Report(msgspec.Struct, frozen=True):
    """One attempt that ended well.

    Attributes:
        rows: of the tables that were written.
        recomputed: rows of all levels that were computed in this attempt.
        resumed: an earlier attempt had done part of it.
        rows_per_s: rows of the tables over all seconds of this attempt.
        duplicates: ids that the file of nodes names again; each is one row.
        kept: the work folder, where it was kept for a later run; else "".
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
    levels: tuple[LevelReport, ...]
    duplicates: int = 0
    kept: str = ""
