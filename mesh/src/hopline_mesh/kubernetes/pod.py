"""One pod: whose it is, whether it is being ended on purpose, and what is wrong with it.

Pure functions of the object, so that what was missed while the connection was down is seen all the same.
"""

from __future__ import annotations

import math
import sys
from datetime import datetime

import msgspec

from hopline_mesh.changes import TroubleKind
from hopline_mesh.kubernetes.objects import ContainerStatus, Pod
from hopline_mesh.kubernetes.workload import WorkloadKey

#: The kubelet forgets earlier failures of a container that ran this long; one that did is no crash loop.
STEADY_S = 600.0
#: Failed starts that are no accident of the start's order any more.
RESTARTS = 3
#: A container that is waiting for one of these will not start without somebody changing something.
UNSTARTABLE = frozenset(
    {
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
#: Ends of pods that nobody asked for, though Kubernetes carries them out in order: the machine does not
#: answer any more, lacks memory or disk, or the pod was in the way of a more important one.
_UNPLANNED = frozenset(
    {"DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet", "PreemptionByScheduler"}
)


class Evidence(msgspec.Struct, frozen=True):
    """One thing that is wrong with a pod.

    Attributes:
        kind: which trouble.
        since_s: when it began, as far as can be told; Unix seconds.
        until_s: when it no longer counts unless it is seen again; infinite while it goes on.
        detail: for people.
    """

    kind: TroubleKind
    since_s: float
    until_s: float
    detail: str


class PodState(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a pod.

    Attributes:
        uid: of the object; a StatefulSet's next pod has the same name and another uid.
        workload: whose pod it is.
        node: machine that it runs on.
        created_s: when it was created, Unix seconds.
        ending_s: since when it is being ended; None if it is not.
        planned: whether that was asked for.
        unstartable: why it cannot start, or "".
        evicted: whether it was moved away by the eviction API (`kubectl drain`, autoscalers of machines).
    """

    uid: str
    workload: WorkloadKey
    node: str
    created_s: float
    ending_s: float | None
    planned: bool
    evicted: bool
    unstartable: str


def pod_state(pod: Pod, workload: WorkloadKey) -> PodState:
    """Shorten an object of the API."""
    ending = pod.metadata.deletion_timestamp
    reason = ""
    for condition in pod.status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            reason = condition.reason
    unstartable = ""
    for status in _containers(pod):
        waiting = status.state.waiting if status.state is not None else None
        if waiting is not None and waiting.reason in UNSTARTABLE:
            unstartable = f"container {status.name}: {waiting.reason}"
    # The timestamp is that of the end; the grace period was added to it.
    ending_s = None
    if ending is not None:
        ending_s = ending.timestamp() - (pod.metadata.deletion_grace_period_seconds or 0)
    return PodState(
        uid=pod.metadata.uid,
        workload=workload,
        node=sys.intern(pod.spec.node_name),
        created_s=_seconds(pod.metadata.creation_timestamp, 0.0),
        ending_s=ending_s,
        planned=reason not in _UNPLANNED,
        evicted=reason == "EvictionByEvictionAPI",
        unstartable=unstartable,
    )


def owner_of(pod: Pod) -> WorkloadKey:
    """The workload that a pod belongs to, the pod itself where that is none.

    Of a Deployment's pods the ReplicaSet between is seen through.

    A ReplicaSet's name is its Deployment's, a dash and the hash that its pods carry as a label, so there is
    no need to watch ReplicaSets (of which each Deployment keeps ten old ones).
    """
    labels = pod.metadata.labels
    for owner in pod.metadata.owner_references or ():
        if not owner.controller:
            continue
        name, kind = owner.name, owner.kind
        if kind == "ReplicaSet" and labels is not None:
            for hash_, owned_by in (
                (labels.rollout_hash, "Rollout"),
                (labels.pod_template_hash, "Deployment"),
            ):
                if hash_ and name.endswith("-" + hash_):
                    kind, name = owned_by, name[: -len(hash_) - 1]
                    break
        return WorkloadKey(pod.metadata.namespace, sys.intern(kind), sys.intern(name))
    return WorkloadKey(pod.metadata.namespace, "Pod", pod.metadata.name)


def evidence_of(pod: Pod, calm_s: float) -> tuple[Evidence, ...]:
    """What is wrong with a pod.

    A killed process is trouble for `calm_s` after its end. A crash loop is a container that the kubelet
    makes wait, or one that has come back for the third time or later from a run of less than ten minutes,
    until it has stayed up for `calm_s`.
    """
    found = []
    for status in _containers(pod):
        last = status.last_state.terminated if status.last_state is not None else None
        now = status.state.terminated if status.state is not None else None
        waiting = status.state.waiting if status.state is not None else None
        ended = now or last
        for end in (now, last):
            if end is not None and end.reason == "OOMKilled":
                at_s = _seconds(end.finished_at, 0.0)
                detail = f"container {status.name} ran out of memory"
                found.append(Evidence("oom_kill", at_s, at_s + calm_s, detail))
                break
        finished_s = _seconds(ended.finished_at if ended is not None else None, 0.0)
        detail = f"container {status.name} restarted {status.restart_count} times"
        if waiting is not None and waiting.reason == "CrashLoopBackOff":
            found.append(Evidence("crash_loop", finished_s, math.inf, detail))
        elif ended is not None and status.restart_count >= RESTARTS:
            ran_s = finished_s - _seconds(ended.started_at, 0.0)
            if ran_s < STEADY_S:
                found.append(Evidence("crash_loop", finished_s, finished_s + calm_s, detail))
    return tuple(found)


def _containers(pod: Pod) -> tuple[ContainerStatus, ...]:
    # Init containers are among them for the sidecars that are written as such.
    return (pod.status.container_statuses or ()) + (pod.status.init_container_statuses or ())


def _seconds(at: datetime | None, default: float) -> float:
    return default if at is None else at.timestamp()
