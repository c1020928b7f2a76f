"""Pieces of PromQL that several sets of queries are made of. Knows no mesh's metrics."""

from __future__ import annotations

import re

from hopline.errors import ConfigError

_MATCHER = re.compile(r'\s*[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"\s*')


def check_matchers(text: str) -> str:
    """Further matchers for every selector, such as `cluster="eu-1",env!="test"`; "" for none.

    Returns: the text without blanks around it.
    Raises: ConfigError: it is something else.
    """
    rest = text.strip().removesuffix(",")
    while rest:
        found = _MATCHER.match(rest)
        if found is None or (rest[found.end() :] and not rest[found.end() :].startswith(",")):
            raise ConfigError(f'matchers: {text!r} is not like cluster="eu-1",env!="test"')
        rest = rest[found.end() :].removeprefix(",")
    return text.strip().removesuffix(",")


def duration(seconds: float) -> str:
    """As PromQL writes it: 60.0 is "60s", 0.4 is "400ms".

    Raises: ConfigError: less than a millisecond.
    """
    milliseconds = round(seconds * 1000)
    if milliseconds < 1:
        raise ConfigError(f"a window of {seconds} s is too short; at least 4 scrapes have to be within it")
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def window_for(scrape_s: float) -> float:
    """Seconds over which a rate is taken when targets are scraped every `scrape_s` seconds.

    A rate needs two samples. With four scrapes in the window one that failed, and one that came late, leave
    two; below a minute a rate is mostly the chance of where its ends fall.
    """
    return max(4.0 * scrape_s, 60.0)


def selector(metric: str, matchers: str, further: str = "") -> str:
    """`metric{matchers,further}`."""
    return f"{metric}{{{','.join(part for part in (matchers, further) if part)}}}"


def total_rate(labels: str, *selectors: str, window: str) -> str:
    """Rate of all series of the selectors, which have none in common, by these labels."""
    return f"sum by ({labels}) ({' or '.join(f'rate({each}[{window}])' for each in selectors)})"


def quantile(q: float, labels: str, buckets: str, *, window: str) -> str:
    """A quantile of a classic histogram: NaN where nothing was observed."""
    return f"histogram_quantile({q:g}, sum by ({labels}, le) (rate({buckets}[{window}])))"


def beyond_last_bucket(q: float, labels: str, metric: str, matchers: str, *, window: str) -> str:
    """Share within the last bucket that has a limit, for those where that is less than `q`.

    Buckets are cumulative: the largest of those with a limit is the last, whatever limits a service has.
    """
    finite = selector(metric, matchers, 'le!="+Inf"')
    infinite = selector(metric, matchers, 'le="+Inf"')
    return (
        f"max by ({labels}) (sum by ({labels}, le) (rate({finite}[{window}])))"
        f" / sum by ({labels}) (rate({infinite}[{window}])) < {q:g}"
    )
