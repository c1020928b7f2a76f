"""What one worker saw of one unit during one step of a rollout: counts that add up over workers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
import numpy as np

from hopline.errors import BadRequest, HoplineError, ModelNotFound, RateLimited
from hopline.observe.psi import Comparison, Sketch, compare, number_bins
from hopline.types import AnyArray, ScoreResult

#: Latency buckets: 20 to each factor of ten, from 10 µs to 100 s.
_PER_DECADE, _DECADES, _FIRST_S = 20, 7, 1e-5
_NUM_BUCKETS = _PER_DECADE * _DECADES
#: Scores kept by each worker, drawn evenly from all that it saw.
_MAX_SCORES = 1000
#: Rows of one answer that are looked at.
_ROWS_SAMPLED = 8
#: Scores of either side below which a shift is not looked for.
_MIN_SCORES = 100
#: Errors that are the caller's own doing: every version would answer so.
_OF_THE_CALLER = (BadRequest, ModelNotFound, RateLimited)


class OutcomeCounts(msgspec.Struct):
    """See the module.

    Attributes:
        requests: that ended, but for those that were the caller's mistake.
        errors: of them, those without an answer.
        last_error: its text.
        latency: counts of answers by bucket of seconds.
        compared: requests that both versions answered. differing: of them, otherwise.
        num_scores: rows that both scored. scores: a sample of them, (the other one's, this one's) each.
        difference: sum of the largest difference of scores of each compared request.
        last_difference: one of those that differ, in words.
    """

    requests: int = 0
    errors: int = 0
    last_error: str = ""
    latency: list[int] = msgspec.field(default_factory=lambda: [0] * _NUM_BUCKETS)
    compared: int = 0
    differing: int = 0
    num_scores: int = 0
    scores: list[tuple[float, float]] = msgspec.field(default_factory=list)
    difference: float = 0.0
    last_difference: str = ""

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
                self.last_error = f"{outcome.code}: {str(outcome)[:200]}"
            return
        self.requests += 1
        self.latency[bucket(seconds)] += 1

    def compare(self, wanted: object, found: object, tolerance: float, *, is_text: bool = False) -> None:
        """Hold this unit's outcome against that of the other one for the same request.

        Answers that differ are left out where a live graph has changed between them.

        Args:
            is_text: of generative models. Two of them never write the same text, so other words are no
                difference, and only the lengths are sampled. Where the other one failed, nothing is
                counted: a copy has a low priority, and its text may be too long.
        """
        if isinstance(wanted, HoplineError) and (is_text or isinstance(found, HoplineError)):
            return
        if isinstance(wanted, ScoreResult) and isinstance(found, ScoreResult):
            largest, flips = (0.0, 0) if is_text else difference(wanted, found)
            agree = largest <= tolerance and not flips
            if not agree and _moved_on(wanted, found):
                return
            self.compared += 1
            self._sample(wanted, found)
            self.difference += largest if math.isfinite(largest) else 0.0
            if agree:
                return
            self.last_difference = f"scores differ by {largest:.3g}, {flips} labels differ"
        else:
            self.compared += 1
            self.last_difference = f"{_told(wanted)} in place of {_told(found)}"
        self.differing += 1

    def _sample(self, wanted: ScoreResult, found: ScoreResult) -> None:
        """Keep an even sample of pairs of scores (reservoir sampling: J. S. Vitter, 1985).

        Of the same requests: samples of two streams would differ by who happened to ask what.
        """
        sides: list[AnyArray] = []  # worked out only where one of its rows is kept
        for row in range(min(_ROWS_SAMPLED, _num_rows(wanted), _num_rows(found))):
            self.num_scores += 1
            at = len(self.scores)
            if at >= _MAX_SCORES and (at := random.randrange(self.num_scores)) >= _MAX_SCORES:
                continue
            sides = sides or [scores_of(wanted), scores_of(found)]
            if row >= len(sides[0]) or row >= len(sides[1]):
                return  # texts have no scores
            pair = float(sides[0][row]), float(sides[1][row])
            if not (math.isfinite(pair[0]) and math.isfinite(pair[1])):
                self.num_scores -= 1
            elif at == len(self.scores):
                self.scores.append(pair)
            else:
                self.scores[at] = pair

    def add(self, other: OutcomeCounts) -> None:
        """Add another worker's."""
        self.requests += other.requests
        self.errors += other.errors
        self.last_error = self.last_error or other.last_error
        self.latency = [a + b for a, b in zip(self.latency, other.latency, strict=True)]
        self.num_scores += other.num_scores
        self.scores += other.scores
        self.compared += other.compared
        self.differing += other.differing
        self.difference += other.difference
        self.last_difference = self.last_difference or other.last_difference

    def after(self, latency: Sequence[int]) -> OutcomeCounts:
        """Requests and times without those that `latency` counted; all else unchanged."""
        left = [count - gone for count, gone in zip(self.latency, latency, strict=True)]
        return msgspec.structs.replace(self, latency=left, requests=self.requests - sum(latency))

    def absorb(self, other: OutcomeCounts) -> None:
        """Add the counts of another process, and keep no more scores than one process keeps."""
        scores = self.scores
        self.scores = []
        self.add(other)
        more, self.scores = self.scores, scores
        free = max(0, _MAX_SCORES - len(scores))
        scores += more[:free]
        share = _MAX_SCORES / max(1, self.num_scores)
        kept = [pair for pair in more[free:] if random.random() < share]
        for place, pair in zip(random.sample(range(len(scores)), len(kept)), kept, strict=True):
            scores[place] = pair

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

    def shift(self) -> Comparison | None:
        """How far its scores are from the other one's on the same requests; None for too few."""
        if len(self.scores) < _MIN_SCORES:
            return None
        sides = np.fromiter(chain.from_iterable(self.scores), np.float64, 2 * len(self.scores))
        theirs, ours = sides[::2], sides[1::2]
        bins = number_bins(theirs)
        return compare(Sketch.of(bins, theirs), Sketch.of(bins, ours))


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


def scores_of(result: ScoreResult) -> AnyArray:
    """One number for each row: the probability of the positive or the top class, the value, the label, the
    length of a text."""
    length = result.outputs.get("completion_tokens")
    if length is not None:
        return length.astype(np.float64)
    for name in ("probabilities", "value", "logits"):
        values = result.outputs.get(name)
        if values is not None and values.dtype.kind == "f":
            return values if values.ndim == 1 else _top(values)
    for values in result.outputs.values():
        if values.dtype.kind in "fiub":
            means: AnyArray = values.astype(np.float64).reshape(values.shape[0], -1).mean(axis=1)
            return means
    return np.empty(0)


def _num_rows(result: ScoreResult) -> int:
    """Rows of an answer."""
    return next((len(values) for values in result.outputs.values() if values.ndim), 0)


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
    """Whether two answers are about two versions of one live graph."""
    versions = wanted.graph_version, found.graph_version
    first, other = (version.partition("+")[0] for version in versions)
    return first == other and versions[0] != versions[1]


def _top(values: AnyArray) -> AnyArray:
    return values[:, -1] if values.shape[1] <= 2 else values.max(axis=1)


def _told(outcome: object) -> str:
    return f"error {outcome.code}" if isinstance(outcome, HoplineError) else "an answer"
