"""What is listed and watched: where it is in the API, and which part of it is asked for.

The manifests in mesh/deploy grant what stands here and nothing else; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopline_mesh.kubernetes.objects import Autoscaler, EndpointSlice, Event, Pod, WorkloadObject


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object.

    Attributes:
        name: by which Hopline speaks of it; unique.
        group: of the API; "" is the core group.
        version: of the group.
        plural: in the URL, and in RBAC.
        kind: of the objects, as owners and targets name them.
        type: what its objects are decoded to.
        fields: field selector; the server leaves out what does not match.
    """

    name: str
    group: str
    version: str
    plural: str
    kind: str
    type: Any
    fields: tuple[str, ...] = ()

    def path(self, namespace: str | None = None) -> str:
        """The URL's path, of one namespace or (None) of all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return (
            f"{root}/{self.plural}" if namespace is None else f"{root}/namespaces/{namespace}/{self.plural}"
        )


# A pod that is done (of a Job, or evicted for want of memory) serves nobody, and there may be many of them.
PODS = Resource("pods", "", "v1", "pods", "Pod", Pod, ("status.phase!=Succeeded", "status.phase!=Failed"))
ENDPOINT_SLICES = Resource(
    "endpointslices", "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", EndpointSlice
)
DEPLOYMENTS = Resource("deployments", "apps", "v1", "deployments", "Deployment", WorkloadObject)
STATEFUL_SETS = Resource("statefulsets", "apps", "v1", "statefulsets", "StatefulSet", WorkloadObject)
DAEMON_SETS = Resource("daemonsets", "apps", "v1", "daemonsets", "DaemonSet", WorkloadObject)
AUTOSCALERS = Resource(
    "horizontalpodautoscalers",
    "autoscaling",
    "v2",
    "horizontalpodautoscalers",
    "HorizontalPodAutoscaler",
    Autoscaler,
)
# Of a cluster's many events only those of autoscalers (why a size was chosen) and of machines (cordoned).
AUTOSCALER_EVENTS = Resource(
    "events.autoscalers",
    "",
    "v1",
    "events",
    "Event",
    Event,
    ("involvedObject.kind=HorizontalPodAutoscaler",),
)
NODE_EVENTS = Resource("events.nodes", "", "v1", "events", "Event", Event, ("involvedObject.kind=Node",))

#: Everything that is watched. Workloads come before pods and those before endpoints, so that most of what
#: names something else finds it known; any order gives the same result.
RESOURCES = (
    DEPLOYMENTS,
    STATEFUL_SETS,
    DAEMON_SETS,
    AUTOSCALERS,
    PODS,
    ENDPOINT_SLICES,
    AUTOSCALER_EVENTS,
    NODE_EVENTS,
)

#: Without these nothing is known; without the others something.
NEEDED = (PODS, ENDPOINT_SLICES, DEPLOYMENTS)
