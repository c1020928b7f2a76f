"""Replays the requests of a prediction log, and compares the answers with those in the log.

On the same version, graph and libraries they are the same bit for bit: sampling is keyed, and no answer
depends on its batch. On another version the report says how far the two disagree on real traffic. An answer
on another graph is compared only on request: the graph alone may explain a difference, and equal answers
prove nothing. On a live folder, each answer is repeated when its version of the graph is reached:

    log, first reading: answers of each version ─► log, second reading: held until their version is reached
"""

from __future__ import annotations

import asyncio
import heapq
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, GraphBehind, HoplineError, ModelNotReady, Overloaded, Unavailable
from hopline.graph.live.version import read_version
from hopline.records.entry import Entry
from hopline.types import AnyArray, ScoreRequest, ScoreResult
from hopline_drift.log_reader import LogReader
from hopline_drift.targets import LiveTarget, Target

_ENDING = re.compile("(?:^|(?<=_))(label|probabilities)$")
_HALF = 0.5


class Difference(NamedTuple):
    """The difference between a logged answer and a new one.

    Attributes:
        identical: every output has the same names, dtypes, shapes and bits, and the same rows are missing.
        largest: output name -> largest absolute difference; inf if they cannot be subtracted.
        flips: rows with a label that differs: that of "label", else the most probable class.
        missing: rows that are missing in one answer only.
    """

    identical: bool
    largest: dict[str, float]
    flips: int
    missing: int


def compare(
    before: Mapping[str, AnyArray],
    after: Mapping[str, AnyArray],
    gone_before: NDArray[np.bool_] | None,
    gone_after: NDArray[np.bool_] | None,
) -> Difference:
    """Compare outputs row by row; rows that are missing in either answer are not compared.

    Args:
        before, after: output name -> array with one row for each item.
        gone_before, gone_after: bool [n], missing rows; None for none.
    """
    changed = 0
    kept: NDArray[np.bool_] | None = None
    if gone_before is not None or gone_after is not None:
        num_rows = len(next(iter(before.values()), ()))
        none = np.zeros(num_rows, np.bool_)
        gone = [none if each is None else each for each in (gone_before, gone_after)]
        if gone[0].shape == gone[1].shape:
            changed = int((gone[0] != gone[1]).sum())
            kept = ~(gone[0] | gone[1])
        else:
            changed = num_rows
    largest = {}
    identical = before.keys() == after.keys() and not changed
    for name in before.keys() & after.keys():
        mine, other = before[name], after[name]
        if kept is not None and len(mine) == len(other) == len(kept):
            mine, other = mine[kept], other[kept]
        if _same(mine, other):
            largest[name] = 0.0
        else:
            identical = False
            largest[name] = _distance(mine, other)
    return Difference(identical, largest, _flips(before, after, kept), changed)


def _same(mine: AnyArray, other: AnyArray) -> bool:
    if mine.shape != other.shape:
        return False
    if mine.dtype.kind in "OU":
        return other.dtype.kind in "OU" and bool(mine.tolist() == other.tolist())
    return mine.dtype == other.dtype and mine.tobytes() == other.tobytes()


def _distance(mine: AnyArray, other: AnyArray) -> float:
    if mine.shape != other.shape or mine.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return math.inf
    with np.errstate(invalid="ignore"):
        apart = np.abs(mine.astype(np.float64) - other.astype(np.float64))
    apart[(mine != mine) & (other != other)] = 0.0
    return float(np.nan_to_num(apart, nan=math.inf, posinf=math.inf).max(initial=0.0))


def _flips(
    before: Mapping[str, AnyArray], after: Mapping[str, AnyArray], kept: NDArray[np.bool_] | None
) -> int:
    flips = []
    for prefix in {_ENDING.sub("", name) for name in before if _ENDING.search(name)}:
        mine, other = (_labels(answer, prefix) for answer in (before, after))
        if mine is not None and other is not None:
            if mine.shape != other.shape:
                return len(mine)
            differ = (mine != other).reshape(len(mine), -1).any(axis=1)
            flips.append(differ if kept is None else differ[kept])
    return int(np.logical_or.reduce(flips).sum()) if flips else 0


def _labels(answer: Mapping[str, AnyArray], prefix: str) -> AnyArray | None:
    scores = answer.get(f"{prefix}probabilities")
    if scores is not None:
        scores = scores.argmax(axis=1) if scores.ndim == 2 else scores >= _HALF
    return answer.get(f"{prefix}label", scores)


#: Upper bounds of the histogram of differences; the last bin has no upper bound.
BOUNDS = (0.0, *(10.0**power for power in range(-8, 1)))
#: Requests that the report names: the most different ones, and those whose graph the replay has not.
_NAMED, _NAMED_INEXACT = 10, 10_000
OTHER_GRAPH = "on another graph version"
_PROGRESS_EVERY = 64
#: Seconds without any answer of a model that refuses, after which its requests are given up.
_PATIENCE_S = 30.0
#: Bounds of one wait, in seconds, whatever the refusal asks for.
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.01, 5.0


class Differing(msgspec.Struct, frozen=True):
    """One request whose answer differs."""

    request_id: str
    model: str
    version: str
    largest: float


class Inexact(msgspec.Struct, frozen=True):
    """One request that the replay cannot answer exactly.

    Attributes:
        graph_version: of the answer in the log.
        replay_graph_version: of the replay.
        reason: why the replay has not the version; "" where it has one graph only.
    """

    request_id: str
    model: str
    version: str
    graph_version: str
    replay_graph_version: str
    reason: str = ""


class ReplayReport(msgspec.Struct):
    """The report of a replay.

    Attributes:
        read: entries of the log.
        compared: entries that were answered again.
        identical: of those, bit for bit.
        max_abs_difference: over all outputs; inf where shapes differ.
        by_output: the same for each output.
        rows, label_flips: rows compared, and those whose label differs.
        missing_changed: rows that are missing in one of the answers only.
        errors: code -> requests that had an answer before and failed now.
        examples: code -> the first message of these.
        not_compared: reason -> entries that should have been compared, and were not: failures, refusals,
            answers that are degraded now or on another graph, invalid lines.
        inexact: the entries on another graph, at most 10,000 of them.
        skipped: reason -> entries that cannot be compared, or were not requested.
        answered_by: "model/version on graph → model/version on graph of the replay" -> requests.
        histogram: compared requests by their largest difference: one number for each of `BOUNDS` and one
            for larger differences.
        worst: the requests that differ most.
        torn, bad: files with a torn end, and invalid lines.
        seconds: duration.
    """

    read: int = 0
    compared: int = 0
    identical: int = 0
    max_abs_difference: float = 0.0
    by_output: dict[str, float] = {}
    rows: int = 0
    label_flips: int = 0
    missing_changed: int = 0
    errors: dict[str, int] = {}
    examples: dict[str, str] = {}
    not_compared: dict[str, int] = {}
    inexact: list[Inexact] = []
    skipped: dict[str, int] = {}
    answered_by: dict[str, int] = {}
    histogram: list[int] = []
    worst: list[Differing] = []
    torn: int = 0
    bad: int = 0
    seconds: float = 0.0

    @property
    def all_identical(self) -> bool:
        """True if every entry that should be compared was compared and is identical."""
        return self.is_complete and self.identical == self.compared

    @property
    def is_complete(self) -> bool:
        """True if some entries were compared, and none that should have been is missing."""
        return self.compared > 0 and not self.not_compared


async def replay(
    log: LogReader,
    target: Target,
    *,
    model: str | None = None,
    version: str | None = None,
    limit: int | None = None,
    concurrency: int = 32,
    any_graph: bool = False,
    progress: Callable[[float], object] = lambda done: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> ReplayReport:
    """Send all requests of a log again.

    If an overloaded target refuses, the request is retried while the model answers at all.

    Args:
        log: read from its beginning to its end; twice, if the target goes through versions of a graph.
        target: answers the requests; entered already.
        model: only requests to this model.
        version: that answers; None sends each request to the version that answered it.
        limit: compare at most this many requests.
        concurrency: requests in flight at the same time.
        any_graph: compare also answers on another graph than that of the log.
        progress: called with the share of the log that was read, 0 to 1.
        clock, sleep: of the waiting.

    Raises: BadRequest: the target writes this very log.
    """
    if log.id and log.id == await target.log_id():
        raise BadRequest(
            "the server writes this very log: each answer would be a new entry of it. Replay a copy of the "
            "folder, use another server, or omit --url and pass --repository and --graph"
        )
    replaying = _Replay(target, version, clock, sleep, any_graph=any_graph)
    began = time.monotonic()
    await replaying.answer_all(log, model, limit, concurrency, progress)
    progress(1.0)
    report = replaying.report()
    if report.bad:
        report.not_compared["unreadable line"] = report.bad
    report.seconds = round(time.monotonic() - began, 3)
    return report


def by_graph(entries: Iterable[Entry], counts: Mapping[str, int]) -> Iterator[Entry]:
    """The entries in the order of their graph's versions; holds those that were read before their turn.

    Args:
        counts: version -> entries, of all of them.
    """
    held = defaultdict[str, list[Entry]](list)
    rest = iter(entries)
    for version in sorted(counts, key=_place):
        left = counts[version]
        for entry in chain(held.pop(version, ()), rest):
            if entry.graph_version == version:
                yield entry
                left -= 1
                if not left:
                    break
            else:
                held[entry.graph_version].append(entry)
    yield from chain.from_iterable(held.values())  # the log was written to between the readings


def _place(version: str) -> tuple[Any, ...]:
    """Sorts versions of one live graph; other names are last."""
    try:
        return (0, read_version(version, "graph_version").offset.order, version)
    except BadRequest:
        return (1, version)


def why_not(entry: Entry) -> str:
    """Why an entry cannot be compared; "" where it can."""
    if entry.is_copy:
        return "copy"  # of a request that has its own entry
    if entry.outcome != "ok":
        return "failed before"
    if entry.degraded:
        return "degraded"  # it depended on rows that a feature store lacked at the time
    if entry.inputs is None:
        return "inputs not kept"
    columns = entry.inputs.columns
    if columns is not None and not is_repeatable(columns):
        return "drawn together with other texts"
    return ""


def is_repeatable(columns: Mapping[str, AnyArray]) -> bool:
    """True unless columns of a generative model ask for texts that differ whenever they are repeated."""
    return all(np.asarray(columns.get("repeatable", ())).tolist())


class _Replay:
    """Sends requests and counts the results."""

    def __init__(
        self,
        target: Target,
        version: str | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        *,
        any_graph: bool,
    ) -> None:
        self._any_graph = any_graph
        self._num_inexact = 0
        self._unreached = ""
        self._clock, self._sleep = clock, sleep
        self._began = clock()
        #: Model -> when it last answered.
        self._answered: dict[str, float] = {}
        self._target = target
        self._version = version
        self._prepared: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._found = ReplayReport(histogram=[0] * (len(BOUNDS) + 1))
        self._errors, self._answered_by, self._skipped = Counter[str](), Counter[str](), Counter[str]()
        self._degraded_now = 0
        self._worst: list[tuple[float, int, Differing]] = []

    async def answer_all(
        self,
        log: LogReader,
        model: str | None,
        limit: int | None,
        concurrency: int,
        progress: Callable[[float], object],
    ) -> None:
        """Send all requests, those of one version of a live graph after those of the one before."""
        if not isinstance(self._target, LiveTarget):
            await self._answer(self._chosen(log, model, limit, progress), concurrency)
            self._count_entries(log)
            return
        first = self._chosen(log, model, limit, lambda done: progress(done / 2))
        counts = Counter(entry.graph_version for entry in first)
        self._count_entries(log)
        self._skipped = Counter()  # of the second reading, which may end earlier: not reported
        again = self._chosen(log, model, limit, lambda done: progress((1 + done) / 2))
        ordered = by_graph(islice(again, counts.total()), counts)
        for version, entries in groupby(ordered, lambda entry: entry.graph_version):
            self._unreached = await self._target.reach(version)
            self._prepared.clear()  # the target may have started again
            await self._answer(entries, concurrency)

    def _count_entries(self, log: LogReader) -> None:
        report = self._found
        report.read, report.torn, report.bad = log.num_entries, log.num_torn, log.num_bad
        report.skipped = dict(self._skipped)

    async def _answer(self, entries: Iterator[Entry], concurrency: int) -> None:
        # Tasks share one iterator: it is read as fast as answers come.
        await asyncio.gather(*(self._run(entries) for _ in range(concurrency)))

    def _chosen(
        self, log: LogReader, model: str | None, limit: int | None, progress: Callable[[float], object]
    ) -> Iterator[Entry]:
        """The entries that are compared; counts the others."""
        taken = 0
        for number, entry in enumerate(log):
            if number % _PROGRESS_EVERY == 0:
                progress(log.done)
            why = "other model" if model not in (None, entry.model) else why_not(entry)
            if why:
                self._skipped[why] += 1
                continue
            if taken == limit:
                return
            taken += 1
            yield entry

    async def _run(self, entries: Iterator[Entry]) -> None:
        """Send requests one at a time until there are no more."""
        for entry in entries:
            assert entry.inputs is not None
            if self._unreached and not self._any_graph:
                self._leave_out(entry, "", self._unreached)
                continue
            version = self._version or entry.version
            request = entry.inputs.request(entry.model, version, entry.request_id)
            try:
                graph_version = await self._prepare(entry.model, version)
                if graph_version and not self._is_exact(entry, graph_version):
                    continue
                result = await self._score(request)
            except HoplineError as error:
                self._errors[error.code] += 1
                self._found.examples.setdefault(error.code, f"{entry.request_id}: {error}")
                continue
            if self._is_exact(entry, result.graph_version):
                self._compare(entry, result)

    def _is_exact(self, entry: Entry, graph_version: str) -> bool:
        """True if an answer on this graph is compared; reports an entry that is not."""
        if self._any_graph or entry.graph_version in ("", graph_version):
            return True
        self._leave_out(entry, graph_version)
        return False

    def _leave_out(self, entry: Entry, graph_version: str, reason: str = "") -> None:
        self._num_inexact += 1
        if len(self._found.inexact) < _NAMED_INEXACT:
            named = entry.request_id, entry.model, entry.version, entry.graph_version
            self._found.inexact.append(Inexact(*named, graph_version, reason))

    async def _score(self, request: ScoreRequest) -> ScoreResult:
        """Retry until there is an answer, while the model answers other requests.

        Raises: HoplineError: waiting does not help, or the model has not answered for a while.
        """
        while True:
            try:
                result = await self._target.score(request)
            except GraphBehind:  # a replay does not follow the events that the log's server had
                raise
            except (Overloaded, Unavailable, ModelNotReady) as error:
                last = self._answered.get(request.model, self._began)
                if self._clock() - last > _PATIENCE_S:
                    raise
                await self._sleep(min(max(error.retry_after_s, _SHORTEST_WAIT_S), _LONGEST_WAIT_S))
            else:
                self._answered[request.model] = self._clock()
                return result

    async def _prepare(self, model: str, version: str) -> str:
        """Load a version once, and return its graph; raise the same error each time."""
        task = self._prepared.get((model, version))
        if task is None:
            task = asyncio.ensure_future(self._target.prepare(model, version))
            self._prepared[model, version] = task
        if not task.done() or task.exception() is not None:
            await asyncio.shield(task)
        return task.result()

    def _compare(self, entry: Entry, result: ScoreResult) -> None:
        gone = None
        if entry.missing:
            gone = np.zeros(len(next(iter(entry.outputs.values()))), np.bool_)
            gone[list(entry.missing)] = True
        if result.degraded:
            self._degraded_now += 1
            return
        found, report = compare(entry.outputs, result.outputs, gone, result.missing), self._found
        largest = max(found.largest.values(), default=0.0)
        if not found.identical and not largest:
            largest = math.inf if found.missing or not found.largest else 0.0
        report.compared += 1
        report.identical += found.identical
        report.rows += len(next(iter(entry.outputs.values()), ()))
        report.label_flips += found.flips
        report.missing_changed += found.missing
        report.max_abs_difference = max(report.max_abs_difference, largest)
        report.histogram[int(np.searchsorted(BOUNDS, largest))] += 1
        for name, apart in found.largest.items():
            report.by_output[name] = max(report.by_output.get(name, 0.0), apart)
        before = f"{entry.model}/{entry.version} on {entry.graph_version or 'no graph'}"
        after = f"{result.model}/{result.version} on {result.graph_version or 'no graph'}"
        self._answered_by[f"{before} → {after}"] += 1
        if not found.identical:
            item = Differing(entry.request_id, entry.model, entry.version, largest)
            push = heapq.heappush if len(self._worst) < _NAMED else heapq.heappushpop
            push(self._worst, (largest, report.compared, item))

    def report(self) -> ReplayReport:
        """The report of the counted results."""
        report = self._found
        report.errors = dict(self._errors)
        report.not_compared = dict(self._errors)
        if self._degraded_now:
            report.not_compared["degraded now"] = self._degraded_now
        if self._num_inexact:
            report.not_compared[OTHER_GRAPH] = self._num_inexact
        report.answered_by = dict(self._answered_by)
        report.worst = [item for _, _, item in sorted(self._worst, reverse=True)]
        return report
