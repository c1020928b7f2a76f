"""Forgotten nodes: no byte of them is left, others are as in a graph without them, and kills resume."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from hopline.config.reader import load_config
from hopline.errors import ConfigError, GraphError
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline.features.stamped import stamped_group
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.home import LiveHome
from hopline.live.snapshots import open_graph
from hopline.records.entry import Entry, EntryWriter
from hopline.records.inputs import LoggedInputs
from hopline_drift.forget import erase
from hopline_drift.forget.command import forget as command
from hopline_drift.forget.command import places_of
from hopline_drift.forget.run import STEPS, Places, forget, journal_of
from hopline_drift.log_reader import LogReader
from hopline_drift.parquet import write_parquet
from tests.graph.live.keepers import Kept
from tests.redis_servers import RedisProcess, own_redis

__all__ = ["own_redis"]

#: Distinctive, since files are searched for their bytes.
NAMES = [f"person-{at:06d}" for at in range(60)]
GONE = [NAMES[7], NAMES[12], "person-late"]
LOG = "predictions-20261130T101500.000000Z-w0-1"


def changed(rng: np.random.Generator) -> Graph:
    ends = rng.integers(0, 60, (2, 300))
    return Graph.from_edges([[NAMES[at] for at in end] for end in ends], rows(rng, 60), ids=NAMES)


def rows(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(size=(count, 6)).astype(np.float32)


def node(name: str, row: np.ndarray, add: bool) -> Any:
    from hopline.graph.live.changes import Changes, NodeChanges

    return Changes({}, {"node": NodeChanges([name], np.array([add]), row, np.arange(1))}, 1)


def edge(src: str, dst: str) -> Any:
    from hopline.graph.live.changes import Changes, EdgeChanges

    return Changes({"node__to__node": EdgeChanges([src], [dst], np.array([False]), np.arange(1))}, {}, 1)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A graph, changes with a snapshot among them, and a prediction log in both forms."""
    rng = np.random.default_rng(0)
    graph = changed(rng).save(tmp_path / "graph")
    live = Kept(tmp_path / "graph.live", graph)
    for batch in (
        node("person-late", rows(rng, 1), True), edge("person-late", NAMES[3]), edge(NAMES[7], NAMES[4]),
        node(NAMES[12], rows(rng, 1), False),
    ):  # fmt: skip
        live.keeper.apply([batch])
    live.snapshot()
    for batch in (
        edge(NAMES[9], "person-late"),
        node(NAMES[12], rows(rng, 1), False),
        edge(NAMES[1], NAMES[2]),
    ):
        live.keeper.apply([batch])
    live.close()
    (tmp_path / "log").mkdir()
    asked = [[name] for name in (NAMES[0], GONE[0], "person-000o12", GONE[2], NAMES[5])]
    entries = [
        Entry(f"r{at}", 100.0 + at, "m", "1", inputs=LoggedInputs(nodes=each))
        for at, each in enumerate(asked)
    ]
    lines = bytearray()
    for each in entries:
        EntryWriter(lambda: None).append(each, lines)
    (tmp_path / "log" / f"{LOG}.jsonl").write_bytes(lines)
    write_parquet(tmp_path / "log" / f"{LOG}.jsonl", tmp_path / "log" / f"{LOG[:-1]}2.parquet")
    return Places(graph.path or tmp_path, tmp_path / "graph.live", [tmp_path / "log"])


def never(graph: Graph) -> Graph:
    """The graph without the rows of nodes that it does not have."""
    return graph.subgraph(np.delete(np.arange(len(graph.node().ids)), graph.node().ids.removed))


def expected(places: Places) -> Graph:
    """The newest version, built without the nodes."""
    present = open_graph(places.live)
    names = [name for name in present.node().ids.external(np.arange(present.num_nodes)) if name not in GONE]
    return present.subgraph(present.node().ids.lookup(names))


def test_nothing_is_left_and_the_rest_is_that_of_a_graph_that_never_had_them(places: Places) -> None:
    wanted = expected(places)
    report = forget(places, GONE)
    assert report.is_clean, report.left
    assert report.counts["nodes"] == 3
    assert len(report.found["graph folder"]) == 2
    assert len(report.found["live folder"]) > 2
    assert len(report.found["prediction log"]) == 2
    assert not journal_of(places).exists()
    for folder in (places.graph, places.live, *places.logs):
        for name in GONE:
            for file in folder.rglob("*"):
                assert not file.is_file() or name.encode() not in file.read_bytes()
    found = open_graph(places.live)
    assert never(found).version == wanted.version
    assert sorted(found.node().ids.lookup(GONE)) == [-1, -1, -1]
    assert Graph.open(places.graph, verify=True).num_nodes == 58
    entries = list(LogReader(places.logs[0]))
    assert [each.inputs.nodes for each in entries if each.inputs] == [
        [NAMES[0]],
        ["person-000o12"],
        [NAMES[5]],
    ] * 2
    with pytest.raises(GraphError, match=r"cannot be reached any more|not the original graph"):
        open_graph(places.graph.with_name("graph@+0"))


def test_a_writer_goes_on_from_there(places: Places) -> None:
    forget(places, GONE)
    base = Graph.open(places.graph)
    home = LiveHome.open(places.live, base)
    assert home.lineage == base.lineage != base.version
    home.close()


def past_rows(graph: Graph) -> dict[tuple[str, int], bytes]:
    """The rows of nodes that are there, by name and time."""
    nodes, found = graph.node(), {}
    assert nodes.history is not None
    for at in np.setdiff1d(np.arange(nodes.num_nodes), nodes.ids.removed).tolist():
        (name,) = nodes.ids.external(np.array([at]))
        for place in range(*nodes.history.offsets[at : at + 2].tolist()):
            row = np.asarray(nodes.history.features[place])
            found[str(name), int(nodes.history.times[place])] = row.tobytes()
    return found


def test_rows_of_the_past_are_erased_from_all_files(tmp_path: Path) -> None:
    """Rows of the graph folder, of events, also replaced and late ones, of snapshots and of the log."""
    rng = np.random.default_rng(4)
    names, times = np.repeat(NAMES, 3), np.tile([0, 20, 40], 60)
    ends = [[NAMES[at] for at in end] for end in rng.integers(0, 60, (2, 300))]
    edges = EdgeTable((ends[0], ends[1]), time=rng.integers(0, 50, 300))
    table = NodeTable(rows(rng, 180), ids=list(names), history=times)
    graph = Graph.from_tables({"node": table}, {("node", "to", "node"): edges}).save(tmp_path / "graph")
    live, secrets = Kept(tmp_path / "graph.live", graph), list[bytes]()
    for number in range(12):
        for name in (*GONE[:2], NAMES[1]):
            batch = node(name, row := rows(rng, 1), False)
            time = np.array([10 + 5 * (number % 5)])
            change = dataclasses.replace(batch.nodes["node"], time=time)
            assert not live.keeper.apply([dataclasses.replace(batch, nodes={"node": change})])[0].rejected
            secrets += [row.tobytes()] * (name != NAMES[1])
        if number in (3, 7):
            live.snapshot()
    wanted = past_rows(live.view.snapshot())
    live.close()
    old = [row for (name, _), row in past_rows(graph).items() if name in GONE]
    secrets += old
    places = Places(tmp_path / "graph", tmp_path / "graph.live")
    report = forget(places, GONE[:2])
    assert report.is_clean, report.left
    files = [file for folder in (places.graph, places.live) for file in folder.rglob("*") if file.is_file()]
    assert not [file for file in files if any(secret in file.read_bytes() for secret in secrets)]
    left = {key: row for key, row in wanted.items() if key[0] not in GONE}
    assert past_rows(open_graph(places.live)) == left
    based = Graph.open(places.graph, verify=True)
    assert past_rows(based) == {key: row for key, row in past_rows(graph).items() if key[0] not in GONE}
    again = Kept(places.live, based)
    assert past_rows(again.view.snapshot()) == left
    again.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("step", ["journal", *STEPS, "search", "end"])
def test_a_kill_before_any_step_is_resumed(places: Places, step: str) -> None:
    wanted = expected(places)
    pid = os.fork()
    if pid == 0:
        forget(
            places, GONE, on_step=lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == step else 0
        )
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    if step == "end":
        assert not journal_of(places).exists()
        return
    report = forget(places, GONE if step == "journal" else [])
    assert report.is_clean, report.left
    assert never(open_graph(places.live)).version == wanted.version
    assert not journal_of(places).exists()


@pytest.mark.sample(4)
@pytest.mark.parametrize("at", range(14))
def test_a_kill_at_any_file_is_resumed(places: Places, at: int) -> None:
    """At each rename, exchange, removal and overwriting of a file."""
    wanted = expected(places)
    pid = os.fork()
    if pid == 0:
        left = [at]

        def killed(call: Any) -> Any:
            def before(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return before

        for name in ("rename", "replace", "unlink", "pwrite", "fdatasync"):
            setattr(os, name, killed(getattr(os, name)))
        forget(places, GONE)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] in (0, signal.SIGKILL)
    report = forget(places, [] if journal_of(places).exists() else GONE)
    assert report.is_clean, report.left
    assert never(open_graph(places.live)).version == wanted.version


def test_rows_of_precomputed_answers_are_zero(tmp_path: Path) -> None:
    from hopline.engine.precomputed_file import PrecomputedFile
    from hopline.engine.precomputed_file.header import PrecomputedPlan
    from hopline.engine.precomputed_file.identity import id_hashes
    from hopline.engine.precomputed_file.writer import PrecomputedWriter

    path, state = tmp_path / "rows", rows(np.random.default_rng(1), 3)
    writer = PrecomputedWriter(path, PrecomputedPlan("m", "1", "h", "g", "node", 3, 6, 0, False))
    writer.write(0, state, ids=id_hashes(["a", "b", "c"]))
    writer.commit()
    assert erase.erase_rows(path, "node", ["b", "z"]) == 1
    found = PrecomputedFile.open(path)
    found.verify()
    np.testing.assert_array_equal(found.state, state * [[1], [0], [1]])
    assert erase.erase_rows(path, "node", ["b"]) == 0


def test_the_command_reports_what_is_out_of_reach(places: Places) -> None:
    app = typer.Typer()
    app.command()(command)
    words = [*GONE, "--graph", str(places.graph), "--log", str(places.logs[0]), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert not any(report["left"].values())
    assert any("backups" in each for each in report["not_reached"])


@pytest.mark.parametrize(
    ("groups", "wrong"), [(["node:people"], "not of the form"), (["nodes=people"], "'nodes' is unknown")]
)
def test_groups_that_a_server_refuses_are_refused(places: Places, groups: list[str], wrong: str) -> None:
    """They would have named a group whose rows stay."""
    config = load_config(overrides={"graph.path": places.graph, "features.groups": groups})
    with pytest.raises(ConfigError, match=rf"features\.groups: .*{wrong}"):
        places_of(config, [], [])


async def fill(url: str) -> None:
    """Rows of all nodes: numbers and their copies of L2, columns under another name, and another group."""
    store = open_store(url)
    await store.open()
    people = FeatureGroup("people", 6)
    for group in (people, stamped_group(people), FeatureGroup("peoples", 6)):
        await store.create(group)
        await store.write(group, NAMES, np.ones((60, group.dim), np.float32))
    columns = FeatureGroup.of_columns("people@columns", {"city": "text"})
    await store.create(columns)
    await store.write_columns(columns, NAMES, {"city": ["Oslo"] * 60})
    await store.close()


def keys(redis: RedisProcess) -> list[str]:
    return [each.decode() for each in redis.call("KEYS", "*").split()]


def test_rows_in_stores_are_deleted_with_their_copies(
    places: Places, own_redis: RedisProcess, tmp_path: Path
) -> None:
    asyncio.run(fill(own_redis.url))
    np.save(tmp_path / "people.npy", np.ones((3, 6), np.float32))
    before = keys(own_redis)
    stores = {"features.store": own_redis.url, "features.cache": f"memory://{tmp_path}"}
    here = dataclasses.replace(places, stores=stores, groups={"node": "people"})
    report = forget(here, GONE)
    assert report.is_clean, report.left
    gone = {
        f"hopline:{group}:{name}"
        for group in ("people", "people@time", "people@columns")
        for name in GONE[:2]
    }
    assert {*before} - {*keys(own_redis)} == gone
    assert report.found["feature stores"] == [
        f"features.store: {name}" for name in ("people", "people@columns", "people@time")
    ]
    assert report.left["feature stores"] == []
    assert any(
        "none was named by --log" in each
        for each in forget(dataclasses.replace(here, logs=()), GONE).not_reached
    )
    assert not any("none was named by --log" in each for each in report.not_reached)
    assert any("features.cache: memory stores are read-only" in each for each in report.not_reached)


def test_a_store_that_is_down_stops_the_command_before_anything_is_removed(
    places: Places, own_redis: RedisProcess
) -> None:
    here = dataclasses.replace(places, stores={"features.store": own_redis.url})
    own_redis.kill()
    with pytest.raises(ConfigError, match=r"features\.store: no connection"):
        forget(here, GONE)
    assert not journal_of(places).exists()
    assert open_graph(places.live).nodes["node"].ids.lookup([GONE[2]])[0] >= 0
