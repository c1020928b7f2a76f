"""What Istio's proxies know: queries for its standard metrics.

Services are workloads, as in Kubernetes' Deployments and cAdvisor's pods. Call paths are read from the
caller's proxy, so that what the network does to a call is seen; services, and what a call took at the
server, from the callee's. Each request is counted by both, so every selector names the reporter.
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

#: Answers that are the server's failure. Envoy writes 0 where no answer came before the caller hung up.
#: gRPC failures arrive with HTTP status 200; these are the codes that OpenTelemetry's semantic conventions
#: count as a server's errors: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
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
# A caller's proxy learns the callee's workload from the answer; where none came only the name is known.
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
    """Queries for Istio.

    Args:
        window_s: that rates are taken over.
        matchers: further matchers of every selector, such as `cluster="eu-1"`.
        client: the reporter that stands at the caller; "waypoint" in an ambient mesh.
        server: the reporter that stands at the callee; "waypoint" in an ambient mesh.
        percentile: that of `client_ms` and `server_ms`.

    Raises:
        ConfigError: a bad window or matcher.
    """
    matchers = check_matchers(matchers)
    window, q = duration(window_s), percentile / 100
    here, there = (",".join((f'reporter="{r}"', matchers)).rstrip(",") for r in (client, server))
    return QuerySet(
        "istio",
        (
            Query("node", "request_rate", _rate(_CALLEE, there, window), _callee),
            Query("node", "error_share", _failures(_CALLEE, there, window), _callee, per="request_rate"),
            Query("node", "p50_ms", _latency(0.5, _CALLEE, there, window), _callee, combine="max"),
            Query("node", "p99_ms", _latency(0.99, _CALLEE, there, window), _callee, combine="max"),
            Query(
                "node",
                "p99_ms",
                beyond_last_bucket(0.99, _CALLEE, _BUCKETS, there, window=window),
                _callee,
                reveals=False,
                ceiling_of=(("p50_ms", 0.5), ("p99_ms", 0.99)),
            ),
            Query("node", "connections", _connections(there, window), _callee),
            Query("edge", "request_rate", _rate(_PATH, here, window), _called, _caller),
            Query(
                "edge", "error_share", _failures(_PATH, here, window), _called, _caller, per="request_rate"
            ),
            Query("edge", "client_ms", _latency(q, _PATH, here, window), _called, _caller, combine="max"),
            Query(
                "edge",
                "client_ms",
                beyond_last_bucket(q, _PATH, _BUCKETS, here, window=window),
                _called,
                _caller,
                reveals=False,
                ceiling_of=(("client_ms", q),),
            ),
            Query(
                "edge",
                "server_ms",
                _latency(q, f"{_CALLER}, {_CALLEE}", there, window),
                _callee,
                _caller,
                combine="max",
                reveals=False,
            ),
            Query(
                "edge",
                "server_ms",
                beyond_last_bucket(q, f"{_CALLER}, {_CALLEE}", _BUCKETS, there, window=window),
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
    """Open TCP connections, from two counters: Envoy's own gauge is not exposed unless asked for.

    `last_over_time` forgets a pod that is gone after the window, not after Prometheus' five minutes. Where
    no connection was closed yet there is no such counter, which is then 0.
    """
    opened, closed = (
        f"sum by ({_CALLEE}) (last_over_time("
        f"{selector(f'istio_tcp_connections_{what}_total', matchers)}[{window}]))"
        for what in ("opened", "closed")
    )
    return f"{opened} - ({closed} or {opened} * 0)"
