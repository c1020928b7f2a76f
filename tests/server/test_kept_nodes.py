"""Score requests that keep inline nodes answer as later requests by id do, and as a graph built again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

import hopline
from hopline.ingress.clients_file import Grant
from hopline.server import DEFAULT_SERVICE
from tests.engine import zoo
from tests.packaging.test_heads_of_types import Shop, package
from tests.server.live_rig import OUTPUTS, Live, World, row, same, serving
from tests.servers import running
from tests.transports.test_auth import write_key

#: Later than all edges of the graph.
NOW = 130
SCORE = "/v1/models/{}/score"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("kept"), copies=("apart",))
    (made.repository / "apart" / "serving.toml").write_text("isolate = true\n")
    return made


@pytest.fixture(scope="module")
def live(world: World) -> Iterator[Live]:
    with serving(workers=2, server__grpc_port=0, **world.settings()) as started:
        yield started


def described(world: World, name: str, neighbors: list[str]) -> dict[str, Any]:
    """A new node, in the form of a request."""
    rng = world.rng
    return {
        "id": name,
        "features": row(rng, 6).tolist(),
        "neighbors": neighbors,
        "edge_attr": [row(rng, 2).tolist() for _ in neighbors],
        "edge_weight": [0.5 + int(rng.integers(8)) / 4 for _ in neighbors],
    }


def happen(world: World, *nodes: dict[str, Any]) -> None:
    """Let nodes be in the world, as events would bring them."""
    for node in nodes:
        world.rows.append(node["id"])
        world.nodes[node["id"]] = np.array(node["features"], np.float32)
    for node in nodes:
        rows = zip(node["neighbors"], node["edge_weight"], node["edge_attr"], strict=True)
        for src, weight, attr in rows:
            world.edges.append((src, node["id"], NOW, weight, np.array(attr, np.float32)))


def some(world: World, name: str) -> list[dict[str, Any]]:
    """Two nodes: one with more neighbours than any fanout, and one that reads the first."""
    first = described(world, name, ["n0", "n7", "n11", "n3", "n20", "n21", "n22", f"{name}b"])
    return [first, described(world, f"{name}b", ["n5", name])]


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", ["plain", "apart"])
def test_an_answer_is_that_of_a_later_request_by_id_and_of_a_graph_built_again(
    world: World, live: Live, model: str
) -> None:
    nodes = some(world, f"kept-{model}")
    here, there = live.workers
    before = here.graph()["sequence"]
    found = here.score(model, nodes=["n3"], inline=nodes, keep=True, as_of=NOW)
    happen(world, *nodes)
    names = [node["id"] for node in nodes]
    assert found["graph_version"] == f"{world.graph.version}+{before + 1}"
    wanted = world.wanted(model, nodes=["n3", *names], as_of=NOW)
    same(found, wanted)
    for worker in (here, there):
        again = worker.score(model, nodes=["n3", *names], as_of=NOW, min_version=found["graph_version"])
        same(again, wanted)
        same(worker.score("plain", nodes=names), world.wanted("plain", nodes=names))
    assert here.graph()["sequence"] == before + 1


@pytest.mark.parametrize("host", [0, 1])
def test_context_nodes_are_kept_too(world: World, live: Live, host: int) -> None:
    scored, context = some(world, f"context-{host}")
    sent = {name: {"": context[name]} for name in ("neighbors", "edge_attr", "edge_weight")}
    worker = live.workers[host]
    found = worker.score("plain", inline=[scored], context=[context | sent], keep=True, as_of=NOW)
    happen(world, scored, context)
    same(found, world.wanted("plain", nodes=[scored["id"]], as_of=NOW))
    same(worker.score("plain", nodes=[context["id"]]), world.wanted("plain", nodes=[context["id"]]))


def change(node: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in (node | fields).items() if value is not None}


NODE = {
    "id": "refused",
    "features": [0.0] * 6,
    "neighbors": ["n1"],
    "edge_attr": [[1.0, 2.0]],
    "edge_weight": [1.0],
}
GOOD = change(NODE, id="good")


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"inline": [GOOD, change(NODE, id=None)]}, 400, "inline[1].id is missing"),
        ({"inline": [GOOD, change(NODE, id="n3")]}, 409, "inline[1]: node 'n3' of type 'node' exists"),
        ({"inline": [GOOD, GOOD]}, 409, "inline[1]: node 'good' of type 'node' exists"),
        (
            {"inline": [GOOD], "context": [{"id": "n3", "features": [0.0] * 6}]},
            409,
            "context[0]: node 'n3'",
        ),
        ({"inline": [GOOD], "context": [{"features": [0.0] * 6}]}, 400, "context[0].id is missing"),
        (
            {"inline": [GOOD], "context": [{"type": "shop", "id": "s"}]},
            400,
            "context[0]: no node type 'shop'",
        ),
        ({"inline": [GOOD, change(NODE, neighbors=["nobody"])]}, 404, "source 'nobody'"),
        ({"inline": [GOOD, change(NODE, id=7)]}, 400, "ids are strings here"),
        (
            {"inline": [GOOD, change(NODE, features=[1.0])]},
            400,
            "inline[1]: node type 'node': features of 1",
        ),
        ({"inline": [GOOD, change(NODE, edge_attr=None)]}, 400, "needs attr"),
        ({"inline": [GOOD, change(NODE, edge_attr=[])]}, 400, "needs attr"),
        ({"inline": [GOOD, change(NODE, edge_weight=[-1.0])]}, 400, "is negative"),
        ({"inline": [GOOD, change(NODE, edge_weight=[1.0, 2.0])]}, 400, "1 neighbors, and other numbers"),
        (
            {"inline": [GOOD, change(NODE, neighbors={"knows": ["n1"]})]},
            400,
            "'knows'; edge types that lead",
        ),
        ({"inline": [GOOD], "as_of": None}, 400, "has times; with keep, as_of"),
        ({"inline": [GOOD], "as_of": "2024-01-01"}, 400, "unit of the graph's edge times is unknown"),
        ({"nodes": ["n1"]}, 400, "keep: the request has no inline nodes"),
        ({"inline": [GOOD], "node_type": "shop"}, 400, "node_type shop"),
        ({"inline": [GOOD], "min_version": "9c1f0b7e52d4a386+7"}, 503, "this server has graph version"),
        ({"inline": [GOOD], "version": "9"}, 404, "has no version '9'"),
        ({"inline": [GOOD], "model": "link"}, 400, "only models of nodes score inline nodes"),
        ({"inline": [GOOD], "keep": 1}, 400, "keep"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_added(
    live: Live, asked: dict[str, Any], status: int, words: str
) -> None:
    worker, before = live.workers[0], live.workers[0].graph()
    body = {"keep": True, "as_of": NOW} | asked
    answer = worker.http.post(SCORE.format(body.pop("model", "plain")), json=body)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text
    now = worker.graph()
    assert (now["sequence"], now["nodes"], now["edges"]) == (
        before["sequence"],
        before["nodes"],
        before["edges"],
    )


def test_missing_neighbours_are_listed(live: Live) -> None:
    body = {"inline": [change(NODE, neighbors=["nobody"])], "keep": True, "as_of": NOW}
    error = live.workers[0].http.post(SCORE.format("plain"), json=body).json()["error"]
    assert error["missing"] == ["nobody"]


def test_a_repeated_request_with_a_key_adds_nothing_and_other_nodes_with_it_are_others(
    world: World, live: Live
) -> None:
    nodes, more = some(world, "once"), some(world, "more")
    here, there = live.workers
    asked = {"inline": nodes, "keep": True, "as_of": NOW, "key": "customer 7"}
    found = here.score("plain", **asked)
    again = there.score("plain", **asked)
    same(again, found["outputs"])
    assert again["graph_version"] == found["graph_version"]
    other = here.score("plain", **asked | {"inline": more})
    assert other["graph_version"] != found["graph_version"]
    happen(world, *nodes)
    happen(world, *more)
    names = [node["id"] for node in (*nodes, *more)]
    same(there.score("plain", nodes=names), world.wanted("plain", nodes=names))
    changed = [nodes[0] | {"features": [9.0] * 6}, nodes[1]]
    refused = here.http.post(SCORE.format("plain"), json=asked | {"inline": changed})
    assert (refused.status_code, refused.headers["hopline-error"]) == (409, "conflict")
    del asked["key"]
    assert here.http.post(SCORE.format("plain"), json=asked).status_code == 409


def test_an_error_after_the_nodes_were_added_says_so(world: World, live: Live) -> None:
    nodes = some(world, "late")
    body = {"inline": nodes, "keep": True, "as_of": NOW, "outputs": ["nothing"]}
    answer = live.workers[0].http.post(SCORE.format("plain"), json=body)
    happen(world, *nodes)
    assert answer.status_code == 400
    assert "The inline nodes are in the graph since version" in answer.json()["error"]["message"]
    same(live.workers[1].score("plain", nodes=["late"]), world.wanted("plain", nodes=["late"]))


def test_the_client_keeps_nodes(world: World, live: Live) -> None:
    nodes = some(world, "client")
    with hopline.Client(live.server.url) as client:
        found = client.score_inline("plain", nodes, keep=True, key="c1", as_of=NOW, outputs=OUTPUTS)
        happen(world, *nodes)
        again = client.score("plain", ["client", "clientb"], as_of=NOW, outputs=OUTPUTS)
        for name, wanted in world.wanted("plain", nodes=["client", "clientb"], as_of=NOW).items():
            np.testing.assert_array_equal(found.outputs[name], wanted)
            np.testing.assert_array_equal(again.outputs[name], wanted)
        with pytest.raises(hopline.errors.Conflict, match="exists"):
            client.score_inline("plain", nodes, keep=True, as_of=NOW)


def test_the_open_inference_protocol_keeps_nodes(world: World, live: Live) -> None:
    nodes = some(world, "grpc")
    client = triton.InferenceServerClient(live.server.grpc)
    outputs = [triton.InferRequestedOutput(name) for name in OUTPUTS]
    parameters = {"inline": json.dumps(nodes), "keep": True, "as_of": NOW}
    found = client.infer("plain", [], outputs=outputs, parameters=parameters)
    happen(world, *nodes)
    for name, wanted in world.wanted("plain", nodes=["grpc", "grpcb"], as_of=NOW).items():
        np.testing.assert_array_equal(found.as_numpy(name), wanted)
    with pytest.raises(InferenceServerException, match="exists"):
        client.infer("plain", [], outputs=outputs, parameters=parameters)
    features = tensor("features", np.zeros((1, 6), np.float32), "FP32")
    with pytest.raises(InferenceServerException, match=r"inline\[0\].id is missing"):
        client.infer("plain", [features], parameters={"keep": True, "as_of": NOW})
    nodes = some(world, "oip")
    over_http = {"inline": json.dumps(nodes), "keep": True, "as_of": NOW}
    answer = httpx.post(
        f"{live.server.url}/v2/models/plain/infer", json={"inputs": [], "parameters": over_http}
    )
    assert answer.status_code == 200, answer.text
    happen(world, *nodes)
    same(live.workers[0].score("plain", nodes=["oip"]), world.wanted("plain", nodes=["oip"]))


@pytest.mark.release
def test_a_graph_that_is_a_snapshot_keeps_nothing(world: World) -> None:
    with running(DEFAULT_SERVICE, **world.settings()) as server:
        body = {"inline": [GOOD], "keep": True, "as_of": NOW}
        answer = httpx.post(f"{server.url}{SCORE.format('plain')}", json=body)
        assert answer.status_code == 400
        assert "this server's graph is read-only" in answer.json()["error"]["message"]


@pytest.mark.release
def test_only_clients_that_may_change_the_graph_keep_nodes(world: World, tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    keys = {
        "scorer": write_key(file, "scorer", Grant(("plain",))),
        "owner": write_key(file, "owner", Grant(("plain",), admin=True)),
    }
    folder = {"live__folder": tmp_path / "live", "auth__clients_file": file}
    with serving(server__grpc_port=0, **world.settings(), **folder) as live:
        body = {"inline": [GOOD], "as_of": NOW}
        for name, keep, status in (("scorer", False, 200), ("scorer", True, 403), ("owner", True, 200)):
            url = f"{live.server.url}{SCORE.format('plain')}"
            answer = httpx.post(url, json=body | {"keep": keep}, headers={"x-api-key": keys[name]})
            assert answer.status_code == status, answer.text
        client = triton.InferenceServerClient(live.server.grpc)
        for size in (1, 50_000):  # small messages are read on the loop, large ones on a thread
            inputs = [
                tensor("features", np.zeros((1, 6), np.float32), "FP32"),
                tensor("neighbor_counts", np.array([size]), "INT64"),
                tensor("neighbors", np.array([b"n1"] * size, object), "BYTES"),
            ]
            headers = {"x-api-key": keys["scorer"]}
            with pytest.raises(InferenceServerException, match="may not change the server"):
                client.infer("plain", inputs, parameters={"keep": True}, headers=headers, client_timeout=20)


def tensor(name: str, values: np.ndarray, kind: str) -> triton.InferInput:
    found = triton.InferInput(name, list(values.shape), kind)
    found.set_data_from_numpy(values)
    return found


def test_kept_nodes_survive_a_restart_and_a_kill(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number, end in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
        nodes = some(world, f"survivor{number}")
        with serving(workers=2, **world.settings()) as live:
            if number:
                names = [name for name in world.nodes if name.startswith("survivor")]
                wanted = world.wanted("plain", nodes=names)
                for worker in live.workers:
                    same(worker.score("plain", nodes=names), wanted)
            live.workers[0].score("plain", inline=nodes, keep=True, as_of=NOW)
            happen(world, *nodes)
            for pid in [live.pid, live.writer, *live.worker_pids] if end == signal.SIGKILL else ():
                os.kill(pid, signal.SIGKILL)


@pytest.mark.release
def test_nodes_of_several_types_are_kept(tmp_path: Path) -> None:
    """A user who buys an item, both new: the oracle is the same by events, on another server."""
    graph = zoo.heterogeneous().save(tmp_path / "graph")
    package(Shop().eval(), graph, tmp_path / "models")
    rng = np.random.default_rng(11)
    user, item = row(rng, 5).tolist(), row(rng, 7).tolist()
    edges = {"item__bought_by__user": [900, 3, 4], "user__knows__user": [1, 800]}
    asked = {
        "inline": [{"id": 800, "features": user, "neighbors": edges}],
        "context": [
            {"type": "item", "id": 900, "features": item, "neighbors": {"user__buys__item": [800, 7]}}
        ],
        "node_type": "user",
        "outputs": ["user_probabilities"],
    }
    events = [
        {"op": "add_node", "node_type": "item", "node": 900, "features": item},
        {"op": "add_node", "node_type": "user", "node": 800, "features": user},
    ]
    for key, dst, ids in [
        *((key, 800, ids) for key, ids in edges.items()),
        ("user__buys__item", 900, [800, 7]),
    ]:
        events += [{"op": "add_edge", "edge_type": key, "src": src, "dst": dst} for src in ids]
    settings = {"graph__path": graph.path, "models__repository": tmp_path / "models"}
    by_id = [
        {"nodes": [800, 1], "node_type": "user", "outputs": ["user_probabilities"]},
        {"nodes": [900, 1], "node_type": "item", "outputs": ["item_probabilities"]},
    ]
    found = []
    for name in ("events", "kept"):
        with serving(**settings, live__folder=tmp_path / name) as live:
            (worker,) = live.workers
            if name == "events":
                worker.applied(events)
            else:
                refused = worker.http.post(
                    SCORE.format("shop"), json=asked | {"keep": True, "node_type": None}
                )
                assert "node_type is missing" in refused.json()["error"]["message"]
                answer = worker.score("shop", **asked, keep=True)["outputs"]["user_probabilities"]
            found.append([worker.score("shop", **each)["outputs"] for each in by_id])
    for one, other in zip(*found, strict=True):
        same({"outputs": one}, other)
    np.testing.assert_array_equal(answer, found[0][0]["user_probabilities"][:1])
