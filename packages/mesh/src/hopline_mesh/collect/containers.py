"""Queries for cAdvisor and kube-state-metrics: CPU and memory of pods, and owners of pods.

cAdvisor has no label for a service. Its series are queried by pod, and joined to the pod's owner here. A
join in PromQL would have no result if one recording rule is missing.
"""

from __future__ import annotations

from hopline_mesh.collect.promql import check_matchers, duration, selector
from hopline_mesh.collect.query import Labels, Query

# Series without a container are the sums of a pod's cgroup, which would double the result; POD is the pause
# container.
_CONTAINERS = 'container!="",container!="POD"'

_pod = Labels(("pod",), ("namespace",), pod=True)


def containers(window_s: float = 60.0, matchers: str = "") -> tuple[Query, ...]:
    """Return queries for CPU cores and bytes of memory in use (working set), over all containers of pods.

    Args:
        window_s: of rates.
        matchers: added to every selector.

    Raises:
        ConfigError: an invalid window or matcher.
    """
    matchers, window = check_matchers(matchers), duration(window_s)
    cpu = selector("container_cpu_usage_seconds_total", _CONTAINERS, matchers)
    memory = selector("container_memory_working_set_bytes", _CONTAINERS, matchers)
    return (
        Query("node", "cpu_cores", f"sum by (namespace, pod) (rate({cpu}[{window}]))", _pod),
        Query(
            "node", "memory_bytes", f"sum by (namespace, pod) (last_over_time({memory}[{window}]))", _pod
        ),
    )


def owner_queries(matchers: str = "") -> tuple[str, ...]:
    """Return queries for the owners of pods, the best last; any of them may be empty.

    The first two are of kube-state-metrics, whose labels may have the prefix `exported_`; the last is a
    recording rule of kube-prometheus.
    """
    matchers = check_matchers(matchers)
    pod = selector("kube_pod_owner", matchers)  # also of pods that have no owner
    replicaset = selector("kube_replicaset_owner", 'owner_kind!="",owner_kind!="<none>"', matchers)
    rule = selector("namespace_workload_pod:kube_pod_owner:relabel", matchers)
    return (
        "max by (namespace, exported_namespace, replicaset, exported_replicaset, owner_kind, owner_name)"
        f" ({replicaset})",
        f"max by (namespace, exported_namespace, pod, exported_pod, owner_kind, owner_name) ({pod})",
        f"max by (namespace, pod, workload) ({rule})",
    )
