"""`hopline mesh train`: what a watch takes up of it, against real recordings and a real Prometheus."""

import contextlib
import dataclasses
import functools
import json
import time

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hopline.errors import BadRequest
from hopline_mesh import commands
from hopline_mesh.changes import Context
from hopline_mesh.collect import CollectOptions, Collector, Prometheus, queries_for
from hopline_mesh.collect.past import Past
from hopline_mesh.collect.prometheus import Reply
from hopline_mesh.commands.train import show
from hopline_mesh.detect import MeshDetector
from hopline_mesh.errors import MeshError, QueryFailed, SnapshotInvalid, SourceUnavailable
from hopline_mesh.evaluate.folder import read_folder
from hopline_mesh.out.board import Board
from hopline_mesh.roster import Roster
from hopline_mesh.settings import load_settings
from hopline_mesh.simulate import MeshPlan, simulate
from hopline_mesh.simulate.truth import write
from hopline_mesh.state import Seen, StateFolder
from hopline_mesh.state.folder import only_writer
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch import learn as learning
from hopline_mesh.watch import parts
from hopline_mesh.watch.judge import Judge
from hopline_mesh.watch.learn import learn, target_folder
from hopline_mesh.watch.resume import resume
from packages.mesh.tests.collect.history import History, istio_call
from packages.mesh.tests.prometheus_server import prometheus

WINDOW = ("--set", "window_size=40")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """No regression on neighbours: its training has tests of its own."""
    monkeypatch.setattr(learning, "MeshDetector", functools.partial(MeshDetector, neighbours=False))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "shop"
    write(simulate(MeshPlan(services=5, hours=200 * 15 / 3600), 3), folder, "shop")
    return folder


@pytest.fixture(scope="module")
def now_s():
    return int(time.time()) // 5 * 5


@pytest.fixture(scope="module")
def url(tmp_path_factory, now_s):
    history = History(now_s)
    history.gauge("up", 1)
    rng = np.random.default_rng(0)
    for caller, callee, rate in (("web", "cart", 9.0), ("web", "pay", 4.0), ("pay", "bank", 2.0)):
        istio_call(history, caller, callee, rate + float(rng.random()))
        istio_call(history, caller, callee, 0.1, code="503")
    where = {"namespace": "shop", "pod": "odd", "container": "app"}
    history.counter("container_cpu_usage_seconds_total", 0.5, **where)
    rule = {"namespace": "shop", "pod": "odd", "workload": "cart"}
    history.gauge("namespace_workload_pod:kube_pod_owner:relabel", 1, **rule)
    # what ends early is not in the mesh later
    late = {
        "reporter": "destination",
        "response_code": "200",
        "grpc_response_status": "",
        "destination_workload": "gone",
        "destination_workload_namespace": "shop",
    }
    history.series("istio_requests_total", lambda t: 3.0 * t, until_s=now_s - 300, **late)
    with prometheus(history.write(tmp_path_factory.mktemp("prometheus"))) as address:
        yield address


def train(*arguments):
    """What the command says as JSON; raises what it refuses with."""
    result = CliRunner().invoke(
        commands.app, ["train", *map(str, arguments), "--json"], catch_exceptions=False
    )
    assert result.exit_code == 0
    return json.loads(result.stdout)


def taken_up(state, **flags):
    """The judge of a watch that begins on this folder, and what it says of it."""
    settings = load_settings(flags={"state_dir": state, "window_size": 40, **flags})
    schema = parts.queries_of(settings).schema()
    shape = parts.shape_of(settings, schema)
    folder, board = StateFolder(state, 2**24, 1e9), Board()
    fresh = MeshDetector(settings.detector)
    found = resume(folder, lambda: fresh, MeshDetector.restore, schema=schema, shape=shape, board=board)
    assert board.ready
    return Judge(found.detector, Keeper(folder), shape=shape), found


def in_roster(snapshot, roster):
    """The same snapshot in the slots of another roster."""
    slots = np.array([roster.slot(name) for name in snapshot.roster.names], np.int32)
    return dataclasses.replace(
        snapshot,
        roster=roster,
        nodes=slots[snapshot.nodes],
        edge_src=slots[snapshot.edge_src],
        edge_dst=slots[snapshot.edge_dst],
    )


class WithoutFirstPaths:
    """A simulation that begins without call paths, as a watch's own history: rates need scrapes."""

    def __init__(self, run):
        self._run = run

    def __getattr__(self, name):
        return getattr(self._run, name)

    def __iter__(self):
        ends = np.zeros(0, np.int32)
        for number, (snapshot, context) in enumerate(self._run):
            if number < 3:
                none = snapshot.edge_features[:0]
                snapshot = dataclasses.replace(snapshot, edge_src=ends, edge_dst=ends, edge_features=none)
            yield snapshot, context


def test_what_begins_without_call_paths_is_learned_from(tmp_path):
    run = simulate(MeshPlan(services=5, hours=200 * 15 / 3600), 3)
    write(WithoutFirstPaths(run), tmp_path / "shop", "shop")
    said = train(tmp_path / "shop", "--state-dir", tmp_path / "state", *WINDOW)
    assert said["intervals"] == len(read_folder(tmp_path / "shop").training()[0])


def test_a_watch_judges_from_its_first_snapshot_on_what_a_folder_taught(recorded, tmp_path, caplog):
    said = train(recorded, "--state-dir", tmp_path / "state", *WINDOW)
    recording = read_folder(recorded)
    learned, _ = recording.training()
    assert said["intervals"] == len(learned)
    assert said["services"] == len(recording.snapshots[0].nodes)
    assert said["call_paths"] == len(recording.snapshots[0].edge_src)
    rates = next(each for each in said["columns"] if each["name"] == "node.request_rate")
    assert rates["series"] == said["services"]
    assert rates["threshold"] >= 4.5
    calls = next(each for each in said["columns"] if each["name"] == "edge.calls_per_request")
    assert calls["series"] + calls["left_out"] == said["call_paths"]
    judge, found = taken_up(tmp_path / "state")
    assert found.trained
    assert found.summary == "restored"
    assert found.last_s == learned[-1].time_s
    oracle = MeshDetector(judge.detector.settings, neighbours=False)
    mine = [in_roster(each, found.roster) for each in learned]
    oracle.fit(mine, [Context()] * len(mine))
    for snapshot, context in list(zip(*recording.testing(), strict=True))[:5]:
        verdict = judge.judge(in_roster(snapshot, found.roster), context)[0]
        assert verdict.state == "normal"
        expected = oracle.step(in_roster(snapshot, found.roster), context)
        assert verdict.score == pytest.approx(expected.score, abs=1e-5)
    assert not caplog.records


def test_people_get_a_table_with_a_line_for_each_column(recorded, tmp_path):
    arguments = ["train", str(recorded), "--state-dir", str(tmp_path / "state"), *WINDOW]
    result = CliRunner().invoke(commands.app, arguments, catch_exceptions=False)
    first, second, *rest = result.stdout.splitlines()
    assert first.startswith(f"{recorded}: ")
    recording = read_folder(recorded)
    paths = len(recording.snapshots[0].edge_src)
    assert second == f"{len(recording.training()[0])} intervals of 15 s, 5 services, {paths} call paths"
    schema = parts.queries_of(load_settings()).schema()
    named = [line.split()[0] for line in rest if line.strip().startswith(("node.", "edge."))]
    assert named == [
        *(f"node.{name}" for name in schema.node_features),
        *(f"edge.{name}" for name in (*schema.edge_features, "calls_per_request")),
    ]
    assert rest[-1].startswith(f"saved in {tmp_path / 'state'}: ")


def test_later_trainings_go_on_from_what_was_learned_of(recorded, tmp_path):
    said = train(recorded, "--state-dir", tmp_path / "state", *WINDOW)
    state = StateFolder.to_read(tmp_path / "state")
    checkpoint = next(state.checkpoints())
    kept = list(state.history(Roster(checkpoint.names)))
    assert len(kept) == said["intervals"]
    assert kept[-1].snapshot.time_s == said["until_s"] == checkpoint.time_s


def test_what_is_excepted_is_not_learned_from(recorded, tmp_path):
    learned, _ = read_folder(recorded).training()
    start_s, end_s = learned[10].time_s, learned[15].time_s
    said = train(recorded, "--state-dir", tmp_path / "state", *WINDOW, "--except", f"{start_s}..{end_s}")
    assert (said["excepted"], said["intervals"]) == (5, len(learned) - 5)
    state = StateFolder.to_read(tmp_path / "state")
    times = [seen.snapshot.time_s for seen in state.history(Roster())]
    assert not [moment for moment in times if start_s <= moment < end_s]


def test_an_incident_among_what_is_learned_from_is_left_out_and_said(tmp_path):
    plan = MeshPlan(services=5, hours=400 * 15 / 3600, autoscale=False, bursts_per_hour=0.0)

    def with_an_incident():
        for number, (snapshot, context) in enumerate(simulate(plan, 3)):
            nodes, edges = snapshot.node_features.copy(), snapshot.edge_features.copy()
            if 60 <= number < 75:
                nodes[2, snapshot.schema.node_features.index("error_share")] = 0.6
                called = snapshot.edge_dst == snapshot.nodes[2]
                edges[called, snapshot.schema.edge_features.index("error_share")] = 0.6
            yield dataclasses.replace(snapshot, node_features=nodes, edge_features=edges), context

    seen = [Seen(*each) for each in with_an_incident()]
    settings = load_settings(flags={"state_dir": tmp_path / "state", "window_size": 40})
    with target_folder(settings, replace=False) as target:
        learned = learn(seen, settings, target, source="here")
    service = seen[0].snapshot.roster.name(int(seen[0].snapshot.nodes[2]))
    (out,) = learned.abnormal
    assert f"{service} error_share" in out.series
    assert all(series.endswith(f"{service} error_share") for series in out.series)
    times = [each.snapshot.time_s for each in seen]
    assert times[56] <= out.since_s <= times[60]
    assert times[74] <= out.until_s <= times[84]
    assert learned.intervals == sum(not out.since_s <= time_s <= out.until_s for time_s in times)
    console = Console(record=True, width=200)
    show(learned, console)
    assert f"left out as abnormal: {out.text()}" in console.export_text()


async def test_the_past_is_what_a_collector_would_have_collected(url, now_s):
    queries, options = queries_for("istio"), CollectOptions()
    async with Prometheus(url) as client:
        past = Past(client, queries, 5.0, Roster(), options)
        found = [each async for some in past.snapshots(now_s - 450, now_s) for each in some]
        collector = Collector(client, queries)
        assert [each.time_s for each in found] == [now_s - 450 + 5.0 * i for i in range(91)]
        for snapshot in found[::15]:
            snapshot.check()
            live = await Collector(client, queries, roster=collector.roster).collect(snapshot.time_s)
            assert rows(snapshot) == rows(live)
    names = {found[0].roster.name(slot) for slot in found[0].nodes}
    assert "shop/gone" in names
    assert "shop/gone" not in {found[-1].roster.name(slot) for slot in found[-1].nodes}


def rows(snapshot):
    """All measurements by name, with nan as None."""
    name = snapshot.roster.name
    keys = [
        *((name(slot),) for slot in snapshot.nodes),
        *((name(a), name(b)) for a, b in zip(snapshot.edge_src, snapshot.edge_dst, strict=True)),
    ]
    values = [*snapshot.node_features.tolist(), *snapshot.edge_features.tolist()]
    return {
        key: [None if np.isnan(value) else pytest.approx(value, rel=1e-6) for value in row]
        for key, row in zip(keys, values, strict=True)
    }


def test_what_prometheus_kept_is_learned_and_taken_up(url, tmp_path):
    asked = ("--from-prometheus", "7m", "--prometheus", url, "--interval", 5)
    said = train(*asked, "--state-dir", tmp_path / "state", *WINDOW)
    assert 82 <= said["intervals"] <= 85
    assert (said["services"], said["call_paths"]) == (5, 3)
    assert said["not_measured"] == 0
    assert said["source"] == f"Prometheus at {url}"
    rates = next(each for each in said["columns"] if each["name"] == "edge.request_rate")
    assert rates["series"] == 3
    _, found = taken_up(tmp_path / "state", interval_s=5, prometheus_url=url)
    assert found.trained
    assert set(found.roster.names) == {f"shop/{each}" for each in ("web", "cart", "pay", "bank", "gone")}


def test_a_prometheus_that_keeps_less_says_from_when_it_has_data(url, now_s, tmp_path):
    with pytest.raises(
        MeshError, match=r"has data of this mesh from .* UTC on, (9|10) minutes, but 2\.0 hours"
    ):
        train("--from-prometheus", "2h", "--prometheus", url, "--state-dir", tmp_path, *WINDOW)


def test_a_prometheus_without_the_mesh_or_away_is_refused(url, tmp_path):
    asked = ("--from-prometheus", "7m", "--state-dir", tmp_path, *WINDOW)
    with pytest.raises(MeshError, match="no service was found in 7 minutes"):
        train(*asked, "--prometheus", url, "--mesh", "linkerd")
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:1 is unavailable"):
        train(*asked, "--prometheus", "http://127.0.0.1:1")
    assert not list(tmp_path.iterdir())


def test_too_little_to_learn_from_is_refused(url, recorded, tmp_path):
    state = ("--state-dir", tmp_path)
    with pytest.raises(MeshError, match=r"25 of .* intervals are usable.* at least 40 are needed"):
        train("--from-prometheus", "2m", "--prometheus", url, "--interval", 4.8, *state, *WINDOW)
    with pytest.raises(MeshError, match=r"by --except\); at least 40 are needed, 10 minutes"):
        train(recorded, *state, *WINDOW, "--except", "2000-01-01..2100-01-01")


def test_a_state_folder_in_use_or_with_state_is_left_alone(recorded, tmp_path):
    state = tmp_path / "state"
    with only_writer(state), pytest.raises(MeshError, match="is in use by a running watch"):
        train(recorded, "--state-dir", state, *WINDOW)
    train(recorded, "--state-dir", state, *WINDOW)
    before = sorted(path.read_bytes() for path in state.iterdir())
    with pytest.raises(MeshError, match="--replace deletes it"):
        train(recorded, "--state-dir", state, *WINDOW)
    assert sorted(path.read_bytes() for path in state.iterdir()) == before
    train(recorded, "--state-dir", state, *WINDOW, "--replace")
    assert len(list(StateFolder.to_read(state).checkpoints())) == 1


def test_a_second_watch_keeps_its_hands_off_the_folder_of_the_first(tmp_path):
    settings = load_settings(flags={"state_dir": tmp_path / "state"})
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        folder, why_not = parts.folder_of(settings, first)
        assert (folder.folder, why_not) == (tmp_path / "state", "")
        other, why_not = parts.folder_of(settings, second)
        assert other.folder != folder.folder
        assert "another process writes to it" in why_not
    with contextlib.ExitStack() as third:
        assert parts.folder_of(settings, third)[1] == ""


def test_a_recording_of_other_columns_or_intervals_is_refused(recorded, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for path in recorded.iterdir():
        (other / path.name).write_text(path.read_text().replace("p99_ms", "p95_ms"))
    with pytest.raises(SnapshotInvalid, match="its nodes lack p99_ms and have p95_ms"):
        train(other, "--state-dir", tmp_path / "state")
    with pytest.raises(SnapshotInvalid, match="a snapshot every 15 s, and the watch takes one every 5 s"):
        train(recorded, "--state-dir", tmp_path / "state", "--interval", 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either a folder or --from-prometheus"),
        ((".", "--from-prometheus", "1h"), "either a folder or --from-prometheus"),
        (("--from-prometheus", "soon"), "must be a time such as 90m"),
        (("--from-prometheus", "0h"), "must be a time such as 90m"),
        (("--from-prometheus", "1h", "--except", "2026-01-02..2026-01-01"), "must be A..B"),
    ],
)
def test_bad_arguments_are_said(arguments, said, tmp_path):
    with pytest.raises(BadRequest, match=said):
        train(*arguments, "--state-dir", tmp_path)


class Answering:
    """A Prometheus with one service, that refuses or is away as told."""

    url = "http://prometheus"

    def __init__(self, most=10_000, away=0, broken=""):
        self.most, self.away, self.broken = most, away, broken
        self.asked = []

    async def query_range(self, promql, start_s, end_s, step_s, timeout_s):
        times = [start_s + step_s * i for i in range(round((end_s - start_s) / step_s) + 1)]
        self.asked.append(len(times))
        if self.away:
            self.away -= 1
            raise SourceUnavailable("connection refused")
        if len(times) > self.most:
            raise QueryFailed("query processing would load too many samples")
        if self.broken and self.broken in promql:
            raise QueryFailed("parse error")
        metric = {"destination_workload": "cart", "destination_workload_namespace": "shop"}
        result = [{"metric": metric, "values": [[moment, "2.5"] for moment in times]}]
        body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return Reply(json.dumps(body).encode(), None)

    async def query(self, promql, time_s, timeout_s):
        raise QueryFailed("no owners here")

    async def renew(self):
        pass


async def collected(client):
    past = Past(client, queries_for("istio"), 15.0, Roster(), CollectOptions(), pause_s=0.001)
    return past, [each async for some in past.snapshots(0.0, 1485.0) for each in some]


async def test_less_is_requested_at_once_where_it_was_too_much():
    past, found = await collected(Answering(most=7))
    assert [each.time_s for each in found] == [15.0 * i for i in range(100)]
    assert not past.refused


async def test_a_query_that_is_always_refused_costs_its_column():
    past, found = await collected(Answering(broken="container_cpu"))
    assert len(found) == 100
    assert list(past.refused.values()) == ["parse error"]
    column = found[0].schema.node_features.index("cpu_cores")
    assert all(np.isnan(each.node_features[:, column]).all() for each in found)
    with pytest.raises(QueryFailed, match="parse error"):
        await collected(Answering(broken="("))


async def test_a_prometheus_that_is_away_for_a_moment_is_queried_again():
    _, found = await collected(Answering(away=20))
    assert len(found) == 100
    with pytest.raises(SourceUnavailable, match="connection refused"):
        await collected(Answering(away=10**6))
