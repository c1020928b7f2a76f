"""One pod: its workload, whether its end is planned, and its failures.

Pure functions of the object, so events that were missed while the connection was down do no harm.
"""

from __future__ import annotations

import math
import sys
from datetime import datetime

import msgspec

from hopline_mesh.changes import TroubleKind
from hopline_mesh.kubernetes.objects import ContainerStatus, Pod
from hopline_mesh.kubernetes.workload import WorkloadKey

#: The kubelet forgets earlier failures of a container that ran this long, so it is not a crash loop.
STEADY_S = 600.0
#: Number of restarts from which it is a crash loop, and not an effect of the order of starts.
RESTARTS = 3
#: A container with one of these waiting reasons will not start until someone changes something.
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
#: Reasons of unplanned ends of pods, which Kubernetes carries out gracefully: the node does not respond any
#: more, lacks memory or disk, or the pod was preempted by a more important one.
_UNPLANNED = frozenset(
    {"DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet", "PreemptionByScheduler"}
)


class PodFailure(msgspec.Struct, frozen=True):
    """One failure of a pod.

    Attributes:
        kind: of the trouble.
        since_s: when it began, as far as is known; Unix seconds.
        until_s: when it ends unless it is seen again; infinite while it lasts.
        detail: for people.
    """

    kind: TroubleKind
    since_s: float
    until_s: float
    detail: str


class PodState(msgspec.Struct, frozen=True, gc=False):
    """The stored state of a pod.

    Attributes:
        uid: of the object; a StatefulSet's next pod has the same name and another uid.
        workload: its owner.
        node: that it runs on.
        created_s: when it was created, Unix seconds.
        is_ending: whether it is terminating.
        planned: whether its end, if any, was requested.
        evicted: whether the eviction API removed it (`kubectl drain`, cluster autoscalers).
        unstartable: why it cannot start, or "".
        failures: OOM kills and crash loops, see `_failures`.
    """

    uid: str
    workload: WorkloadKey
    node: str
    created_s: float
    is_ending: bool
    planned: bool
    evicted: bool
    unstartable: str
    failures: tuple[PodFailure, ...]

    def lasting(self, now_s: float) -> tuple[PodFailure, ...]:
        """Return the failures that have not ended."""
        return tuple(each for each in self.failures if each.until_s > now_s)


def pod_state(pod: Pod, calm_s: float) -> PodState:
    """Return the stored state of an object of the API.

    Args:
        calm_s: time after the last sign at which a failure ends.
    """
    disruption = ""
    for condition in pod.status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            disruption = condition.reason
    unstartable = ""
    for status in _containers(pod):
        waiting = status.state.waiting if status.state is not None else None
        if waiting is not None and waiting.reason in UNSTARTABLE:
            unstartable = f"container {status.name}: {waiting.reason}"
    return PodState(
        uid=pod.metadata.uid,
        workload=owner_of(pod),
        node=sys.intern(pod.spec.node_name),
        created_s=_seconds(pod.metadata.creation_timestamp),
        is_ending=pod.metadata.deletion_timestamp is not None,
        planned=disruption not in _UNPLANNED,
        evicted=disruption == "EvictionByEvictionAPI",
        unstartable=unstartable,
        failures=_failures(pod, calm_s),
    )


def owner_of(pod: Pod) -> WorkloadKey:
    """Return the workload of a pod; the pod itself if it has none.

    For a pod of a Deployment it is the Deployment, not the ReplicaSet in between.

    A ReplicaSet's name is its Deployment's, a dash and the hash that its pods carry as a label. So there is
    no need to watch ReplicaSets (each Deployment keeps ten old ones).
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


def _failures(pod: Pod, calm_s: float) -> tuple[PodFailure, ...]:
    """Return the failures of a pod.

    An OOM kill lasts for `calm_s` after the end of the process. A crash loop is a container in the back-off
    of the kubelet, or one with the third or a later restart after a run of less than ten minutes, until it
    has run for `calm_s`.
    """
    found = []
    for status in _containers(pod):
        last = status.last_state.terminated if status.last_state is not None else None
        now = status.state.terminated if status.state is not None else None
        for end in (now, last):
            if end is not None and end.reason == "OOMKilled":
                at_s = _seconds(end.finished_at)
                detail = f"container {status.name} ran out of memory"
                found.append(PodFailure("oom_kill", at_s, at_s + calm_s, detail))
                break
        ended = now or last
        started_s, finished_s = (0.0, 0.0)
        if ended is not None:
            started_s, finished_s = _seconds(ended.started_at), _seconds(ended.finished_at)
        waiting = status.state.waiting if status.state is not None else None
        detail = f"container {status.name} restarted {status.restart_count} times"
        if waiting is not None and waiting.reason == "CrashLoopBackOff":
            found.append(PodFailure("crash_loop", finished_s, math.inf, detail))
        elif ended is not None and status.restart_count >= RESTARTS and finished_s - started_s < STEADY_S:
            found.append(PodFailure("crash_loop", finished_s, finished_s + calm_s, detail))
    return tuple(found)


def _containers(pod: Pod) -> tuple[ContainerStatus, ...]:
    # Init containers are included, because sidecars may be declared as such.
    return (pod.status.container_statuses or ()) + (pod.status.init_container_statuses or ())


def _seconds(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()
