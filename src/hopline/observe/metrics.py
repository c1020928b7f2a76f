"""Counters, gauges and histograms, and the metric families of every Hopline server.

An update is an addition to a Python number (0.1 to 0.3 µs), without a lock: each process updates from its
event loop, or from one thread for each child. With several workers, each one writes its state to a file in
`directory` (on a tick and before a scrape), and a scrape adds up all files: every worker returns the same
numbers, which never decrease, and a restarted worker continues from its predecessor's file.
prometheus_client's own multi-process mode costs an mmap write for each update.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from hopline.config.schema import CostConfig
from hopline.files import write_atomically
from hopline.observe.exposition import END, Exemplar, Sample, render_family

log = logging.getLogger(__name__)

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
LabelValues: TypeAlias = tuple[str, ...]

#: Seconds: 50 µs to 10 s, about three buckets per factor of ten.
LATENCY_BUCKETS = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
#: Seconds from an event until answers reflect it: 1 ms to a minute.
FRESHNESS_BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0,
)  # fmt: skip
#: Outcomes that are exported as 0 before they happen: rate() does not see a counter start at 1.
_FROM_THE_START = ("ok", "overloaded", "deadline_exceeded", "unavailable", "runtime_failure", "internal")
#: Rows: powers of two.
ROW_BUCKETS = tuple(float(2**power) for power in range(13))


class Counter:
    """A number that only increases."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount` (>= 0)."""
        self.value += amount

    def state(self) -> list[float]:
        """The state that other workers read."""
        return [self.value]

    def add_state(self, state: list[float]) -> None:
        """Add another worker's state."""
        self.value += state[0]


class Gauge(Counter):
    """A number that goes up and down, or that a function returns when it is read."""

    __slots__ = ("read",)

    def __init__(self) -> None:
        super().__init__()
        self.read: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value

    def set_function(self, read: Callable[[], float]) -> None:
        """Call `read` at every scrape instead of storing a value."""
        self.read = read

    def unset_function(self, read: Callable[[], float]) -> None:
        """Stop calling `read` and become 0; no effect if another function has replaced it."""
        if self.read == read:
            self.read, self.value = None, 0.0

    def state(self) -> list[float]:
        """The current value."""
        return [self.value if self.read is None else float(self.read())]


class MaxGauge(Gauge):
    """A gauge (>= 0) whose value over all workers is the largest, such as an age."""

    __slots__ = ()

    def add_state(self, state: list[float]) -> None:
        """Take another worker's value if it is larger."""
        self.value = max(self.value, state[0])


class Histogram:
    """Counts by bucket, the sum, and for some buckets an exemplar."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.exemplars: dict[int, Exemplar] = {}
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a value on a bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Count many values, at a third of the cost of single calls."""
        bounds, counts, total = self.bounds, self.counts, 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.sum += total

    def exemplify(self, exemplar: Exemplar) -> None:
        """Make a request the example of its bucket, unless the bucket has a later one."""
        bucket = bisect_left(self.bounds, exemplar.value)
        known = self.exemplars.get(bucket)
        if known is None or known.at <= exemplar.at:
            self.exemplars[bucket] = exemplar

    def state(self) -> list[float]:
        """The sum, then the counts."""
        return [self.sum, *self.counts]

    def add_state(self, state: list[float]) -> None:
        """Add another worker's state."""
        self.sum += state[0]
        self.counts = [mine + int(other) for mine, other in zip(self.counts, state[1:], strict=True)]


Child: TypeAlias = Counter | Gauge | Histogram
ChildT = TypeVar("ChildT", Counter, Gauge, Histogram)


class Family:
    """One metric name and its children by label values."""

    def __init__(
        self, name: str, help: str, kind: Kind, labels: tuple[str, ...], make: Callable[[], Child]
    ) -> None:
        self.name = name
        self.help = help
        self.kind = kind
        self.label_names = labels
        self._make = make
        self.children: dict[LabelValues, Child] = {}

    def child(self, values: LabelValues) -> Child:
        """The child of these label values, created at first use; keep a reference on hot paths."""
        found = self.children.get(values)
        if found is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has labels {self.label_names}, not {values}")
            found = self.children[values] = self._make()
        return found

    def empty_copy(self) -> Family:
        """The same family without children, as a target for merging."""
        return Family(self.name, self.help, self.kind, self.label_names, self._make)

    def samples(self) -> Iterator[Sample]:
        """The samples of a scrape, with cumulative buckets."""
        for values, child in sorted(self.children.items()):
            labels = tuple(zip(self.label_names, values, strict=True))
            if isinstance(child, Histogram):
                total = 0
                bounds = (*map(repr, child.bounds), "+Inf")
                for bucket, (bound, count) in enumerate(zip(bounds, child.counts, strict=True)):
                    total += count
                    exemplar = child.exemplars.get(bucket)
                    yield Sample("_bucket", (*labels, ("le", bound)), total, exemplar)
                yield Sample("_sum", labels, child.sum)
                yield Sample("_count", labels, total)
            else:
                yield Sample("", labels, child.state()[0])


class _Saved(msgspec.Struct, array_like=True):
    """The state of one child in a worker's file."""

    family: str
    labels: LabelValues
    state: list[float]
    exemplars: list[Exemplar] = []

    def add_to(self, child: Child) -> None:
        """Add the state to a child."""
        child.add_state(self.state)
        for exemplar in self.exemplars:
            child.exemplify(exemplar)  # type: ignore[union-attr]


class ModelMetrics:
    """The children of one model version, bound once so that updates cost one addition.

    Attributes:
        queue, fetch, total: seconds of a request: in the queue, waiting for feature rows, total.
        compute: seconds of a batch; of its stage "compute" if stages are measured separately.
        batch_rows: requests of each batch.
        state_cache_hits, state_cache_misses: rows found and not found in the state cache.
        cpu, gpu: CPU and GPU seconds of computing.
        queue_rows, queue_requests, queue_cost, queue_age: predicted rows, requests and predicted CPU
            seconds in the queue, and seconds that the oldest request has waited.
    """

    def __init__(self, metrics: Metrics, model: str, version: str) -> None:
        self._outcomes = metrics.requests
        self._labels = (model, version)
        self._known: dict[str, Child] = {}
        self._degraded_answers = metrics.degraded_answers
        self._stage_seconds = metrics.stage_seconds
        self._stages: dict[str, Histogram] = {}
        self.queue, self.fetch = self.stage("queue"), self.stage("fetch")
        self.compute, self.total = self.stage("compute"), self.stage("total")
        self.batch_rows = metrics.batch_rows(model, version)
        self.state_cache_hits = metrics.state_cache_hits(model, version)
        self.state_cache_misses = metrics.state_cache_misses(model, version)
        self.cpu = metrics.cpu_seconds(model, version)
        self.gpu = metrics.gpu_seconds(model, version)
        self.queue_rows = metrics.queue_rows(model, version)
        self.queue_requests = metrics.queue_requests(model, version)
        self.queue_cost = metrics.queue_cost(model, version)
        self.queue_age = metrics.queue_age(model, version)
        self._cost = metrics.cost
        for code in _FROM_THE_START:
            self.outcome(code, 0)

    def stage(self, name: str) -> Histogram:
        """The histogram of a stage's seconds."""
        found = self._stages.get(name)
        if found is None:
            found = self._stages[name] = self._stage_seconds(*self._labels, name)
        return found

    def charge(self, prices: CostConfig, cpu_s: float, gpu_s: float = 0.0) -> None:
        """Count computing time, and its cost if prices are set."""
        self.cpu.value += cpu_s
        self.gpu.value += gpu_s
        cost = (cpu_s * prices.cpu_hour + gpu_s * prices.gpu_hour) / 3600
        if cost:
            self._cost(*self._labels, prices.currency).inc(cost)

    def outcome(self, code: str, count: int = 1) -> None:
        """Count finished requests: "ok", "cancelled" or the code of a HoplineError."""
        child = self._known.get(code)
        if child is None:
            child = self._known[code] = self._outcomes(*self._labels, code)
        child.value += count  # type: ignore[union-attr]

    def degraded(self, fallbacks: Iterable[str]) -> None:
        """Count an answer once for each fallback that it used (`ScoreResult.degraded`)."""
        for name in fallbacks:
            self._degraded_answers(self._labels[0], name).inc()


class MetricFamilies:
    """Metrics of one process; the names of all families begin with a prefix."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._families: dict[str, Family] = {}
        self._before_reading: list[Callable[[], object]] = []

    def counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Callable[..., Counter]:
        """Declare a counter; the result maps label values to the child."""
        return self._declare(Family(name, help, "counter", labels, Counter), Counter)

    def gauge(
        self, name: str, help: str, labels: tuple[str, ...] = (), *, merge: Literal["sum", "max"] = "sum"
    ) -> Callable[..., Gauge]:
        """Declare a gauge; its value is the sum over workers, or the largest."""
        make = Gauge if merge == "sum" else MaxGauge
        return self._declare(Family(name, help, "gauge", labels, make), Gauge)

    def histogram(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...] = (),
        bounds: tuple[float, ...] = LATENCY_BUCKETS,
    ) -> Callable[..., Histogram]:
        """Declare a histogram with these upper bounds."""
        return self._declare(Family(name, help, "histogram", labels, lambda: Histogram(bounds)), Histogram)

    def before_reading(self, update: Callable[[], object]) -> None:
        """Call `update` before numbers are read, to add counts that are stored elsewhere."""
        self._before_reading.append(update)

    def not_before_reading(self, update: Callable[[], object]) -> None:
        """Stop calling `update`."""
        if update in self._before_reading:
            self._before_reading.remove(update)

    def render(self, *, open_metrics: bool = False) -> bytes:
        """The metrics, of all workers, in Prometheus' text format or in OpenMetrics."""
        texts = [
            render_family(each.name, each.help, each.kind, each.samples(), open_metrics=open_metrics)
            for each in self._read()
        ]
        return "".join([*texts, END] if open_metrics else texts).encode()

    def _read(self) -> Iterable[Family]:
        self._update()
        return self._families.values()

    def _update(self) -> None:
        for update in list(self._before_reading):
            update()

    def _declare(self, family: Family, kind: type[ChildT]) -> Callable[..., ChildT]:
        family.name = self._prefix + family.name
        known = self._families.setdefault(family.name, family)
        if (known.kind, known.label_names) != (family.kind, family.label_names):
            raise ValueError(f"{family.name} is already declared as {known.kind} of {known.label_names}")

        def labelled(*values: str) -> ChildT:
            return known.child(values)  # type: ignore[return-value]

        return labelled


class Metrics(MetricFamilies):
    """All metrics of one process of a server.

    Args:
        directory: folder in which workers of one server share their states; None for one worker.
        slot: index of this worker.
    """

    def __init__(self, directory: str | Path | None = None, slot: int = 0) -> None:
        super().__init__()
        self._directory = Path(directory) if directory else None
        self._slot = slot
        self._is_stuck = False
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        #: State of a predecessor for families that are not declared yet.
        self._left: dict[str, list[_Saved]] = {}
        per_model = ("model", "version")
        self.requests = self.counter(
            "hopline_requests_total", "Finished requests by outcome.", (*per_model, "outcome")
        )
        self.degraded_answers = self.counter(
            "hopline_degraded_answers_total", "Answers that used a fallback.", ("model", "reason")
        )
        self.stage_seconds = self.histogram(
            "hopline_stage_seconds", "Time of each stage.", (*per_model, "stage"), LATENCY_BUCKETS
        )
        self.batch_rows = self.histogram(
            "hopline_batch_rows", "Requests in each batch.", per_model, ROW_BUCKETS
        )
        self.queue_rows = self.gauge("hopline_queue_rows", "Predicted rows in the queue.", per_model)
        self.queue_requests = self.gauge("hopline_queue_requests", "Requests in the queue.", per_model)
        self.queue_cost = self.gauge(
            "hopline_queue_cost_seconds",
            "Predicted CPU seconds of queued requests, largest of all workers.",
            per_model,
            merge="max",
        )
        self.queue_age = self.gauge(
            "hopline_queue_age_seconds",
            "Seconds that the oldest queued request has waited, largest of all workers.",
            per_model,
            merge="max",
        )
        self.state_cache_hits = self.counter(
            "hopline_state_cache_hits_total", "Rows found in the state cache.", per_model
        )
        self.state_cache_misses = self.counter(
            "hopline_state_cache_misses_total", "Rows not found in the state cache.", per_model
        )
        self.cpu_seconds = self.counter(
            "hopline_cpu_seconds_total", "CPU seconds of computing; a scaled sample.", per_model
        )
        self.model_process_restarts = self.counter(
            "hopline_model_process_restarts_total",
            "Processes of a model that were replaced.",
            (*per_model, "reason"),
        )
        self.gpu_seconds = self.counter(
            "hopline_gpu_seconds_total", "Seconds of computing on a GPU, copies included.", per_model
        )
        self.cost = self.counter(
            "hopline_cost_total", "Cost of computing at the configured prices.", (*per_model, "currency")
        )
        self.answers = self.counter(
            "hopline_transport_answers_total", "Answers by transport and status.", ("transport", "status")
        )
        self._process_cpu = self.counter(
            "hopline_process_cpu_seconds_total", "CPU seconds of all processes of the server."
        )()
        self._process_cpu_seen = 0.0
        if self._directory is not None:
            # A worker that died left its totals here; counters must never decrease.
            self._restore(self._file(slot))

    def model(self, name: str, version: str) -> ModelMetrics:
        """The bound children of one model version."""
        found = self._models.get((name, version))
        if found is None:
            found = self._models[name, version] = ModelMetrics(self, name, version)
        return found

    def flush(self) -> None:
        """Write this worker's numbers for the other workers; no effect with one worker.

        If they cannot be written, as on a full disk, all workers show the last ones that were.
        """
        if self._directory is None:
            return
        self._update()
        saved = [
            _Saved(family.name, labels, child.state(), [*getattr(child, "exemplars", {}).values()])
            for family in self._families.values()
            for labels, child in list(family.children.items())
        ]
        try:
            write_atomically(self._file(self._slot), msgspec.json.encode(saved), durable=False)
        except OSError as error:
            if not self._is_stuck:
                log.error("metrics stay unchanged, since they cannot be written: %s", error)
            self._is_stuck = True
        else:
            if self._is_stuck:
                log.info("metrics can be written again")
            self._is_stuck = False

    def exemplify(self, model: str, version: str, exemplar: Exemplar) -> None:
        """Make a request an example of its bucket in the latency histogram of a known model version.

        May be called by any thread.
        """
        found = self._models.get((model, version))
        if found is not None:
            found.total.exemplify(exemplar)

    def _read(self) -> Iterable[Family]:
        if self._directory is None:
            return super()._read()
        self.flush()
        return self._merged()

    def _update(self) -> None:
        used = time.process_time()
        self._process_cpu.inc(used - self._process_cpu_seen)
        self._process_cpu_seen = used
        super()._update()

    def _declare(self, family: Family, kind: type[ChildT]) -> Callable[..., ChildT]:
        declared = super()._declare(family, kind)
        for saved in self._left.pop(family.name, ()) if family.kind != "gauge" else ():
            saved.add_to(declared(*saved.labels))
        return declared

    def _file(self, slot: int) -> Path:
        assert self._directory is not None
        return self._directory / f"worker-{slot}.json"

    def _merged(self) -> list[Family]:
        assert self._directory is not None
        merged = {name: family.empty_copy() for name, family in self._families.items()}
        for file in sorted(self._directory.glob("worker-*.json")):
            for saved in _read(file):
                if saved.family in merged:
                    saved.add_to(merged[saved.family].child(saved.labels))
        return list(merged.values())

    def _restore(self, file: Path) -> None:
        for saved in _read(file):
            family = self._families.get(saved.family)
            if family is None:
                self._left.setdefault(saved.family, []).append(saved)
            elif family.kind != "gauge":
                saved.add_to(family.child(saved.labels))


def _read(file: Path) -> list[_Saved]:
    """Read a worker's states; the file is written by rename, so it is complete."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[_Saved])
    except FileNotFoundError:
        return []
