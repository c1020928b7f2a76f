"""Final rows of every node in one file, computed in advance and mapped by the processes that serve them.

    page 0   magic · format version · header in JSON, with its digest     (one page, or as many as it needs)
    state    float32 [N, d]      output of the engine's last level
    logits   float32 [N, c]      output of the head; node heads only
    computed_at    int64 [N]     when the row was computed, ms since the epoch; 0: it was not computed
    ids      uint64 [N]          a hash of the node's external id, to match rows in another snapshot

A file is about the nodes of one type, by their rows in one graph version. It is written to a draft in the
same folder, synced and renamed. A file at the final path is therefore complete and never changes; a run
that updates it writes a new file. Start with `header.py`, then `reader.py`, then `writer.py`.
"""

from hopline.engine.precomputed_file.header import Header, PrecomputedPlan, model_hash
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.engine.precomputed_file.writer import PrecomputedWriter

__all__ = ["Header", "PrecomputedFile", "PrecomputedPlan", "PrecomputedWriter", "model_hash"]
