import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hopline.commands.graph import app
from hopline.graph import Graph
from hopline.testing.graphs import hetero_graph

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "transfers.csv").write_text("payer,payee,day,amount\na,b,3,1.5\nb,c,1,2\nc,b,2,9\n")
    (tmp_path / "accounts.csv").write_text("account,age,balance\na,1,2\nb,3,4\nc,5,6\n")
    return tmp_path


def test_build_then_info(tables):
    built = run(
        *("build", tables / "transfers.csv", "--features", tables / "accounts.csv", "--id", "account"),
        *("--src", "payer", "--dst", "payee", "--time", "day", "--attr", "amount", "--out", tables / "g"),
    )
    assert built.exit_code == 0, built.output
    graph = Graph.open(tables / "g", verify=True)
    assert graph.schema.node_types["node"].feature_names == ("age", "balance")
    assert graph.edge().time.tolist() == [2, 3, 1]

    info = run("info", tables / "g")
    assert info.exit_code == 0
    assert graph.version in info.stdout

    described = json.loads(run("info", tables / "g", "--json").stdout)
    assert described["version"] == graph.version
    assert described["num_nodes"] == 3
    assert described["edge_types"]["node__to__node"]["in_degree"]["1"] == 2
    assert described["node_types"]["node"]["id_kind"] == "string"


def test_build_of_several_types(tmp_path):
    np.save(tmp_path / "u.npy", np.ones((3, 2)))
    np.save(tmp_path / "i.npy", np.ones((2, 1)))
    np.save(tmp_path / "b.npy", [[0, 1], [1, 0]])
    built = run(
        *("build", f"user:buys:item={tmp_path / 'b.npy'}", f"item:rev:user={tmp_path / 'b.npy'}"),
        *("--features", f"user={tmp_path / 'u.npy'}", "--features", f"item={tmp_path / 'i.npy'}"),
        *("--out", tmp_path / "g", "--dtype", "float16"),
    )
    assert built.exit_code == 0, built.output
    assert sorted(Graph.open(tmp_path / "g").edges) == ["item__rev__user", "user__buys__item"]


def test_info_of_a_heterogeneous_graph_names_every_type(tmp_path):
    hetero_graph().save(tmp_path / "g")
    shown = run("info", tmp_path / "g", "--json", "--verify").stdout
    assert json.loads(shown)["edge_types"].keys() == hetero_graph().schema.edge_types.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.csv", "--out", "g"), "there is no such file"),
        (("a:b=absent.csv", "--out", "g"), "an edge type is SRC:RELATION:DST; got 'a:b'"),
        (("x.npy", "y.npy", "--out", "g"), "a type is named twice"),
    ],
)
def test_errors_go_to_stderr_with_a_failing_exit(arguments, message):
    result = run("build", *arguments)
    assert result.exit_code == 1
    assert f"error: {message}" in result.stderr or message in result.stderr
    assert "Traceback" not in result.output


def test_build_replaces_a_graph_only_when_told(tables):
    arguments = ("build", tables / "e.npy", "--out", tables / "g")
    np.save(tables / "e.npy", [[0], [1]])
    assert run(*arguments).exit_code == 0
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert "exists and is a graph" in refused.stderr
    assert run(*arguments, "--overwrite", "--undirected").exit_code == 0
    assert Graph.open(tables / "g").num_edges == 2


def test_info_of_what_is_no_graph(tmp_path):
    result = run("info", tmp_path)
    assert result.exit_code == 1
    assert "no graph.json" in result.stderr
