"""Converts a simulated mesh to objects of the Kubernetes API: Pods, Deployments and related ones.

Only fields about the mesh have values; names and forms are those of the API reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hopline_mesh.simulate import names
from hopline_mesh.simulate.cluster.log import Body
from hopline_mesh.simulate.fleet import DEADLINE_S, Note
from hopline_mesh.simulate.pods import GRACE_S
from hopline_mesh.simulate.topology import Ints
from hopline_mesh.simulate.world import World

#: Converts simulated time to wall-clock time, Unix seconds.
Clock = Callable[[float], float]

#: Plural, group and version, kind, and short name of resources. The last two are always empty.
RESOURCES = {
    "pods": ("v1", "Pod", "po"),
    "services": ("v1", "Service", "svc"),
    "events": ("v1", "Event", "ev"),
    "deployments": ("apps/v1", "Deployment", "deploy"),
    "replicasets": ("apps/v1", "ReplicaSet", "rs"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice", ""),
    "horizontalpodautoscalers": ("autoscaling/v2", "HorizontalPodAutoscaler", "hpa"),
    "statefulsets": ("apps/v1", "StatefulSet", "sts"),
    "daemonsets": ("apps/v1", "DaemonSet", "ds"),
}
_PORTS = [{"name": "http", "port": 8080, "protocol": "TCP"}]


class Objects:
    """The objects of a world."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world, self._clock = world, clock

    def of_group(self, group: int) -> Iterator[tuple[str, Body]]:
        """Yield all objects of the workloads behind one Service, with the plurals of their kinds."""
        topology, fleet, pods = self._world.topology, self._world.fleet, self._world.pods
        behind = np.flatnonzero(topology.groups == group)
        for service in behind.tolist():
            rows = np.flatnonzero(pods.service == service)
            for row in rows.tolist():
                yield self._pod(row)
            if fleet.running[service]:
                yield self._deployment(service)
                for revision in sorted({*pods.revision[rows].tolist(), int(fleet.revision[service])}):
                    yield self._replica_set(service, revision)
                if topology.max_replicas[service] > topology.replicas[service]:
                    yield self._autoscaler(service)
        if fleet.running[behind].any():
            yield self._service(topology.services[behind[0]])
            rows = np.flatnonzero(topology.groups[pods.service] == group)
            yield self._endpoint_slice(topology.services[behind[0]], rows)

    def event(self, note: Note, number: int) -> tuple[str, Body]:
        """Return a controller's message as an Event."""
        when = self._stamp(note.time_s)
        if note.kind == "Node":
            space, subject = "default", names.machine(note.subject)
            target = {"kind": "Node", "name": subject}
        else:
            space, subject = names.split(self._world.topology.names[note.subject])
            target = {"kind": note.kind, "name": subject, "namespace": space}
        name, uid = f"{subject}.{number:016x}", names.uid("event", number)
        return _object(
            "events",
            {"name": name, "namespace": space, "uid": uid, "creationTimestamp": when},
            type="Normal",
            reason=note.reason,
            message=note.message,
            involvedObject=target,
            firstTimestamp=when,
            lastTimestamp=when,
            count=1,
        )

    def _pod(self, row: int) -> tuple[str, Body]:
        pods, now_s = self._world.pods, self._world.now_s
        service, revision = int(pods.service[row]), int(pods.revision[row])
        serial = int(pods.serial[row])
        full, deleted_s = self._world.topology.names[service], float(pods.deleted_s[row])
        ready, down = bool(pods.ready(now_s)[row]), bool(pods.down_s[row] > now_s)
        created, started = self._stamp(pods.created_s[row]), self._stamp(pods.started_s[row])
        owner = _owner("ReplicaSet", names.replica_set(full, revision), names.uid(full, "rs", revision))
        meta = self._meta(
            full, names.pod(full, revision, serial), ("pod", serial), creationTimestamp=created,
            labels=self._labels(service, revision), ownerReferences=[owner],
        )  # fmt: skip
        conditions = [
            _condition("PodScheduled", True, created),
            _condition("Ready", ready, started, "" if ready else "ContainersNotReady"),
            _condition("ContainersReady", ready, started, "" if ready else "ContainersNotReady"),
        ]
        if np.isfinite(deleted_s):
            meta["deletionTimestamp"] = self._stamp(deleted_s + GRACE_S)
            meta["deletionGracePeriodSeconds"] = round(self._lasts_s(GRACE_S))
            if pods.evicted[row]:
                deleted = self._stamp(deleted_s)
                conditions.append(_condition("DisruptionTarget", True, deleted, "EvictionByEvictionAPI"))
        template = self._template(service, revision)["spec"]["containers"]
        status: Body = {
            **template[0],
            "ready": ready,
            "started": not down,
            "restartCount": int(pods.restarts[row]),
            "state": {"running": {"startedAt": started}},
            "lastState": {},
        }
        if pods.restarts[row]:
            oom = bool(pods.oom[row])
            ended = {
                "reason": "OOMKilled" if oom else "Error",
                "exitCode": 137 if oom else 1,
                "startedAt": self._stamp(pods.last_start_s[row]),
                "finishedAt": self._stamp(pods.ended_s[row]),
            }
            status["lastState"] = {"terminated": ended}
            # The first restart is immediate; from the second on the kubelet waits.
            if down and not oom and pods.restarts[row] > 1:
                text = "back-off restarting failed container"
                status["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
            elif down:
                status["state"] = {"terminated": ended}
        return _object(
            "pods",
            meta,
            spec={"nodeName": names.machine(int(pods.node[row])), "containers": template},
            status={
                "phase": "Running",
                "podIP": names.address(serial),
                "conditions": conditions,
                "containerStatuses": [status],
            },
        )

    def _deployment(self, service: int) -> tuple[str, Body]:
        full, fleet, pods = self._world.topology.names[service], self._world.fleet, self._world.pods
        revision, desired = int(fleet.revision[service]), int(fleet.desired[service])
        generation, now_s = int(fleet.generation[service]), self._world.now_s
        rows = np.flatnonzero((pods.service == service) & pods.staying())
        ready = int(pods.ready(now_s)[rows].sum())
        # In a shift the pods of the old version stay; in reality they belong to another Deployment.
        updated = rows if service in fleet.shifted else rows[pods.revision[rows] == revision]
        changed = self._stamp(fleet.changed_s[service])
        if service not in fleet.progress_s:
            progressing = _condition("Progressing", True, changed, "NewReplicaSetAvailable")
        elif fleet.is_stuck(service, now_s):
            progressing = _condition("Progressing", False, changed, "ProgressDeadlineExceeded")
            replica_set = names.replica_set(full, revision)
            progressing["message"] = f'ReplicaSet "{replica_set}" has timed out progressing.'
        else:
            progressing = _condition("Progressing", True, changed, "ReplicaSetUpdated")
        return _object(
            "deployments",
            self._meta(full, names.split(full)[1], ("deployment",), generation=generation),
            spec={
                "replicas": desired,
                "progressDeadlineSeconds": max(1, round(self._lasts_s(DEADLINE_S))),
                "selector": {"matchLabels": self._labels(service)},
                "template": self._template(service, revision),
            },
            status={
                "observedGeneration": generation,
                "replicas": len(rows),
                "updatedReplicas": len(updated),
                "readyReplicas": ready,
                "availableReplicas": ready,
                "unavailableReplicas": max(0, desired - ready),
                "conditions": [_condition("Available", ready >= desired * 3 // 4, changed), progressing],
            },
        )

    def _replica_set(self, service: int, revision: int) -> tuple[str, Body]:
        full, pods = self._world.topology.names[service], self._world.pods
        rows = np.flatnonzero((pods.service == service) & (pods.revision == revision) & pods.staying())
        ready = int(pods.ready(self._world.now_s)[rows].sum())
        owner = _owner("Deployment", names.split(full)[1], names.uid(full, "deployment"))
        meta = self._meta(
            full, names.replica_set(full, revision), ("rs", revision),
            labels=self._labels(service, revision), ownerReferences=[owner],
        )  # fmt: skip
        return _object(
            "replicasets",
            meta,
            spec={"replicas": len(rows), "template": self._template(service, revision)},
            status={"replicas": len(rows), "readyReplicas": ready},
        )

    def _autoscaler(self, service: int) -> tuple[str, Body]:
        full, topology = self._world.topology.names[service], self._world.topology
        name, ready = names.split(full)[1], self._world.ready[service]
        desired = self._world.fleet.desired[service]
        return _object(
            "horizontalpodautoscalers",
            self._meta(full, name, ("hpa",)),
            spec={
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": 2,
                "maxReplicas": int(topology.max_replicas[service]),
            },
            status={"currentReplicas": int(ready), "desiredReplicas": int(desired)},
        )

    def _service(self, full: str) -> tuple[str, Body]:
        name = names.split(full)[1]
        meta, spec = self._meta(full, name, ("service",)), {"selector": {"app": name}, "ports": _PORTS}
        return _object("services", meta, spec=spec, status={})

    def _endpoint_slice(self, full: str, rows: Ints) -> tuple[str, Body]:
        """Return the EndpointSlice of a Service, with these pods of all workloads behind it."""
        pods, all_names = self._world.pods, self._world.topology.names
        ready = pods.ready(self._world.now_s)
        space, name = names.split(full)
        endpoints = []
        for row in rows.tolist():
            serial, of = int(pods.serial[row]), all_names[pods.service[row]]
            serves, ends = bool(ready[row]), bool(np.isfinite(pods.deleted_s[row]))
            pod = names.pod(of, int(pods.revision[row]), serial)
            endpoints.append(
                {
                    "addresses": [names.address(serial)],
                    "conditions": {"ready": serves, "serving": serves, "terminating": ends},
                    "nodeName": names.machine(int(pods.node[row])),
                    "targetRef": {"kind": "Pod", "namespace": space, "name": pod},
                }
            )
        return _object(
            "endpointslices",
            self._meta(full, f"{name}-abcde", ("slice",), labels={"kubernetes.io/service-name": name}),
            addressType="IPv4",
            endpoints=endpoints,
            ports=_PORTS,
        )

    def _stamp(self, simulated_s: float) -> str:
        """Return a simulated time in the form of the API, on the wall clock."""
        wall_s = int(self._clock(float(simulated_s)))
        return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _lasts_s(self, simulated_s: float) -> float:
        """Return the seconds of the wall clock in which so much simulated time passes."""
        return self._clock(simulated_s) - self._clock(0.0)

    def _meta(self, full: str, name: str, what: tuple[object, ...], **more: Any) -> Body:
        """Return the metadata of an object of a service; the names of its kind and version give the id."""
        created, uid = self._stamp(self._world.plan.start_s), names.uid(full, *what)
        space = names.split(full)[0]
        return {"name": name, "namespace": space, "uid": uid, "creationTimestamp": created} | more

    def _template(self, service: int, revision: int) -> Body:
        """Return the pod template of a version."""
        labels = self._labels(service)
        image = f"registry.example/{names.split(self._world.topology.names[service])[0]}/{labels['app']}"
        return {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "app", "image": f"{image}:{revision}"}]},
        }

    def _labels(self, service: int, revision: int | None = None) -> Body:
        """Return the labels of a workload's pods; `version` tells workloads of one Service apart."""
        full = self._world.topology.names[service]
        app, name = names.split(self._world.topology.services[service])[1], names.split(full)[1]
        labels = {"app": app}
        if name != app:
            labels["version"] = name.removeprefix(f"{app}-")
        if revision is not None:
            labels["pod-template-hash"] = names.template_hash(full, revision)
        return labels


def _object(plural: str, metadata: Body, **content: Any) -> tuple[str, Body]:
    """Return an object of the API, with the plural of its kind."""
    api_version, kind, _ = RESOURCES[plural]
    return plural, {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def _owner(kind: str, name: str, uid: str) -> Body:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _condition(type_: str, true: bool, since: str, reason: str = "") -> Body:
    return {
        "type": type_,
        "status": "True" if true else "False",
        "lastTransitionTime": since,
        "lastUpdateTime": since,
        "reason": reason,
        "message": "",
    }
