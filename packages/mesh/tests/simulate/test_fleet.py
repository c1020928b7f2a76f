from __future__ import annotations

import numpy as np
import pytest

from hopline_mesh.simulate.plan import Fault, MeshPlan, Operation
from hopline_mesh.simulate.simulation import Simulation, simulate


def after(*operations: Operation, services: int = 8) -> Simulation:
    """A mesh half an hour later, in which nothing else happened."""
    plan = MeshPlan(services=services, hours=0.5, autoscale=False, operations=operations)
    run = simulate(plan, seed=1)
    for _ in run:
        pass
    return run


def first_service(services: int = 8) -> tuple[int, str]:
    """A service with four pods, by number and name."""
    topology = simulate(MeshPlan(services=services, hours=0.1), seed=1).world.topology
    number = int(np.flatnonzero(topology.replicas[: services - 1] >= 4)[0])
    return number, topology.names[number]


def revisions(run: Simulation, number: int) -> dict[int, int]:
    """How many pods a service has of each version."""
    pods = run.world.pods
    rows = np.flatnonzero((pods.service == number) & pods.staying())
    found, counts = np.unique(pods.revision[rows], return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def test_half_a_shift_stays_whole_when_pods_are_evicted():
    number, name = first_service()
    drains = [Operation("drain", 600.0 + 120.0 * turn, service=name) for turn in range(6)]
    run = after(Operation("shift", 300.0, service=name), *drains)
    desired = int(run.world.fleet.desired[number])
    assert int(run.world.ready[number]) == desired
    new = int(np.ceil(0.3 * desired))
    assert revisions(run, number) == {1: desired - new, 2: new}


@pytest.mark.parametrize("replicas", [2, 9])
def test_half_a_shift_is_scaled_in_its_shares(replicas):
    number, name = first_service()
    run = after(
        Operation("shift", 300.0, service=name), Operation("scale", 900.0, service=name, replicas=replicas)
    )
    new = int(np.ceil(0.3 * replicas))
    assert int(run.world.ready[number]) == replicas
    assert revisions(run, number) == {1: replicas - new, 2: new}


def test_a_new_version_ends_a_stuck_rollout_and_its_trouble():
    _, name = first_service()
    plan = MeshPlan(
        services=8, hours=0.4, autoscale=False,
        faults=(Fault("stuck_rollout", 300.0, 600.0, service=name),),
        operations=(Operation("rollout", 720.0, service=name),),
    )  # fmt: skip
    troubles = [context.troubles for _, context in simulate(plan, seed=1)]
    assert any(each.end_s is None for some in troubles for each in some)
    assert [each.kind for each in troubles[-1]] == ["stuck_rollout"]
    assert troubles[-1][0].end_s == plan.start_s + 720.0


def test_a_fault_shorter_than_an_interval_has_an_effect():
    _, name = first_service()
    fault = Fault("error_burst", 301.0, 5.0, service=name, severity=1.0)
    calm, hurt = (
        [snapshot.node_features[:, 1] for snapshot, _ in simulate(plan, seed=1)]
        for plan in (MeshPlan(services=8, hours=0.1), MeshPlan(services=8, hours=0.1, faults=(fault,)))
    )
    assert np.nanmax(hurt[-1]) > np.nanmax(calm[-1]) + 0.05
