"""Exports against DuckDB, PyG and a server: what is written is what the engine reads and answers."""

import json
import subprocess
import sys

import duckdb
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch_geometric.nn import SAGEConv

import hopline
from examples import relational
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, NodeNotFound
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import ScoreRequest
from hopline_export.run import export
from hopline_export.seeds import SeedColumns
from tests.commands.typed import typed
from tests.packaged import package

USERS, ITEMS, EDGES, DAYS = 40, 25, 400, 100
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")
KEY = "item__bought_by__user"


class Net(nn.Module):
    """Two layers, which may be given the edges of each."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.convs = nn.ModuleList(SAGEConv((dim, dim), 8) for dim in (4, 4, 8, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, x_dict, edge_index_dict):
        return self.layered(x_dict, [edge_index_dict] * 2)

    def layered(self, x_dict, edges):
        user, item = x_dict["user"], x_dict["item"]
        for layer in (0, 1):
            forth, back = self.convs[2 * layer : 2 * layer + 2]
            item, user = (
                forth((user, item), edges[layer][BUYS]).relu(),
                back((item, user), edges[layer][BOUGHT]).relu(),
            )
        return self.out(user)


class World:
    def __init__(self, folder, fanouts, name):
        rng = np.random.default_rng(0)
        self.ends = rng.integers(0, USERS, EDGES), rng.integers(0, ITEMS, EDGES)
        self.days = rng.integers(0, DAYS, EDGES)
        x = {kind: rng.normal(size=(n, 4)).astype("f4") for kind, n in (("user", USERS), ("item", ITEMS))}
        self.names = ["a", "b", "c", "d"]
        self.x = x["user"]
        self.graph = Graph.from_tables(
            {
                "user": NodeTable(
                    x["user"], ids=[f"u{at}" for at in range(USERS)], feature_names=self.names
                ),
                "item": NodeTable(x["item"]),
            },
            {
                BUYS: EdgeTable(self.ends, time=self.days, by_row=True),
                BOUGHT: EdgeTable(self.ends[::-1], time=self.days, by_row=True),
            },
        ).save(folder / "graph")
        self.net = Net().eval()
        self.report = package(
            self.net,
            self.graph,
            folder / "models",
            name=name,
            fanouts=fanouts,
            task="multiclass",
            target="user",
        )
        self.folder = folder

    def seeds(self, count, path):
        rng = np.random.default_rng(9)
        frame = pd.DataFrame(
            {
                "id": [f"u{at}" for at in rng.integers(0, USERS, count)],
                "time": rng.integers(-5, DAYS + 20, count),
                "label": rng.integers(0, 3, count),
            }
        )
        frame.to_parquet(path)
        return frame


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return World(tmp_path_factory.mktemp("whole"), [-1, -1], "whole")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    return World(tmp_path_factory.mktemp("sampled"), [3, 2], "sampled")


def shards(out):
    return [torch.load(path, weights_only=False) for path in sorted((out / "graphs").iterdir())]


def served(world, frame):
    """Logits, one request for each seed."""
    model = load_model(world.report.path, world.report.spec, world.graph)
    answerer, found = Answerer(model, ("logits",), 0), []
    for name, time in zip(frame["id"], frame["time"].tolist(), strict=True):
        (outcome,) = answerer.answer([ScoreRequest("m", nodes=[name], as_of=time)])
        found.append(outcome.outputs["logits"][0])
    return np.stack(found)


def test_the_module_on_the_exported_graphs_answers_what_is_served(whole, tmp_path):
    frame = whole.seeds(70, tmp_path / "seeds.parquet")
    report = export(whole.report.path, whole.graph, tmp_path / "seeds.parquet", tmp_path / "out", shard=32)
    assert (report.num_seeds, report.num_shards) == (70, 3)
    logits = np.stack(pq.read_table(tmp_path / "out" / "scores.parquet")["logits"].to_pylist())
    np.testing.assert_array_equal(logits, served(whole, frame))
    at = 0
    for data in shards(tmp_path / "out"):
        count = data["user"].batch_size
        with torch.no_grad():
            found = whole.net(data.x_dict, data.edge_index_dict)[:count].numpy()
        np.testing.assert_allclose(found, logits[at : at + count], atol=1e-5)
        assert data["user"].input_id.tolist() == [*range(at, at + count)]
        assert data["user"].y.tolist() == frame["label"].tolist()[at : at + count]
        assert data["user"].seed_time.tolist() == frame["time"].tolist()[at : at + count]
        for store in data.edge_stores:
            seed = data[store._key[2]].batch[store.edge_index[1]]
            assert (store.edge_time <= data["user"].seed_time[seed]).all()
            assert (seed == data[store._key[0]].batch[store.edge_index[0]]).all()
        at += count
    assert at == 70


@pytest.mark.release
def test_sampled_layers_read_the_edges_that_are_marked(sampled, tmp_path):
    """Some edges are read by one layer only; the module that is given each layer's edges is served."""
    frame = sampled.seeds(60, tmp_path / "seeds.parquet")
    export(sampled.report.path, sampled.graph, tmp_path / "seeds.parquet", tmp_path / "out", shard=60)
    (data,) = shards(tmp_path / "out")
    edges = [
        {store._key: store.edge_index[:, store.layers[:, layer]] for store in data.edge_stores}
        for layer in (0, 1)
    ]
    with torch.no_grad():
        found = sampled.net.layered(data.x_dict, edges)[:60].numpy()
        union = sampled.net(data.x_dict, data.edge_index_dict)[:60].numpy()
    wanted = served(sampled, frame)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(union - wanted).max() > 1e-3, "layers differ"
    for layer, most in ((0, 2), (1, 3)):
        for ends in (each[BOUGHT] for each in edges[layer : layer + 1]):
            assert np.bincount(ends[1].numpy()).max() == most


def test_rows_are_those_of_an_asof_join(whole, tmp_path):
    frame = whole.seeds(80, tmp_path / "seeds.parquet")
    export(whole.report.path, whole.graph, tmp_path / "seeds.parquet", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "rows.parquet").to_pandas()
    base = duckdb.connect()
    base.register("seeds", frame.assign(row=np.arange(len(frame))))
    base.register("edges", pd.DataFrame({"id": [f"u{at}" for at in whole.ends[0]], "at": whole.days}))
    users = pd.DataFrame(whole.x, columns=whole.names)
    base.register("users", users.assign(id=[f"u{at}" for at in range(USERS)]))
    joined = base.sql(
        "select seeds.row, edges.at, users.* from seeds asof left join edges on seeds.id = edges.id "
        "and seeds.time >= edges.at join users on users.id = seeds.id order by row"
    ).df()
    counted = base.sql(
        "select count(edges.at) as n from seeds left join edges on seeds.id = edges.id "
        "and seeds.time >= edges.at group by row order by row"
    ).df()
    np.testing.assert_array_equal(rows[f"last.{KEY}"].to_numpy("f8"), joined["at"].to_numpy("f8"))
    np.testing.assert_array_equal(rows[f"degree.{KEY}"], counted["n"])
    pd.testing.assert_frame_equal(rows[whole.names], joined[whole.names])
    pd.testing.assert_frame_equal(rows[["id", "time", "label"]], frame)
    assert joined["at"].isna().any()


def test_rows_and_ego_graphs_have_the_rows_of_a_history_of_then(whole, tmp_path):
    """Users have three rows each; the module on the exported rows answers what is served."""
    rng, count = np.random.default_rng(2), 3 * USERS
    rows = pd.DataFrame(rng.normal(size=(count, 4)).astype("f4"), columns=whole.names)
    rows = rows.assign(id=[f"u{at % USERS}" for at in range(count)], at=np.repeat([-5, 20, 60], USERS))
    users = NodeTable(rows[whole.names], ids=list(rows["id"]), history=rows["at"].to_numpy())
    items = NodeTable(np.asarray(whole.graph.nodes["item"].features))
    ends = [f"u{at}" for at in whole.ends[0]], whole.ends[1]
    graph = Graph.from_tables(
        {"user": users, "item": items},
        {BUYS: EdgeTable(ends, time=whole.days), BOUGHT: EdgeTable(ends[::-1], time=whole.days)},
    )
    frame = whole.seeds(70, tmp_path / "seeds.parquet")
    export(whole.report.path, graph, tmp_path / "seeds.parquet", tmp_path / "out", shard=70)
    found = pq.read_table(tmp_path / "out" / "rows.parquet").to_pandas()
    base = duckdb.connect()
    base.register("seeds", frame.assign(row=np.arange(len(frame))))
    base.register("users", rows)
    joined = base.sql(
        "select users.* from seeds asof join users on seeds.id = users.id and seeds.time >= users.at "
        "order by row"
    ).df()
    pd.testing.assert_frame_equal(found[whole.names], joined[whole.names])
    (data,) = shards(tmp_path / "out")
    with torch.no_grad():
        logits = whole.net(data.x_dict, data.edge_index_dict)[:70].numpy()
    scores = np.stack(pq.read_table(tmp_path / "out" / "scores.parquet")["logits"].to_pylist())
    np.testing.assert_allclose(logits, scores, atol=1e-5)
    frame.assign(time=-6).to_parquet(tmp_path / "early.parquet")
    with pytest.raises(NodeNotFound, match="-6, without a row yet"):
        export(whole.report.path, graph, tmp_path / "early.parquet", tmp_path / "none")


@pytest.mark.release
def test_times_of_nodes_and_of_the_question_are_what_a_model_reads(tmp_path):
    """A temporal encoder over five tables; seeds exist from their times on."""
    data = relational.draw(1)
    graph = Graph.from_pyg(data, node_time="time", time_unit="s")
    model = relational.Model(data.edge_types, attention=False).eval()
    report = package(
        model, graph, tmp_path, name="m", fanouts=[-1, -1], task="binary", target="customer", check_nodes=20
    )
    rng = np.random.default_rng(2)
    seeds = pd.DataFrame(
        {
            "customer": rng.integers(0, 300, 40),
            "when": pd.to_datetime(relational.BEGIN + rng.integers(0, 500, 40) * relational.DAY, unit="s"),
        }
    )
    seeds.to_csv(tmp_path / "seeds.csv", index=False)
    names = SeedColumns("customer", "when")
    export(report.path, graph, tmp_path / "seeds.csv", tmp_path / "out", columns=names)
    (found,) = shards(tmp_path / "out")
    logits = np.stack(pq.read_table(tmp_path / "out" / "scores.parquet")["logits"].to_pylist())
    with torch.no_grad():
        np.testing.assert_allclose(model(found).numpy(), logits, atol=1e-5)
    times = seeds["when"].astype("int64").to_numpy() // 10**9
    assert found["customer"].seed_time.tolist() == times.tolist()
    exists = pq.read_table(tmp_path / "out" / "rows.parquet")["exists"].to_pylist()
    assert exists == (data["customer"].time[seeds["customer"].to_numpy()].numpy() <= times).tolist()
    assert 0 < sum(exists) < 40


def test_the_command_writes_a_folder_that_needs_no_hopline(whole, tmp_path):
    frame = whole.seeds(10, tmp_path / "seeds.parquet")
    words = ["export", "--model", "whole", "--graph", str(whole.folder / "graph"), "--json"]
    words += ["--repository", str(whole.folder / "models"), "--seeds", str(tmp_path / "seeds.parquet")]
    found = typed(*words, "--out", str(tmp_path / "out"))
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report == msgspec.json.decode((tmp_path / "out" / "export.json").read_bytes())
    assert report["graph_version"] == whole.graph.version
    assert report["fanouts"][KEY] == [-1, -1]
    code = (
        "import sys; sys.modules['hopline'] = None; import torch; "
        "d = torch.load(sys.argv[1], weights_only=False); print(d['user'].batch_size, d['user'].x.shape[1])"
    )
    shard = tmp_path / "out" / "graphs" / "part-00000.pt"
    done = subprocess.run([sys.executable, "-c", code, shard], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(len(frame)), "4"], done.stderr
    again = typed(*words, "--out", str(tmp_path / "out"))
    assert "pass --overwrite to replace it" in again.output
    assert typed(*words, "--out", str(tmp_path / "out"), "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"user": ["u1"], "time": [3]}, BadRequest, "no column 'id'; the file has user, time"),
        ({"id": ["u1", "nobody"], "time": [3, 3]}, NodeNotFound, "nobody"),
        ({"id": ["u1"], "time": [10**15]}, BadRequest, "row 0: as_of 1000000000000000 is far from"),
        ({"id": ["u1"], "time": [pd.Timestamp("2024-01-01")]}, BadRequest, "row 0: as_of is a date"),
    ],
)
def test_wrong_seeds_are_refused_and_nothing_is_written(whole, tmp_path, columns, error, message):
    pq.write_table(pa.table(columns), tmp_path / "seeds.parquet")
    with pytest.raises(error, match=message):
        export(whole.report.path, whole.graph, tmp_path / "seeds.parquet", tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["seeds.parquet"]


def test_without_times_the_question_is_about_now(whole, tmp_path):
    pq.write_table(pa.table({"id": ["u1", "u2"]}), tmp_path / "seeds.parquet")
    export(whole.report.path, whole.graph, tmp_path / "seeds.parquet", tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "scores.parquet")
    assert "time" not in table.column_names
    frame = pd.DataFrame({"id": ["u1", "u2"], "time": [DAYS, DAYS]})
    np.testing.assert_array_equal(np.stack(table["logits"].to_pylist()), served(whole, frame))
    assert hopline.__version__
