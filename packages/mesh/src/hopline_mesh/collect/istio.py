"""Queries for Istio's standard metrics.

Services are workloads, as in Kubernetes' Deployments and cAdvisor's pods. Call paths are read from the
caller's proxy, which sees effects of the network. Services, and the time of a call at the server, are read
from the callee's. Both proxies count each request, so every selector names the reporter.
"""

from __future__ import annotations

from hopline_mesh.collect.promql import Side, check_matchers, duration, selector
from hopline_mesh.collect.query import Labels, Query

#: Statuses that are failures of the server. Envoy writes 0 if the caller disconnected before a response.
#: gRPC failures have HTTP status 200. The codes are those that OpenTelemetry's semantic conventions define
#: as server errors: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
HTTP_FAILURES = "5..|0"
GRPC_FAILURES = "2|4|12|13|14|15"

_REQUESTS = "istio_requests_total"
_FAILURES = (
    f'response_code=~"{HTTP_FAILURES}"',
    f'response_code!~"{HTTP_FAILURES}",grpc_response_status=~"{GRPC_FAILURES}"',
)
_BUCKETS = "istio_request_duration_milliseconds_bucket"

_caller = Labels(("source_workload",), ("source_workload_namespace",))
_callee = Labels(("destination_workload",), ("destination_workload_namespace",))
# A caller's proxy gets the callee's workload from the response; without one it only has the called name.
_called = Labels(
    ("destination_workload",),
    ("destination_workload_namespace",),
    otherwise=Labels(("destination_service_name",), ("destination_service_namespace",)),
)


def istio(window_s: float = 60.0, matchers: str = "") -> tuple[Query, ...]:
    """Return queries for Istio.

    Args:
        window_s: of rates.
        matchers: added to every selector, such as `cluster="eu-1"`.

    Raises:
        ConfigError: an invalid window or matcher.
    """
    matchers, window = check_matchers(matchers), duration(window_s)
    at_caller, at_callee = (
        ",".join((f'reporter="{reporter}"', matchers)).rstrip(",") for reporter in ("source", "destination")
    )
    services = Side(at_callee, _callee)
    paths = Side(at_caller, _called, _caller)
    at_server = Side(at_callee, _callee, _caller, reveals=False)
    return (
        *services.requests(_REQUESTS, _FAILURES, window),
        *paths.requests(_REQUESTS, _FAILURES, window),
        *services.latencies({"p50_ms": 0.5, "p99_ms": 0.99}, _BUCKETS, window),
        services.query("connections", _connections(services, window)),
        *paths.latencies({"client_ms": 0.99}, _BUCKETS, window),
        *at_server.latencies({"server_ms": 0.99}, _BUCKETS, window),
    )


def _connections(services: Side, window: str) -> str:
    """Return a query for open TCP connections, from two counters; Envoy's own gauge is off by default.

    `last_over_time` drops a deleted pod after the window, not after Prometheus' five minutes. The counter
    of closed connections does not exist before the first one is closed; then it is 0.
    """
    opened, closed = (
        f"sum by ({services.by}) (last_over_time("
        f"{selector(f'istio_tcp_connections_{what}_total', services.matchers)}[{window}]))"
        for what in ("opened", "closed")
    )
    return f"{opened} - ({closed} or {opened} * 0)"
