"""What the fetching of features is measured by: what the client tells, and the families it goes into.

`features` does not import `observe`: a registry is anything that declares counters,
gauges and histograms as `observe.metrics.Metrics` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class Number(Protocol):
    """A counter or a gauge with its labels."""

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`."""


class Distribution(Protocol):
    """A histogram with its labels."""

    def observe(self, value: float) -> None:
        """Count one value."""


class Registry(Protocol):
    """Declares families; what it returns takes label values and gives the child."""

    def counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Callable[..., Number]:
        """A number that grows."""
        ...

    def gauge(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Callable[..., Number]:
        """A number that goes up and down; workers' values are added up."""
        ...

    def histogram(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Callable[..., Distribution]:
        """Seconds by bucket."""
        ...


class ClientMetrics(Protocol):
    """Counts what the feature client did; must be cheap."""

    def called(self, store: str, tier: str, outcome: str, seconds: float) -> None:
        """A call to a store ended: "ok", "timeout", "unavailable", "refused" or "cancelled"."""

    def rows(self, tier: str, result: str, count: int) -> None:
        """Rows asked of a tier, by `Reason.label`; for L2 also "written" and "write_dropped"."""

    def retried(self, tier: str) -> None:
        """A call is tried again."""

    def breaker(self, tier: str, change: int) -> None:
        """A breaker opened (1), closed again (-1) or is new (0)."""


class NoMetrics:
    """Counts nothing."""

    def called(self, store: str, tier: str, outcome: str, seconds: float) -> None:
        """As `ClientMetrics.called`."""

    def rows(self, tier: str, result: str, count: int) -> None:
        """As `ClientMetrics.rows`."""

    def retried(self, tier: str) -> None:
        """As `ClientMetrics.retried`."""

    def breaker(self, tier: str, change: int) -> None:
        """As `ClientMetrics.breaker`."""


ChildT = TypeVar("ChildT")


class FeatureMetrics:
    """The families of feature fetching; a `ClientMetrics`.

    Args:
        registry: where they are declared; declaring them twice is one declaration.
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
                "hopline_feature_rows_total", "Feature rows asked of a tier by result.", ("tier", "result")
            )
        )
        self._retries = _Children(
            registry.counter("hopline_feature_retries_total", "Calls that were tried again.", ("tier",))
        )
        # A sum over workers of numbers that name states would mean nothing; a count of open ones does.
        self._breakers = _Children(
            registry.gauge(
                "hopline_feature_breaker_state",
                "Circuit breakers that are not closed, over all workers.",
                ("tier",),
            )
        )
        self._degraded = _Children(
            registry.counter(
                "hopline_degraded_answers_total",
                "Answers below full quality by fallback.",
                ("model", "reason"),
            )
        )

    def called(self, store: str, tier: str, outcome: str, seconds: float) -> None:
        """As `ClientMetrics.called`."""
        self._seconds.of(store, tier).observe(seconds)
        self._calls.of(tier, outcome).inc()

    def rows(self, tier: str, result: str, count: int) -> None:
        """As `ClientMetrics.rows`."""
        self._rows.of(tier, result).inc(count)

    def retried(self, tier: str) -> None:
        """As `ClientMetrics.retried`."""
        self._retries.of(tier).inc()

    def breaker(self, tier: str, change: int) -> None:
        """As `ClientMetrics.breaker`."""
        self._breakers.of(tier).inc(change)

    def degraded(self, model: str, reasons: Iterable[str]) -> None:
        """Count an answer once for each fallback that it used (`ScoreResult.degraded`)."""
        for reason in reasons:
            self._degraded.of(model, reason).inc()


class _Children(Generic[ChildT]):
    """A family's children by label values: a dict look-up instead of a call through the registry."""

    __slots__ = ("_known", "_make")

    def __init__(self, make: Callable[..., ChildT]) -> None:
        self._make = make
        self._known: dict[tuple[str, ...], ChildT] = {}

    def of(self, *labels: str) -> ChildT:
        """The child of these label values."""
        found = self._known.get(labels)
        if found is None:
            found = self._known[labels] = self._make(*labels)
        return found
