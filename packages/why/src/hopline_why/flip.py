"""The smallest set of players without which a score is on the other side of a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from hopline_why.shapley import Coalitions, Values, full

#: Scores of coalitions -> values, of the same shape.
Scored = Callable[[Coalitions], Values]


def smallest_flip(
    scored: Scored, values: Values, score: float, threshold: float, changeable: Sequence[int], most: int
) -> tuple[tuple[int, ...], bool] | None:
    """Players without which `score >= threshold` is the other way round, and if no smaller set does it.

    All sets of one player are scored, then all of two, while there are at most `most` sets. Beyond that,
    players are left out in the order of their values until the score flips, and each that is not needed is
    put back. Among sets of one size the one that goes furthest is chosen.

    Args:
        values: of all players. changeable: players that may be absent.

    Returns: None if no set was found.
    """
    everyone, is_above, left = int(full(len(values))), score >= threshold, most

    def margins(sets: Sequence[Sequence[int]]) -> Values:
        """The distance of each set's score beyond the threshold; -1 if it is on the same side."""
        own = np.array([everyone - sum(1 << player for player in each) for each in sets], np.uint64)
        found = threshold - scored(own) if is_above else scored(own) - threshold
        return np.where(found > 0 if is_above else found >= 0, found, -1.0)

    exhausted = 0
    for size in range(1, len(changeable) + 1):
        if (count := math.comb(len(changeable), size)) > left:
            break
        left, sets = left - count, list(combinations(changeable, size))
        found = margins(sets)
        if found.max() >= 0:
            return sets[int(found.argmax())], True
        exhausted = size
    if exhausted == len(changeable):
        return None
    order = sorted(changeable, key=lambda player: (-values[player] if is_above else values[player], player))
    prefixes = [order[:size] for size in range(1, len(order) + 1)]
    good = np.flatnonzero(margins(prefixes) >= 0)
    if not len(good):
        return None
    chosen = prefixes[int(good[0])]
    for player in reversed(chosen):
        fewer = [each for each in chosen if each != player]
        if fewer and margins([fewer])[0] >= 0:
            chosen = fewer
    return tuple(sorted(chosen)), len(chosen) == exhausted + 1
