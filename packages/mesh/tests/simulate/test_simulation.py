"""Simulations in memory: the same under a seed, what happens and what is told of it."""

import math

import numpy as np
import pytest

from hopline.errors import ConfigError
from hopline_mesh.schema import EDGE_FEATURES, NODE_FEATURES
from hopline_mesh.simulate import (
    EDGE_FAULTS,
    FAULTS,
    MEASURED,
    Fault,
    MeshPlan,
    Operation,
    Simulation,
    calm,
    high_churn,
    simulate,
    unkind_plan,
)
from hopline_mesh.simulate.world import World


def played(run: Simulation):
    return list(run)


def series(run, pairs, service, column):
    """A column of a service in each interval; NaN where it does not exist."""
    found = []
    for snapshot, _ in pairs:
        slot = snapshot.roster.find(service)
        rows = np.flatnonzero(snapshot.nodes == (-1 if slot is None else slot))
        place = NODE_FEATURES.index(column)
        found.append(float(snapshot.node_features[rows[0], place]) if rows.size else math.nan)
    return np.array(found)


def edge_series(run, pairs, caller, callee, column):
    found = []
    for snapshot, _ in pairs:
        ends = [snapshot.roster.find(name) for name in (caller, callee)]
        rows = np.flatnonzero((snapshot.edge_src == ends[0]) & (snapshot.edge_dst == ends[1]))
        place = EDGE_FEATURES.index(column)
        found.append(float(snapshot.edge_features[rows[0], place]) if rows.size else math.nan)
    return np.array(found)


def with_fault(kind, severity=0.8, **plan):
    fault = Fault(kind, 900.0, 600.0, severity=severity)
    run = simulate(MeshPlan(services=14, hours=0.6, faults=(fault,), noise=0.3, daily=0.0, **plan), seed=5)
    return run, played(run), run.faults[0]


def halves(run, pairs, values):
    """Before the fault and during it, the window of measurement aside."""
    times = np.array([snapshot.time_s for snapshot, _ in pairs])
    fault = run.faults[0]
    during = (times > fault.start_s + 75.0) & (times <= fault.end_s)
    return values[times <= fault.start_s], values[during]


def test_the_same_seed_gives_the_same_mesh_and_another_seed_another():
    def bytes_of(run):
        return [
            (s.node_features.tobytes(), s.edge_features.tobytes(), s.edge_dst.tobytes(), c) for s, c in run
        ]

    one = high_churn(0.4, 12, seed=3, quiet_hours=0.0, faults_per_hour=3.0)
    first = bytes_of(one)
    assert first == bytes_of(one)
    assert first == bytes_of(high_churn(0.4, 12, seed=3, quiet_hours=0.0, faults_per_hour=3.0))
    assert first != bytes_of(high_churn(0.4, 12, seed=4, quiet_hours=0.0, faults_per_hour=3.0))


def test_snapshots_are_whole_in_order_and_as_many_as_planned():
    run = high_churn(1.0, 15, seed=1, quiet_hours=0.2, faults_per_hour=3.0)
    pairs = played(run)
    assert len(pairs) == len(run) == 240
    times = [snapshot.time_s for snapshot, _ in pairs]
    np.testing.assert_allclose(np.diff(times), 15.0)
    assert times[0] == pytest.approx(run.plan.start_s + 15.0)
    for snapshot, _ in pairs:
        snapshot.check()
        assert not (snapshot.node_features < 0.0).any()
    shares = np.concatenate([snapshot.node_features[:, 1] for snapshot, _ in pairs])
    assert np.nanmax(shares) <= 1.0


def test_a_calm_mesh_has_no_trouble_and_hardly_any_errors():
    run = calm(0.5, 12, seed=2)
    pairs = played(run)
    assert run.faults == ()
    assert all(context.troubles == () for _, context in pairs)
    errors = np.concatenate([snapshot.node_features[:, 1] for snapshot, _ in pairs])
    assert np.nanmean(errors) < 0.005


def test_faults_of_high_churn_are_of_all_kinds_and_apart():
    run = high_churn(24.0, 30, seed=0)
    assert {fault.kind for fault in run.faults} == set(MEASURED)
    for before, after in zip(run.faults, run.faults[1:], strict=False):
        assert after.start_s >= before.end_s + 600.0
    start_s = run.plan.start_s
    assert run.faults[0].start_s >= start_s + 4 * 3600.0
    assert run.faults[-1].end_s <= start_s + 24 * 3600.0
    kinds = {operation.kind for operation in run.operations}
    assert kinds == {"rollout", "drain", "scale", "shift", "add", "remove"}


@pytest.mark.parametrize("kind", ["retry_storm", "partition", "edge_latency"])
def test_a_fault_of_a_call_path_is_seen_on_it(kind):
    run, pairs, fault = with_fault(kind)
    assert fault.caller
    assert (fault.caller, fault.service) in run.paths
    assert set(fault.roots) == {fault.caller, fault.service}
    column = {"retry_storm": "request_rate", "partition": "error_share", "edge_latency": "client_ms"}[kind]
    before, during = halves(run, pairs, edge_series(run, pairs, fault.caller, fault.service, column))
    assert np.nanmedian(during) > 2.0 * np.nanmedian(before) + 0.05
    if kind == "edge_latency":
        server = edge_series(run, pairs, fault.caller, fault.service, "server_ms")
        before, during = halves(run, pairs, server)
        assert np.nanmedian(during) == pytest.approx(np.nanmedian(before), rel=0.25)


@pytest.mark.parametrize(
    ("kind", "column", "factor"),
    [
        ("memory_leak", "memory_bytes", 1.2),
        ("cpu_hog", "cpu_cores", 1.5),
        ("slow_service", "p50_ms", 2.0),
        ("error_burst", "error_share", 10.0),
    ],
)
def test_a_fault_of_a_service_is_seen_there(kind, column, factor):
    run, pairs, fault = with_fault(kind, autoscale=False)
    assert fault.caller == ""
    assert fault.roots == (fault.service,)
    before, during = halves(run, pairs, series(run, pairs, fault.service, column))
    assert np.nanmean(during) > factor * np.nanmean(before)


@pytest.mark.parametrize(
    ("kind", "trouble"),
    [("memory_leak", "oom_kill"), ("crash_loop", "crash_loop"), ("stuck_rollout", "stuck_rollout")],
)
def test_kubernetes_reports_trouble_and_its_end(kind, trouble):
    _, pairs, fault = with_fault(kind)
    told = [
        [t for t in context.troubles if (t.kind, t.service) == (trouble, fault.service)]
        for _, context in pairs
    ]
    times = [snapshot.time_s for snapshot, _ in pairs]
    first = next(time for time, troubles in zip(times, told, strict=True) if troubles)
    assert fault.start_s < first <= fault.end_s + 15.0
    assert all(each.service == fault.service for _, context in pairs for each in context.troubles)
    assert told[-1]
    assert told[-1][-1].end_s is not None


def test_scaling_rolling_out_and_draining_are_reported_as_changes_that_end():
    run = simulate(
        MeshPlan(
            services=10,
            hours=0.5,
            autoscale=False,
            operations=(
                Operation("scale", 300.0, replicas=9),
                Operation("rollout", 300.0),
                Operation("drain", 600.0),
                Operation("shift", 900.0),
            ),
        ),
        seed=1,
    )
    pairs = played(run)
    ended = {change for _, context in pairs for change in context.changes if change.end_s is not None}
    begun = {(c.kind, c.service, c.start_s) for _, context in pairs for c in context.changes}
    assert {change.kind for change in ended} == {"scale", "rollout", "drain"}
    assert begun == {(change.kind, change.service, change.start_s) for change in ended}
    assert all(0.0 < (change.end_s or 0.0) - change.start_s < 400.0 for change in ended)
    assert all(context.troubles == () for _, context in pairs)


def test_a_service_that_is_added_takes_traffic_and_gives_it_back():
    run = simulate(
        MeshPlan(
            services=12, hours=0.7, noise=0.0, daily=0.0, bursts_per_hour=0.0, missing=0.0, autoscale=False,
            operations=(Operation("add", 600.0), Operation("remove", 1800.0)),
        ),
        seed=4,
    )  # fmt: skip
    pairs = played(run)
    spare = run.operations[0].service
    assert run.operations[1].service == spare
    original = spare.removesuffix("-next")
    new, old = (series(run, pairs, name, "request_rate") for name in (spare, original))
    assert np.isnan(new[:40]).all()
    assert np.isnan(new[125:]).all()
    assert new[110] / (new[110] + old[110]) == pytest.approx(0.3, abs=0.01)
    assert old[-1] == pytest.approx(old[10], rel=0.02)
    kinds = [(change.kind, change.service) for change in pairs[-1][1].changes]
    assert ("added", spare) in {(c.kind, c.service) for c in pairs[80][1].changes}
    assert ("removed", spare) in kinds


def test_autoscaling_follows_the_load():
    quiet = MeshPlan(services=10, hours=0.3, daily=0.0, noise=0.2)
    base = played(simulate(quiet, seed=2))
    runs = played(simulate(MeshPlan(services=10, hours=1.0, daily=0.8, noise=0.2), seed=2))
    assert sum(change.kind == "scale" for change in base[-1][1].changes) <= 4
    assert any(change.kind == "scale" for _, context in runs for change in context.changes)


def test_without_noise_there_are_only_the_physics():
    plan = MeshPlan(services=8, hours=0.2, noise=0.0, daily=0.0, bursts_per_hour=0.0, missing=0.0)
    pairs = played(simulate(plan, seed=0))
    rates = np.array([snapshot.node_features[:, 0] for snapshot, _ in pairs])
    assert rates[20:].std(axis=0).max() < 1e-3 * rates.max()


def test_idle_services_have_no_latency_and_no_share_of_errors():
    run = calm(0.5, 40, seed=1)
    found = 0
    for snapshot, _ in run:
        idle = snapshot.node_features[:, 0] == 0.0
        found += int(idle.sum())
        assert np.isnan(snapshot.node_features[idle][:, 1:4]).all()
    assert found > 20


def test_scrapes_that_fail_are_gaps_and_not_zeros():
    plan = MeshPlan(services=10, hours=0.5, missing=0.2)
    pairs = played(simulate(plan, seed=0))
    gaps = [gap for snapshot, _ in pairs for gap in snapshot.gaps]
    assert {"node.cpu_cores", "node.request_rate"} <= {gap.what for gap in gaps}
    lost = np.mean([np.isnan(snapshot.node_features[:, 4]).mean() for snapshot, _ in pairs])
    assert 0.1 < lost < 0.4


@pytest.mark.release
def test_a_thousand_services_are_simulated():
    run = simulate(MeshPlan(services=1000, rate=5000.0, hours=0.02, warm_up_s=60.0), seed=1)
    snapshot, _ = played(run)[-1]
    snapshot.check()
    assert len(snapshot.nodes) == 1000
    assert len(snapshot.edge_src) > 1000


@pytest.mark.parametrize("services", [3, 4, 5, 7, 16])
def test_small_meshes_are_whole_too(services):
    snapshot, _ = played(simulate(MeshPlan(services=services, hours=0.05), seed=services))[-1]
    assert len(snapshot.nodes) == services
    reached = set(snapshot.edge_dst.tolist())
    assert len(reached) >= services - 4


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Fault("nonsense", 0.0), "not one of"),  # type: ignore[arg-type]
        (lambda: Fault("cpu_hog", 0.0, severity=2.0), "severity"),
        (lambda: Fault("cpu_hog", 0.0, caller="a"), "no caller"),
        (lambda: Fault("cpu_hog", 0.0, 0.0), "above 0"),
        (lambda: Operation("explode", 0.0), "not one of"),  # type: ignore[arg-type]
        (lambda: Operation("scale", 0.0, replicas=-1), "replicas"),
        (lambda: MeshPlan(services=2), "services"),
        (lambda: MeshPlan(rate=math.nan), "rate"),
        (lambda: simulate(MeshPlan(faults=(Fault("cpu_hog", 0.0, service="who"),)), 0), "no service 'who'"),
        (lambda: simulate(MeshPlan(operations=(Operation("remove", 0.0),)), 0), "no service was added"),
        (lambda: simulate(MeshPlan(spares=0, operations=(Operation("add", 0.0),)), 0), "spare"),
        (lambda: high_churn(kinds=()), "kinds"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_a_reason(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_fault_of_a_path_that_does_not_exist_is_refused():
    run = simulate(MeshPlan(services=10), 0)
    store = run.services[9]
    fault = Fault("partition", 0.0, service=run.services[0], caller=store)
    with pytest.raises(ConfigError, match="does not call"):
        simulate(MeshPlan(services=10, faults=(fault,)), 0)


def test_kinds_of_faults_are_all_known():
    assert set(EDGE_FAULTS) < set(FAULTS)
    assert set(FAULTS) - set(MEASURED) == {"stuck_rollout"}


@pytest.mark.release
def test_a_mesh_that_does_not_scale_has_enough_pods_for_its_busiest_hours():
    noon_s = MeshPlan().start_s + 12 * 3600.0
    plan = unkind_plan(MeshPlan(services=12, autoscale=False, hours=4.0, start_s=noon_s), 3)
    world = World(plan, 3)
    taken = []
    while world.now_s < noon_s + plan.hours * 3600.0:
        world.step(5.0)
        if world.now_s >= noon_s:
            taken.append(world.flow.server.mean_ms)
    latencies = np.array(taken)
    overloaded = latencies > 5.0 * np.maximum(np.median(latencies, axis=0), 1.0)
    assert overloaded.any(axis=1).mean() < 0.01
