"""The benchmark's autoscaler does what Kubernetes' documentation says of the real one."""

import pytest

from benchmarks.fleet_phases.hpa import Autoscaler, Metric, desired, quantity

POLICIES = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
        ],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 300,
        "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}],
    },
}


def autoscaler(minimum=1, maximum=100, behavior=POLICIES, names=("queue",)):
    metrics = [
        {"type": "Pods", "pods": {"metric": {"name": name}, "target": {"averageValue": "100m"}}}
        for name in names
    ]
    spec = {"minReplicas": minimum, "maxReplicas": maximum, "metrics": metrics, "behavior": behavior}
    return Autoscaler(spec)


def all_at(value, pods, name="queue"):
    return {name: {f"pod{number}": value for number in range(pods)}}


@pytest.mark.parametrize(
    ("pods", "values", "expected"),
    [
        (3, [0.2, 0.2, 0.2], 6),  # the documentation's example: 200m of 100m doubles
        (4, [0.05] * 4, 2),  # and 50m halves
        (10, [0.109] * 10, 10),  # within the tolerance of 10 %
        (10, [0.112] * 10, 12),
        (3, [0.1, 0.1, 0.31], 6),  # ceil(3 x 0.51 / 3 / 0.1)
        (4, [0.4, 0.4], 8),  # two pods have no metric: 0 while it scales up
        (4, [0.05, 0.05], 3),  # and the target while it scales down
        (4, [0.15, 0.15], 4),  # with two pods at 0 it would scale down: nothing
        (4, [], None),
    ],
)
def test_one_metric(pods, values, expected):
    assert desired(pods, values, Metric("queue", 0.1)) == expected


def test_quantities():
    assert [quantity(text) for text in ("20m", "500m", "0.02", "2")] == [0.02, 0.5, 0.02, 2.0]


def test_up_at_once_by_the_larger_of_the_policies():
    scaler = autoscaler()
    assert scaler.decide(0, 2, all_at(5.0, 2)) == 6  # four pods, or double
    assert scaler.decide(10, 6, all_at(5.0, 6)) == 6  # the period of 15 s is used up
    assert scaler.decide(16, 6, all_at(5.0, 6)) == 12
    assert scaler.decide(32, 12, all_at(5.0, 12)) == 24


def test_down_after_the_window_and_slowly():
    scaler = autoscaler()
    pods = 20
    seen = []
    for now in range(0, 600, 15):
        load = 2.0 if now == 0 else 0.2  # of all pods: needs 20, then 2
        pods = scaler.decide(now, pods, all_at(load / pods, pods))
        seen.append((now, pods))
    assert all(pods == 20 for now, pods in seen if now < 300)
    assert seen[20:26] == [(300, 18), (315, 18), (330, 18), (345, 18), (360, 16), (375, 16)]


def test_load_that_swings_within_the_window_does_not_scale_down():
    scaler = autoscaler()
    pods = 10
    for now in range(0, 1800, 15):
        load = 1.0 if now % 240 == 0 else 0.3
        pods = scaler.decide(now, pods, all_at(load / pods, pods))
        assert pods == 10


def test_the_largest_metric_counts_and_a_missing_one_forbids_to_scale_down():
    values = all_at(0.05, 4, "queue") | all_at(0.2, 4, "cost")
    assert autoscaler(names=("queue", "cost")).decide(0, 4, values) == 8
    assert autoscaler(names=("queue", "cost")).decide(0, 4, all_at(0.01, 4)) == 4
    assert autoscaler(names=("queue", "cost")).decide(0, 4, all_at(0.2, 4)) == 8


def test_bounds():
    assert autoscaler(maximum=5).decide(0, 4, all_at(9.0, 4)) == 5
    assert autoscaler(minimum=4).decide(0, 4, all_at(0.0, 4)) == 4
