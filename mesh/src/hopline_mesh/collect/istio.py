"""Queries for Istio's standard metrics.

Services are workloads, as in Kubernetes' Deployments and cAdvisor's pods. Call paths are read from the
caller's proxy, which sees effects of the network. Services, and the time of a call at the server, are read
from the callee's. Both proxies count each request, so every selector names the reporter.
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

#: Statuses that are failures of the server. Envoy writes 0 if the caller disconnected before a response.
#: gRPC failures have HTTP status 200. The codes are those that OpenTelemetry's semantic conventions define
#: as server errors: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
HTTP_FAILURES = "5..|0"
GRPC_FAILURES = "2|4|12|13|14|15"

_CALLEE = "destination_workload, destination_workload_namespace"
_CALLED = "destination_service_name, destination_service_namespace"
_CALLER = "source_workload, source_workload_namespace"
_PATH = f"{_CALLER}, {_CALLEE}, {_CALLED}"

_REQUESTS = "istio_requests_total"
_BUCKETS = "istio_request_duration_milliseconds_bucket"

_caller = Labels(("source_workload",), ("source_workload_namespace",))
_callee = Labels(("destination_workload",), ("destination_workload_namespace",))
# A caller's proxy gets the callee's workload from the response; without one it only has the called name.
_called = Labels(
    ("destination_workload",),
    ("destination_workload_namespace",),
    otherwise=Labels(("destination_service_name",), ("destination_service_namespace",)),
)


def istio(
    window_s: float = 60.0,
    matchers: str = "",
    *,
    client: str = "source",
    server: str = "destination",
    percentile: float = 99.0,
) -> QuerySet:
    """Return queries for Istio.

    Args:
        window_s: of rates.
        matchers: added to every selector, such as `cluster="eu-1"`.
        client: the reporter at the caller; "waypoint" in an ambient mesh.
        server: the reporter at the callee; "waypoint" in an ambient mesh.
        percentile: of `client_ms` and `server_ms`.

    Raises:
        ConfigError: an invalid window or matcher.
    """
    matchers = check_matchers(matchers)
    window, q = duration(window_s), percentile / 100
    at_caller, at_callee = (",".join((f'reporter="{r}"', matchers)).rstrip(",") for r in (client, server))
    return QuerySet(
        "istio",
        (
            Query("node", "request_rate", _rate(_CALLEE, at_callee, window), _callee),
            Query(
                "node", "error_share", _failures(_CALLEE, at_callee, window), _callee, per="request_rate"
            ),
            Query("node", "p50_ms", _latency(0.5, _CALLEE, at_callee, window), _callee, combine="max"),
            Query("node", "p99_ms", _latency(0.99, _CALLEE, at_callee, window), _callee, combine="max"),
            Query(
                "node",
                "p99_ms",
                beyond_last_bucket(0.99, _CALLEE, _BUCKETS, at_callee, window=window),
                _callee,
                reveals=False,
                ceiling_of=(("p50_ms", 0.5), ("p99_ms", 0.99)),
            ),
            Query("node", "connections", _connections(at_callee, window), _callee),
            Query("edge", "request_rate", _rate(_PATH, at_caller, window), _called, _caller),
            Query(
                "edge",
                "error_share",
                _failures(_PATH, at_caller, window),
                _called,
                _caller,
                per="request_rate",
            ),
            Query(
                "edge", "client_ms", _latency(q, _PATH, at_caller, window), _called, _caller, combine="max"
            ),
            Query(
                "edge",
                "client_ms",
                beyond_last_bucket(q, _PATH, _BUCKETS, at_caller, window=window),
                _called,
                _caller,
                reveals=False,
                ceiling_of=(("client_ms", q),),
            ),
            Query(
                "edge",
                "server_ms",
                _latency(q, f"{_CALLER}, {_CALLEE}", at_callee, window),
                _callee,
                _caller,
                combine="max",
                reveals=False,
            ),
            Query(
                "edge",
                "server_ms",
                beyond_last_bucket(q, f"{_CALLER}, {_CALLEE}", _BUCKETS, at_callee, window=window),
                _callee,
                _caller,
                reveals=False,
                ceiling_of=(("server_ms", q),),
            ),
        ),
    )


def _rate(labels: str, matchers: str, window: str) -> str:
    return total_rate(labels, selector(_REQUESTS, matchers), window=window)


def _failures(labels: str, matchers: str, window: str) -> str:
    return total_rate(
        labels,
        selector(_REQUESTS, matchers, f'response_code=~"{HTTP_FAILURES}"'),
        selector(
            _REQUESTS,
            matchers,
            f'response_code!~"{HTTP_FAILURES}",grpc_response_status=~"{GRPC_FAILURES}"',
        ),
        window=window,
    )


def _latency(q: float, labels: str, matchers: str, window: str) -> str:
    return quantile(q, labels, selector(_BUCKETS, matchers), window=window)


def _connections(matchers: str, window: str) -> str:
    """Return a query for open TCP connections, from two counters; Envoy's own gauge is off by default.

    `last_over_time` drops a deleted pod after the window, not after Prometheus' five minutes. The counter
    of closed connections does not exist before the first one is closed; then it is 0.
    """
    opened, closed = (
        f"sum by ({_CALLEE}) (last_over_time("
        f"{selector(f'istio_tcp_connections_{what}_total', matchers)}[{window}]))"
        for what in ("opened", "closed")
    )
    return f"{opened} - ({closed} or {opened} * 0)"
