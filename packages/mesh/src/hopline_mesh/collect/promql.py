"""Parts of PromQL that several sets of queries share. Knows no metrics of a mesh."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopline.errors import ConfigError
from hopline_mesh.collect.query import Labels, Query

_MATCHER = re.compile(r'\s*[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"\s*')

_FINITE, _INFINITE = 'le!="+Inf"', 'le="+Inf"'


def check_matchers(text: str) -> str:
    """Check matchers that are added to every selector, such as `cluster="eu-1",env!="test"`; "" for none.

    Returns: the text without blanks around it.
    Raises:
        ConfigError: the text is not a list of matchers.
    """
    rest = text.strip().removesuffix(",")
    while rest:
        found = _MATCHER.match(rest)
        if found is None or (rest[found.end() :] and not rest[found.end() :].startswith(",")):
            raise ConfigError(f'matchers: {text!r} is not like cluster="eu-1",env!="test"')
        rest = rest[found.end() :].removeprefix(",")
    return text.strip().removesuffix(",")


def duration(seconds: float) -> str:
    """Return a duration in PromQL: 60.0 is "60s", 0.4 is "400ms".

    Raises:
        ConfigError: less than a millisecond.
    """
    milliseconds = round(seconds * 1000)
    if milliseconds < 1:
        raise ConfigError(f"a window of {seconds} s is too short; it must have at least 4 scrapes")
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def window_for(scrape_s: float) -> float:
    """Return the shortest window of rates, in whole seconds, for a measured scrape interval.

    A rate needs two samples. With four scrapes in the window, one failed and one late scrape still leave
    two.
    """
    return float(max(1, math.ceil(4.0 * round(scrape_s, 1))))


def selector(metric: str, matchers: str, further: str = "") -> str:
    """Return `metric{matchers,further}`."""
    return f"{metric}{{{','.join(part for part in (matchers, further) if part)}}}"


@dataclass(frozen=True, slots=True)
class Side:
    """The series of one reporter: of services (without a caller), or of call paths.

    Attributes:
        matchers: of the reporter.
        service: labels of the service; for a call path, of the callee.
        caller: labels of the caller; None for services.
        reveals: see `Query`.
    """

    matchers: str
    service: Labels
    caller: Labels | None = None
    reveals: bool = True

    @property
    def by(self) -> str:
        """Labels that tell its services or call paths apart, as in `sum by (…)`."""
        of_caller = () if self.caller is None else self.caller.names
        return ", ".join(dict.fromkeys((*of_caller, *self.service.names)))

    def query(self, column: str, promql: str, **more: Any) -> Query:
        """Return a query for a column of these series; `more` are attributes of `Query`."""
        more = {"reveals": self.reveals, **more}
        return Query("edge" if self.caller else "node", column, promql, self.service, self.caller, **more)

    def requests(self, counter: str, failures: Sequence[str], window: str) -> tuple[Query, Query]:
        """Return queries for the rate of requests, and for the share of failures.

        Args:
            failures: disjoint lists of matchers; each selects some failures.
        """

        def total(*further: str) -> str:
            rates = (self._rate(counter, window, each) for each in further)
            return f"sum by ({self.by}) ({' or '.join(rates)})"

        return (
            self.query("request_rate", total("")),
            self.query("error_share", total(*failures), per="request_rate"),
        )

    def latencies(
        self, quantiles: Mapping[str, float], metric: str, window: str, **more: Any
    ) -> Iterator[Query]:
        """Yield queries for quantiles of a classic histogram, and one for its last finite bucket.

        A quantile is NaN if nothing was observed; of several series of a service the largest is used.

        Args:
            quantiles: by column.
            metric: with buckets.
            more: attributes of `Query`.
        """
        for column, q in quantiles.items():
            buckets = f"sum by ({self.by}, le) ({self._rate(metric, window)})"
            promql = f"histogram_quantile({q:g}, {buckets})"
            yield self.query(column, promql, **{"combine": "max", **more})
        # Buckets are cumulative, so the largest finite one is the last, for any limits of a service.
        last = f"max by ({self.by}) (sum by ({self.by}, le) ({self._rate(metric, window, _FINITE)}))"
        every = f"sum by ({self.by}) ({self._rate(metric, window, _INFINITE)})"
        check = f"{last} / {every} < {q:g}"
        yield self.query(column, check, reveals=False, ceiling_of=tuple(quantiles.items()))

    def _rate(self, metric: str, window: str, further: str = "") -> str:
        return f"rate({selector(metric, self.matchers, further)}[{window}])"
