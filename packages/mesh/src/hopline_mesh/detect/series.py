"""The state of many series in one table: those of all services, or those of all call paths.

Arrays by slot and column, with space to grow; the kernels work on them. Knows no names or graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import kernels
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roles import POLARITY, load_column, role_of
from hopline_mesh.schema import kind_of
from hopline_mesh.settings import HOLD
from hopline_mesh.snapshot import FloatArray

#: Series out of bounds in an interval that a table can note.
_MOST_FOUND = 4096
_KINDS = {"amount": kernels.AMOUNT, "share": kernels.SHARE, "real": kernels.REAL}

#: Least spread of a series by kind: 5 % of an amount, half a percent of a share. A series that is constant
#: would otherwise be out of bounds at its first change. The counting noise of few requests comes on top, so
#: a share of failed requests needs hardly any more.
_LEAST_SPREAD = {"amount": 0.05, "share": 0.005, "real": 0.05}
_LEAST_SPREAD_OF_ERRORS = 0.002
#: Least spread of a deviation, in spreads of its series.
_LEAST_SPREAD_OF_PLAIN = 0.05

#: Intervals in which the typical value of a column is looked for, where it is not known.
_LOOKS = 10
#: Spreads from its base that a value is kept in the window at most: a shift becomes the new level, but the
#: larger it is the later.
_CLIP = 6.0

#: Number of windows in which a baseline moves to the mean of its window.
_DRIFT_WINDOWS = 10.0
#: Threshold of a column before anything is known, in spreads.
UNKNOWN = 8.0


def least_spread(column: str) -> float:
    """Return the least spread of the series of a column."""
    kind = kind_of(column)
    if kind == "share" and role_of(column) == "errors":
        return _LEAST_SPREAD_OF_ERRORS
    return _LEAST_SPREAD[kind]


class SeriesTable:
    """Series by slot and column.

    Args:
        columns: their names; kind and role follow from them.
        window: intervals that are looked back.
        warm_up: intervals before a series without learned state is judged.
        are_plain: whether values are deviations already, in spreads: compared without a scale and a load.

    Attributes:
        size: slots in use; arrays may have room for more.
        roles: of the columns.
        threshold: float32 [F], in spreads.
        pooled: float32 [F], spread that a new series of a column begins with.
        typical: float32 [F], median value of a column over all services; 0 = not known yet.
        histogram: int64 [F, BINS], debounced deviations of normal time, in quarters of a spread.
        ring: int16 [window, room, F].
        held: int8 [HOLD, room, F], the last deviations.
    """

    # Each array by slot and column, with the value of a series that was never seen.
    offset: Annotated[FloatArray, np.float32(-1)]
    anchor: Annotated[FloatArray, np.float32(0)]
    level: Annotated[FloatArray, np.float32(0)]
    spread: Annotated[FloatArray, np.float32(1)]
    wobble: Annotated[FloatArray, np.float32(0)]
    seen: Annotated[NDArray[np.int32], np.int32(0)]
    fitted: Annotated[NDArray[np.int8], np.int8(0)]
    total: Annotated[NDArray[np.int32], np.int32(0)]
    count: Annotated[NDArray[np.int32], np.int32(0)]
    slope: Annotated[FloatArray, np.float32(0)]
    sharp: Annotated[FloatArray, np.float32(1)]
    factor: Annotated[FloatArray, np.float32(1)]
    peak: Annotated[FloatArray, np.float32(0)]
    # As above, of the present interval only: not kept across restarts.
    slow: Annotated[FloatArray, np.float32(np.nan)]
    near: Annotated[FloatArray, np.float32(np.nan)]
    moved: Annotated[FloatArray, np.float32(0)]
    now: Annotated[FloatArray, np.float32(0)]
    wide: Annotated[FloatArray, np.float32(1)]
    quiet: Annotated[FloatArray, np.float32(1)]
    score: Annotated[FloatArray, np.float32(0)]
    dev: Annotated[FloatArray, np.float32(0)]

    def __init__(
        self, columns: Sequence[str], window: int, warm_up: int, *, are_plain: bool = False
    ) -> None:
        self.columns = tuple(columns)
        self.window = window
        self._warm_up = warm_up
        self.size = 0
        if are_plain:
            self.kinds = np.full(len(columns), kernels.PLAIN, np.int8)
            self.least_spread = np.full(len(columns), _LEAST_SPREAD_OF_PLAIN, np.float32)
        else:
            self.kinds = np.array([_KINDS[kind_of(column)] for column in columns], dtype=np.int8)
            self.least_spread = np.array([least_spread(column) for column in columns], np.float32)
        self.roles = [role_of(column) for column in columns]
        self.load = -1 if are_plain else load_column(columns)
        self.polarity = np.array([POLARITY[role] for role in self.roles], np.float32).reshape(-1, 2)
        self.still = np.array([role == "memory" for role in self.roles], dtype=bool)
        self.clip = np.where(self.still, 0.0, _CLIP).astype(np.float32)
        width = len(columns)
        self.pooled = self.least_spread.copy()
        self.typical = np.zeros(width, np.float32)
        self._looks = _LOOKS
        self.threshold = np.full(width, UNKNOWN, np.float32)
        self.histogram = np.zeros((width, kernels.BINS), np.int64)
        self.ring = np.full((window, 0, width), kernels.ABSENT, np.int16)
        self.held = np.zeros((HOLD, 0, width), np.int8)
        for name, first in _FIRST.items():
            setattr(self, name, np.full((0, width), first))

    def grow(self, size: int) -> None:
        """Have at least `size` slots in use."""
        if size > len(self.level):
            room = max(64, size + size // 4)
            for name, first in (_FIRST | {"ring": kernels.ABSENT, "held": np.int8(0)}).items():
                old = getattr(self, name)
                more = [(0, 0)] * old.ndim
                more[-2] = (0, room - old.shape[-2])
                setattr(self, name, np.pad(old, more, constant_values=first))
        self.size = max(self.size, size)

    def look(self, values: FloatArray) -> None:
        """Learn what is typical of each column, where that is not known, from the first intervals."""
        if not self._looks or not len(values):
            return
        self._looks -= 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a column without any value
            known = np.where(np.abs(values) < kernels.ABSURD, values, np.nan)
            middle = np.nanmedian(known, axis=0)
            # A count that is 0 most of the time has steps of its smallest value.
            step = np.nanmin(np.where(known > 0, known, np.nan), axis=0) / kernels.OFFSET
        middle = np.nan_to_num(np.where(middle == 0, step, middle))
        self.typical[:] = np.where(self.typical == 0, middle, self.typical)

    def observe(
        self,
        values: FloatArray,
        slots: NDArray[np.int32],
        step: int,
        *,
        interval_s: float,
        hold: int,
    ) -> tuple[int, int]:
        """Take one interval in; see `kernels.observe`.

        Args:
            values: float32 [n, F].
            slots: int32 [n], whose they are, each once.
            step: number of the interval.
            hold: intervals that a deviation must last.

        Returns: how many values were measured, and how many there should have been.
        """
        self.look(values)
        window = self.window
        rows = np.full(self.size, -1, np.int32)
        rows[slots] = np.arange(len(slots), dtype=np.int32)
        drift, ago, recent = 1.0 / (_DRIFT_WINDOWS * window), 2 * hold, max(1, hold - 2)
        taken: tuple[int, int] = kernels.observe(
            np.ascontiguousarray(values, np.float32), rows, self.kinds, self.load, self.clip, interval_s,
            self._warm_up, drift, step % window, min(ago, window - 1), min(recent, window - 1), window,
            self.offset, self.anchor, self.level, self.spread, self.wobble, self.pooled, self.typical,
            self.seen, self.fitted, self.ring, self.total, self.count, self.slow, self.near, self.moved,
            self.now, self.wide,
        )  # fmt: skip
        return taken

    def judge(
        self, step: int, *, hold: int, learn: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """Compare the observed interval with what was expected; see `kernels.judge`.

        Args:
            learn: what is counted as normal time.

        Returns: slot and column of each series that was out of bounds for long enough, int64 [found, 2];
            their debounced deviations in quarters of a spread, float64 [found]; and the largest score.
        """
        size = self.size
        found, lasting = np.empty((_MOST_FOUND, 2), np.int32), np.empty(_MOST_FOUND)
        number, largest = kernels.judge(
            self.slow[:size], self.near, self.moved, self.still, self.load, self.slope, self.sharp,
            self.polarity, self.threshold, self.factor, self.quiet, self.seen, self.fitted, self._warm_up,
            self.held, step % HOLD, hold, hold >= 4, learn, self.score, self.dev,
            self.histogram, self.peak, found, lasting,
        )  # fmt: skip
        return found[:number].astype(np.int64), lasting[:number], float(largest)

    def show(self, left: SeriesTable) -> None:
        """Show what the regression leaves of the series, where that is the more unusual.

        Scores, and deviations as `Witness` reads them: their expected values are those of the regression.

        Args:
            left: what is left, with the same slots and columns.
        """
        size = self.size
        more = left.score[:size] > self.score[:size]
        self.score[:size][more] = left.score[:size][more]
        self.dev[:size][more] = (left.dev[:size] * left.spread[:size] * self.sharp[:size])[more]

    def forget_window(self) -> None:
        """Empty the window, after a break in time."""
        self.ring[:] = kernels.ABSENT
        self.held[:] = 0
        self.total[:] = 0
        self.count[:] = 0

    def _kept(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the state, without the space to grow; no copies."""
        names = (*_STATE, "ring", "held")
        kept: dict[str, NDArray[Any]] = {name: getattr(self, name)[..., : self.size, :] for name in names}
        return kept | {"pooled": self.pooled, "typical": self.typical, "threshold": self.threshold,
                       "histogram": self.histogram}  # fmt: skip

    def export(self) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays of the state."""
        return {name: array.copy() for name, array in self._kept().items()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of `export`.

        Raises:
            StateDamaged: an array is missing, or does not match the columns or the window.
        """
        try:
            self.grow(len(arrays["level"]))
            for name, into in self._kept().items():
                if into.shape != arrays[name].shape:
                    raise StateDamaged(
                        f"the state of the series: {name} is {arrays[name].shape}, not {into.shape}"
                    )
                into[...] = arrays[name]
        except KeyError as error:
            raise StateDamaged(f"the state of the series lacks {error}") from None


#: The first value of each array by slot and column, with its type; and the names of those that are kept.
_FIRST = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(SeriesTable, include_extras=True).items()
}
_PRESENT = ("slow", "near", "moved", "now", "wide", "quiet", "score", "dev")
_STATE = [name for name in _FIRST if name not in _PRESENT]


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return arrays with a prefix before each name."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def part(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose name has the prefix, without it; see `prefixed`."""
    return {k.removeprefix(prefix): array for k, array in arrays.items() if k.startswith(prefix)}
