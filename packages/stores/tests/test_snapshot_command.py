"""`hopline snapshot`, as it is typed."""

import json

import pytest

from hopline.graph import Graph
from tests.commands.typed import typed
from tests.precomputed_files import write_table
from tests.snapshots.conftest import graph_of


@pytest.fixture
def address(tmp_path):
    return f"file://{tmp_path}/daily"


def published(*words):
    result = typed("snapshot", "publish", *words)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[0]


def test_publish_list_use_fetch_prune(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graphs = [graph_of(tmp_path / f"graph{seed}", seed) for seed in (1, 2)]
    first, second = (
        published(graph.path, address, "--name", f"day {day}") for day, graph in enumerate(graphs)
    )
    assert first.startswith(f"{address}#")
    pointer = tmp_path / "daily" / "latest.json"
    assert json.loads(pointer.read_text())["snapshot"] == second.partition("#")[2]
    listed = typed("snapshot", "list", address).output
    for text in (first.partition("#")[2], second.partition("#")[2], "day 0", "day 1", "newest"):
        assert text in listed
    cache = f"snapshots.cache={tmp_path}/cache"
    for named, graph in ((address, graphs[1]), (first, graphs[0])):
        result = typed("snapshot", "fetch", named, "--set", cache)
        assert Graph.open(result.stdout.strip(), verify=True).version == graph.version
    assert typed("snapshot", "use", address, first.partition("#")[2]).exit_code == 0
    assert json.loads(pointer.read_text())["snapshot"] == first.partition("#")[2]
    assert "removed 0 snapshots" in typed("snapshot", "prune", address).output
    published(graph_of(tmp_path / "graph3", 3).path, address, "--no-move")
    assert json.loads(pointer.read_text())["snapshot"] == first.partition("#")[2]
    assert "removed 1 snapshots" in typed("snapshot", "prune", address, "--keep", "1").output


def test_a_damaged_manifest_or_pointer_hides_no_other_snapshot(address, tmp_path):
    """`snapshot list` is how the id of an older snapshot is found when the newest one is bad."""
    good, bad = (
        published(graph_of(tmp_path / f"graph{seed}", seed).path, address, "--name", f"day {seed}")
        for seed in (1, 2)
    )
    good, bad = (shown.partition("#")[2] for shown in (good, bad))
    (tmp_path / "daily" / "manifests" / f"{bad}.json").write_text("{}")
    (tmp_path / "daily" / "latest.json").write_text("{")
    listed = typed("snapshot", "list", address)
    assert listed.exit_code == 1
    assert "day 1" in listed.stdout
    assert good in listed.stdout
    for text in (bad, "latest.json", "publish the snapshot again", "hopline snapshot use"):
        assert text in listed.stderr
    assert typed("snapshot", "use", address, good).exit_code == 0
    (tmp_path / "daily" / "manifests" / f"{bad}.json").unlink()
    listed = typed("snapshot", "list", address)
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert "newest" in listed.stdout


def test_precomputed_answers_of_another_graph_are_not_published(address, root, tmp_path):
    graph = Graph.open(root / "graph")
    file = write_table(tmp_path / "sage.answers", root / "models" / "sage" / "1", graph)
    published(graph.path, address, "--precomputed", file, "--model", "sage=1")
    other = graph_of(tmp_path / "other")
    result = typed("snapshot", "publish", other.path, address, "--precomputed", file)
    assert result.exit_code == 1
    assert f"was computed on graph {graph.version}" in result.stderr
    content = file.read_bytes()
    file.write_bytes(content[:4100] + bytes(byte ^ 1 for byte in content[4100:4200]) + content[4200:])
    result = typed("snapshot", "publish", graph.path, address, "--precomputed", file)
    assert "is damaged" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("list", "folder"), "folder is not an address: write a URL"),
        (("fetch", "folder"), "folder is not an address: write a URL"),
        (("list", "file:///x/daily#" + "0" * 32), "leave out # and the id"),
        (("use", "file:///x/daily", "monday"), "'monday' is not the id of a snapshot"),
        (("use", "file:///x/daily", "0" * 32), "has no snapshot 000"),
        (("fetch", "file:///x/daily"), "no snapshot was published there"),
        (("publish", "absent", "file:///x/daily"), "no graph.json"),
    ],
)
def test_what_cannot_be_done_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = typed("snapshot", *words)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(("flag", "item"), [("--model", "sage"), ("--group", "=x")])
def test_pairs_that_are_none_are_refused(flag, item, address, tmp_path):
    result = typed("snapshot", "publish", graph_of(tmp_path / "graph").path, address, flag, item)
    assert result.exit_code == 1
    assert f"{flag} {item}: write" in result.stderr
