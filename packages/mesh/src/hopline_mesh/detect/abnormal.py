"""Finds abnormal times in a training period.

Thresholds have a maximum (`calibrate.HIGHEST`). A longer deviation beyond it is an incident for any
threshold. Raising thresholds for it would only hide smaller faults of all services.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopline_mesh.detect.clues import Clue, Key

#: Maximum abnormal share of a training period; above it, the deviations are normal for the mesh.
MAX_ABNORMAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time that is left out of the training.

    Attributes:
        since_s, until_s: of its first and last interval, Unix seconds.
        series: those beyond the highest threshold.
    """

    since_s: float
    until_s: float
    series: frozenset[Key]

    def __contains__(self, time_s: float) -> bool:
        return self.since_s <= time_s <= self.until_s


def stretches(
    times_s: Sequence[float], beyond: Sequence[Sequence[Clue]], *, before: int, apart: int
) -> list[Stretch]:
    """Return the times to leave out, oldest first.

    A repeated deviation of a series is normal for it, and so are deviations in a large share of the time. A
    deviation of only one series may be normal too, and is not left out.

    Args:
        times_s: of all intervals, in order.
        beyond: for each interval, series beyond the highest threshold for long enough.
        before: number of intervals that these deviations had lasted by then.
        apart: number of intervals without any after which a new stretch begins.
    """
    found: list[tuple[int, int]] = []
    for number, clues in enumerate(beyond):
        if not clues:
            continue
        if found and number - found[-1][1] <= apart:
            found[-1] = (found[-1][0], number)
        else:
            found.append((max(0, number - before), number))
    all_stretches = [
        Stretch(
            times_s[first],
            times_s[min(last + apart, len(times_s) - 1)],
            frozenset(clue.key for clues in beyond[first : last + 1] for clue in clues),
        )
        for first, last in found
    ]
    once = [
        one
        for one in all_stretches
        if len(one.series) > 1
        and not any(one.series & other.series for other in all_stretches if other is not one)
    ]
    outside = sum(any(time_s in one for one in once) for time_s in times_s)
    return once if outside <= MAX_ABNORMAL_SHARE * len(times_s) else []
