"""The metrics of a stream; listed in docs/operations.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from hopline.observe.metrics import FRESHNESS_BUCKETS, Histogram, Metrics
from hopline.types import IdArray

BATCH_BUCKETS = tuple(float(4**power) for power in range(11))


class StreamMetrics:
    """The families of a stream, bound.

    Attributes:
        freshness: seconds from an event's time until it was visible.
        num_events: events that ended, with any outcome.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._events = metrics.counter("hopline_stream_events_total", "Events by outcome.", ("outcome",))
        self.messages = metrics.counter(
            "hopline_stream_messages_total", "Messages taken from the broker."
        )()
        self.late = metrics.counter(
            "hopline_stream_late_events_total", "Events older than one that was applied before them."
        )()
        self.freshness: Histogram = metrics.histogram(
            "hopline_stream_freshness_seconds",
            "Seconds from an event's time until answers show it.",
            (),
            FRESHNESS_BUCKETS,
        )()
        self.batch_events = metrics.histogram(
            "hopline_stream_batch_events", "Events applied together.", (), BATCH_BUCKETS
        )()
        self.apply_seconds = metrics.histogram(
            "hopline_stream_apply_seconds", "Seconds until a batch was durable and visible."
        )()
        self._lag = metrics.gauge(
            "hopline_stream_lag", "Messages at the broker that were not taken yet.", ("partition",)
        )
        self._waiting = metrics.gauge(
            "hopline_stream_waiting", "1 while the stream waits for this.", ("what",)
        )
        self._gaps = metrics.counter(
            "hopline_stream_gaps_total",
            "Times that messages were lost before they were read.",
            ("partition",),
        )
        self._lost = metrics.counter(
            "hopline_stream_lost_messages_total",
            "Messages that were lost, as far as known.",
            ("partition",),
        )
        self.rescored = metrics.counter(
            "hopline_stream_rescored_nodes_total", "Nodes scored again after changes."
        )()
        self.results = metrics.counter("hopline_stream_results_total", "Result messages published.")()
        self.unscored = metrics.gauge(
            "hopline_stream_unscored_versions", "Versions of the graph whose changes were not scored yet."
        )()
        self.num_events = 0
        for outcome in ("applied", "duplicate"):
            self._events(outcome)

    def outcomes(self, counts: Mapping[str, int]) -> None:
        """Count events by outcome."""
        for outcome, count in counts.items():
            self._events(outcome).inc(count)
            self.num_events += count

    def outcome(self, name: str) -> int:
        """The number of events with an outcome."""
        return int(self._events(name).value)

    def visible(self, event_time_ms: IdArray, now_ms: float) -> None:
        """Count events that just became visible; times of 0 are unknown and left out."""
        known = event_time_ms[event_time_ms > 0]
        if not len(known):
            return
        # clocks differ: an event from the future counts as 0 s old
        seconds = np.maximum(now_ms - known, 0.0) / 1e3
        places = np.searchsorted(np.array(self.freshness.bounds), seconds, side="left")
        for place, count in Counter(places.tolist()).items():
            self.freshness.counts[place] += count
        self.freshness.sum += float(seconds.sum())

    def lag(self, lag: Mapping[str, int]) -> None:
        """Set the lag of partitions."""
        for partition, messages in lag.items():
            self._lag(partition).set(messages)

    def gap(self, partition: str, lost: int | None) -> None:
        """Count lost messages."""
        self._gaps(partition).inc()
        self._lost(partition).inc(lost or 0)

    def waiting(self, what: str, waiting: int) -> None:
        """Set whether the stream waits for something."""
        self._waiting(what).set(waiting)
