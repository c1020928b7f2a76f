"""What a Prometheus would have scraped: series with samples of the past, written as its blocks at once."""

from __future__ import annotations

import math
from pathlib import Path

from packages.mesh.tests.prometheus_server import promtool

SCRAPE_S = 15
LE = (1.0, 5.0, 10.0, 25.0, 100.0, 1000.0)  # limits of buckets in ms; behind the last comes +Inf


class History:
    """Series from ten minutes before `now_s` to two after it, a sample every 15 seconds."""

    def __init__(self, now_s):
        self.times = [now_s - 600 + SCRAPE_S * i for i in range(49)]
        self._lines: dict[str, list[str]] = {}

    def series(self, name, value_at, *, until_s=math.inf, **labels):
        """One series; `value_at(seconds since the first sample)` gives its values, None for no sample."""
        text = ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items())
        for time_s in self.times:
            value = value_at(time_s - self.times[0])
            if value is not None and time_s <= until_s:
                self._lines.setdefault(name, []).append(f"{name}{{{text}}} {value!r} {time_s}")

    def counter(self, name, rate, *, start=0.0, **labels):
        self.series(name, lambda t: start + rate * t, **labels)

    def gauge(self, name, value, **labels):
        self.series(name, lambda t: value, **labels)

    def histogram(self, name, rates, **labels):
        """Buckets; `rates[i]` observations a second at or below LE[i] and above the one before."""
        below = 0.0
        for i, le in enumerate((*LE, math.inf)):
            below += rates[i] if i < len(rates) else 0.0
            self.counter(f"{name}_bucket", below, le="+Inf" if le == math.inf else f"{le:g}", **labels)

    def write(self, folder: Path) -> Path:
        """The data folder of a Prometheus."""
        text = "".join("\n".join(lines) + "\n" for lines in self._lines.values())
        (folder / "history.txt").write_text(text + "# EOF\n")
        promtool("tsdb", "create-blocks-from", "openmetrics", folder / "history.txt", folder / "data")
        return folder / "data"


def escaped(value):
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def istio_call(
    history, caller, callee, rate, *, code="200", grpc="", ms=(0, 0, 1.0), reported=True, outside=False
):
    """Calls in the namespace shop, as both proxies count them.

    `reported=False`: they never arrive, the callee's proxy knows nothing; `outside`: it has no namespace.
    """
    namespace = "shop"
    called = {
        "destination_service_name": callee,
        "destination_service_namespace": "unknown" if outside else namespace,
    }
    there = {"destination_workload": callee, "destination_workload_namespace": namespace}
    nowhere = {"destination_workload": "unknown", "destination_workload_namespace": "unknown"}
    source = {"source_workload": caller, "source_workload_namespace": namespace}
    answer = {"response_code": code, "grpc_response_status": grpc, **source, **called}
    for reporter in ("source", "destination") if reported else ("source",):
        labels = {"reporter": reporter, **answer, **(there if reported else nowhere)}
        history.counter("istio_requests_total", rate, **labels)
        history.histogram("istio_request_duration_milliseconds", [rate * part for part in ms], **labels)
