"""What answers fall back to where rows cannot be had: names, order and words stand here alone.

    full quality → stale row → smaller fanout → student → mean row → refusal

Stale rows come first, since they are of the node itself. Neighbours that are left out change a sample that
is drawn at random anyway. A student reads only the node's own row. The mean row knows nothing of the node.
A request that says `degraded: "refuse"` goes from full quality to the refusal.
"""

from __future__ import annotations

from typing import Final

#: Of a feature row that is older than its time to live, since no newer one could be had.
STALE_FEATURES: Final = "stale_features"
#: Of neighbours that are left out, since their rows could not be had.
SMALLER_FANOUT: Final = "smaller_fanout"
#: Of a student, which reads a node's own row: less than half of what its teacher reads could be had.
STUDENT: Final = "student"
#: Of the mean row in place of a node's own.
MEAN_FEATURES: Final = "mean_features"
#: Of a precomputed row from another snapshot of the graph (`precomputed.stale = "serve"`).
STALE_ROW: Final = "stale_row"

#: In the order in which they are tried. Precomputed rows are looked up before anything is read.
ORDER: Final = (STALE_ROW, STALE_FEATURES, SMALLER_FANOUT, STUDENT, MEAN_FEATURES)


def in_order(used: set[str]) -> tuple[str, ...]:
    """The fallbacks that an answer used, in the order in which they are tried."""
    return tuple(name for name in ORDER if name in used)
