"""Payments are scored by their own columns, over every wire: the oracle is PyG on the transformed frame."""

import asyncio
import json

import httpx
import numpy as np
import pandas as pd
import pytest
import torch
import tritonclient.grpc as triton
from torch import nn
from torch_geometric.nn import GATv2Conv
from tritonclient.utils import InferenceServerException

import hopline
from hopline.jobs.targets import ServerTarget
from hopline_drift.log_reader import LogReader
from hopline_drift.replay import replay
from packages.brokers.tests.servers import RedisServer, broker_server
from packages.brokers.tests.test_queue import Desk
from packages.tabular.tests import payment_graph as shop
from packages.tabular.tests.fraud_graph import dense, pairs
from packages.tabular.tests.fraud_world import as_sent
from packages.tabular.tests.test_preprocess_wires import Wires
from tests.commands.typed import typed
from tests.servers import running

SERVICE = "hopline.service:Service"
KEY = "account__pays__merchant"


class Encoder(nn.Module):
    """Accounts and merchants, by the payments between them."""

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList(
            GATv2Conv((dim, dim), 8, edge_dim=width, add_self_loops=False) for dim in (3, 3, 8, 8)
        )

    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        account, merchant = x_dict["account"], x_dict["merchant"]
        pays, paid_by = edge_index_dict[shop.PAYS], edge_index_dict[shop.PAID_BY]
        rows, back = edge_attr_dict[shop.PAYS], edge_attr_dict[shop.PAID_BY]
        for forth, home in (self.convs[:2], self.convs[2:]):
            merchant, account = (
                forth((account, merchant), pays, rows).relu(),
                home((merchant, account), paid_by, back).relu(),
            )
        return {"account": account, "merchant": merchant}


class Decoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Sequential(nn.Linear(16 + width, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, h_src, h_dst, edge_attr):
        return self.out(torch.cat([h_src, h_dst, edge_attr], dim=1))


class World:
    def __init__(self, folder, **more):
        self.folder, self.frame, self.ends = folder, shop.payments().assign(**more), pairs()
        self.graph = shop.graph_of(self.frame).save(folder / "graph")
        self.fitted = shop.transformer(self.graph)
        self.rows = dense(self.fitted.transform(shop.fitted_form(self.frame)))
        self.encoder, self.head = Encoder(self.rows.shape[1]).eval(), Decoder(self.rows.shape[1]).eval()
        self.report = hopline.package(
            self.encoder,
            self.graph,
            folder / "models",
            name="risk",
            fanouts=[-1, -1],
            task="multiclass",
            target=("account", "merchant"),
            head=self.head,
            preprocess=dict.fromkeys((shop.PAYS, shop.PAID_BY), self.fitted),
        )

    def pyg(self, at, frame=None):
        """Logits of some payments of the graph, or of payments with the same ends and other columns."""
        account, merchant = (torch.tensor(np.asarray(end)) for end in self.ends)
        pays = torch.stack([account, merchant])
        rows = self.rows[at] if frame is None else dense(self.fitted.transform(shop.fitted_form(frame)))
        x = {"account": torch.tensor(shop.rows_of(shop.ACCOUNTS, 1))}
        x["merchant"] = torch.tensor(shop.rows_of(shop.MERCHANTS, 2))
        edges = {shop.PAYS: pays, shop.PAID_BY: pays.flip(0)}
        with torch.no_grad():
            h = self.encoder(x, edges, {shop.PAYS: self.rows, shop.PAID_BY: self.rows})
            return self.head(h["account"][account[at]], h["merchant"][merchant[at]], rows).numpy()

    def edges(self, at, frame=None):
        given = (self.frame.iloc[at] if frame is None else frame).to_dict("records")
        ends = zip(*(np.asarray(end)[at].tolist() for end in self.ends), strict=True)
        return [
            {"from": f"a{account}", "to": merchant, "columns": as_sent(row)}
            for (account, merchant), row in zip(ends, given, strict=True)
        ]

    def settings(self, **more):
        return {
            "graph__path": self.folder / "graph",
            "models__repository": self.folder / "models",
            "models__state": self.folder / "state",
            **more,
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def server(world):
    """A server that reads a queue too."""
    with broker_server(RedisServer) as broker:
        desk = Desk(broker)
        asyncio.run(desk.open())
        settings = {name.replace(".", "__"): value for name, value in desk.settings().items()}
        with running(
            SERVICE, **world.settings(prediction_log__path=world.folder / "log"), **settings
        ) as found:
            found.wires = Wires(found, desk, None)
            yield found


def by_json(server, edges, **more):
    body = {"edges": edges, "outputs": ["logits"], **more}
    answer = httpx.post(f"{server.url}/v1/models/risk/score", json=body)
    return answer.json()["outputs"]["logits"] if answer.status_code == 200 else answer.text


def by_client(server, edges, **more):
    with hopline.Client(server.url) as client:
        return client.score_edges("risk", edges, outputs=["logits"], **more).outputs["logits"]


def by_oip(server, edges, **more):
    parameters = {name: json.dumps(value) for name, value in {"edges": edges, **more}.items()}
    body = {"inputs": [], "parameters": parameters, "outputs": [{"name": "logits"}]}
    answer = httpx.post(f"{server.url}/v2/models/risk/infer", json=body)
    if answer.status_code != 200:
        return answer.text
    return np.reshape(answer.json()["outputs"][0]["data"], (len(edges), 2))


def by_grpc(server, edges, **more):
    parameters = {name: json.dumps(value) for name, value in {"edges": edges, **more}.items()}
    outputs = [triton.InferRequestedOutput("logits")]
    try:
        found = triton.InferenceServerClient(server.grpc).infer(
            "risk", [], outputs=outputs, parameters=parameters
        )
    except InferenceServerException as error:
        return error.message()
    return found.as_numpy("logits")


def by_queue(server, edges, **more):
    async def queued():
        return await server.wires._queued({"model": "risk", "edges": edges, "outputs": ["logits"], **more})

    answer = asyncio.run(queued())
    return answer["error"]["message"] if "error" in answer else answer["outputs"]["logits"]


WIRES = pytest.mark.parametrize(
    "wire", [by_json, by_client, by_oip, by_grpc, by_queue], ids=lambda each: each.__name__
)


@WIRES
def test_every_wire_scores_payments_of_the_graph_and_new_ones(world, server, wire):
    at = np.arange(0, 900, 40)
    np.testing.assert_allclose(wire(server, world.edges(at)), world.pyg(at), atol=1e-4, rtol=1e-4)
    new = shop.payments(len(at), seed=9, currencies=["EUR", "XXX"])
    expected = world.pyg(at, new)
    np.testing.assert_allclose(wire(server, world.edges(at, new)), expected, atol=1e-4, rtol=1e-4)
    assert np.abs(expected - world.pyg(at)).max() > 1e-2, "the columns matter"


@WIRES
def test_every_wire_names_the_place_of_a_wrong_value(world, server, wire):
    edges = world.edges(np.arange(4))
    edges[3]["columns"] |= {"amount": "much"}
    if wire is by_client:
        with pytest.raises(
            hopline.errors.BadRequest, match=r"edges\[3\]\.columns: 'amount': 'much' instead"
        ):
            wire(server, edges)
    else:
        assert "edges[3].columns: 'amount': 'much' instead of a number" in wire(server, edges)


def test_wrong_forms_are_refused_by_name(world, server):
    (edge,) = world.edges(np.array([5]))
    for body, message in (
        ({"edges": [edge | {"columns": {"amount": 1.0}}]}, "edges[0].columns: 'currency' is missing"),
        (
            {"edges": [edge | {"columns": None, "attr": [1.0]}]},
            "edges[0].attr: the model has preprocessing",
        ),
        ({"edges": [edge | {"weight": 1}]}, "weight"),
        ({"edges": [{"from": "a1"}]}, "edges[0]"),
        ({"edges": []}, "ask with edges: the request has none"),
        ({"nodes": ["a1"]}, "scores edges of 'account__pays__merchant'; ask with edges, not with nodes"),
        ({"pairs": [["a1", 2]]}, "ask with edges, not with pairs"),
        ({"pairs": [["a1", 2]], "edges": [edge]}, "ask with edges, not with pairs"),
        ({"edges": [edge], "node_type": "account"}, "node_type account"),
        ({"edges": [edge], "rows": [{"a": 1}]}, "unexpected input 'a'"),
    ):
        answer = httpx.post(f"{server.url}/v1/models/risk/score", json=body)
        assert answer.status_code == 400
        assert message in answer.text
    text = json.dumps({"edges": [edge]}).replace('"items":', '"items": 7, "items":')
    answer = httpx.post(f"{server.url}/v1/models/risk/score", content=text)
    assert "'items' is repeated" in answer.text


def test_new_accounts_and_merchants_are_ends(world, server):
    """Over HTTP, as the engine's own tests; here with columns of the edges that they read."""
    row = as_sent(world.frame.iloc[0].to_dict())
    account = {
        "type": "account",
        "id": "new",
        "features": [1.0, 2.0, 3.0],
        "neighbors": {"merchant__paid_by__account": [3]},
        "edge_attr": {"merchant__paid_by__account": [row]},
    }
    edges = [{"from": "new", "to": 4, "columns": row}, *world.edges(np.array([7]))]
    found = [wire(server, edges, context=[account]) for wire in (by_json, by_client, by_grpc, by_queue)]
    np.testing.assert_allclose(found[0][1:], world.pyg(np.array([7])), atol=1e-4)
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=1e-6)
    x = torch.tensor(np.concatenate([shop.rows_of(shop.ACCOUNTS, 1), [[1, 2, 3]]]).astype(np.float32))
    ends = torch.tensor(np.stack([np.append(world.ends[1], 3), np.append(world.ends[0], shop.ACCOUNTS)]))
    both = torch.cat([world.rows, world.rows[:1]])
    with torch.no_grad():
        h = world.encoder(
            {"account": x, "merchant": torch.tensor(shop.rows_of(shop.MERCHANTS, 2))},
            {shop.PAYS: torch.tensor(np.stack(world.ends)), shop.PAID_BY: ends},
            {shop.PAYS: world.rows, shop.PAID_BY: both},
        )
        wanted = world.head(h["account"][-1:], h["merchant"][4:5], world.rows[:1]).numpy()
    np.testing.assert_allclose(found[0][:1], wanted, atol=1e-4)


def test_without_columns_the_row_is_that_of_the_only_payment(world, server):
    once = ~pd.DataFrame(np.stack(world.ends).T).duplicated(keep=False).to_numpy()
    at = np.flatnonzero(once)[:30]
    edges = [{"from": each["from"], "to": each["to"]} for each in world.edges(at)]
    np.testing.assert_allclose(by_json(server, edges), world.pyg(at), atol=1e-4, rtol=1e-4)
    again = world.edges(np.flatnonzero(~once)[:1])[0]
    refused = by_json(server, [*edges, {"from": again["from"], "to": again["to"]}])
    assert f"edges[30]: {2} edges of 'account__pays__merchant' join these nodes" in refused


def test_the_command_line_scores_payments(world, server):
    (edge,) = world.edges([5])
    cells = ",".join(
        f"{name}={json.dumps(value).strip(chr(34))}" for name, value in edge["columns"].items()
    )
    ends = f"{edge['from']},{edge['to']}"
    words = ["score", "risk", f"{ends},{cells}", "--edges", "--output", "logits", "--url", server.url]
    found = typed(*words)
    assert found.exit_code == 0, found.output
    assert all(f"{value:.4g}" in found.output for value in by_json(server, [edge])[0])
    for wrong in ("a1,2,amount", "a1,x,amount=1"):
        failed = typed("score", "risk", wrong, "--edges", "--url", server.url)
        assert failed.exit_code
        assert "is not an" in failed.output


def test_a_model_of_edges_lists_no_pairs_as_inputs(server):
    info = httpx.get(f"{server.url}/v1/models/risk").json()
    assert [each["name"] for each in info["inputs"]] == ["as_of"]
    assert info["properties"]["edge_type"] == KEY
    assert info["properties"]["node_types"] == {"account": "string", "merchant": "int"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("setting", ["isolate = true", 'cache_bytes = "1 MiB"'])
def test_a_model_in_its_own_process_and_a_cache_of_answers_keep_rows_apart(world, setting):
    file, new = world.folder / "models" / "risk" / "serving.toml", shop.payments(2, seed=4)
    file.write_text(setting + "\n")
    try:
        with running(SERVICE, **world.settings()) as found:
            for row in (0, 1, 0):
                frame = new.iloc[row : row + 1]
                logits = by_json(found, world.edges([3], frame))
                np.testing.assert_allclose(logits, world.pyg([3], frame), atol=1e-4)
    finally:
        file.unlink()


@pytest.mark.release
async def test_a_replay_of_the_log_gives_the_same_answers(world, tmp_path):
    log = tmp_path / "log"
    with running(SERVICE, **world.settings(prediction_log__path=log)) as found:
        for at in range(20):
            by_json(found, world.edges([at, at + 20]), tags=["nightly"])
    with running(SERVICE, **world.settings()) as found:
        async with ServerTarget(found.url) as target:
            report = await replay(LogReader(log), target)
    assert report.all_identical
    assert report.compared == 20


@pytest.mark.release
def test_events_change_the_row_of_an_edge_that_is_scored_by_its_ends(world, tmp_path):
    settings = {"live__enabled": True, "live__spare_nodes": 500, "live__spare_edges": 5_000}
    row = as_sent(shop.payments(1, seed=6).iloc[0].to_dict())
    joined = set(zip(*(np.asarray(end).tolist() for end in world.ends), strict=True))
    ends = {"from": "a0", "to": next(to for to in range(shop.MERCHANTS) if (0, to) not in joined)}
    with running(SERVICE, **world.settings(live__folder=tmp_path, **settings)) as found:
        assert "0 edges of" in by_json(found, [ends])
        event = {"op": "add_edge", "edge_type": KEY, "src": ends["from"], "dst": ends["to"], "columns": row}
        assert httpx.post(f"{found.url}/v1/graph/events", json=[event]).json()["applied"] == 1
        by_ends, by_columns = by_json(found, [ends]), by_json(found, [ends | {"columns": row}])
        np.testing.assert_array_equal(by_ends, by_columns)
        np.testing.assert_allclose(by_json(found, world.edges([0])), world.pyg([0]), atol=1e-4)
