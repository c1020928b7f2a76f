"""Counts of one unit's outcomes in one worker during one step of a rollout; they add up over workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from hopline.answering.pairs import MAX_PAIRS, Pair, by_output, pairs_of, smallest
from hopline.errors import BadRequest, HoplineError, ModelNotFound, NodeNotFound, RateLimited
from hopline.types import AnyArray, ScoreResult

#: Latency buckets: 20 to each factor of ten, from 10 µs to 100 s.
_PER_DECADE, _DECADES, _FIRST_S = 20, 7, 1e-5
_NUM_BUCKETS = _PER_DECADE * _DECADES
#: Rows of one answer that are paired.
_ROWS_PAIRED = 16
#: Errors that are the caller's own doing: every version would answer so.
_OF_THE_CALLER = (BadRequest, ModelNotFound, RateLimited)


class OutcomeCounts(msgspec.Struct):
    """See the module.

    Attributes:
        requests: that ended, but for those that were the caller's mistake.
        errors: of them, those without an answer.
        last_error: its text.
        latency: counts of answers by bucket of seconds.
        compared: requests that the other version answered. refused: of them, those that this one refused
            as the caller's mistake, or answered in another form. differing: of the others, those with
            another answer.
        last_refusal, last_difference: one of each, in words.
        difference: sum of the largest difference of scores of each compared request.
        pairs: row key -> the newest answers of both versions; see `pairs.py`.
        of_outputs: the same for each named output.
    """

    requests: int = 0
    errors: int = 0
    last_error: str = ""
    latency: list[int] = msgspec.field(default_factory=lambda: [0] * _NUM_BUCKETS)
    compared: int = 0
    refused: int = 0
    differing: int = 0
    last_refusal: str = ""
    last_difference: str = ""
    difference: float = 0.0
    pairs: dict[int, Pair] = {}
    of_outputs: dict[str, dict[int, Pair]] = {}

    @property
    def answered(self) -> int:
        """Requests that got an answer."""
        return self.requests - self.errors

    def count(self, outcome: object, seconds: float) -> None:
        """Take a request in."""
        if isinstance(outcome, HoplineError):
            if not isinstance(outcome, _OF_THE_CALLER):
                self.requests += 1
                self.errors += 1
                self.last_error = _named(outcome)
            return
        self.requests += 1
        self.latency[bucket(seconds)] += 1

    def compare(
        self,
        wanted: object,
        found: object,
        tolerance: float,
        keys: Callable[[int], Sequence[int]],
        *,
        is_text: bool = False,
    ) -> None:
        """Hold this unit's outcome against that of the other one for the same request.

        What a change of a live graph explains is left out, and what the other one did not answer.

        Args:
            keys: the keys of so many rows of the request, at most.
            is_text: of generative models: other words are no difference.
        """
        if not isinstance(wanted, ScoreResult):
            return
        if isinstance(found, HoplineError):
            is_gone = isinstance(found, NodeNotFound) and "+" in wanted.graph_version
            if is_gone or isinstance(found, RateLimited):
                return  # removed from a live graph, or the caller's pace: not the version
            self.compared += 1
            if isinstance(found, _OF_THE_CALLER):
                self.refused += 1
                self.last_refusal = _named(found)
            else:
                self.differing += 1
                self.last_difference = f"error {found.code} in place of an answer"
            return
        if not isinstance(found, ScoreResult):
            return
        form = other_form(wanted, found)
        largest, flips = (0.0, 0) if is_text or form else difference(wanted, found)
        agree = largest <= tolerance and not flips
        if not (agree and not form) and _moved_on(wanted, found):
            return
        self.compared += 1
        if form:
            self.refused += 1
            self.last_refusal = form
            return
        theirs = by_output(found)
        for name, ours in by_output(wanted).items():
            pairs = pairs_of(ours, theirs[name], _ROWS_PAIRED, is_text=is_text)
            new = zip(keys(_ROWS_PAIRED), pairs, strict=False)
            self._add_pairs(name, {key: pair for key, pair in new if pair is not None}, 2 * MAX_PAIRS)
        self.difference += largest if math.isfinite(largest) else 0.0
        if not agree:
            self.differing += 1
            self.last_difference = f"scores differ by {largest:.3g}, {flips} labels differ"

    def add(self, other: OutcomeCounts) -> None:
        """Add another worker's."""
        self.requests += other.requests
        self.errors += other.errors
        self.last_error = self.last_error or other.last_error
        self.latency = [a + b for a, b in zip(self.latency, other.latency, strict=True)]
        self.compared += other.compared
        self.refused += other.refused
        self.differing += other.differing
        self.last_refusal = self.last_refusal or other.last_refusal
        self.last_difference = self.last_difference or other.last_difference
        self.difference += other.difference
        for name, pairs in ({"": other.pairs} | other.of_outputs).items():
            self._add_pairs(name, pairs, MAX_PAIRS)

    def _add_pairs(self, output: str, new: dict[int, Pair], most: int) -> None:
        """Add pairs of an output; keep the smallest if there are more than `most`."""
        pairs = self.of_outputs.setdefault(output, {}) if output else self.pairs
        pairs.update(new)
        for key in pairs.keys() - smallest(pairs).keys() if len(pairs) > most else ():
            del pairs[key]

    def after(self, latency: Sequence[int]) -> OutcomeCounts:
        """Requests and times without those that `latency` counted; all else unchanged."""
        left = [count - gone for count, gone in zip(self.latency, latency, strict=True)]
        return msgspec.structs.replace(self, latency=left, requests=self.requests - sum(latency))

    def p99_s(self) -> float | None:
        """As `quantile_s`."""
        return self.quantile_s(0.99)

    def quantile_s(self, share: float) -> float | None:
        """Upper bound in seconds of what so many answers took; None below 100 answers."""
        total = sum(self.latency)
        if total < 100:
            return None
        left = total - math.floor(share * total)
        for at in range(_NUM_BUCKETS - 1, -1, -1):
            left -= self.latency[at]
            if left <= 0:
                return _FIRST_S * 10 ** ((at + 1) / _PER_DECADE)
        return None

    def slower_than(self, seconds: float) -> int:
        """Answers that certainly took longer."""
        return sum(self.latency[bucket(seconds) + 1 :])

    def mean_difference(self) -> float:
        """Of scores, over compared requests."""
        return self.difference / self.compared if self.compared else 0.0


def merged(tallies: Iterable[OutcomeCounts]) -> OutcomeCounts:
    """The sum; the parts are unchanged."""
    total = OutcomeCounts()
    for tally in tallies:
        total.add(tally)
    return total


def bucket(seconds: float) -> int:
    """Index of the latency bucket."""
    if seconds <= _FIRST_S:
        return 0
    return min(_NUM_BUCKETS - 1, int(math.log10(seconds / _FIRST_S) * _PER_DECADE))


def other_form(wanted: ScoreResult, found: ScoreResult) -> str:
    """Difference of an answer's form from the one that the caller knows; "" for none."""
    for name, values in wanted.outputs.items():
        others = found.outputs.get(name)
        if others is None:
            return f"its answer has no output {name!r}"
        if _form(values) != _form(others):
            return f"its output {name!r} holds {_form(others)}, not {_form(values)}"
    return ""


def _form(values: AnyArray) -> str:
    return {"f": "floats", "i": "integers", "u": "integers", "b": "booleans"}.get(values.dtype.kind, "text")


def difference(wanted: ScoreResult, found: ScoreResult) -> tuple[float, int]:
    """Largest difference of float outputs, and how many other values (labels, texts) differ."""
    largest, flips = 0.0, 0
    for name, values in wanted.outputs.items():
        others = found.outputs.get(name)
        if others is None or others.shape != values.shape:
            return math.inf, flips
        if (
            values.dtype == others.dtype
            and values.dtype.kind != "O"
            and values.tobytes() == others.tobytes()
        ):
            continue  # as nearly always, and at a tenth of the cost
        if values.dtype.kind == "f":
            if values.size:
                gap = np.abs(values.astype(np.float64) - others)
                gap = np.where(np.isnan(values) & np.isnan(others), 0.0, gap)
                largest = max(largest, float(np.nan_to_num(gap, nan=math.inf).max()))
        else:
            flips += int((values != others).sum())
    return largest, flips


def _moved_on(wanted: ScoreResult, found: ScoreResult) -> bool:
    """True if two answers are about two versions of one live graph."""
    versions = wanted.graph_version, found.graph_version
    first, other = (version.partition("+")[0] for version in versions)
    return first == other and versions[0] != versions[1]


def _named(error: HoplineError) -> str:
    return f"{error.code}: {str(error)[:200]}"
