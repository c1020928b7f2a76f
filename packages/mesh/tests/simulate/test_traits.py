"""What makes a mesh harder to watch: each property by itself, in metrics, objects and snapshots."""

from collections import Counter, defaultdict
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest

from hopline.errors import BadRequest, ConfigError
from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.resources import RESOURCES
from hopline_mesh.simulate import Fault, MeshPlan, Operation, Traits, simulate, unkind_plan
from hopline_mesh.simulate.flow import advance, start
from hopline_mesh.simulate.orders import read_traits
from hopline_mesh.simulate.topology import Topology, build
from hopline_mesh.simulate.traits import RETRY_BUDGET, add, draw
from packages.mesh.tests.kubernetes.things import names_of_workload
from packages.mesh.tests.simulate.test_flow import RATE, settled, usual
from packages.mesh.tests.simulate.test_live import Mesh

PLAN = MeshPlan(
    services=12, rate=200.0, daily=0.0, bursts_per_hour=0.0, missing=0.0, autoscale=False, warm_up_s=60.0
)  # fmt: skip


def live(**traits: float) -> Mesh:
    mesh = Mesh(replace(PLAN, traits=Traits(**traits)))
    mesh.after(30.0)
    return mesh


def topology(seed: int = 3, **traits: float) -> Topology:
    mesh = build(24, 2, RATE, np.random.default_rng(seed))
    return add(Traits(**traits), mesh, np.random.default_rng(seed))


def feed(mesh: Mesh) -> ChangeFeed:
    """The watch's own reader of what the mesh's Kubernetes has now."""
    found = ChangeFeed()
    for resource in RESOURCES:
        bodies = [
            msgspec.json.decode(msgspec.json.encode(body), type=resource.type)
            for body in mesh.objects(resource.plural)
        ]
        if resource.plural != "events":
            found.replaced(resource, None, bodies, mesh.clock.now_s)
    return found


def last(plan: MeshPlan, seed: int = 7):
    """The last snapshot and context of a short run."""
    return list(simulate(plan, seed))[-1]


def column(snapshot, name):
    """Values of a column by service."""
    place = snapshot.schema.node_features.index(name)
    names = [snapshot.roster.name(int(slot)) for slot in snapshot.nodes]
    return dict(zip(names, snapshot.node_features[:, place].tolist(), strict=True))


def test_without_traits_a_mesh_is_as_before():
    mesh = build(24, 2, RATE, np.random.default_rng(3))
    assert add(Traits(), mesh, np.random.default_rng(3)) is mesh


def test_a_drawn_mesh_has_every_property_and_a_daily_rhythm():
    drawn = [draw(seed) for seed in range(20)]
    for each in fields(Traits):
        values = [getattr(one, each.name) for one in drawn]
        assert all(value == 0 if each.name == "tcp" else value > 0 for value in values)
    plan = unkind_plan(PLAN, 1)
    assert plan.daily >= 0.4
    assert plan.traits == draw(1)
    assert unkind_plan(PLAN, 2).daily != plan.daily


def test_traits_of_the_command_line_replace_single_ones():
    assert read_traits(["versions=0.5", "tcp=0"], Traits()) == Traits(versions=0.5, tcp=False)
    assert read_traits(["cycles=0"], draw(1)) == replace(draw(1), cycles=0.0)
    with pytest.raises(BadRequest, match="must be NAME=SHARE, with a name of versions, canaries"):
        read_traits(["version=1"], Traits())
    with pytest.raises(ConfigError, match="cycles is 2"):
        read_traits(["cycles=2"], Traits())
    for bad in ("cycles=nan", "cycles=inf"):
        with pytest.raises(ConfigError, match=r"cycles is (nan|inf), not within 0 to 1"):
            read_traits([bad], Traits())
    for bad in ("tcp=5", "tcp=0.5", "tcp=-1", "tcp=nan", "tcp=inf"):
        with pytest.raises(BadRequest, match=f"--trait {bad}: must be tcp=0 or tcp=1"):
            read_traits([bad], Traits())
    for bad in ("cycles=0_1", "cycles=٠.١", "tcp=١", "cycles=", "tcp"):
        with pytest.raises(BadRequest, match="is not a number"):
            read_traits([bad], Traits())


def test_workloads_have_other_names_than_their_services():
    mesh = live(versions=1.0)
    labels = [labels for labels, _ in mesh.samples("istio_requests_total", reporter="source")]
    assert labels
    for each in labels:
        assert each["destination_workload"] == each["destination_service_name"] + "-v1"
    deployments = {each["metadata"]["name"] for each in mesh.objects("deployments")}
    services = {each["metadata"]["name"] for each in mesh.objects("services")}
    assert deployments == {f"{name}-v1" for name in services}
    space, _, name = mesh.live.state()["services"][0]["service"].partition("/")
    assert names_of_workload(feed(mesh), space, name) == (
        f"{space}/{name}",
        f"{space}/{name.removesuffix('-v1')}",
    )


def test_a_recording_names_changes_by_workload_and_by_service():
    plan = replace(PLAN, hours=0.2, traits=Traits(versions=1.0), operations=(Operation("rollout", 700.0),))
    _, context = last(plan)
    (workload,) = {each.service for each in context.changes if each.service.endswith("-v1")}
    assert {each.service for each in context.changes} == {workload, workload.removesuffix("-v1")}


def test_requests_of_a_service_go_to_all_workloads_by_their_ready_pods():
    mesh = live(canaries=0.5)
    state = mesh.live.state()["services"]
    behind = defaultdict(list)
    for each in state:
        if each["running"]:
            behind[each["behind"]].append(each)
    several = [some for some in behind.values() if len(some) > 1]
    assert several
    for one, other in several:
        assert one["service"] != other["service"]
        ratio = one["request_rate"] / other["request_rate"]
        assert ratio == pytest.approx(one["ready"] / other["ready"], rel=0.1)
    first, second = several[0]
    mesh.live.operate(Operation("scale", 0.0, second["service"], 3 * first["ready"]))
    mesh.after(90.0)
    found = {each["service"]: each for each in mesh.live.state()["services"]}
    assert found[second["service"]]["request_rate"] == pytest.approx(
        3 * found[first["service"]]["request_rate"], rel=0.1
    )


def test_the_endpoints_of_a_service_are_the_pods_of_all_its_workloads():
    mesh = live(canaries=0.5)
    pods = Counter(each["metadata"]["labels"]["app"] for each in mesh.objects("pods"))
    services = [each["metadata"]["name"] for each in mesh.objects("services")]
    assert len(services) == len(set(services))
    for each in mesh.objects("endpointslices"):
        assert len(each["endpoints"]) == pods[each["metadata"]["labels"]["kubernetes.io/service-name"]]
    two = next(each for each in mesh.live.state()["services"] if each["service"].endswith("-canary"))
    space, _, name = two["service"].partition("/")
    assert names_of_workload(feed(mesh), space, name) == (two["service"],)


def test_calls_in_cycles_settle_at_the_rates_of_a_matrix_equation():
    mesh = topology(cycles=0.5)
    assert mesh.num_back > 3
    now = usual(mesh)
    flow = start(mesh)
    for _ in range(60):
        flow = advance(mesh, now, flow)
    calls = np.zeros((len(mesh.names), len(mesh.names)))
    np.add.at(calls, (mesh.dst, mesh.src), now.calls)
    reach = np.linalg.matrix_power(calls > 0, 1).astype(float)
    for _ in range(8):
        reach = np.minimum(reach + reach @ (calls > 0), 1.0)
    assert np.diag(reach).any()  # somebody is reached from himself
    expected = np.linalg.solve(np.eye(len(mesh.names)) - calls, now.entering)
    np.testing.assert_allclose(flow.arrived, expected, rtol=1e-2)


def test_a_retry_budget_limits_the_retries_of_a_failing_callee():
    free, limited = topology(), topology(retry_budgets=1.0)
    edge = int(np.argmax(np.where(free.retries == 2, free.calls, 0.0)))
    tries = []
    for mesh in (free, limited):
        now = usual(mesh)
        own_errors = now.own_errors.copy()
        own_errors[mesh.dst[edge]] = 0.7
        flow = settled(mesh, replace(now, own_errors=own_errors))
        tries.append(flow.sent[edge] / (flow.served[mesh.src[edge]] * mesh.calls[edge]))
    assert tries[0] > 1.9
    assert tries[1] == pytest.approx(1.0 + RETRY_BUDGET)


def test_a_service_without_a_sidecar_is_seen_only_by_its_callers():
    mesh = live(without_sidecar=0.2, versions=1.0)
    bare = [each for each in mesh.live.state()["services"] if each["reported"] != each["service"]]
    assert bare
    for each in bare:
        space, _, name = each["reported"].partition("/")
        own = {"destination_service_name": name, "destination_service_namespace": space}
        assert mesh.samples("istio_requests_total", reporter="destination", **own) == []
        seen = mesh.samples("istio_requests_total", reporter="source", **own)
        assert {labels["destination_workload"] for labels, _ in seen} == {"unknown"}
        workload = each["service"].partition("/")[2]
        assert mesh.samples("istio_requests_total", source_workload=workload) == []
    measured = {each["caller"] for each in mesh.live.state()["paths"] if each["measured"]}
    assert not measured & {each["service"] for each in bare}


def test_missing_series_are_never_scraped():
    mesh = live(missing_series=0.5)
    owners = {
        labels["pod"]: labels["owner_name"].rpartition("-")[0]
        for labels, _ in mesh.samples("kube_pod_owner")
    }
    with_cpu = {owners[labels["pod"]] for labels, _ in mesh.samples("container_cpu_usage_seconds_total")}
    assert 0 < len(with_cpu) < len(set(owners.values()))
    name = "istio_request_duration_milliseconds_count"
    timed, counted = (
        {labels["destination_workload"] for labels, _ in mesh.samples(metric, reporter="destination")}
        for metric in (name, "istio_requests_total")
    )
    assert 0 < len(timed) < len(counted)


def test_without_tcp_there_are_no_connections_and_every_interval_says_so():
    mesh = live(tcp=False)
    assert mesh.samples("istio_tcp_connections_opened_total") == []
    snapshot, _ = last(replace(PLAN, hours=0.05, traits=Traits(tcp=False)))
    assert np.isnan(list(column(snapshot, "connections").values())).all()
    assert [gap.what for gap in snapshot.gaps] == ["node.connections"]


def test_labels_have_the_names_that_metrics_have():
    traits = Traits(versions=1.0, without_sidecar=0.2)
    run = simulate(replace(PLAN, hours=0.1, traits=traits), 7)
    snapshot, _ = list(run)[-1]
    names = {snapshot.roster.name(int(slot)) for slot in snapshot.nodes}
    assert names == {run.reported[each] for each in run.services[: PLAN.services]}
    bare = {service for service, reported in run.reported.items() if service != reported}
    assert all(np.isnan(column(snapshot, "cpu_cores")[run.reported[each]]) for each in bare)
    callers = {snapshot.roster.name(int(slot)) for slot in snapshot.edge_src}
    assert not callers & {run.reported[each] for each in bare}


def test_faults_without_a_target_choose_paths_that_somebody_measures():
    traits = Traits(without_sidecar=0.4)
    faults = tuple(Fault("edge_latency", 60.0 * at) for at in range(20))
    run = simulate(replace(PLAN, hours=1.0, traits=traits, faults=faults), 7)
    mesh = run.world.topology
    bare = {name for name, has in zip(mesh.names, mesh.sidecar, strict=True) if not has}
    assert bare
    assert not {fault.caller for fault in run.faults} & bare


def test_services_are_found_by_the_name_of_their_service_too():
    mesh = live(versions=1.0, canaries=0.2)
    state = mesh.live.state()["services"]
    several = Counter(each["behind"] for each in state)
    one = next(each for each in state if several[each["behind"]] == 1 and each["running"])
    two = next(each for each in state if several[each["behind"]] == 2)
    done = mesh.live.operate(Operation("rollout", 0.0, one["behind"]))
    assert done.service == one["service"]
    with pytest.raises(ConfigError, match="has no service"):
        mesh.live.operate(Operation("rollout", 0.0, two["behind"]))
