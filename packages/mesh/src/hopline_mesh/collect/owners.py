"""The workloads of pods: from the owner in kube-state-metrics, else from the name of the pod."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from hopline_mesh.collect.answer import UNREADABLE, Answer

#: Characters of random parts of names in Kubernetes: no vowels and no look-alikes.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_OF_DEPLOYMENT = re.compile(rf"(.+)-{_RANDOM}{{6,10}}-{_RANDOM}{{5}}")
_OF_STATEFUL_SET = re.compile(r"(.+)-\d{1,4}")
_OF_OTHER = re.compile(rf"(.+)-{_RANDOM}{{5}}")
_OF_REPLICA_SET = re.compile(rf"(.+)-{_RANDOM}{{6,10}}")
_OF_CRON_JOB = re.compile(r"(.+)-\d{8,}")

#: Number of queries for the owner of an unknown pod.
_TRIES = 4

_labels = msgspec.json.Decoder(dict[str, str])


def workload_by_name(pod: str) -> str:
    """Return the workload in a pod's name.

    `cart-7d9f8b6c5d-x2x4z` belongs to the Deployment cart, `db-0` to a StatefulSet, `agent-x2x4z` to a
    DaemonSet. A name of another form is itself the workload.
    """
    for form in (_OF_DEPLOYMENT, _OF_STATEFUL_SET, _OF_OTHER):
        if found := form.fullmatch(pod):
            return found[1]
    return pod


class Owners:
    """A cache of owners, and of pods without a known owner."""

    def __init__(self) -> None:
        self._workloads: dict[tuple[str, str], str] = {}
        self._missed: dict[tuple[str, str], int] = {}
        self._asked = False

    @property
    def due(self) -> bool:
        """True to query owners: at first, and for new pods."""
        return not self._asked or bool(self._missed)

    def find(self, namespace: str, pod: str) -> str:
        """Return the workload of a pod."""
        workload = self._workloads.get((namespace, pod))
        if workload is None:
            self._missed.setdefault((namespace, pod), 0)
            return workload_by_name(pod)
        return workload

    def knows(self, namespace: str, pod: str) -> bool:
        """True if the workload of a pod is known: from its owner, else from the form of its name."""
        return (namespace, pod) in self._workloads or workload_by_name(pod) != pod

    def learn(self, answers: Sequence[Answer]) -> bool:
        """Replace the cache by the responses to `owner_queries`.

        Returns: whether the owner of a previously unknown pod is known now.
        """
        self._asked = True
        replica_sets: dict[tuple[str, str], str] = {}
        owners: dict[tuple[str, str], tuple[str, str]] = {}
        by_rule: dict[tuple[str, str], str] = {}
        bare: dict[tuple[str, str], str] = {}
        for answer in answers:
            for raw in answer.labels:
                try:
                    found = _labels.decode(raw)
                except UNREADABLE:
                    continue
                namespace = found.get("exported_namespace") or found.get("namespace", "")
                pod = found.get("exported_pod") or found.get("pod", "")
                kind, owner = (
                    "" if found.get(label) == "<none>" else found.get(label, "")
                    for label in ("owner_kind", "owner_name")
                )
                replica_set = found.get("exported_replicaset") or found.get("replicaset", "")
                if replica_set and owner:
                    replica_sets[namespace, replica_set] = owner
                elif pod and owner:
                    owners[namespace, pod] = (kind, owner)
                elif pod and found.get("workload"):
                    by_rule[namespace, pod] = found["workload"]
                elif pod:  # a pod that has no owner
                    bare[namespace, pod] = workload_by_name(pod)
        workloads = bare | {
            (namespace, pod): _workload(namespace, pod, kind, owner, replica_sets)
            for (namespace, pod), (kind, owner) in owners.items()
        }
        workloads.update(by_rule)
        if workloads:
            self._workloads = workloads
        unknown = {pod: tries + 1 for pod, tries in self._missed.items() if pod not in self._workloads}
        is_news = len(unknown) < len(self._missed)
        self._missed = {pod: tries for pod, tries in unknown.items() if tries < _TRIES}
        return is_news

    def forget_missed(self) -> None:
        """Forget pods without a known owner; existing ones will be noted again."""
        self._missed.clear()


def _workload(
    namespace: str, pod: str, kind: str, owner: str, replica_sets: dict[tuple[str, str], str]
) -> str:
    if kind == "ReplicaSet":
        found = _OF_REPLICA_SET.fullmatch(owner)
        return replica_sets.get((namespace, owner)) or (found[1] if found else owner)
    if kind == "Job":
        found = _OF_CRON_JOB.fullmatch(owner)
        return found[1] if found else owner
    if kind == "Node":  # a static pod; its name ends with that of the node
        return pod.removesuffix(f"-{owner}")
    return owner
