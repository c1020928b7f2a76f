"""Times that were no normal ones, among those that are learned from.

Thresholds end somewhere (`calibrate.HIGHEST`). What goes beyond that, and lasts, is an incident with any
threshold; to raise thresholds for it would only hide smaller faults, of all services.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopline_mesh.tagae.clues import Clue, Key

#: Share of the time that is learned from, of which more cannot be abnormal: it is how the mesh is.
MAX_ABNORMAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time that is not learned from.

    Attributes:
        since_s, until_s: of the first and last interval of it, Unix seconds.
        series: what was out of all bounds.
    """

    since_s: float
    until_s: float
    series: frozenset[Key]

    def __contains__(self, time_s: float) -> bool:
        return self.since_s <= time_s <= self.until_s


def stretches(
    times_s: Sequence[float], beyond: Sequence[Sequence[Clue]], *, before: int, apart: int
) -> list[Stretch]:
    """The times to leave out, oldest first.

    What a series did more than once is usual of it, however absurd, and so is what takes up much of the
    time. What nothing but one series shows may be that, too, and is not left out.

    Args:
        times_s: of all intervals, in their order.
        beyond: for each of them what was out of all bounds for long enough.
        before: intervals that it had lasted by then.
        apart: intervals without any of it after which it is another time.
    """
    found: list[tuple[int, int]] = []
    for number, clues in enumerate(beyond):
        if not clues:
            continue
        if found and number - found[-1][1] <= apart:
            found[-1] = (found[-1][0], number)
        else:
            found.append((max(0, number - before), number))
    told = [
        Stretch(
            times_s[first],
            times_s[min(last + apart, len(times_s) - 1)],
            frozenset(clue.key for clues in beyond[first : last + 1] for clue in clues),
        )
        for first, last in found
    ]
    once = [
        one
        for one in told
        if len(one.series) > 1 and not any(one.series & other.series for other in told if other is not one)
    ]
    outside = sum(any(time_s in one for one in once) for time_s in times_s)
    return once if outside <= MAX_ABNORMAL_SHARE * len(times_s) else []
