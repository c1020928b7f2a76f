"""Queries for Linkerd's standard metrics, with the labels of the Prometheus that Linkerd installs.

Call paths are read from the caller's proxy (`direction="outbound"`), services from the callee's. The time
at the server is unknown by call path, because the callee's proxy only has the caller's identity.
"""

from __future__ import annotations

from hopline_mesh.collect.promql import Side, check_matchers, duration, selector
from hopline_mesh.collect.query import Labels, Query

_KINDS = ("deployment", "statefulset", "daemonset")
_REQUESTS = "response_total"
_FAILURES = ('classification="failure"',)
_BUCKETS = "response_latency_ms_bucket"

_service = Labels(_KINDS, ("namespace",))
_callee = Labels(
    tuple(f"dst_{kind}" for kind in _KINDS),
    ("dst_namespace",),
    otherwise=Labels(("dst_service",), ("dst_namespace",)),
)


def linkerd(window_s: float = 60.0, matchers: str = "") -> tuple[Query, ...]:
    """Return queries for Linkerd.

    Probes of the kubelet, which Linkerd marks, are left out. `classification` already includes failures by
    gRPC status.

    Args:
        window_s: of rates.
        matchers: added to every selector.

    Raises:
        ConfigError: an invalid window or matcher.
    """
    matchers, window = check_matchers(matchers), duration(window_s)
    inbound = ",".join(('direction="inbound",route_name!="probe"', matchers)).rstrip(",")
    outbound = ",".join(('direction="outbound"', matchers)).rstrip(",")
    services = Side(inbound, _service)
    paths = Side(outbound, _callee, _service)
    open_now = selector("tcp_open_connections", 'direction="inbound",peer="src"', matchers)
    return (
        *services.requests(_REQUESTS, _FAILURES, window),
        *paths.requests(_REQUESTS, _FAILURES, window),
        *services.latencies({"p50_ms": 0.5, "p99_ms": 0.99}, _BUCKETS, window),
        services.query("connections", f"sum by ({services.by}) (last_over_time({open_now}[{window}]))"),
        *paths.latencies({"client_ms": 0.99}, _BUCKETS, window),
    )
