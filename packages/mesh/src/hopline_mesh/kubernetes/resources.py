"""The watched resources: their place in the API, and field selectors.

The manifests in packages/mesh/deploy grant exactly these resources; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopline_mesh.kubernetes.objects import Autoscaler, EndpointSlice, KubernetesEvent, Pod, WorkloadObject


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object.

    Attributes:
        name: in messages and gaps; unique. Its part before a dot is the plural.
        group: of the API; "" is the core group.
        version: of the group.
        kind: of the objects, as in owner and target references.
        type: of the decoded objects.
        fields: field selectors; the server leaves out what does not match.
    """

    name: str
    group: str
    version: str
    kind: str
    type: Any
    fields: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """The name in the URL, and in RBAC."""
        return self.name.partition(".")[0]

    def path(self, namespace: str | None = None) -> str:
        """Return the path of the URL, for one namespace or (None) for all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return (
            f"{root}/{self.plural}" if namespace is None else f"{root}/namespaces/{namespace}/{self.plural}"
        )


# Completed pods (of a Job, or evicted for lack of memory) serve nothing, and there may be many of them.
PODS = Resource("pods", "", "v1", "Pod", Pod, ("status.phase!=Succeeded", "status.phase!=Failed"))
ENDPOINT_SLICES = Resource("endpointslices", "discovery.k8s.io", "v1", "EndpointSlice", EndpointSlice)
DEPLOYMENTS = Resource("deployments", "apps", "v1", "Deployment", WorkloadObject)
STATEFUL_SETS = Resource("statefulsets", "apps", "v1", "StatefulSet", WorkloadObject)
DAEMON_SETS = Resource("daemonsets", "apps", "v1", "DaemonSet", WorkloadObject)
AUTOSCALERS = Resource(
    "horizontalpodautoscalers", "autoscaling", "v2", "HorizontalPodAutoscaler", Autoscaler
)
# Only events of autoscalers (the reason of a size) and of nodes (cordoned); a cluster has many others.
_OF_AUTOSCALERS, _OF_NODES = "involvedObject.kind=HorizontalPodAutoscaler", "involvedObject.kind=Node"
AUTOSCALER_EVENTS = Resource("events.autoscalers", "", "v1", "Event", KubernetesEvent, (_OF_AUTOSCALERS,))
NODE_EVENTS = Resource("events.nodes", "", "v1", "Event", KubernetesEvent, (_OF_NODES,))

#: All watched resources. Workloads come before pods and pods before endpoints, so that most references are
#: known when they arrive; any order gives the same result.
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
