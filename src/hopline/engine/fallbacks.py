"""Fallbacks that answers use when data is missing. Names, order and texts are defined only here.

    full quality → stale row → stale features → smaller fanout → student → mean features → refusal

A precomputed row of another snapshot comes first: precomputed rows are looked up before other rows are
read. Old feature rows come next, since they belong to the node itself. Omitting neighbours changes a sample
that is random anyway. A student reads only the node's own row. The mean row knows nothing of the node.
A request with `degraded: "refuse"` goes from full quality directly to the refusal.

Pipelines have further fallbacks, whose labels name a step (`hopline_pipelines/fallbacks.py`). A deadline
that has passed and a full queue have no fallback: such a request gets an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

STALE_ROW: Final = "stale_row"
STALE_FEATURES: Final = "stale_features"
SMALLER_FANOUT: Final = "smaller_fanout"
STUDENT: Final = "student"
MEAN_FEATURES: Final = "mean_features"


@dataclass(frozen=True, slots=True)
class Fallback:
    """One fallback, as the documentation shows it.

    Attributes:
        name: the label in `ScoreResult.degraded`.
        text: what the answer used instead.
        modules: where it is tried, below the package.
    """

    name: str
    text: str
    modules: tuple[str, ...]


#: In the order in which they are tried.
FALLBACKS: Final = (
    Fallback(
        STALE_ROW,
        'with `precomputed.stale = "serve"`: a precomputed row of another snapshot of the graph, or one '
        "that was computed from the graph folder's features though features come from a store",
        ("answering/lookup.py", "engine/answer.py"),
    ),
    Fallback(
        STALE_FEATURES,
        "a feature row that is older than its time to live, because no newer row was available",
        ("engine/source.py", "engine/stand_in.py"),
    ),
    Fallback(
        SMALLER_FANOUT,
        "a sample without the neighbours whose rows were not available",
        ("engine/source.py",),
    ),
    Fallback(
        STUDENT,
        "a student answered from the node's own row, because fewer than half of the rows that the model "
        "reads were available, including the smaller fanout",
        ("engine/stand_in.py",),
    ),
    Fallback(
        MEAN_FEATURES,
        "the mean row, because the node's own row was not available",
        ("engine/source.py", "engine/stand_in.py"),
    ),
)

_PLACES = {each.name: place for place, each in enumerate(FALLBACKS)}


def in_order(used: Iterable[str]) -> tuple[str, ...]:
    """The fallbacks that an answer used, in the order in which they are tried.

    Raises: ValueError: one of them is not in `FALLBACKS`.
    """
    used = set(used)
    for name in used:
        if name not in _PLACES:
            raise ValueError(f"unknown fallback {name!r}; known are {', '.join(_PLACES)}")
    return tuple(sorted(used, key=_PLACES.__getitem__))
