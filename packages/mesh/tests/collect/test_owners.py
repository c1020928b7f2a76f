"""From pods to workloads."""

import json

import numpy as np
import pytest

from hopline_mesh.collect.answer import Answer
from hopline_mesh.collect.owners import Owners, workload_by_name


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("cart-7d9f8b6c5d-x2x4z", "cart"),
        ("cart-v2-7d9f8b6c5d-x2x4z", "cart-v2"),
        ("db-0", "db"),
        ("my-db-12", "my-db"),
        ("agent-x2x4z", "agent"),
        ("cart", "cart"),
        ("cart-service", "cart-service"),
        ("x", "x"),
    ],
)
def test_a_pods_name_speaks_of_its_workload(pod, workload):
    assert workload_by_name(pod) == workload


def answer(*labels):
    raw = [json.dumps(each).encode() for each in labels]
    return Answer(raw, np.ones(len(raw)), np.ones(len(raw)))


@pytest.mark.parametrize(
    ("kind", "owner", "workload"),
    [
        ("ReplicaSet", "web-7d9f8b6c5d", "web"),
        ("ReplicaSet", "rolled", "rollout-of-argo"),
        ("StatefulSet", "db", "db"),
        ("DaemonSet", "agent", "agent"),
        ("Job", "nightly-28912345", "nightly"),
        ("Job", "once", "once"),
        ("Node", "machine-1", "proxy"),
    ],
)
def test_the_owner_is_followed(kind, owner, workload):
    owners = Owners()
    pod = "proxy-machine-1" if kind == "Node" else "any-name"
    owners.learn(
        [
            answer({"namespace": "a", "replicaset": "rolled", "owner_name": "rollout-of-argo"}),
            answer({"namespace": "a", "pod": pod, "owner_kind": kind, "owner_name": owner}),
            answer(),
        ]
    )
    assert owners.find("a", pod) == workload


def test_labels_that_were_renamed_at_the_scrape_count():
    owners = Owners()
    labels = {"namespace": "monitoring", "pod": "kube-state-metrics-0", "owner_kind": "StatefulSet"}
    owners.learn(
        [answer({**labels, "exported_namespace": "shop", "exported_pod": "p", "owner_name": "cart"})]
    )
    assert owners.find("shop", "p") == "cart"


def test_owners_are_requested_when_a_pod_is_new_and_not_for_ever():
    owners = Owners()
    known = answer({"namespace": "a", "pod": "p", "owner_kind": "DaemonSet", "owner_name": "agent"})
    assert owners.due
    assert not owners.learn([known])
    assert not owners.due
    assert owners.find("a", "new-x2x4z") == "new"
    asked = 0
    while owners.due:
        assert not owners.learn([known])
        asked += 1
    assert asked == 4
    owners.find("a", "late-x2x4z")
    late = {"namespace": "a", "pod": "late-x2x4z", "owner_kind": "DaemonSet", "owner_name": "late-set"}
    assert owners.learn([known, answer(late)])
    assert owners.find("a", "late-x2x4z") == "late-set"
    assert not owners.learn([])  # nothing came: what is known stays
    assert owners.find("a", "p") == "agent"
