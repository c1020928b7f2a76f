"""Metrics of feature fetching: the interface that the client calls, and the metric families.

`features` does not import `observe`: a registry is any object that declares counters, gauges and histograms
like `observe.metrics.Metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Number(Protocol):
    """A counter or a gauge with label values."""

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`."""


class Distribution(Protocol):
    """A histogram with label values."""

    def observe(self, value: float) -> None:
        """Record one value."""


class Registry(Protocol):
    """Declares metric families; a family is called with label values to get a child."""

    def counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Callable[..., Number]:
        """Declare a number that only grows."""
        ...

    def gauge(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Callable[..., Number]:
        """Declare a number that goes up and down; values of workers are added."""
        ...

    def histogram(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Callable[..., Distribution]:
        """Declare a histogram of seconds."""
        ...


class ClientMetrics:
    """Receives the events of the feature client, and ignores them. Methods of subclasses must be cheap."""

    def called(self, store: str, tier: str, outcome: str, seconds: float) -> None:
        """Count a finished call to a store: "ok", "timeout", "unavailable", "refused" or "cancelled"."""

    def rows(self, tier: str, result: str, count: int) -> None:
        """Count requested rows of a tier, by `Reason.label`; for L2 also "written" and "write_dropped"."""

    def retried(self, tier: str) -> None:
        """Count a retry."""

    def breaker(self, tier: str, change: int) -> None:
        """Count a breaker that opened (1), closed (-1) or is new (0)."""


ChildT = TypeVar("ChildT")


class FeatureMetrics(ClientMetrics):
    """The metric families of feature fetching; a `ClientMetrics`.

    Args:
        registry: registry of the families; declaring a family again has no effect.
    """

    def __init__(self, registry: Registry) -> None:
        self._seconds = _Children(
            registry.histogram(
                "hopline_feature_fetch_seconds", "Time of calls to feature stores.", ("store", "tier")
            )
        )
        self._calls = _Children(
            registry.counter(
                "hopline_feature_calls_total", "Calls to feature stores by outcome.", ("tier", "outcome")
            )
        )
        self._rows = _Children(
            registry.counter(
                "hopline_feature_rows_total",
                "Feature rows requested from a tier, by result.",
                ("tier", "result"),
            )
        )
        self._retries = _Children(
            registry.counter("hopline_feature_retries_total", "Calls that were retried.", ("tier",))
        )
        # A count of open breakers can be summed over workers; numbers that encode states cannot.
        self._breakers = _Children(
            registry.gauge(
                "hopline_feature_breaker_state",
                "Circuit breakers that are not closed, over all workers.",
                ("tier",),
            )
        )

    def called(self, store: str, tier: str, outcome: str, seconds: float) -> None:
        """See `ClientMetrics.called`."""
        self._seconds.of(store, tier).observe(seconds)
        self._calls.of(tier, outcome).inc()

    def rows(self, tier: str, result: str, count: int) -> None:
        """See `ClientMetrics.rows`."""
        self._rows.of(tier, result).inc(count)

    def retried(self, tier: str) -> None:
        """See `ClientMetrics.retried`."""
        self._retries.of(tier).inc()

    def breaker(self, tier: str, change: int) -> None:
        """See `ClientMetrics.breaker`."""
        self._breakers.of(tier).inc(change)


class _Children(Generic[ChildT]):
    """A family's children by label values: a dict lookup instead of a call of the registry."""

    __slots__ = ("_known", "_make")

    def __init__(self, make: Callable[..., ChildT]) -> None:
        self._make = make
        self._known: dict[tuple[str, ...], ChildT] = {}

    def of(self, *labels: str) -> ChildT:
        """Return the child for these label values."""
        found = self._known.get(labels)
        if found is None:
            found = self._known[labels] = self._make(*labels)
        return found
