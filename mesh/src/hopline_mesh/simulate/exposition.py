"""`/metrics` of a simulated mesh: Istio's proxies, cAdvisor and kube-state-metrics on one page.

Prometheus' text format 0.0.4. Names and labels are those of the originals. Labels that service discovery
adds in a real cluster (`namespace`, `pod`) are part of the series.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hopline_mesh.simulate import names
from hopline_mesh.simulate.topology import Topology
from hopline_mesh.simulate.traffic import BOUNDS_MS, FAILED, FINE, NOBODY, TIMED_OUT, Counters, Traffic
from hopline_mesh.simulate.world import World

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LE = (*(f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in BOUNDS_MS), "+Inf")
#: End of a request -> HTTP status, gRPC status and Envoy's flags; gRPC failures have HTTP status 200.
_HTTP = {
    FINE: ("200", "", "-"),
    FAILED: ("500", "", "-"),
    TIMED_OUT: ("504", "", "UT"),
    NOBODY: ("503", "", "UH"),
}
_GRPC = {
    FINE: ("200", "0", "-"),
    FAILED: ("200", "13", "-"),
    TIMED_OUT: ("200", "4", "UT"),
    NOBODY: ("200", "14", "UH"),
}


def render(world: World, traffic: Traffic) -> bytes:
    """Return the page."""
    lines = [*_istio(world, traffic), *_cadvisor(world), *_kube_state(world)]
    return ("\n".join(lines) + "\n").encode()


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _istio(world: World, traffic: Traffic) -> Iterator[str]:
    pods = _pod_names(world)
    both = (("source", traffic.source), ("destination", traffic.destination))
    rows = [(counters, _rows(world, traffic, counters, reporter, pods)) for reporter, counters in both]
    yield from _head("istio_requests_total", "counter", "Requests, by how they ended.")
    for counters, labelled in rows:
        ends = counters.ends.tolist()
        for row, labels, grpc in labelled:
            for end, (code, status, flags) in (_GRPC if grpc else _HTTP).items():
                # As in Envoy, a counter exists only after its first request.
                if ends[row][end] or end == FINE:
                    yield (
                        f'istio_requests_total{{{labels},response_code="{code}",'
                        f'grpc_response_status="{status}",response_flags="{flags}"}} {ends[row][end]}'
                    )
    name = "istio_request_duration_milliseconds"
    yield from _head(name, "histogram", "Duration of requests.")
    has_durations = world.topology.durations
    for reporter, (counters, labelled) in enumerate(rows):
        counting = (traffic.src, traffic.dst)[reporter]
        cumulated = np.cumsum(counters.buckets, axis=1).tolist()
        for row, labels, grpc in labelled:
            tail = (
                ',response_code="200",grpc_response_status="0"'
                if grpc
                else ',response_code="200",grpc_response_status=""'
            )
            if not has_durations[counting[counters.path[row]]]:
                continue
            seen = cumulated[row]
            for bound, value in zip(_LE, seen, strict=True):
                yield f'{name}_bucket{{{labels}{tail},le="{bound}"}} {value}'
            yield f"{name}_sum{{{labels}{tail}}} {counters.total_ms[row]:.3f}"
            yield f"{name}_count{{{labels}{tail}}} {seen[-1]}"
    if not world.topology.tcp:
        return
    for what, text in (("opened", "Connections opened."), ("closed", "Connections closed.")):
        name = f"istio_tcp_connections_{what}_total"
        yield from _head(name, "counter", text)
        counters, labelled = rows[1]
        values = getattr(counters, what).tolist()
        for row, labels, _ in labelled:
            yield f"{name}{{{labels}}} {values[row]}"


def _rows(
    world: World, traffic: Traffic, counters: Counters, reporter: str, pods: dict[int, tuple[str, str]]
) -> list[tuple[int, str, bool]]:
    """Return row, labels and whether it is gRPC, for each counter of an existing pod."""
    topology, found = world.topology, []
    for row, (path, serial) in enumerate(
        zip(counters.path.tolist(), counters.serial.tolist(), strict=True)
    ):
        if serial >= 0 and serial not in pods:
            continue
        src, dst = int(traffic.src[path]), int(traffic.dst[path])
        if not topology.sidecar[src if reporter == "source" else dst]:
            continue  # nothing counts there
        # A proxy knows the workload at the other end only from the proxy there.
        from_name, from_space = _workload(topology, src)
        to_name, to_space = _workload(topology, dst)
        from_app = "unknown" if from_name == "unknown" else names.split(topology.services[src])[1]
        called_space, called = names.split(topology.services[dst])
        to_app = "unknown" if to_name == "unknown" else called
        grpc = bool(topology.grpc[dst])
        labels = (
            f'reporter="{reporter}",source_workload="{from_name}",source_workload_namespace="{from_space}",'
            f'source_canonical_service="{from_app}",source_app="{from_app}",'
            f'destination_workload="{to_name}",destination_workload_namespace="{to_space}",'
            f'destination_canonical_service="{to_app}",destination_app="{to_app}",'
            f'destination_service="{called}.{called_space}.svc.cluster.local",'
            f'destination_service_name="{called}",destination_service_namespace="{called_space}",'
            f'request_protocol="{"grpc" if grpc else "http"}",'
            f'connection_security_policy="{"mutual_tls" if reporter == "destination" else "unknown"}"'
        )
        if serial >= 0:
            space, pod = pods[serial]
            labels += f',namespace="{space}",pod="{pod}"'
        found.append((row, labels, grpc))
    return found


def _workload(topology: Topology, service: int) -> tuple[str, str]:
    """Return name and namespace of a workload as a proxy knows it; -1 is outside of the mesh."""
    if service < 0 or not topology.sidecar[service]:
        return "unknown", "unknown"
    space, name = names.split(topology.names[service])
    return name, space


def _pod_names(world: World) -> dict[int, tuple[str, str]]:
    """Return namespace and name of each pod, by its serial number."""
    found, pods = {}, world.pods
    for serial, service, revision in zip(
        pods.serial.tolist(), pods.service.tolist(), pods.revision.tolist(), strict=True
    ):
        full = world.topology.names[service]
        found[serial] = (names.split(full)[0], names.pod(full, revision, serial))
    return found


def _cadvisor(world: World) -> Iterator[str]:
    """Yield metrics of each pod's container, its proxy, and (without a container name) their sum."""
    labelled = _pod_names(world)
    rows = []
    pods, topology = world.pods, world.topology
    for serial, service, used, memory in zip(
        *(each.tolist() for each in (pods.serial, pods.service, pods.cpu_s, pods.memory_bytes)), strict=True
    ):
        if not topology.containers[service]:
            continue
        space, pod = labelled[serial]
        proxy = [("istio-proxy", 0.1 * used, 5e7)] if topology.sidecar[service] else []
        for container, seconds, held in (
            ("app", 0.9 * used if proxy else used, memory),
            *proxy,
            ("", used, memory + 5e7 if proxy else memory),
        ):
            rows.append((f'container="{container}",namespace="{space}",pod="{pod}"', seconds, held))
    name = "container_cpu_usage_seconds_total"
    yield from _head(name, "counter", "CPU time in seconds.")
    for labels, seconds, _ in rows:
        yield f'{name}{{{labels},cpu="total"}} {seconds:.4f}'
    name = "container_memory_working_set_bytes"
    yield from _head(name, "gauge", "Memory that cannot be freed.")
    for labels, _, held in rows:
        yield f"{name}{{{labels}}} {held:.0f}"


def _kube_state(world: World) -> Iterator[str]:
    pods, fleet, all_names = world.pods, world.fleet, world.topology.names
    named = _pod_names(world).values()
    rows = [
        (*name, service, revision)
        for name, service, revision in zip(
            named, pods.service.tolist(), pods.revision.tolist(), strict=True
        )
    ]
    yield from _head("kube_pod_owner", "gauge", "Owner of a pod.")
    for space, pod, service, revision in rows:
        owner = names.replica_set(all_names[service], revision)
        yield (
            f'kube_pod_owner{{namespace="{space}",pod="{pod}",owner_kind="ReplicaSet",'
            f'owner_name="{owner}",owner_is_controller="true"}} 1'
        )
    yield from _head("kube_pod_container_status_restarts_total", "counter", "Restarts of a container.")
    for (space, pod, _, _), restarts in zip(rows, pods.restarts.tolist(), strict=True):
        yield (
            f'kube_pod_container_status_restarts_total{{namespace="{space}",pod="{pod}",container="app"}} '
            f"{restarts}"
        )
    yield from _head("kube_replicaset_owner", "gauge", "Owner of a replica set.")
    for service, revision in sorted({(service, revision) for _, _, service, revision in rows}):
        space, name = names.split(all_names[service])
        yield (
            f'kube_replicaset_owner{{namespace="{space}",'
            f'replicaset="{names.replica_set(all_names[service], revision)}",owner_kind="Deployment",'
            f'owner_name="{name}",owner_is_controller="true"}} 1'
        )
    s = len(all_names)
    existing = np.bincount(pods.service[pods.staying()], minlength=s)
    newest = pods.staying() & (pods.revision == fleet.revision[pods.service])
    counts = {
        "kube_deployment_spec_replicas": ("Wanted pods.", fleet.desired),
        "kube_deployment_status_replicas": ("Existing pods.", existing),
        "kube_deployment_status_replicas_available": ("Pods that serve.", world.ready),
        "kube_deployment_status_replicas_ready": ("Pods that are ready.", world.ready),
        "kube_deployment_status_replicas_unavailable": (
            "Pods that do not serve.",
            np.maximum(existing - world.ready, 0),
        ),
        "kube_deployment_status_replicas_updated": (
            "Pods of the newest version.",
            np.bincount(pods.service[newest], minlength=s),
        ),
    }
    for metric, (text, values) in counts.items():
        yield from _head(metric, "gauge", text)
        for service in np.flatnonzero(fleet.running).tolist():
            space, name = names.split(all_names[service])
            yield f'{metric}{{namespace="{space}",deployment="{name}"}} {int(values[service])}'


def prometheus_config(port: int, interval_s: float = 15.0, host: str = "127.0.0.1") -> str:
    """Return the text of the file.

    Args:
        port: of `/metrics` of the simulation.
        interval_s: seconds from one scrape to the next, at least 0.001.
    """
    interval = f"{max(1, round(interval_s * 1000))}ms"
    return (
        "# Written by `hopline mesh simulate`; prometheus --config.file=<this file>\n"
        "global:\n"
        f"  scrape_interval: {interval}\n"
        f"  scrape_timeout: {interval}\n"
        f"  evaluation_interval: {interval}\n"
        "scrape_configs:\n"
        "  - job_name: mesh\n"
        "    # `namespace` and `pod` are those of the simulated pods.\n"
        "    honor_labels: true\n"
        "    static_configs:\n"
        f'      - targets: ["{host}:{port}"]\n'
    )
