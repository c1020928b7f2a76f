"""Fallbacks that answers use when rows are missing. Names, order and texts are defined only here.

    full quality → stale row → smaller fanout → student → mean row → refusal

Stale rows come first, since they belong to the node itself. Omitting neighbours changes a sample that
is random anyway. A student reads only the node's own row. The mean row knows nothing of the node.
A request with `degraded: "refuse"` goes from full quality directly to the refusal.
"""

from __future__ import annotations

from typing import Final

#: A feature row older than its time to live was used, since no newer one was available.
STALE_FEATURES: Final = "stale_features"
#: Neighbours were omitted, since their rows were not available.
SMALLER_FANOUT: Final = "smaller_fanout"
#: A student answered from the node's own row: less than half of the rows of its teacher were available.
STUDENT: Final = "student"
#: The mean row replaced a node's own row.
MEAN_FEATURES: Final = "mean_features"
#: A precomputed row from another snapshot of the graph was used (`precomputed.stale = "serve"`).
STALE_ROW: Final = "stale_row"

#: In the order in which they are tried. Precomputed rows are looked up before other rows are read.
ORDER: Final = (STALE_ROW, STALE_FEATURES, SMALLER_FANOUT, STUDENT, MEAN_FEATURES)


def in_order(used: set[str]) -> tuple[str, ...]:
    """The fallbacks that an answer used, in the order in which they are tried."""
    return tuple(name for name in ORDER if name in used)
