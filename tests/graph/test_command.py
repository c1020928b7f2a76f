import json

import numpy as np
import pytest

from hopline.graph import Graph
from tests.commands.typed import typed
from tests.graphs import hetero_graph


def run(*words):
    return typed("graph", *words)


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


def test_names_with_brackets_are_shown_as_they_are(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst\na,b\n")
    built = run("build", f"user[eu]:buys:item={tmp_path / 'e.csv'}", "--out", tmp_path / "g")
    assert built.exit_code == 0, built.output
    assert "user[eu]__buys__item" in built.stdout


def test_weights_of_files_may_be_negative_or_be_said_to_become_so(tmp_path):
    for weight, said in ((-1, []), (1, ["--signed-weights"])):
        (tmp_path / "e.csv").write_text(f"src,dst,w\na,b,{weight}\n")
        options = ("--weight", "w", *said, "--out", tmp_path / "g", "--overwrite")
        assert run("build", tmp_path / "e.csv", *options).exit_code == 0
        described = json.loads(run("info", tmp_path / "g", "--json").stdout)
        assert described["edge_types"]["node__to__node"]["signed_weight"] is True


def test_both_directions_of_files(tables):
    options = ("--src", "payer", "--dst", "payee", "--both-directions", "--out", tables / "g")
    assert run("build", tables / "transfers.csv", *options).exit_code == 0
    described = json.loads(run("info", tables / "g", "--json").stdout)["edge_types"]
    found = {key: (edge["reverse_of"], edge["num_edges"]) for key, edge in described.items()}
    assert found == {"node__to__node": ("", 3), "node__rev_to__node": ("node__to__node", 3)}


def test_build_of_several_types(tmp_path):
    (tmp_path / "u.csv").write_text("f,g\n1,1\n1,1\n1,1\n")
    (tmp_path / "i.csv").write_text("f\n1\n1\n")
    (tmp_path / "b.csv").write_text("src,dst\n0,1\n1,0\n")
    built = run(
        *("build", f"user:buys:item={tmp_path / 'b.csv'}", f"item:rev:user={tmp_path / 'b.csv'}"),
        *("--features", f"user={tmp_path / 'u.csv'}", "--features", f"item={tmp_path / 'i.csv'}"),
        *("--ids-are-rows", "--out", tmp_path / "g", "--dtype", "float16"),
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
        (("absent.csv", "--out", "g"), "no such file"),
        (("a:b=absent.csv", "--out", "g"), "an edge type is SRC:RELATION:DST; got 'a:b'"),
        (("x.csv", "y.csv", "--out", "g"), "two files have the same type"),
    ],
)
def test_errors_go_to_stderr_with_a_failing_exit(arguments, message):
    result = run("build", *arguments)
    assert result.exit_code == 1
    assert f"error: {message}" in result.stderr or message in result.stderr
    assert "Traceback" not in result.output


def test_build_replaces_a_graph_only_on_request(tables):
    arguments = ("build", tables / "e.csv", "--out", tables / "g")
    (tables / "e.csv").write_text("src,dst\n0,1\n")
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


@pytest.fixture
def ratings(tmp_path):
    """MovieLens: users stand in ratings only."""
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,318,4.5,1147880044\n7,318,3.0,1147868817\n7,193609,5.0,1147868828\n"
    )
    (tmp_path / "movies.csv").write_text(
        'movieId,title\n1,"Toy Story, The"\n318,Shawshank\n193609,Andrew\n'
    )
    (tmp_path / "users.csv").write_text("userId,age\n1,30\n7,40\n")
    return tmp_path


def test_each_file_has_columns_of_its_own(ratings):
    built = run(
        *(
            "build",
            f"user:rates:movie={ratings / 'ratings.csv'}",
            f"movie:rev_rates:user={ratings / 'ratings.csv'}",
        ),
        *("--src", "user:rates:movie=userId", "--dst", "user:rates:movie=movieId"),
        *("--src", "movie:rev_rates:user=movieId", "--dst", "movie:rev_rates:user=userId"),
        *("--features", f"movie={ratings / 'movies.csv'}", "--features", f"user={ratings / 'users.csv'}"),
        *("--id", "movie=movieId", "--id", "user=userId"),
        *("--attr", "user:rates:movie=rating", "--time", "timestamp", "--time-unit", "s"),
        *("--out", ratings / "g"),
    )
    assert built.exit_code == 0, built.output
    assert 'movies.csv: left out: title (text, such as "Toy Story, The")' in built.stderr
    graph = Graph.open(ratings / "g")
    assert {name: part.num_nodes for name, part in graph.nodes.items()} == {"movie": 3, "user": 2}
    assert graph.edge("movie__rev_rates__user").attr is None
    shown = run("info", ratings / "g").stdout
    assert "times 1147868817 to 1147880044 (2006-05-17T12:26:57Z to 2006-05-17T15:34:04Z), unit s" in shown
    described = json.loads(run("info", ratings / "g", "--json").stdout)
    assert described["time"]["unit"] == "s"
    assert described["edge_types"]["user__rates__movie"]["time_range"] == [1147868817, 1147880044]


def test_types_without_a_file_have_the_ids_of_their_edges(ratings):
    columns = ("--src", "userId", "--dst", "movieId", "--time", "timestamp")
    built = run("build", f"user:rates:movie={ratings / 'ratings.csv'}", *columns, "--out", ratings / "g")
    assert built.exit_code == 0, built.output
    assert "node type 'movie' has no file: its nodes are the 2 ids (integers) of its edges" in built.stderr
    graph = Graph.open(ratings / "g")
    assert graph.nodes["movie"].ids.external(np.arange(2)).tolist() == [318, 193609]
    assert "if it is s: 2006-05-17" in run("info", ratings / "g").stdout


def test_ids_that_are_rows_are_said_and_bounded(ratings):
    rows = ("--src", "userId", "--dst", "movieId", "--ids-are-rows", "--out", ratings / "g")
    edges = f"user:rates:movie={ratings / 'ratings.csv'}"
    refused = run("build", edges, *rows)
    assert refused.exit_code == 1
    assert "node type 'movie': its edges name rows up to 193609" in refused.stderr
    assert run("build", edges, *rows, "--num-nodes", "movie=193610").exit_code == 0
    assert Graph.open(ratings / "g").nodes["movie"].num_nodes == 193610


def test_files_without_a_header(tmp_path):
    """Elliptic: features have none, edges have one."""
    (tmp_path / "features.csv").write_text("230425980,1,-0.17\n5530458,1,0.25\n232022460,49,1.5\n")
    (tmp_path / "edges.csv").write_text("txId1,txId2\n230425980,5530458\n232022460,230425980\n")
    arguments = (
        *("build", tmp_path / "edges.csv", "--src", "txId1", "--dst", "txId2"),
        *("--features", tmp_path / "features.csv", "--id", "0", "--out", tmp_path / "g"),
    )
    assert "pass --no-header" in run(*arguments).stderr
    built = run(*arguments, "--no-header")
    assert built.exit_code == 0, built.output
    graph = Graph.open(tmp_path / "g")
    assert graph.num_nodes == 3
    np.testing.assert_allclose(graph.node().features, [[1, -0.17], [1, 0.25], [49, 1.5]], rtol=1e-6)


def test_options_of_text_and_of_missing_values(tmp_path):
    (tmp_path / "n.csv").write_bytes("id;größe;code;hash\nMü;1;N/A;123456789\nb;;2;5\n".encode("latin-1"))
    (tmp_path / "e.csv").write_bytes("% a\nMü;b\n".encode("latin-1"))
    built = run(
        *(
            "build",
            tmp_path / "e.csv",
            "--features",
            tmp_path / "n.csv",
            "--id",
            "id",
            "--out",
            tmp_path / "g",
        ),
        *("--no-header", "--delimiter", ";", "--encoding", "latin-1", "--comment", "%"),
        *("--na", "N/A", "--fill", "größe=0.5", "--fill", "code=-1", "--round", "hash"),
    )
    assert built.exit_code == 0, built.output
    graph = Graph.open(tmp_path / "g")
    assert graph.schema.node_types["node"].feature_names == ("größe", "code", "hash")
    assert graph.node().features.tolist() == [[1, -1, 123456792], [0.5, 2, 5]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--features", "n.csv"), "say which column holds the ids of node type 'node': --id COLUMN"),
        (
            ("--features", "n.csv", "--id", "a", "--id", "b"),
            "--id is given 2 times for node: a, b; give one",
        ),
        (("--features", "n.csv", "--id", "key"), "no column 'key'; there are 'id', 'f'"),
        (("--time-unit", "days"), "the time unit must be one of s, ms, us, ns; got 'days'"),
        (("--fill", "none"), "--fill is a number, or COLUMN=NUMBER; got 'none'"),
        (("--fill", "0", "--fill", "a=1"), "--fill is one number for all columns"),
        (("--num-nodes", "x", "--ids-are-rows"), "--num-nodes is NUMBER or TYPE=NUMBER of node; got 'x'"),
        (("--num-nodes", "3"), "pass --ids-are-rows"),
        (("--undirected",), "2 of 3 edges already have their reverse"),
        (("--delimiter", "::"), "a delimiter is one character; got '::'"),
        (
            ("--features", "n.csv", "--id", "id", "--round", "amuont"),
            "no numbers are read from 'amuont', which should be rounded (--round); the columns with "
            "numbers are 'f', 'w'",
        ),
        (
            ("--features", "n.csv", "--id", "id", "--fill", "f=0", "--fill", "F=1", "--fill", "id=1"),
            "no numbers are read from 'F', 'id', which should be filled (--fill); the columns with numbers "
            "are 'f', 'w'",
        ),
        (("--round", "w", "--round", "t"), "no numbers are read from 't'"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.csv").write_text("id,f\n1,2\n2,3\n3,4\n")
    (tmp_path / "e.csv").write_text("src,dst,t,w\n1,2,5,1\n2,1,6,1\n2,3,7,1\n")
    time = ("--time", "t") if "--time-unit" in arguments else ()
    refused = run("build", "e.csv", "--out", "g", "--weight", "w", *time, *arguments)
    assert refused.exit_code == 1
    assert message in refused.stderr.replace("\n", " ")


def test_an_undirected_file_is_not_doubled(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst\n1,2\n2,1\n")
    built = run("build", tmp_path / "e.csv", "--undirected", "--out", tmp_path / "g")
    assert built.exit_code == 0
    assert "already contain both directions: no reverse was added" in built.stderr
    assert Graph.open(tmp_path / "g").num_edges == 2


def test_a_column_of_any_file_may_be_rounded_and_the_graph_says_so(tmp_path):
    (tmp_path / "n.csv").write_text("id,code,amount\n1,16777217,0.5\n2,2,3\n")
    (tmp_path / "e.csv").write_text("src,dst,mcc,w\n1,2,16777219,16777217\n")
    files = ("build", tmp_path / "e.csv", "--features", tmp_path / "n.csv", "--id", "id", "--attr", "mcc")
    names = ("--round", "code", "--round", "mcc", "--round", "w")
    built = run(*files, "--weight", "w", *names, "--out", tmp_path / "g")
    assert built.exit_code == 0, built.output
    graph = Graph.open(tmp_path / "g")
    assert graph.schema.node_types["node"].rounded == (0,)
    (edge,) = graph.schema.edge_types.values()
    assert (edge.rounded, edge.rounded_weight) == ((0,), True)
    described = json.loads(run("info", tmp_path / "g", "--json").stdout)
    assert described["node_types"]["node"]["rounded"] == [0]
    assert described["edge_types"]["node__to__node"]["rounded"] == [0]
    assert described["edge_types"]["node__to__node"]["rounded_weight"] is True


@pytest.mark.parametrize("url", ["http://localhost:6379", "localhost:6379", "redis+ring://h", "redis:h"])
def test_a_graph_is_pushed_to_a_redis_only(tables, url):
    built = run(
        "build", tables / "transfers.csv", "--src", "payer", "--dst", "payee", "--out", tables / "g"
    )
    assert built.exit_code == 0, built.output
    refused = run("push", tables / "g", url)
    assert refused.exit_code == 1
    assert f"URL: '{url}' is not the URL of a " in refused.stderr.replace("\n", " ")
    for scheme in ("redis", "rediss", "valkey", "valkeys", "redis+cluster"):
        assert f"{scheme}://" in refused.stderr.partition("one of")[2]


def test_a_push_without_the_package_of_the_store_names_it(tables, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    refused = run("push", tables, "redis+cluster://h")
    assert refused.exit_code == 1
    assert "URL: redis+cluster:// needs a package; install it with: pip install 'hopline[redis]'" in (
        refused.stderr.replace("\n", " ")
    )
