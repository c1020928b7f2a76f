"""Converts a simulated mesh to objects of the Kubernetes API: Pods, Deployments and related ones.

Only fields about the mesh have values; names and forms are those of the API reference.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hopline_mesh.simulate import names
from hopline_mesh.simulate.fleet import DEADLINE_S, Note
from hopline_mesh.simulate.pods import GRACE_S
from hopline_mesh.simulate.world import World

Body = dict[str, Any]
#: Converts simulated time to wall-clock time, Unix seconds.
Clock = Callable[[float], float]


def stamp(wall_s: float) -> str:
    """Return a time in the form of the API."""
    return datetime.fromtimestamp(int(wall_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_state(world: World, row: int) -> tuple[Any, ...]:
    """Return the values that define a pod's object; while they are equal, so is the object."""
    pods, now_s = world.pods, world.now_s
    down = pods.down_s[row] > now_s
    return (
        bool(pods.ready_s[row] <= now_s and not down and pods.deleted_s[row] > now_s),
        bool(down),
        int(pods.restarts[row]),
        float(pods.deleted_s[row]),
    )


def pod(world: World, row: int, clock: Clock) -> Body:
    """Return the Pod of a row in `world.pods`."""
    pods, service = world.pods, int(world.pods.service[row])
    full, revision, serial = world.topology.names[service], int(pods.revision[row]), int(pods.serial[row])
    space, app = names.split(full)[0], _app(world, service)
    ready, down, restarts, deleted_s = pod_state(world, row)
    created, started = stamp(clock(float(pods.created_s[row]))), stamp(clock(float(pods.started_s[row])))
    meta = {
        **_meta(full, names.pod(full, revision, serial), created, "pod", serial),
        "labels": {**_labels(world, service), "pod-template-hash": names.template_hash(full, revision)},
        "ownerReferences": [_owner("ReplicaSet", names.replica_set(full, revision), full, revision)],
    }
    conditions = [
        _condition("PodScheduled", True, created),
        _condition("Ready", ready, started, "" if ready else "ContainersNotReady"),
        _condition("ContainersReady", ready, started, "" if ready else "ContainersNotReady"),
    ]
    if np.isfinite(deleted_s):
        meta["deletionTimestamp"] = stamp(clock(deleted_s + GRACE_S))
        meta["deletionGracePeriodSeconds"] = round(clock(deleted_s + GRACE_S) - clock(deleted_s))
        if pods.evicted[row]:
            conditions.append(
                _condition("DisruptionTarget", True, stamp(clock(deleted_s)), "EvictionByEvictionAPI")
            )
    status: Body = {
        "name": "app",
        "image": f"registry.example/{space}/{app}:{revision}",
        "ready": ready,
        "started": not down,
        "restartCount": restarts,
        "state": {"running": {"startedAt": started}},
        "lastState": {},
    }
    if restarts:
        oom = bool(pods.oom[row])
        ended = {
            "reason": "OOMKilled" if oom else "Error",
            "exitCode": 137 if oom else 1,
            "startedAt": stamp(clock(float(pods.last_start_s[row]))),
            "finishedAt": stamp(clock(float(pods.ended_s[row]))),
        }
        status["lastState"] = {"terminated": ended}
        # The first restart is immediate; from the second on the kubelet waits.
        if down and not oom and restarts > 1:
            status["state"] = {
                "waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
            }
        elif down:
            status["state"] = {"terminated": ended}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "nodeName": names.machine(int(pods.node[row])),
            "containers": [{"name": "app", "image": status["image"]}],
        },
        "status": {
            "phase": "Running",
            "podIP": names.address(serial),
            "conditions": conditions,
            "containerStatuses": [status],
        },
    }


def rolled_out(world: World, service: int) -> bool:
    """Whether all wanted pods exist, are ready, and have the wanted version."""
    fleet, pods = world.fleet, world.pods
    rows = np.flatnonzero((pods.service == service) & pods.staying())
    right = (pods.revision[rows] == fleet.revision[service]) | (service in fleet.shifted)
    return len(rows) == int(fleet.desired[service]) and bool((right & pods.ready(world.now_s)[rows]).all())


def deployment(
    world: World, service: int, generation: int, since_s: float, complete: bool, clock: Clock
) -> Body:
    """Return a service's Deployment.

    Args:
        generation: increases with each change of the wanted state.
        since_s: simulated time of the last such change.
        complete: whether this version was rolled out once; later changes of its pods are not a rollout.
    """
    full, fleet, pods = world.topology.names[service], world.fleet, world.pods
    revision, desired = int(fleet.revision[service]), int(fleet.desired[service])
    rows = np.flatnonzero((pods.service == service) & pods.staying())
    ready = int(pods.ready(world.now_s)[rows].sum())
    new = pods.revision[rows] == revision
    # In a shift the pods of the old version stay; in reality they belong to another Deployment.
    updated = len(rows) if service in fleet.shifted else int(new.sum())
    waited_s = world.now_s - since_s
    created, changed = stamp(clock(world.plan.start_s) - 86_400.0), stamp(clock(since_s))
    if complete and updated == len(rows):
        progressing = _condition("Progressing", True, changed, "NewReplicaSetAvailable")
    elif service in fleet.failing and waited_s > DEADLINE_S:
        progressing = _condition("Progressing", False, changed, "ProgressDeadlineExceeded")
        progressing["message"] = (
            f'ReplicaSet "{names.replica_set(full, revision)}" has timed out progressing.'
        )
    else:
        progressing = _condition("Progressing", True, changed, "ReplicaSetUpdated")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**_meta(full, names.split(full)[1], created, "deployment"), "generation": generation},
        "spec": {
            "replicas": desired,
            "progressDeadlineSeconds": max(1, round(clock(DEADLINE_S) - clock(0.0))),
            "selector": {"matchLabels": _labels(world, service)},
            "template": _template(world, service, revision),
        },
        "status": {
            "observedGeneration": generation,
            "replicas": len(rows),
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, desired - ready),
            "conditions": [
                _condition("Available", ready >= desired * 3 // 4, changed),
                progressing,
            ],
        },
    }


def replica_set(world: World, service: int, revision: int, clock: Clock) -> Body:
    """Return the ReplicaSet of one version of a service."""
    full, pods = world.topology.names[service], world.pods
    rows = np.flatnonzero((pods.service == service) & (pods.revision == revision) & pods.staying())
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            **_meta(
                full, names.replica_set(full, revision), stamp(clock(world.plan.start_s)), "rs", revision
            ),
            "labels": {**_labels(world, service), "pod-template-hash": names.template_hash(full, revision)},
            "ownerReferences": [_owner("Deployment", names.split(full)[1], full, 0)],
        },
        "spec": {"replicas": len(rows), "template": _template(world, service, revision)},
        "status": {"replicas": len(rows), "readyReplicas": int(pods.ready(world.now_s)[rows].sum())},
    }


def service(world: World, number: int, clock: Clock) -> Body:
    """Return the Service of a workload."""
    full = world.topology.services[number]
    name = names.split(full)[1]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(full, name, stamp(clock(world.plan.start_s)), "service"),
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]},
        "status": {},
    }


def endpoint_slice(world: World, service: int, clock: Clock) -> Body:
    """Return the EndpointSlice of a workload's Service, with the pods of all workloads behind it."""
    full, pods = world.topology.services[service], world.pods
    ready = pods.ready(world.now_s)
    endpoints = []
    behind = world.topology.groups == world.topology.groups[service]
    for row in np.flatnonzero(behind[pods.service]).tolist():
        of = world.topology.names[pods.service[row]]
        serial, ending = int(pods.serial[row]), bool(np.isfinite(pods.deleted_s[row]))
        endpoints.append(
            {
                "addresses": [names.address(serial)],
                "conditions": {
                    "ready": bool(ready[row]),
                    "serving": bool(ready[row]),
                    "terminating": ending,
                },
                "nodeName": names.machine(int(pods.node[row])),
                "targetRef": {
                    "kind": "Pod",
                    "namespace": names.split(full)[0],
                    "name": names.pod(of, int(pods.revision[row]), serial),
                },
            }
        )
    name = names.split(full)[1]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            **_meta(full, f"{name}-abcde", stamp(clock(world.plan.start_s)), "slice"),
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def autoscaler(world: World, service: int, clock: Clock) -> Body:
    """Return a service's HorizontalPodAutoscaler."""
    full, topology = world.topology.names[service], world.topology
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _meta(full, names.split(full)[1], stamp(clock(world.plan.start_s)), "hpa"),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": names.split(full)[1]},
            "minReplicas": 2,
            "maxReplicas": int(topology.max_replicas[service]),
        },
        "status": {
            "currentReplicas": int(world.ready[service]),
            "desiredReplicas": int(world.fleet.desired[service]),
        },
    }


def event(world: World, note: Note, number: int, clock: Clock) -> Body:
    """Return a controller's message as an Event."""
    when = stamp(clock(note.time_s))
    if note.kind == "Node":
        space, subject = "default", names.machine(note.subject)
        target = {"kind": "Node", "name": subject}
    else:
        space, subject = names.split(world.topology.names[note.subject])
        target = {"kind": note.kind, "name": subject, "namespace": space}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{subject}.{number:016x}",
            "namespace": space,
            "uid": names.uid("event", number),
            "creationTimestamp": when,
        },
        "type": "Normal",
        "reason": note.reason,
        "message": note.message,
        "involvedObject": target,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def _meta(full: str, name: str, created: str, *what: object) -> Body:
    return {
        "name": name,
        "namespace": names.split(full)[0],
        "uid": names.uid(full, *what),
        "creationTimestamp": created,
    }


def _owner(kind: str, name: str, full: str, revision: int) -> Body:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": name,
        "uid": names.uid(full, "rs", revision) if kind == "ReplicaSet" else names.uid(full, "deployment"),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _template(world: World, service: int, revision: int) -> Body:
    space, app = names.split(world.topology.names[service])[0], _app(world, service)
    return {
        "metadata": {"labels": _labels(world, service)},
        "spec": {"containers": [{"name": "app", "image": f"registry.example/{space}/{app}:{revision}"}]},
    }


def _app(world: World, service: int) -> str:
    """Return the name of a workload's Service, without its namespace; pods have it as a label."""
    return names.split(world.topology.services[service])[1]


def _labels(world: World, service: int) -> Body:
    """Return the labels of a workload's pods; `version` tells workloads of one Service apart."""
    app, name = _app(world, service), names.split(world.topology.names[service])[1]
    return {"app": app} if name == app else {"app": app, "version": name.removeprefix(f"{app}-")}


def _condition(type_: str, true: bool, since: str, reason: str = "") -> Body:
    return {
        "type": type_,
        "status": "True" if true else "False",
        "lastTransitionTime": since,
        "lastUpdateTime": since,
        "reason": reason,
        "message": "",
    }
