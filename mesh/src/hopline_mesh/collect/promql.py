"""Parts of PromQL that several sets of queries share. Knows no metrics of a mesh."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hopline.errors import ConfigError
from hopline_mesh.collect.query import Labels, Query

_MATCHER = re.compile(r'\s*[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"\s*')


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
    """Return the window of rates in seconds for a scrape interval.

    A rate needs two samples. With four scrapes in the window, one failed and one late scrape still leave
    two. Below a minute a rate depends mostly on the exact times of its ends.
    """
    return max(4.0 * scrape_s, 60.0)


def selector(metric: str, matchers: str, further: str = "") -> str:
    """Return `metric{matchers,further}`."""
    return f"{metric}{{{','.join(part for part in (matchers, further) if part)}}}"


def total_rate(labels: str, *selectors: str, window: str) -> str:
    """Return the rate of all series of disjoint selectors, by these labels."""
    return f"sum by ({labels}) ({' or '.join(f'rate({each}[{window}])' for each in selectors)})"


def quantile(q: float, labels: str, buckets: str, *, window: str) -> str:
    """Return a quantile of a classic histogram: NaN if nothing was observed."""
    return f"histogram_quantile({q:g}, sum by ({labels}, le) (rate({buckets}[{window}])))"


def beyond_last_bucket(q: float, labels: str, metric: str, matchers: str, *, window: str) -> str:
    """Return the share within the last finite bucket, for series where it is less than `q`.

    Buckets are cumulative, so the largest finite one is the last, for any limits of a service.
    """
    finite = selector(metric, matchers, 'le!="+Inf"')
    infinite = selector(metric, matchers, 'le="+Inf"')
    return (
        f"max by ({labels}) (sum by ({labels}, le) (rate({finite}[{window}])))"
        f" / sum by ({labels}) (rate({infinite}[{window}])) < {q:g}"
    )


@dataclass(frozen=True, slots=True)
class Side:
    """The series of one reporter: of services (without a caller), or of call paths.

    Attributes:
        by: labels that tell its services or call paths apart, as in `sum by (…)`.
        matchers: of the reporter.
        service: labels of the service; for a call path, of the callee.
        caller: labels of the caller; None for services.
        reveals: see `Query`.
    """

    by: str
    matchers: str
    service: Labels
    caller: Labels | None = None
    reveals: bool = True

    @property
    def of(self) -> Literal["node", "edge"]:
        """Whether these are services or call paths."""
        return "node" if self.caller is None else "edge"

    def query(self, column: str, promql: str, *, per: str = "") -> Query:
        """Return a query for a column of these series; for `per` see `Query`."""
        return Query(self.of, column, promql, self.service, self.caller, per=per, reveals=self.reveals)

    def latency(self, column: str, q: float, buckets: str, window: str) -> Query:
        """Return a query for a quantile, from a metric with buckets; of several series the largest."""
        promql = quantile(q, self.by, selector(buckets, self.matchers), window=window)
        return Query(
            self.of, column, promql, self.service, self.caller, combine="max", reveals=self.reveals
        )

    def ceiling(self, quantiles: tuple[tuple[str, float], ...], buckets: str, window: str) -> Query:
        """Return a check whether quantiles are above the last bucket; the last column names the query."""
        column, q = quantiles[-1]
        promql = beyond_last_bucket(q, self.by, buckets, self.matchers, window=window)
        return Query(
            self.of, column, promql, self.service, self.caller, reveals=False, ceiling_of=quantiles
        )
