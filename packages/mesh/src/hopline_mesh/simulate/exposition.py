"""`/metrics` of a simulated mesh: Istio's proxies, cAdvisor and kube-state-metrics on one page.

Prometheus' text format 0.0.4. Names and labels are those of the originals. Labels that service discovery
adds in a real cluster (`namespace`, `pod`) are part of the series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hopline_mesh.simulate import names
from hopline_mesh.simulate.topology import Topology
from hopline_mesh.simulate.traffic import BOUNDS_MS, FINE, Counters, Traffic
from hopline_mesh.simulate.world import World

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LE = (*(f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in BOUNDS_MS), "+Inf")
#: HTTP status, gRPC status and Envoy's flags, for each end of a request: FINE, FAILED, TIMED_OUT, NO_POD.
#: gRPC failures have HTTP status 200.
_HTTP = (("200", "", "-"), ("500", "", "-"), ("504", "", "UT"), ("503", "", "UH"))
_GRPC = (("200", "0", "-"), ("200", "13", "-"), ("200", "4", "UT"), ("200", "14", "UH"))


def render(world: World, traffic: Traffic) -> bytes:
    """Return the page."""
    pods = _pod_labels(world)
    lines = [*_istio(world, traffic, pods), *_cadvisor(world, pods), *_kube_state(world, pods)]
    return ("\n".join(lines) + "\n").encode()


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield the lines of a metric; samples are labels and values."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value}"


def _pod_labels(world: World) -> dict[int, str]:
    """Return the labels of namespace and name of each pod, by its serial number."""
    columns = (world.pods.serial, world.pods.service, world.pods.revision)
    found = {}
    for serial, service, revision in zip(*(column.tolist() for column in columns), strict=True):
        full = world.topology.names[service]
        found[serial] = f'namespace="{names.split(full)[0]}",pod="{names.pod(full, revision, serial)}"'
    return found


def _istio(world: World, traffic: Traffic, pods: dict[int, str]) -> Iterator[str]:
    source = _rows(world, traffic, traffic.source, "source", pods)
    destination = _rows(world, traffic, traffic.destination, "destination", pods)
    both = ((traffic.source, source, traffic.src), (traffic.destination, destination, traffic.dst))
    requests = []
    for counters, rows, _ in both:
        ends = counters.ends.tolist()
        for row, labels, grpc in rows:
            for end, (code, status, flags) in enumerate(_GRPC if grpc else _HTTP):
                # As in Envoy, a counter exists only after its first request.
                if ends[row][end] or end == FINE:
                    answer = (
                        f'response_code="{code}",grpc_response_status="{status}",response_flags="{flags}"'
                    )
                    requests.append((f"{labels},{answer}", ends[row][end]))
    yield from _family("istio_requests_total", "counter", "Requests, by how they ended.", requests)
    name = "istio_request_duration_milliseconds"
    yield from _family(name, "histogram", "Duration of requests.", ())
    for counters, rows, counting in both:
        cumulated = np.cumsum(counters.buckets, axis=1).tolist()
        for row, labels, grpc in rows:
            if not world.topology.durations[counting[counters.path[row]]]:
                continue
            labels += f',response_code="200",grpc_response_status="{"0" if grpc else ""}"'
            for bound, value in zip(_LE, cumulated[row], strict=True):
                yield f'{name}_bucket{{{labels},le="{bound}"}} {value}'
            yield f"{name}_sum{{{labels}}} {counters.total_ms[row]:.3f}"
            yield f"{name}_count{{{labels}}} {cumulated[row][-1]}"
    if world.topology.tcp:
        for what in ("opened", "closed"):
            values = getattr(traffic.destination, what).tolist()
            connections = [(labels, values[row]) for row, labels, _ in destination]
            name = f"istio_tcp_connections_{what}_total"
            yield from _family(name, "counter", f"Connections {what}.", connections)


def _rows(
    world: World, traffic: Traffic, counters: Counters, reporter: str, pods: dict[int, str]
) -> list[tuple[int, str, bool]]:
    """Return row, labels and whether it is gRPC, for each counter of an existing pod."""
    topology, found = world.topology, []
    policy = "mutual_tls" if reporter == "destination" else "unknown"
    for row, (path, serial) in enumerate(
        zip(counters.path.tolist(), counters.serial.tolist(), strict=True)
    ):
        if serial >= 0 and serial not in pods:
            continue
        src, dst = int(traffic.src[path]), int(traffic.dst[path])
        if not topology.sidecar[src if reporter == "source" else dst]:
            continue  # nothing counts there
        space, called = names.split(topology.services[dst])
        grpc = bool(topology.grpc[dst])
        labels = (
            f'reporter="{reporter}",{_workload(topology, src, "source")},'
            f"{_workload(topology, dst, 'destination')},"
            f'destination_service="{called}.{space}.svc.cluster.local",'
            f'destination_service_name="{called}",destination_service_namespace="{space}",'
            f'request_protocol="{"grpc" if grpc else "http"}",connection_security_policy="{policy}"'
        )
        if serial >= 0:
            labels += f",{pods[serial]}"
        found.append((row, labels, grpc))
    return found


def _workload(topology: Topology, service: int, end: str) -> str:
    """Return the labels of one end of a call; -1 is outside of the mesh."""
    space = name = app = "unknown"
    # A proxy knows the workload at the other end only from the proxy there.
    if service >= 0 and topology.sidecar[service]:
        space, name = names.split(topology.names[service])
        app = names.split(topology.services[service])[1]
    return (
        f'{end}_workload="{name}",{end}_workload_namespace="{space}",'
        f'{end}_canonical_service="{app}",{end}_app="{app}"'
    )


def _cadvisor(world: World, labelled: dict[int, str]) -> Iterator[str]:
    """Yield metrics of each pod's container, its proxy, and (without a container name) their sum."""
    pods, topology = world.pods, world.topology
    columns = (pods.serial, pods.service, pods.cpu_s, pods.memory_bytes)
    cpu, memory = [], []
    for serial, service, used, held in zip(*(column.tolist() for column in columns), strict=True):
        if not topology.containers[service]:
            continue
        parts = [("app", used, held), ("", used, held)]
        if topology.sidecar[service]:
            parts = [("app", 0.9 * used, held), ("istio-proxy", 0.1 * used, 5e7), ("", used, held + 5e7)]
        for container, seconds, size in parts:
            labels = f'container="{container}",{labelled[serial]}'
            cpu.append((f'{labels},cpu="total"', f"{seconds:.4f}"))
            memory.append((labels, f"{size:.0f}"))
    yield from _family("container_cpu_usage_seconds_total", "counter", "CPU time in seconds.", cpu)
    name = "container_memory_working_set_bytes"
    yield from _family(name, "gauge", "Memory that cannot be freed.", memory)


def _kube_state(world: World, labelled: dict[int, str]) -> Iterator[str]:
    pods, fleet, all_names = world.pods, world.fleet, world.topology.names
    versions = list(zip(pods.service.tolist(), pods.revision.tolist(), strict=True))
    sets = {pair: names.replica_set(all_names[pair[0]], pair[1]) for pair in sorted(set(versions))}
    owners = [
        (f'{pod},owner_kind="ReplicaSet",owner_name="{sets[pair]}",owner_is_controller="true"', 1)
        for pod, pair in zip(labelled.values(), versions, strict=True)
    ]
    yield from _family("kube_pod_owner", "gauge", "Owner of a pod.", owners)
    restarts = [
        (f'{pod},container="app"', count)
        for pod, count in zip(labelled.values(), pods.restarts.tolist(), strict=True)
    ]
    name = "kube_pod_container_status_restarts_total"
    yield from _family(name, "counter", "Restarts of a container.", restarts)
    deployments = [names.split(full) for full in all_names]
    owners = [
        (
            f'namespace="{deployments[service][0]}",replicaset="{replica_set}",owner_kind="Deployment",'
            f'owner_name="{deployments[service][1]}",owner_is_controller="true"',
            1,
        )
        for (service, _), replica_set in sets.items()
    ]
    yield from _family("kube_replicaset_owner", "gauge", "Owner of a replica set.", owners)
    staying = pods.staying()
    newest = staying & (pods.revision == fleet.revision[pods.service])
    existing, updated = (
        np.bincount(pods.service[each], minlength=len(all_names)) for each in (staying, newest)
    )
    for metric, text, values in (
        ("spec_replicas", "Wanted pods.", fleet.desired),
        ("status_replicas", "Existing pods.", existing),
        ("status_replicas_available", "Pods that serve.", world.ready),
        ("status_replicas_ready", "Pods that are ready.", world.ready),
        ("status_replicas_unavailable", "Pods that do not serve.", np.maximum(existing - world.ready, 0)),
        ("status_replicas_updated", "Pods of the newest version.", updated),
    ):
        samples = [
            ('namespace="{}",deployment="{}"'.format(*deployments[service]), int(values[service]))
            for service in np.flatnonzero(fleet.running).tolist()
        ]
        yield from _family(f"kube_deployment_{metric}", "gauge", text, samples)


_CONFIG = """\
# Written by `hopline mesh simulate`; prometheus --config.file=<this file>
global:
  scrape_interval: {interval}ms
  scrape_timeout: {interval}ms
  evaluation_interval: {interval}ms
scrape_configs:
  - job_name: mesh
    # `namespace` and `pod` are those of the simulated pods.
    honor_labels: true
    static_configs:
      - targets: ["{host}:{port}"]
"""


def prometheus_config(port: int, interval_s: float = 15.0, host: str = "127.0.0.1") -> str:
    """Return the text of the file.

    Args:
        port: of `/metrics` of the simulation.
        interval_s: seconds from one scrape to the next, at least 0.001.
    """
    return _CONFIG.format(interval=max(1, round(interval_s * 1000)), host=host, port=port)
