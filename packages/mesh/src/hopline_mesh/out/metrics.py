"""The watch's own Prometheus metrics. packages/mesh/docs/operations.md lists each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hopline.observe.metrics import MetricFamilies
from hopline_mesh.collect.query import CollectReport
from hopline_mesh.incident import Verdict
from hopline_mesh.snapshot import Snapshot

_MAX_KINDS = 40
_STATES = ("learning", "blind", "normal", "anomalous")


class MeshMetrics(MetricFamilies):
    """All metrics of one watch.

    Label values never come from services, so a hostile or short-lived service creates no new series.

    Attributes:
        thresholds: returns the threshold of each column, in spreads; called whenever metrics are read.
    """

    def __init__(self) -> None:
        super().__init__("hopline_mesh_")
        self._kinds_of_gaps: set[str] = set()
        self.step_seconds = self.histogram("step_seconds", "Time of each stage of a step.", ("stage",))
        self.collect_seconds = self.histogram("collect_seconds", "Time of all queries of a snapshot.")()
        self.snapshots = self.counter("snapshots_total", "Collected snapshots.")()
        self.gaps = self.counter("gaps_total", "Missing measurements by kind.", ("what",))
        self.services = self.gauge("services", "Services in the newest snapshot.")()
        self.edges = self.gauge("edges", "Call paths in the newest snapshot.")()
        self.score = self.gauge("score", "Largest anomaly score of the mesh; 1 is the threshold.")()
        self._threshold = self.gauge(
            "threshold", "Deviation, in spreads, at which a column's anomaly score is 1.", ("column",)
        )
        self.thresholds: Callable[[], Mapping[str, float]] = dict
        self.query_seconds = self.gauge("query_seconds", "Time of the newest response.", ("query",))
        self.queries = self.counter("queries_total", "Queries to Prometheus.", ("query", "outcome"))
        self.series = self.gauge(
            "query_series", "Series of watched services in the newest response.", ("query",)
        )
        self.left_out = self.gauge(
            "left_out", "Services and call paths beyond the limits, in the newest snapshot."
        )()
        self.state = self.gauge("state", "1 for the state of the newest verdict.", ("state",))
        self.verdict_time = self.gauge(
            "verdict_time_seconds", "Time of the newest verdict, Unix seconds."
        )()
        self.incidents = self.counter("incidents_total", "Incidents that began.")()
        self.incidents_open = self.gauge("incidents_open", "Open incidents.")()
        self.alerts_sent = self.counter(
            "alerts_sent_total", "Alerts that an Alertmanager accepted.", ("alertmanager",)
        )
        self.alerts_failed = self.counter(
            "alerts_failed_total", "Failed posts to an Alertmanager.", ("alertmanager",)
        )
        self.state_bytes = self.gauge("state_bytes", "Bytes of the saved state.")()
        self.state_writes_failed = self.counter("state_writes_failed_total", "Failed writes of state.")()
        self.fine_tunes = self.counter("fine_tunes_total", "Trainings on recent snapshots.", ("outcome",))
        self.verdicts_dropped = self.counter(
            "verdicts_dropped_total", "Verdicts that slow gRPC readers missed."
        )()
        self.answers = self.counter("answers_total", "Responses by transport.", ("transport", "status"))
        self._cpu = self.counter("cpu_seconds_total", "CPU seconds of the watch.")()
        for state in _STATES:
            self.state(state)

    def saw(self, verdict: Verdict, snapshot: Snapshot | None, num_open: int) -> None:
        """Count one interval."""
        self.score.set(verdict.score)
        self.verdict_time.set(verdict.time_s)
        for state in _STATES:
            self.state(state).set(state == verdict.state)
        for gap in verdict.gaps:
            self.gaps(self._kind_of_gap(gap.what)).inc()
        self.incidents_open.set(num_open)
        if snapshot is not None:
            self.snapshots.inc()
            self.services.set(len(snapshot.nodes))
            self.edges.set(len(snapshot.edge_src))

    def collected(self, report: CollectReport) -> None:
        """Count the queries of one interval."""
        for query in report.queries:
            self.queries(query.name, query.outcome).inc()
            self.query_seconds(query.name).set(query.duration_s)
            self.series(query.name).set(query.matched)
        self.left_out.set(report.left_out)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure the time of the `with` block as that of a stage of a step, also if it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.step_seconds(stage).observe(time.perf_counter() - start)
            if stage == "collect":
                self.collect_seconds.observe(time.perf_counter() - start)

    def _update(self) -> None:
        self._cpu.value = time.process_time()
        for column, spreads in self.thresholds().items():
            self._threshold(column).set(spreads)

    def _kind_of_gap(self, what: str) -> str:
        """Return a gap's label: "node.cpu_cores" or "prometheus"; "other" if there are too many kinds."""
        known = self._kinds_of_gaps
        if what not in known and (len(known) >= _MAX_KINDS or len(what) > 40 or not what.isascii()):
            return "other"
        known.add(what)
        return what
