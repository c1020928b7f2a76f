"""Precomputed final rows of every node in one file, mapped by the processes that serve them.

    page 0   magic · format version · header in JSON, with its digest     (one page, or as many as it needs)
    state    float32 [N, d]      what the engine's last level gives
    logits   float32 [N, c]      what the head makes of it; node heads only
    computed_at    int64 [N]           when the row was computed, ms since the epoch; 0: it was not
    ids      uint64 [N]          a hash of the node's external id, to know rows again in another snapshot

A file is about the nodes of one type, by their rows in one graph version. It is written next to its place,
synced and renamed: a file is always complete and never changes; a run that brings it up to date writes
another one. Start with `header.py`, then `reader.py`, then `writer.py`.
"""

from hopline.engine.precomputed_file.header import Header, PrecomputedPlan, model_hash
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.engine.precomputed_file.writer import PrecomputedWriter

__all__ = ["Header", "PrecomputedFile", "PrecomputedPlan", "PrecomputedWriter", "model_hash"]
