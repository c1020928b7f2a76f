"""Columns of edges over every wire, in batch runs, and in a live graph whose server is killed."""

import asyncio
import json
import os
import signal
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

import hopline
from hopline.jobs.batch.goal import BatchOptions
from hopline.jobs.batch.registry import open_sink
from hopline.jobs.batch.run import BatchRun
from hopline.records.inputs import input_hash, inputs_of
from hopline.types import InlineNode, ScoreRequest
from packages.brokers.tests.servers import RedisServer, broker_server
from packages.brokers.tests.test_queue import Desk
from packages.tabular.tests import payment_graph as shop
from packages.tabular.tests.fraud_graph import pairs
from packages.tabular.tests.test_edge_columns import KEY, ROW, Shop
from packages.tabular.tests.test_preprocess import as_sent, ask
from packages.tabular.tests.test_preprocess_wires import Refused, Wires
from tests.servers import running

SERVICE = "hopline.service:Service"


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield [Shop(tmp_path_factory.mktemp("world"), turns) for turns in (False, True)]


def paths(world):
    folder = world.report.path.parents[2]
    return {"graph__path": folder / "graph", "models__repository": folder / "models"}


@pytest.fixture(scope="module")
def server(worlds):
    """A server that reads a queue too: `found.wires`."""
    with broker_server(RedisServer) as broker:
        desk = Desk(broker)
        asyncio.run(desk.open())
        settings = {name.replace(".", "__"): value for name, value in desk.settings().items()}
        with running(SERVICE, **paths(worlds[0]), **settings) as found:
            found.wires = Wires(found, desk, None)
            yield found


NULLS = ROW | {"amount": None, "currency": None, "online": None, "paid_at": None}
NODE = {"features": [1.0] * 3, "neighbors": [3, 5], "edge_attr": [ROW, NULLS]}


def by_json(server, nodes):
    answer = httpx.post(f"{server.url}/v1/models/risk/score", json={"inline": nodes, "outputs": ["logits"]})
    return answer.json()["outputs"]["logits"] if answer.status_code == 200 else answer.text


def by_client(server, nodes):
    with hopline.Client(server.url) as client:
        return client.score_inline("risk", nodes, outputs=["logits"]).outputs["logits"]


def by_oip(server, nodes):
    body = {"inputs": [], "parameters": {"inline": json.dumps(nodes)}, "outputs": [{"name": "logits"}]}
    answer = httpx.post(f"{server.url}/v2/models/risk/infer", json=body)
    if answer.status_code != 200:
        return answer.text
    return np.reshape(answer.json()["outputs"][0]["data"], (len(nodes), 2))


def by_grpc(server, nodes):
    client = triton.InferenceServerClient(server.grpc)
    outputs = [triton.InferRequestedOutput("logits")]
    try:
        found = client.infer("risk", [], outputs=outputs, parameters={"inline": json.dumps(nodes)})
    except InferenceServerException as error:
        return error.message()
    return found.as_numpy("logits")


def by_queue(server, nodes):
    try:
        return server.wires.queue(nodes)
    except Refused as refused:
        return str(refused)


WIRES = [by_json, by_client, by_oip, by_grpc, by_queue]


@pytest.mark.parametrize("wire", WIRES, ids=lambda each: each.__name__)
def test_every_wire_takes_the_columns_of_a_new_nodes_edges(worlds, server, wire):
    (row,) = pd.DataFrame([ROW]).assign(paid_at=pd.Timestamp(ROW["paid_at"])).to_dict("records")
    kinds = {"amount": "float64", "items": "int64", "paid_at": "datetime64[us, UTC]"}
    frame = pd.DataFrame(
        {name: pd.Series([row[name], NULLS[name]], dtype=kinds.get(name, object)) for name in ROW}
    )
    expected = worlds[0].pyg(new=1, more=frame, more_ends=([0, 0], [3, 5]))[-1:]
    np.testing.assert_allclose(wire(server, [NODE]), expected, atol=1e-4)
    wrong = NODE | {"edge_attr": [ROW, ROW | {"amount": "much"}]}
    if wire is not by_client:
        assert "inline[0].edge_attr[1]: 'amount': 'much' instead of a number" in wire(server, [wrong])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW, {"amount": [1]}], "edge_attr"),
        ([ROW, {"amount": 1, "currency": {}}], "edge_attr"),
        ([ROW, 5], "edge_attr"),
        ([ROW, [1.0] * 10], "an object for each of 2 neighbours"),
        ([ROW, ROW | {"items": 2**53 + 1}], "'items': 9007199254740993 is beyond"),
    ],
)
def test_what_no_row_has_is_refused(server, rows, message):
    for wire in (by_json, by_oip, by_grpc):
        assert message in wire(server, [NODE | {"edge_attr": rows}])
    text = json.dumps(NODE).replace('"items": 2,', '"items": 2, "items": 3,')
    answer = httpx.post(f"{server.url}/v1/models/risk/score", content=f'{{"inline": [{text}]}}')
    assert "'items' is repeated" in answer.text


def test_the_client_sends_times_and_missing_values(server):
    moment = pd.Timestamp(ROW["paid_at"]).to_pydatetime()
    typed = ROW | {"paid_at": moment, "amount": np.float64(9.5), "items": np.int64(2)}
    absent = NULLS | {"amount": float("nan"), "paid_at": np.datetime64("NaT")}
    expected = by_json(server, [NODE])
    node = InlineNode([1.0] * 3, {"": [3, 5]}, edge_attr={"": [typed, absent]})
    np.testing.assert_allclose(by_client(server, [node]), expected, atol=1e-6)
    node = {"features": [1.0] * 3, "neighbors": [3, 5], "edge_attr": [typed, absent]}
    np.testing.assert_allclose(by_client(server, [node]), expected, atol=1e-6)


def test_the_description_names_the_columns_of_edges(server):
    described = httpx.get(f"{server.url}/v1/models/risk").json()["properties"]["edge_columns"]
    assert [(each["name"], each["type"]) for each in described[KEY]][:2] == [
        ("amount", "float"), ("currency", "text"),
    ]  # fmt: skip


def test_requests_are_logged_and_hashed_by_the_columns_of_edges():
    def request(row):
        return ScoreRequest("risk", inline=[InlineNode([1.0], {"": [3]}, edge_attr={"": [row]})])

    logged = inputs_of(request(ROW), lambda: None).request("risk", None)
    assert logged.inline[0].edge_attr == {"": [ROW]}
    assert input_hash(logged) == input_hash(request(ROW))
    for name in ROW:
        assert input_hash(request(ROW | {name: None})) != input_hash(request(ROW))


@pytest.mark.parametrize("turns", [False, True])
def test_a_batch_run_has_the_same_answers_and_a_second_one_sees_changed_rows(worlds, turns, tmp_path):
    world, other = worlds[turns], tmp_path / "later"
    frame = world.frame.assign(amount=world.frame["amount"].to_numpy()[::-1])
    shop.graph_of(frame, turns).save(other)

    def run(graph, name, since=None):
        options = BatchOptions(outputs=("logits",), keep=True, since=since)
        BatchRun(world.report.path, graph, tmp_path / f"work{name}", options).run(
            lambda: open_sink(f"npy://{tmp_path / name}")
        )
        (file,) = (tmp_path / name).rglob("logits*.npy")
        return np.load(file)

    np.testing.assert_allclose(run(world.graph.path, "first"), world.pyg(), atol=1e-4)
    second = run(other, "second", tmp_path / "workfirst")
    np.testing.assert_allclose(second, world.pyg(frame), atol=1e-4)


@pytest.mark.release
def test_answers_do_not_depend_on_pages_of_memory_and_edges_on_disk_are_refused(worlds):
    huge = {"graph__memory": "huge"}
    with running(SERVICE, **paths(worlds[1]), **huge) as found, hopline.Client(found.url) as client:
        logits = client.score("risk", worlds[1].ids, outputs=["logits"]).outputs["logits"]
    np.testing.assert_allclose(logits, worlds[1].pyg(), atol=1e-4)
    with pytest.raises(AssertionError, match=f"has preprocessing of {KEY}.*without graph.memory = 'disk'"):
        running(SERVICE, **paths(worlds[1]), graph__memory="disk").__enter__()


def everyone(process):
    """A server and its children."""
    tasks = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in tasks for each in everyone(int(child)))]


@pytest.mark.sample(1)
@pytest.mark.parametrize("turns", [False, True], ids=["two types", "one type"])
def test_rows_of_events_survive_a_server_that_is_killed(worlds, turns, tmp_path):
    world = worlds[turns]
    settings = {
        **paths(world), "live__enabled": True, "server__workers": 2,
        "live__spare_nodes": 500, "live__spare_edges": 5_000,
    }  # fmt: skip
    more = shop.payments(40, 8, ["EUR", "XXX"])
    events = []
    for at, row in enumerate(more.to_dict("records")):
        event = {"op": "add_edge", "edge_type": KEY, "src": f"a{at}", "dst": at, "columns": as_sent(row)}
        events.append(event)
        if not turns:
            ends = {"edge_type": "merchant__paid_by__account", "src": at, "dst": f"a{at}"}
            events.append({**event, **ends})
    both = [np.concatenate([end, np.arange(40)]) for end in pairs()]
    graph = shop.graph_of(pd.concat([world.frame, more], ignore_index=True), turns, ends=both)
    wanted = ask(world.answerer(graph), nodes=world.ids)
    for number in range(2):
        with running(SERVICE, **settings) as found, hopline.Client(found.url) as client:
            if number == 0:
                answer = httpx.post(f"{found.url}/v1/graph/events", content=json.dumps(events)).json()
                assert answer["applied"] == len(events), answer
            logits = client.score("risk", world.ids, outputs=["logits"]).outputs["logits"]
            for each in everyone(found.process.pid) if number == 0 else ():
                os.kill(each, signal.SIGKILL)
        np.testing.assert_array_equal(logits, wanted)


@pytest.mark.sample(1)
@pytest.mark.parametrize("turns", [False, True], ids=["two types", "one type"])
def test_an_account_that_pays_a_new_merchant_is_kept_with_its_payments(worlds, turns, tmp_path):
    """The oracle is the same by events, on another server."""
    world, paid_by = worlds[turns], "merchant__paid_by__account"
    settings = {
        **paths(world), "live__enabled": True, "live__spare_nodes": 500, "live__spare_edges": 5_000,
    }  # fmt: skip
    account = {"id": "new", "features": [1.0] * 3, "neighbors": [900, 5], "edge_attr": [ROW, NULLS]}
    merchant = {"type": "merchant", "id": 900, "features": [0.5] * 3}
    payments = {"neighbors": {KEY: ["new", "a3"]}, "edge_attr": {KEY: [ROW, NULLS]}}
    asked = {"inline": [account], "context": [merchant | payments], "keep": True, "outputs": ["logits"]}
    events = [
        {"op": "add_node", "node_type": "account", "node": "new", "features": [1.0] * 3},
        {"op": "add_node", "node_type": "merchant", "node": 900, "features": [0.5] * 3},
    ]
    edges = [(paid_by, 900, "new"), (paid_by, 5, "new"), (KEY, "new", 900), (KEY, "a3", 900)]
    for (key, src, dst), row in zip(edges, (ROW, NULLS, ROW, NULLS), strict=True):
        if turns and key == paid_by:
            key, src, dst = KEY, dst, src
        events.append({"op": "add_edge", "edge_type": key, "src": src, "dst": dst, "columns": row})
    answers = []
    for name in ("events", "kept"):
        with running(SERVICE, **settings, live__folder=tmp_path / name) as found:
            if name == "events":
                assert httpx.post(f"{found.url}/v1/graph/events", json=events).json()["applied"] == 6
            else:
                score = f"{found.url}/v1/models/risk/score"
                lacking = account | {"edge_attr": [ROW, {"amount": 1.0}]}
                refused = httpx.post(score, json=asked | {"inline": [lacking]})
                assert refused.status_code == 400
                assert "inline[0].neighbors[1]" in refused.json()["error"]["message"]
                kept = httpx.post(score, json=asked).json()["outputs"]["logits"]
            with hopline.Client(found.url) as client:
                ids = ["new", "a3", *world.ids[:20]]
                answers.append(client.score("risk", ids, outputs=["logits"]).outputs["logits"])
    np.testing.assert_array_equal(*answers)
    np.testing.assert_array_equal(np.array(kept, np.float32), answers[0][:1])
