"""Queries for Linkerd's standard metrics, with the labels of the Prometheus that Linkerd installs.

Call paths are read from the caller's proxy (`direction="outbound"`), services from the callee's. The time
at the server is unknown by call path, because the callee's proxy only has the caller's identity.
"""

from __future__ import annotations

from hopline_mesh.collect.promql import Side, check_matchers, duration, selector, total_rate
from hopline_mesh.collect.query import Labels, QuerySet

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


def linkerd(window_s: float = 60.0, matchers: str = "") -> QuerySet:
    """Return queries for Linkerd.

    Probes of the kubelet, which Linkerd marks, are left out. `classification` already includes failures by
    gRPC status.

    Args:
        window_s: of rates.
        matchers: added to every selector.

    Raises:
        ConfigError: an invalid window or matcher.
    """
    further = check_matchers(matchers)
    window = duration(window_s)
    inbound = ",".join(('direction="inbound",route_name!="probe"', further)).rstrip(",")
    outbound = ",".join(('direction="outbound"', further)).rstrip(",")
    open_now = selector("tcp_open_connections", 'direction="inbound",peer="src"', further)

    services = Side(_SERVICE, inbound, _service)
    paths = Side(_PATH, outbound, _callee, _service)
    queries = []
    for side in (services, paths):
        all_of, failed = (
            total_rate(side.by, selector("response_total", side.matchers, more), window=window)
            for more in ("", 'classification="failure"')
        )
        queries.append(side.query("request_rate", all_of))
        queries.append(side.query("error_share", failed, per="request_rate"))
    return QuerySet(
        "linkerd",
        (
            *queries,
            services.latency("p50_ms", 0.5, _BUCKETS, window),
            services.latency("p99_ms", 0.99, _BUCKETS, window),
            services.ceiling((("p50_ms", 0.5), ("p99_ms", 0.99)), _BUCKETS, window),
            services.query("connections", f"sum by ({_SERVICE}) (last_over_time({open_now}[{window}]))"),
            paths.latency("client_ms", 0.99, _BUCKETS, window),
            paths.ceiling((("client_ms", 0.99),), _BUCKETS, window),
        ),
    )
