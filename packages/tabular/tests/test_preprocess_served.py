"""A graph model with preprocessing behind HTTP, the Python client, the prediction log and batch runs."""

import json
import math
import shutil

import httpx
import numpy as np
import pytest

import hopline
from hopline.errors import BadRequest
from hopline.jobs.batch.goal import BatchOptions
from hopline.jobs.batch.registry import open_sink
from hopline.jobs.batch.run import BatchRun
from hopline.records.inputs import input_hash, inputs_of
from hopline.types import InlineNode, ScoreRequest
from packages.tabular.tests import fraud_graph as fraud
from packages.tabular.tests.fraud_world import FRAME, ROW, as_sent, fitted_form
from tests.servers import running


@pytest.fixture(scope="module")
def server(world, tmp_path_factory):
    folder = world.report.path.parents[2]
    settings = {"graph__path": folder / "graph", "models__repository": folder / "models"}
    with running(
        "hopline.service:Service", **settings, prediction_log__path=tmp_path_factory.mktemp("log")
    ) as found:
        yield found


def score(server, **body):
    return httpx.post(f"{server.url}/v1/models/risk/score", content=json.dumps(body))


@pytest.mark.release
def test_columns_of_a_new_node_are_scored_over_http_and_from_the_client(world, server):
    expected = world.pyg(fitted_form(FRAME), [[3, 5]])[-1]
    answer = score(server, inline=[{"columns": ROW, "neighbors": [3, 5]}], outputs=["logits"])
    np.testing.assert_allclose(answer.json()["outputs"]["logits"][0], expected, atol=1e-4)
    with hopline.Client(server.url) as client:
        typed = ROW | {"opened": FRAME["opened"][0].to_pydatetime(), "amount": np.float64(12.5)}
        for node in (
            InlineNode(columns=typed, neighbors={"": [3, 5]}),
            {"columns": typed, "neighbors": [3, 5]},
        ):
            found = client.score_inline("risk", [node], outputs=["logits"]).outputs["logits"][0]
            np.testing.assert_allclose(found, expected, atol=1e-4)
        missing = ROW | {"amount": math.nan, "country": None, "opened": None}
        assert client.score_inline("risk", [InlineNode(columns=missing)]).outputs["label"].shape == (1,)


def test_texts_of_a_request_are_read_as_those_of_a_table(server):
    """Without the blanks around them; an empty one is missing, of any column."""

    def logits(**cells):
        node = {"columns": ROW | cells, "neighbors": [3, 5]}
        return score(server, inline=[node], outputs=["logits"]).json()["outputs"]["logits"][0]

    assert logits(country=" FR ", mcc="\t0742\n") == logits(country="FR", mcc="0742")
    nothing = dict.fromkeys(("country", "amount", "active", "opened"))
    assert (
        logits(**dict.fromkeys(nothing, "")) == logits(**dict.fromkeys(nothing, "  ")) == logits(**nothing)
    )
    assert logits(opened=" 2024-01-31 ") == logits(opened="2024-01-31")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"columns": ROW | {"age": "old"}}, "inline[0].columns: 'age': 'old' instead of a whole number"),
        ({"columns": {"amount": 1}}, "inline[0].columns: 'country' is missing; a row has amount (float"),
        ({"features": [1.0]}, "inline[0].features: the model has preprocessing; send `columns`"),
        ({"columns": ROW | {"amount": [1]}}, "inline[0].columns: 'amount': [1] instead of a number"),
        ({"columns": {"amount": [[1]]}}, "$.inline[0].columns['amount'][0]"),
        ({"columns": 5}, "$.inline[0].columns"),
        ({}, "missing required field `features`, or `columns` for a model with preprocessing"),
        ({"features": [], "columns": ROW}, "either `features`, or `columns`"),
    ],
)
def test_a_row_that_is_wrong_is_a_400_that_names_it(server, node, message):
    answer = score(server, inline=[node])
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_repeated_column_is_refused(server):
    body = '{"inline": [{"columns": {"amount": 1, "amount": 2}}]}'
    answer = httpx.post(f"{server.url}/v1/models/risk/score", content=body)
    assert answer.status_code == 400
    assert "amount" in answer.text


def test_the_models_description_names_columns_with_their_types(server):
    described = httpx.get(f"{server.url}/v1/models/risk").json()
    columns = {column["name"]: column for column in described["properties"]["columns"]}
    assert columns["opened"]["type"] == "timestamp"
    assert columns["amount"]["nullable"]
    assert "features" not in {each["name"] for each in described["inputs"]}


def test_columns_over_oip_are_refused_with_the_way_that_has_them(server):
    tensor = {"name": "amount", "shape": [1], "datatype": "FP64", "data": [1.0]}
    answer = httpx.post(f"{server.url}/v2/models/risk/infer", json={"inputs": [tensor]})
    assert answer.status_code == 400
    assert "those of a new node are in `inline`" in answer.text


def test_a_batch_run_has_the_same_answers(world, server, tmp_path):
    folder = world.report.path.parents[2]
    run = BatchRun(
        world.report.path, folder / "graph", tmp_path / "work", BatchOptions(outputs=("logits",))
    )
    out = tmp_path / "out"
    run.run(lambda: open_sink(f"npy://{out}"))
    (file,) = out.rglob("logits*.npy")
    np.testing.assert_allclose(np.load(file), world.pyg(), atol=1e-4)


def test_requests_with_columns_are_logged_and_hashed_by_them():
    one = ScoreRequest("risk", inline=[InlineNode(columns=ROW)])
    logged = inputs_of(one, lambda: None)
    assert logged.request("risk", None).inline[0].columns == ROW
    assert input_hash(one) == input_hash(logged.request("risk", None))
    for name, value in {"country": "FR", "opened": None, "age": 45, "active": False}.items():
        other = ScoreRequest("risk", inline=[InlineNode(columns=ROW | {name: value})])
        assert input_hash(other) != input_hash(one)
    assert input_hash(ScoreRequest("risk", inline=[InlineNode()])) != input_hash(
        ScoreRequest("risk", inline=[InlineNode(columns={})])
    )


def test_what_the_client_cannot_write_as_json_is_named(server):
    with hopline.Client(server.url) as client, pytest.raises(BadRequest, match="amount"):
        client.score_inline("risk", [InlineNode(columns=ROW | {"amount": math.inf})])


def test_rows_of_the_graph_have_the_same_answer_from_the_server(world, server):
    with hopline.Client(server.url) as client:
        nodes = client.score("risk", world.ids[:30], outputs=["logits"]).outputs["logits"]
    np.testing.assert_allclose(nodes, world.pyg()[:30], atol=1e-4)
    frame = fraud.accounts()
    assert as_sent(frame.iloc[0]).keys() == ROW.keys()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"graph__memory": "disk"},
        {"graph__memory": "huge"},
        {"server__workers": 2},
    ],
    ids=str,
)
def test_answers_do_not_depend_on_where_the_graph_lies(world, settings):
    folder = world.report.path.parents[2]
    paths = {"graph__path": folder / "graph", "models__repository": folder / "models"}
    node = InlineNode(columns=ROW, neighbors={"": [3, 5]})
    with (
        running("hopline.service:Service", **paths, **settings) as server,
        hopline.Client(server.url) as client,
    ):
        nodes = client.score("risk", world.ids[:30], outputs=["logits"]).outputs["logits"]
        new = client.score_inline("risk", [node], outputs=["logits"])
    np.testing.assert_allclose(nodes, world.pyg()[:30], atol=1e-4)
    expected = world.pyg(fitted_form(FRAME), [[3, 5]])[-1]
    np.testing.assert_allclose(new.outputs["logits"][0], expected, atol=1e-4)


@pytest.mark.release
def test_a_model_in_a_process_of_its_own_takes_columns(world, tmp_path):
    shutil.copytree(world.report.path.parent, tmp_path / "models" / "risk")
    (tmp_path / "models" / "risk" / "serving.toml").write_text("isolate = true\n")
    graph = world.report.path.parents[2] / "graph"
    with (
        running(
            "hopline.service:Service", graph__path=graph, models__repository=tmp_path / "models"
        ) as server,
        hopline.Client(server.url) as client,
    ):
        node = InlineNode(columns=ROW, neighbors={"": [3, 5]})
        found = client.score_inline("risk", [node], outputs=["logits"]).outputs["logits"][0]
        with pytest.raises(BadRequest, match=r"inline\[0\].columns: 'age': 'old' instead of a whole"):
            client.score_inline("risk", [InlineNode(columns=ROW | {"age": "old"})])
    np.testing.assert_allclose(found, world.pyg(fitted_form(FRAME), [[3, 5]])[-1], atol=1e-4)


def test_a_live_server_takes_columns_in_events_and_keeps_them_over_a_restart(world, tmp_path):
    folder = world.report.path.parents[2]
    settings = {
        "graph__path": folder / "graph", "models__repository": folder / "models", "live__enabled": True,
        "live__folder": tmp_path / "live", "server__workers": 2,
    }  # fmt: skip
    event = {"op": "add_node", "node_type": "account", "node": "new", "columns": ROW}
    edges = [
        {"op": "add_edge", "edge_type": "merchant__paid_by__account", "src": merchant, "dst": "new"}
        for merchant in (3, 5)
    ]
    wrong = {**event, "node": "other", "columns": ROW | {"age": "old"}}
    expected = world.pyg(fitted_form(FRAME), [[3, 5]])[-1]
    for first in (True, False):
        with (
            running("hopline.service:Service", **settings) as server,
            hopline.Client(server.url) as client,
        ):
            if first:
                outcome = client.send_events([event, wrong, *edges])
                assert outcome.applied == 3
                (refused,) = outcome.refused
                assert (refused.index, refused.code) == (1, "bad_value")
                assert "column 'age': 'old' instead of a whole number" in refused.reason
            for _ in range(4):  # of both workers
                found = client.score("risk", ["new", *world.ids[:20]], outputs=["logits"]).outputs["logits"]
                np.testing.assert_allclose(found[0], expected, atol=1e-4)
                np.testing.assert_allclose(found[1:], world.pyg()[:20], atol=1e-4)
            node = InlineNode(columns=ROW, neighbors={"": [3, 5]})
            inline = client.score_inline("risk", [node], outputs=["logits"]).outputs["logits"][0]
            np.testing.assert_allclose(inline, expected, atol=1e-4)
