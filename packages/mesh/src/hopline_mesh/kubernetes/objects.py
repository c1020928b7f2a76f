"""The fields of Kubernetes objects that are read.

The names are those of the API (https://kubernetes.io/docs/reference/kubernetes-api/). Fields that a server
may leave out have a default, and fields that may be null (Go's nil slices) may be None. Decoding is fast
because all other fields are skipped.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec


class Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base class of all objects; field names are in the camel case of the API."""


class Owner(Part, frozen=True):
    """An owner of an object; at most one owner is the controller."""

    kind: str
    name: str
    controller: bool = False


class Labels(Part, frozen=True):
    """Labels that relate objects to each other."""

    service_name: str = msgspec.field(default="", name="kubernetes.io/service-name")
    pod_template_hash: str = msgspec.field(default="", name="pod-template-hash")
    rollout_hash: str = msgspec.field(default="", name="rollouts-pod-template-hash")


class Meta(Part, frozen=True):
    """Metadata of any object."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Labels | None = None
    owner_references: tuple[Owner, ...] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


class Condition(Part, frozen=True):
    """One condition of a status."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Waiting(Part, frozen=True):
    """The reason why a container does not run."""

    reason: str = ""


class Terminated(Part, frozen=True):
    """The end of a container."""

    reason: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(Part, frozen=True):
    """The state of a container; at most one field is set; neither: it runs, or its state is unknown."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Part, frozen=True):
    """One container of a pod."""

    name: str
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodSpec(Part, frozen=True):
    """The node of a pod."""

    node_name: str = ""


class PodStatus(Part, frozen=True):
    """The status of a pod."""

    conditions: tuple[Condition, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Part, frozen=True):
    """`v1` Pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class EndpointConditions(Part, frozen=True):
    """True if an endpoint gets requests; None means yes."""

    ready: bool | None = None


class Target(Part, frozen=True):
    """The object that an endpoint or an autoscaler refers to."""

    kind: str = ""
    name: str = ""
    namespace: str = ""


class Endpoint(Part, frozen=True):
    """One address of a service."""

    conditions: EndpointConditions = EndpointConditions()
    target_ref: Target | None = None


class EndpointSlice(Part, frozen=True):
    """`discovery.k8s.io/v1` EndpointSlice: some of the addresses of a service."""

    metadata: Meta
    endpoints: tuple[Endpoint, ...] | None = None


class RollingUpdate(Part, frozen=True):
    """The partition of a StatefulSet: pods below it keep their old version."""

    # Deployments have other fields here (numbers or percentages), which are not read.
    partition: int | None = None


class Strategy(Part, frozen=True):
    """The way pods are replaced: RollingUpdate, Recreate or (by hand) OnDelete."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class WorkloadSpec(Part, frozen=True):
    """The wanted state of a Deployment, StatefulSet or DaemonSet."""

    replicas: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"null")
    update_strategy: Strategy | None = None


class WorkloadStatus(Part, frozen=True):
    """The present state of a Deployment, StatefulSet or DaemonSet; DaemonSets have other counts."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int | None = None
    ready_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    conditions: tuple[Condition, ...] | None = None
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0


class WorkloadObject(Part, frozen=True):
    """`apps/v1` Deployment, StatefulSet or DaemonSet."""

    metadata: Meta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class AutoscalerSpec(Part, frozen=True):
    """The workload that is scaled."""

    scale_target_ref: Target = Target()


class AutoscalerStatus(Part, frozen=True):
    """The present and wanted number of pods."""

    current_replicas: int = 0
    desired_replicas: int = 0


class Autoscaler(Part, frozen=True):
    """`autoscaling/v2` HorizontalPodAutoscaler."""

    metadata: Meta
    spec: AutoscalerSpec = AutoscalerSpec()
    status: AutoscalerStatus = AutoscalerStatus()


class KubernetesEvent(Part, frozen=True):
    """`v1` Event: a text about something that happened."""

    metadata: Meta
    reason: str = ""
    message: str | None = None
    involved_object: Target = Target()
    last_timestamp: datetime | None = None
    event_time: datetime | None = None


Object = Pod | EndpointSlice | WorkloadObject | Autoscaler | KubernetesEvent

#: Kinds of events of a watch.
EventType = Literal["ADDED", "MODIFIED", "DELETED"]
