"""The two text formats of metrics, and the choice of one by the header Accept.

Prometheus' text format, version 0.0.4 (prometheus.io, "Exposition formats"), and OpenMetrics 1.0
(openmetrics.io), which also has exemplars: for a bucket of a histogram, the trace of one request in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
#: Last line of OpenMetrics: a scrape without it was cut off.
END = "# EOF\n"
_OPEN_METRICS, _TEXT = "application/openmetrics-text", "text/plain"
_TOTAL = "_total"
#: Prometheus sends some 200 bytes; the loop waits while they are read.
_MAX_ACCEPT_BYTES = 1024


class Exemplar(NamedTuple):
    """One request as an example: its trace, its value, and when it was, in seconds since 1970."""

    trace_id: str
    value: float
    at: float


class Sample(NamedTuple):
    """One line of a family: suffix of the name, label pairs and value; OpenMetrics adds an exemplar."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float
    exemplar: Exemplar | None = None


def wants_open_metrics(accept: bytes | None) -> bool:
    """Return True if a scraper prefers OpenMetrics, by its header Accept (RFC 9110, 12.5.1).

    A scraper that accepts anything gets Prometheus' text format, and so does one with a header above 1 KiB.
    """
    if accept is None or len(accept) > _MAX_ACCEPT_BYTES:
        return False
    best = {_OPEN_METRICS: 0.0, _TEXT: 0.0}
    for item in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        named = dict(part.partition("=")[::2] for part in parameters)
        if kind in best and (kind == _TEXT or named.get("version", "1.0.0") == "1.0.0"):
            best[kind] = max(best[kind], _quality(named.get("q", "1")))
    return best[_OPEN_METRICS] > 0 and best[_OPEN_METRICS] >= best[_TEXT]


def render_family(
    name: str, help: str, kind: str, samples: Iterable[Sample], *, open_metrics: bool = False
) -> str:
    """Return the lines of one family, with HELP and TYPE.

    In OpenMetrics, a counter's family has a name without `_total`, which its samples have.
    """
    base, ending = name, ""
    if open_metrics and kind == "counter":
        base, ending = name.removesuffix(_TOTAL), _TOTAL
    text = _escape_label(help) if open_metrics else _escape_help(help)
    lines = [f"# HELP {base} {text}\n# TYPE {base} {kind}\n"]
    for suffix, labels, value, exemplar in samples:
        pairs = ",".join(f'{key}="{_escape_label(text)}"' for key, text in labels)
        shown = f"{{{pairs}}}" if pairs else ""
        mark = _mark(exemplar) if open_metrics and exemplar is not None else ""
        lines.append(f"{base}{suffix}{ending}{shown} {_number(value)}{mark}\n")
    return "".join(lines)


def _mark(exemplar: Exemplar) -> str:
    trace = _escape_label(exemplar.trace_id)
    return f' # {{trace_id="{trace}"}} {_number(exemplar.value)} {exemplar.at:.3f}'


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')
