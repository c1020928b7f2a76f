"""Kubernetes' horizontal pod autoscaler, as its documentation describes the algorithm (`autoscaling/v2`).

    desired = ceil(pods x average / target), the largest of all metrics
    no change where average / target is within 10 % of 1
    pods without a metric count as 0 when it would scale up, as the target when it would scale down
    stabilisation windows: the smallest (up) and the largest (down) recent desire
    policies: at most so many pods or percent more (or fewer) within their period

Sources: "Horizontal Pod Autoscaling" in Kubernetes' documentation, and `horizontal.go` of its controller.
Reads the shipped manifest; asks no cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Of the controller manager: `--horizontal-pod-autoscaler-sync-period` and `-tolerance`.
SYNC_S, TOLERANCE = 15.0, 0.1
_DEFAULT_DOWN_S = 300.0


@dataclass(frozen=True)
class Metric:
    """A metric of the manifest: an average of all pods, and what it should be."""

    name: str
    target: float


class Autoscaler:
    """Decides on the number of pods.

    Args:
        spec: `spec` of a HorizontalPodAutoscaler.
        factors: metric -> what to multiply its target by, for pods of another size.

    Attributes:
        metrics: those of the manifest; `cpu` is in percent of what a pod requests.
    """

    def __init__(self, spec: Mapping[str, Any], factors: Mapping[str, float] | None = None) -> None:
        self.minimum, self.maximum = spec["minReplicas"], spec["maxReplicas"]
        self.metrics = [_metric(each, factors or {}) for each in spec["metrics"]]
        behavior = spec["behavior"]
        self._up, self._down = behavior["scaleUp"], behavior["scaleDown"]
        self._desires: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def decide(self, now: float, pods: int, values: Mapping[str, Mapping[str, float]]) -> int:
        """The number of pods from now on.

        Args:
            now: seconds.
            pods: that there are, or that were asked for.
            values: metric -> pod -> value, of the pods that are ready and have one.
        """
        wanted = [desired(pods, list(values.get(each.name, {}).values()), each) for each in self.metrics]
        known = [number for number in wanted if number is not None]
        # A metric that is missing may hide load, so the others do not scale down.
        desire = max(known, default=pods) if len(known) == len(wanted) else max([pods, *known])
        desire = self._limited(now, pods, self._stable(now, pods, desire))
        desire = max(self.minimum, min(self.maximum, desire))
        if desire != pods:
            self._changes.append((now, desire - pods))
        return desire

    def _stable(self, now: float, pods: int, desire: int) -> int:
        """The desire that both stabilisation windows admit."""
        up_s = self._up.get("stabilizationWindowSeconds", 0.0)
        down_s = self._down.get("stabilizationWindowSeconds", _DEFAULT_DOWN_S)
        lower = min([desire, *(number for at, number in self._desires if at > now - up_s)])
        upper = max([desire, *(number for at, number in self._desires if at > now - down_s)])
        self._desires.append((now, desire))
        return min(max(pods, lower), upper)

    def _limited(self, now: float, pods: int, desire: int) -> int:
        """The desire, as far as the policies admit."""
        if desire > pods:
            return min(desire, max(self._limit(now, pods, each, +1) for each in self._up["policies"]))
        if desire < pods:
            return max(desire, min(self._limit(now, pods, each, -1) for each in self._down["policies"]))
        return desire

    def _limit(self, now: float, pods: int, policy: Mapping[str, Any], sign: int) -> int:
        recent = [change for at, change in self._changes if at > now - policy["periodSeconds"]]
        before = pods - sum(change for change in recent if change * sign > 0)
        if policy["type"] == "Pods":
            return int(before + sign * policy["value"])
        share = before * (1 + sign * policy["value"] / 100)
        return math.ceil(share) if sign > 0 else int(share)


def desired(pods: int, values: list[float], metric: Metric) -> int | None:
    """The number of pods that one metric asks for; None without values."""
    if not values:
        return None
    ratio = _ratio(values, metric)
    missing = pods - len(values)
    if missing <= 0:
        return pods if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * len(values))
    assumed = [0.0 if ratio > 1 else metric.target] * missing
    again = _ratio(values + assumed, metric)
    if abs(again - 1) <= TOLERANCE or (again - 1) * (ratio - 1) < 0:
        return pods
    return math.ceil(again * pods)


def _ratio(values: list[float], metric: Metric) -> float:
    """Average over target, in whole thousandths as the controller computes."""
    average = sum(round(1000 * value) for value in values) // len(values)
    return average / round(1000 * metric.target)


def quantity(text: str) -> float:
    """A number as Kubernetes writes it, such as 20m."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _metric(entry: Mapping[str, Any], factors: Mapping[str, float]) -> Metric:
    if entry["type"] == "Resource":
        return Metric(entry["resource"]["name"], float(entry["resource"]["target"]["averageUtilization"]))
    name = entry["pods"]["metric"]["name"]
    return Metric(name, quantity(entry["pods"]["target"]["averageValue"]) * factors.get(name, 1.0))
