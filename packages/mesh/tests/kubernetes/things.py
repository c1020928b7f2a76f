"""Objects as the API server writes them, and a feed that is told of them."""

import itertools
import json
from datetime import UTC, datetime

import msgspec

from hopline_mesh.kubernetes import resources
from hopline_mesh.kubernetes.backends import LASTING
from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.workload import WorkloadKey

#: When the stories of these tests begin.
T = 1_790_000_000.0

_uids = itertools.count()


def at(seconds):
    """A time as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name, namespace="shop", **more):
    return {
        "name": name,
        "namespace": namespace,
        "uid": more.pop("uid", f"uid-{namespace}-{name}"),
        "resourceVersion": "1",
        "creationTimestamp": at(more.pop("created_s", T - 86_400)),
        **more,
    }


def container(name="app", restarts=0, waiting=None, last=None, ran_s=30.0, ended_s=None):
    """A container's status; `last` is the reason of its last end."""
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {"startedAt": at(T)}}
    found = {"name": name, "restartCount": restarts, "ready": not waiting, "state": state, "lastState": {}}
    if last is not None:
        found["lastState"] = {
            "terminated": {
                "reason": last,
                "exitCode": 137 if last == "OOMKilled" else 1,
                "startedAt": at(ended_s - ran_s),
                "finishedAt": at(ended_s),
            }
        }
    return found


def pod(
    name, app="web", namespace="shop", *, hash_="5d4f", ending_s=None, disruption=None, node="n1", **more
):
    """A pod of the Deployment `app`."""
    containers = more.pop("containers", [container()])
    extra = {}
    if ending_s is not None:
        extra = {"deletionTimestamp": at(ending_s + 30), "deletionGracePeriodSeconds": 30}
    conditions = [{"type": "Ready", "status": "True"}]
    if disruption is not None:
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disruption})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{app}-{hash_}", "controller": True}
    return {
        "metadata": meta(
            name,
            namespace,
            labels={"app": app, "pod-template-hash": hash_},
            ownerReferences=more.pop("owners", [owner]),
            **extra,
            **more,
        ),
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "shop/web:1"}]},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": containers},
    }


def endpoints(service, pods, namespace="shop", *, ready=True, suffix="abc"):
    """A slice of a service; `pods` are names."""
    return {
        "metadata": meta(f"{service}-{suffix}", namespace, labels={"kubernetes.io/service-name": service}),
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": ready, "serving": ready, "terminating": False},
                "targetRef": {"kind": "Pod", "namespace": namespace, "name": each},
            }
            for each in pods
        ]
        or None,
    }


def deployment(
    name="web",
    desired=3,
    namespace="shop",
    *,
    image="shop/web:1",
    replicas=None,
    updated=None,
    available=None,
    generation=1,
    observed=None,
    progress="NewReplicaSetAvailable",
    paused=False,
    deadline_s=600,
    uid=None,
):
    """A Deployment that is as it is to be, but for what is said."""
    replicas = desired if replicas is None else replicas
    failed = progress == "ProgressDeadlineExceeded"
    return {
        "metadata": meta(name, namespace, generation=generation, **({"uid": uid} if uid else {})),
        "spec": {
            "replicas": desired,
            "paused": paused,
            "progressDeadlineSeconds": deadline_s,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
            },
            "template": {"spec": {"containers": [{"name": "app", "image": image}]}},
        },
        "status": {
            "observedGeneration": generation if observed is None else observed,
            "replicas": replicas,
            "updatedReplicas": replicas if updated is None else updated,
            "availableReplicas": replicas if available is None else available,
            "conditions": [
                {
                    "type": "Progressing",
                    "status": "False" if failed else "True",
                    "reason": progress,
                    "message": 'ReplicaSet "web-77" has timed out progressing.' if failed else "",
                }
            ],
        },
    }


def stateful_set(name, desired=3, *, image="shop/db:1", updated=None, ready=None, two=False, **more):
    strategy = more.pop("strategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    return {
        "metadata": meta(name, generation=more.pop("generation", 1)),
        "spec": {
            "replicas": desired,
            "updateStrategy": strategy,
            "template": {"spec": {"containers": [{"name": "db", "image": image}]}},
        },
        "status": {
            "observedGeneration": more.pop("observed", 1),
            "replicas": desired,
            "updatedReplicas": desired if updated is None else updated,
            "readyReplicas": desired if ready is None else ready,
            "availableReplicas": desired if ready is None else ready,
            "currentRevision": "db-1",
            "updateRevision": "db-2" if two else "db-1",
        },
    }


def daemon_set(name, scheduled=3, *, image="shop/agent:1", updated=None, available=None, **more):
    return {
        "metadata": meta(name, generation=more.pop("generation", 1)),
        "spec": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": {"spec": {"containers": [{"name": "agent", "image": image}]}},
        },
        "status": {
            "observedGeneration": more.pop("observed", 1),
            "desiredNumberScheduled": scheduled,
            "currentNumberScheduled": scheduled,
            "updatedNumberScheduled": scheduled if updated is None else updated,
            "numberAvailable": scheduled if available is None else available,
            "numberReady": scheduled if available is None else available,
        },
    }


def autoscaler(name, current, desired, kind="Deployment", target="web"):
    return {
        "metadata": meta(name),
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": target}},
        "status": {"currentReplicas": current, "desiredReplicas": desired},
    }


def event(reason, kind, name, message="", namespace="shop", seen_s=T):
    return {
        "metadata": meta(f"{name}.{reason.lower()}", namespace),
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "name": name, "namespace": namespace if kind != "Node" else ""},
        "lastTimestamp": at(seen_s),
        "eventTime": None,
    }


def decode(resource, body):
    return msgspec.json.decode(json.dumps(body), type=resource.type)


def services(feed):
    """Names of all services that the feed knows, as `namespace/service`."""
    return {each.service for each in feed._backends.slices.values()}


def names_of_workload(feed, namespace, name):
    """The names that a mesh may have for a workload of any kind; nothing if there is no such workload."""
    found = {}
    for kind in sorted(LASTING):
        key = WorkloadKey(namespace, kind, name)
        if key in feed._workloads or feed._backends.pods_of(key):
            found.update(dict.fromkeys(feed._backends.names_of(key)))
    return tuple(found)


def sizes(feed):
    """The number of objects and notes that the feed stores, by kind."""
    return {
        "pods": len(feed._backends.pods),
        "endpoint_slices": len(feed._backends.slices),
        "workloads": len(feed._workloads),
        "autoscalers": len(feed._autoscalers),
        "operations": len(feed._operations._open),
        "ended": len(feed._changes.items()) + len(feed._troubles.items()),
        "ill_pods": len(feed._ailments.pods),
        "words": len(feed._words._reasons) + len(feed._words._cordoned),
    }


class Story:
    """A feed and a clock: says what the API server would say."""

    def __init__(self, **how):
        self.feed = ChangeFeed(**how)
        self.now_s = T

    def listed(self, resource, *bodies):
        self.feed.replaced(resource, None, [decode(resource, body) for body in bodies], self.now_s)
        return self

    def says(self, resource, body, kind="MODIFIED"):
        self.feed.changed(resource, kind, decode(resource, body), self.now_s)
        return self

    def gone(self, resource, body):
        return self.says(resource, body, "DELETED")

    def after(self, seconds):
        """Time goes by, in the steps of a watch."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 15)
            self.feed.context(self.now_s)
        return self

    def context(self):
        return self.feed.context(self.now_s)

    def changes(self):
        """(kind, service) of those that go on."""
        return {(each.kind, each.service) for each in self.context().changes if each.end_s is None}

    def ended(self):
        return {(each.kind, each.service) for each in self.context().changes if each.end_s is not None}

    def troubles(self):
        return {(each.kind, each.service) for each in self.context().troubles if each.end_s is None}


def web(**how):
    """A shop with one service of three pods, all well."""
    story = Story(**how)
    story.listed(resources.DEPLOYMENTS, deployment())
    story.listed(resources.STATEFUL_SETS).listed(resources.DAEMON_SETS).listed(resources.AUTOSCALERS)
    story.listed(resources.PODS, *[pod(f"web-{each}") for each in "abc"])
    story.listed(resources.ENDPOINT_SLICES, endpoints("web", ["web-a", "web-b", "web-c"]))
    return story
