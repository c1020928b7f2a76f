"""Queries for Linkerd's standard metrics, with the labels of the Prometheus that Linkerd installs.

Call paths are read from the caller's proxy (`direction="outbound"`), services from the callee's. The time
at the server is unknown by call path, because the callee's proxy only has the caller's identity.
"""

from __future__ import annotations

from hopline_mesh.collect.promql import (
    beyond_last_bucket,
    check_matchers,
    duration,
    quantile,
    selector,
    total_rate,
)
from hopline_mesh.collect.query import Labels, Query, QuerySet

_KINDS = ("deployment", "statefulset", "daemonset")
_SERVICE = ", ".join((*_KINDS, "namespace"))
_PATH = ", ".join((_SERVICE, *(f"dst_{kind}" for kind in _KINDS), "dst_service", "dst_namespace"))

_BUCKETS = "response_latency_ms_bucket"

_service = Labels(_KINDS, ("namespace",))
_callee = Labels(
    tuple(f"dst_{kind}" for kind in _KINDS),
    ("dst_namespace",),
    otherwise=Labels(("dst_service",), ("dst_namespace",)),
)


def linkerd(window_s: float = 60.0, matchers: str = "", *, percentile: float = 99.0) -> QuerySet:
    """Return queries for Linkerd.

    Probes of the kubelet, which Linkerd marks, are left out. `classification` already includes failures by
    gRPC status.

    Args:
        window_s: of rates.
        matchers: added to every selector.
        percentile: of `client_ms`.

    Raises:
        ConfigError: an invalid window or matcher.
    """
    further = check_matchers(matchers)
    window, q = duration(window_s), percentile / 100
    inbound = ",".join(('direction="inbound",route_name!="probe"', further)).rstrip(",")
    outbound = ",".join(('direction="outbound"', further)).rstrip(",")
    open_now = selector("tcp_open_connections", 'direction="inbound",peer="src"', further)

    def rate(labels: str, matchers: str, more: str = "") -> str:
        return total_rate(labels, selector("response_total", matchers, more), window=window)

    def latency(q: float, labels: str, matchers: str) -> str:
        return quantile(q, labels, selector(_BUCKETS, matchers), window=window)

    failed = 'classification="failure"'
    return QuerySet(
        "linkerd",
        (
            Query("node", "request_rate", rate(_SERVICE, inbound), _service),
            Query("node", "error_share", rate(_SERVICE, inbound, failed), _service, per="request_rate"),
            Query("node", "p50_ms", latency(0.5, _SERVICE, inbound), _service, combine="max"),
            Query("node", "p99_ms", latency(0.99, _SERVICE, inbound), _service, combine="max"),
            Query(
                "node",
                "p99_ms",
                beyond_last_bucket(0.99, _SERVICE, _BUCKETS, inbound, window=window),
                _service,
                reveals=False,
                ceiling_of=(("p50_ms", 0.5), ("p99_ms", 0.99)),
            ),
            Query(
                "node",
                "connections",
                f"sum by ({_SERVICE}) (last_over_time({open_now}[{window}]))",
                _service,
            ),
            Query("edge", "request_rate", rate(_PATH, outbound), _callee, _service),
            Query(
                "edge", "error_share", rate(_PATH, outbound, failed), _callee, _service, per="request_rate"
            ),
            Query("edge", "client_ms", latency(q, _PATH, outbound), _callee, _service, combine="max"),
            Query(
                "edge",
                "client_ms",
                beyond_last_bucket(q, _PATH, _BUCKETS, outbound, window=window),
                _callee,
                _service,
                reveals=False,
                ceiling_of=(("client_ms", q),),
            ),
        ),
    )
