"""A Deployment, StatefulSet or DaemonSet: its wanted and actual number of pods, and whether it is changing.

Pure values. The rules for each kind are those of `kubectl rollout status`
(https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#deployment-status), with one
difference: pods that crash later, without a change, are not a rollout.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

import msgspec

from hopline_mesh.kubernetes.objects import Condition, WorkloadObject

#: kubectl's and the API's default.
DEADLINE_S = 600.0


class WorkloadKey(NamedTuple):
    """The identity of a workload."""

    namespace: str
    kind: str
    name: str


class Workload(msgspec.Struct, frozen=True, gc=False):
    """The state of one workload at one time.

    Attributes:
        uid: of the object; a new object of the same name has another.
        desired: wanted number of pods.
        replicas: number of pods, without terminating ones.
        updated: number of pods of the newest version.
        available: number of pods that serve.
        template: a hash of the pod template.
        observed: whether the numbers refer to the present specification.
        rolling: whether the controller is replacing pods.
        held: number of old pods that must stay (a StatefulSet's partition).
        by_hand: pods are replaced only when a user deletes them, or (paused) not at all.
        deadline_s: maximum time without progress.
        overdue: the controller's message that this time is exceeded, or "".
        overdue_s: since when, Unix seconds; 0 if unknown.
    """

    uid: str
    desired: int
    replicas: int
    updated: int
    available: int
    template: int
    observed: bool
    rolling: bool
    held: int
    by_hand: bool
    deadline_s: float = DEADLINE_S
    overdue: str = ""
    overdue_s: float = 0.0

    @property
    def distance(self) -> int:
        """Number of pods to create, replace, end or make available; 0 in the wanted state."""
        return (
            max(0, self.desired - self.held - self.updated)
            + max(0, self.replicas - self.held - self.updated if self.rolling else 0)
            + abs(self.desired - self.replicas)
            + max(0, self.desired - self.available)
        )

    @property
    def settled(self) -> bool:
        """True if the wanted state is reached."""
        return self.observed and self.distance == 0

    @property
    def resized(self) -> bool:
        """True if the wanted state is reached, except for the version of pods."""
        return self.observed and self.replicas == self.desired and self.available >= self.desired


def workload_of(kind: str, body: WorkloadObject) -> Workload:
    """Return the state of an object of the API."""
    rules = {"DaemonSet": _daemon_set, "StatefulSet": _stateful_set}
    return rules.get(kind, _deployment)(body)


def _deployment(body: WorkloadObject) -> Workload:
    spec, status = body.spec, body.status
    progressing = _condition(status.conditions, "Progressing")
    observed = status.observed_generation >= body.metadata.generation
    desired = 1 if spec.replicas is None else spec.replicas
    overdue, overdue_s = "", 0.0
    if progressing is not None and progressing.reason == "ProgressDeadlineExceeded":
        overdue = progressing.message or "its progress deadline is exceeded"
        since = progressing.last_transition_time
        overdue_s = since.timestamp() if since is not None else 0.0
    is_progressing = (
        progressing is not None
        and progressing.status == "True"
        and progressing.reason in ("NewReplicaSetCreated", "FoundNewReplicaSet", "ReplicaSetUpdated")
    )
    return Workload(
        uid=body.metadata.uid,
        desired=desired,
        replicas=status.replicas,
        updated=status.updated_replicas,
        available=status.available_replicas or 0,
        template=crc32(bytes(spec.template)),
        observed=observed,
        # Old pods together with new ones are a rollout for any condition.
        rolling=not spec.paused
        and (is_progressing or bool(overdue) or status.replicas > status.updated_replicas),
        deadline_s=float(spec.progress_deadline_seconds or DEADLINE_S),
        overdue=overdue,
        overdue_s=overdue_s,
        held=max(0, status.replicas - status.updated_replicas) if spec.paused else 0,
        by_hand=spec.paused,
    )


def _stateful_set(body: WorkloadObject) -> Workload:
    spec, status = body.spec, body.status
    desired = 1 if spec.replicas is None else spec.replicas
    strategy = spec.update_strategy
    partition = 0
    if strategy is not None and strategy.rolling_update is not None:
        partition = strategy.rolling_update.partition or 0
    by_hand = strategy is not None and strategy.type == "OnDelete"
    held = desired if by_hand else min(partition, desired)
    two_versions = status.update_revision != status.current_revision
    # If all pods are of one version, controllers before 1.30 count none of them as updated.
    updated = status.updated_replicas if two_versions else status.replicas
    # Servers before 1.22 do not have `availableReplicas`.
    available = status.available_replicas
    return Workload(
        uid=body.metadata.uid,
        desired=desired,
        replicas=status.replicas,
        updated=updated,
        available=status.ready_replicas if available is None else available,
        template=crc32(bytes(spec.template)),
        observed=status.observed_generation >= body.metadata.generation,
        rolling=two_versions and updated < desired - held,
        held=held if two_versions else 0,
        by_hand=by_hand,
    )


def _daemon_set(body: WorkloadObject) -> Workload:
    spec, status = body.spec, body.status
    by_hand = spec.update_strategy is not None and spec.update_strategy.type == "OnDelete"
    desired = status.desired_number_scheduled
    return Workload(
        uid=body.metadata.uid,
        desired=desired,
        replicas=status.current_number_scheduled,
        updated=status.updated_number_scheduled,
        available=status.number_available,
        template=crc32(bytes(spec.template)),
        observed=status.observed_generation >= body.metadata.generation,
        rolling=not by_hand and status.updated_number_scheduled < status.current_number_scheduled,
        held=max(0, desired - status.updated_number_scheduled) if by_hand else 0,
        by_hand=by_hand,
    )


def _condition(conditions: tuple[Condition, ...] | None, type_: str) -> Condition | None:
    return next((each for each in conditions or () if each.type == type_), None)
