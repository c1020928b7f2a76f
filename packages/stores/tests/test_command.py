"""`hopline features load|check`."""

import asyncio
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline.graph import Graph
from hopline_stores.testing.feature_stores import check_rows
from tests.commands.typed import typed
from tests.graphs import hetero_graph, power_law_graph


def run(*words):
    return typed("features", *words)


def on(url, what):
    """What `what(store)` gives."""

    async def scenario():
        store = open_store(url)
        await store.open()
        answer = await what(store)
        await store.close()
        return answer

    return asyncio.run(scenario())


@pytest.fixture
def graph(tmp_path):
    return power_law_graph(300, 900, 4, ids="string").save(tmp_path / "graph")


@pytest.fixture
def url(redis_server):
    redis_server.call("FLUSHALL")
    return redis_server.url


def test_load_copies_a_graphs_features_and_check_finds_them_the_same(graph, url):
    loaded = run("load", "--store", url, "--graph", graph.path, "--batch", 70)
    assert loaded.exit_code == 0, loaded.output
    assert "node: 300 rows of 16 bytes" in loaded.stdout
    nodes = graph.nodes["node"]
    group = on(url, lambda store: store.describe("node"))
    assert group == FeatureGroup("node", 4)
    rows = on(url, lambda store: store.fetch(group, nodes.ids.external(np.arange(300))))
    check_rows(rows, nodes.features)
    checked = run("check", "--store", url, "--graph", graph.path)
    assert (checked.exit_code, checked.stdout) == (0, "node: same\n")


def test_check_counts_missing_different_and_invalid_rows(graph, url, redis_server):
    assert run("load", "--store", url, "--graph", graph.path).exit_code == 0
    nodes = graph.nodes["node"]
    ids = nodes.ids.external(np.arange(300))
    other = nodes.features[[7]].copy()
    other[0, 2] = 99
    on(url, lambda store: store.write(FeatureGroup("node", 4), [ids[7]], other))
    redis_server.call("DEL", f"hopline:node:{ids[5]}")
    redis_server.call("SET", f"hopline:node:{ids[6]}", b"short")
    checked = run("check", "--store", url, "--graph", graph.path)
    assert checked.exit_code == 1
    assert checked.stdout.splitlines()[:-1] == [
        "node: different",
        f"  2 of 300 rows are missing: {ids[5]!r}, {ids[6]!r}",
        f"  1 of them are invalid: group 'node': the row of {ids[6]!r} has 5 bytes instead of 16",
        f"  1 of 300 rows are different: {ids[7]!r}",
    ]
    assert f"number 2 of {ids[7]!r} is 99 in the store" in checked.stdout.splitlines()[-1]


def test_check_names_each_difference_of_the_schema(graph, url, redis_server):
    told = {"name": "node", "dim": 5, "dtype": "float16"}
    redis_server.call("SET", "hopline:node:schema", json.dumps(told))
    checked = run("check", "--store", url, "--graph", graph.path)
    assert checked.exit_code == 1
    assert "schema: dim is 5 in the store, but 4 is expected" in checked.stdout
    assert "schema: dtype is float16 in the store, but float32 is expected" in checked.stdout


def test_check_compares_rows_as_the_store_rounds_them(tmp_path, url, graph):
    values = graph.nodes["node"].features
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.astype(np.float16).reshape(-1)), 4)
    ids = graph.nodes["node"].ids.external(np.arange(300))
    pq.write_table(pa.table({"key": ids, "row": lists}), tmp_path / "rows.parquet")
    file = ("--parquet", tmp_path / "rows.parquet", "--id-column", "key")
    loaded = run("load", "--store", url, *file, "--group", "node", "--batch", 64)
    assert loaded.exit_code == 0, loaded.output
    checked = run("check", "--store", url, "--graph", graph.path)
    assert checked.exit_code == 1
    assert checked.stdout == (
        "node: different\n  schema: dtype is float16 in the store, but float32 is expected\n"
    )


def test_every_node_type_with_features_is_copied_or_the_one_that_is_named(tmp_path, url):
    graph = hetero_graph().save(tmp_path / "graph")
    types = [name for name, node in graph.schema.node_types.items() if node.feature_dim]
    assert len(types) > 1
    assert run("load", "--store", url, "--graph", graph.path, "--group", types[0]).exit_code == 0
    checked = run("check", "--store", url, "--graph", graph.path)
    assert checked.exit_code == 1
    assert f"{types[0]}: same" in checked.stdout
    assert f"no feature group {types[1]!r}; known groups: {types[0]!r}" in checked.stdout
    assert run("load", "--store", url, "--graph", graph.path).exit_code == 0
    assert run("check", "--store", url, "--graph", graph.path).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "{url}"], "pass one source"),
        (["--store", "{url}", "--graph", "{graph}", "--parquet", "x"], "pass one source"),
        (["--store", "{url}", "--graph", "{graph}", "--group", "nodes"], "those with features: node"),
        (["--store", "{url}", "--graph", "{graph}/nowhere"], "nowhere"),
        (["--store", "{url}", "--parquet", "{graph}/nowhere"], "cannot be read as Parquet"),
        (
            ["--store", "redsi://", "--graph", "{graph}"],
            "--store: 'redsi://' is not .*did you mean 'redis'",
        ),
        (["--store", "{url}/99", "--graph", "{graph}"], "--store: .*out of range"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(graph, url, arguments, said):
    failed = run("load", *(text.format(url=url, graph=graph.path) for text in arguments))
    assert failed.exit_code == 1
    lines = [line for line in failed.stderr.splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert re.search(said, lines[0])


def test_a_graph_without_features_is_refused(tmp_path, url):
    graph = Graph.from_edges([[0, 1], [1, 0]]).save(tmp_path / "bare")
    failed = run("load", "--store", url, "--graph", graph.path)
    assert failed.exit_code == 1
    assert "those with features: none" in failed.stderr


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_row_that_no_server_would_use_is_not_loaded(tmp_path, url, wrong):
    columns = {"id": ["a", "b", "c"], "age": [1.0, 2.0, wrong], "risk": [0.0, 0.5, 1.0]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    failed = run("load", "--store", url, "--parquet", tmp_path / "rows.parquet")
    assert failed.exit_code == 1
    assert f"the row of 'c' has {wrong} in column 'age'" in failed.stderr
