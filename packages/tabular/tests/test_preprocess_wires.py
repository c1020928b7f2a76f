"""Columns of new nodes over every wire: the same answers as in JSON over HTTP, and the same refusals."""

import asyncio
import json
import time

import httpx
import msgspec
import numpy as np
import pandas as pd
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hopline.brokers.registry import open_sink
from hopline_drift.log_reader import LogReader
from packages.brokers.tests.servers import RedisServer, broker_server
from packages.brokers.tests.test_queue import Desk
from packages.tabular.tests.fraud_world import FRAME, ROW, as_sent, fitted_form, new_accounts
from tests.servers import running

TYPES = {
    "amount": "FP64", "country": "BYTES", "mcc": "BYTES", "age": "INT64", "active": "BOOL",
    "opened": "BYTES",
}  # fmt: skip
DTYPES = {"FP64": np.float64, "INT64": np.int64, "BOOL": np.bool_, "BYTES": np.object_}
NULLS = ROW | {"country": None, "opened": None, "amount": None, "active": None}
SHOP = {"type": "merchant", "id": 1000, "columns": {"risk": 2.5, "category": "toys"}}


class Refused(Exception):
    """A request was answered with an error of the caller's."""


@pytest.fixture(scope="module")
def wires(world, tmp_path_factory):
    log = tmp_path_factory.mktemp("log")
    folder = world.report.path.parents[2]
    with broker_server(RedisServer) as broker:
        desk = Desk(broker)
        asyncio.run(desk.open())
        settings = {name.replace(".", "__"): value for name, value in desk.settings().items()}
        settings |= {"graph__path": folder / "graph", "models__repository": folder / "models"}
        with running("hopline.service:Service", **settings, prediction_log__path=log) as server:
            yield Wires(server, desk, log)


class Wires:
    """Asks the same of one server in several ways; each returns logits [n, 2]."""

    def __init__(self, server, desk, log):
        self.server, self.desk, self.log = server, desk, log
        self.client = triton.InferenceServerClient(server.grpc)
        self.num_queued = 0

    def json(self, nodes, **more):
        body = {"inline": nodes, "outputs": ["logits"], **more}
        answer = httpx.post(f"{self.server.url}/v1/models/risk/score", content=json.dumps(body))
        if answer.status_code == 400:
            raise Refused(answer.json()["error"]["message"])
        return answer.json()["outputs"]["logits"]

    def queue(self, nodes, **more):
        body = {"model": "risk", "inline": nodes, "outputs": ["logits"], **more}
        answer = asyncio.run(self._queued(body))
        if "error" in answer:
            assert answer["error"]["code"] == "bad_request"
            raise Refused(answer["error"]["message"])
        return answer["outputs"]["logits"]

    async def _queued(self, body):
        self.num_queued += 1
        desk = self.desk
        desk.sink = open_sink(desk.server.address(desk.topics["requests"]), "test")
        await desk.sink.open()
        await desk.send(body, request_id=f"q{self.num_queued}")
        answers = await desk.read("results", self.num_queued)
        await desk.sink.close()
        return msgspec.json.decode(answers[-1].payload)

    def parameter(self, nodes, **more):
        """gRPC, with nodes as JSON in a parameter."""
        parameters = {"inline": json.dumps(nodes)}
        parameters |= {name: json.dumps(value) for name, value in more.items()}
        return self._grpc([], parameters)

    def tensors(self, nodes, **more):
        """gRPC, with a tensor for each column."""
        inputs = []
        for name, values, datatype in self._columns(nodes):
            tensor = triton.InferInput(name, [len(values)], datatype)
            tensor.set_data_from_numpy(np.array(values, DTYPES[datatype]))
            inputs.append(tensor)
        return self._grpc(inputs, {name: json.dumps(value) for name, value in more.items()})

    def oip(self, nodes, **more):
        """JSON tensors over HTTP."""
        inputs = [
            {"name": name, "datatype": datatype, "shape": [len(values)], "data": values}
            for name, values, datatype in self._columns(nodes)
        ]
        body = {"inputs": inputs, "outputs": [{"name": "logits"}]}
        body["parameters"] = {name: json.dumps(value) for name, value in more.items()}
        answer = httpx.post(f"{self.server.url}/v2/models/risk/infer", content=json.dumps(body))
        if answer.status_code == 400:
            raise Refused(answer.json()["error"])
        return np.reshape(answer.json()["outputs"][0]["data"], (len(nodes), 2))

    def _grpc(self, inputs, parameters):
        outputs = [triton.InferRequestedOutput("logits")]
        try:
            return self.client.infer("risk", inputs, outputs=outputs, parameters=parameters).as_numpy(
                "logits"
            )
        except InferenceServerException as error:
            if error.status() == "StatusCode.INVALID_ARGUMENT":
                raise Refused(error.message()) from None
            raise

    @staticmethod
    def _columns(nodes):
        """(name, values, datatype); a value of another type makes its tensor BYTES."""
        lists = [node.get("neighbors", []) for node in nodes]
        for name, datatype in TYPES.items():
            values = [node["columns"][name] for node in nodes if name in node["columns"]]
            if values:
                wrong = datatype != "BYTES" and any(isinstance(value, str) for value in values)
                yield name, values, "BYTES" if wrong else datatype
        yield "neighbor_counts", [len(each) for each in lists], "INT64"
        yield "neighbors", [one for each in lists for one in each], "INT64"


EVERY = pytest.mark.parametrize("wire", ["json", "queue", "parameter", "tensors", "oip"])
OF_JSON = pytest.mark.parametrize("wire", ["json", "queue", "parameter"])


@EVERY
def test_new_nodes_are_answered_as_by_pyg(world, wires, wire):
    frame, neighbors = new_accounts()
    known = frame.dropna().index[:20]
    rows = [as_sent(frame.loc[row]) for row in known]
    nodes = [
        {"columns": row, "neighbors": neighbors[at]} for at, row in zip(known.tolist(), rows, strict=True)
    ]
    expected = world.pyg(fitted_form(frame.loc[known]), [neighbors[at] for at in known.tolist()])[-20:]
    np.testing.assert_allclose(getattr(wires, wire)(nodes), expected, atol=1e-4, rtol=1e-4)


@OF_JSON
def test_missing_values_are_null(world, wires, wire):
    absent = {
        "amount": np.nan,
        "opened": np.nan,
        "active": np.nan,
        "country": pd.Series([np.nan], dtype=object),
    }
    expected = world.pyg(fitted_form(FRAME).assign(**absent), [[3]])[-1]
    found = getattr(wires, wire)([{"columns": NULLS, "neighbors": [3]}])
    np.testing.assert_allclose(found[0], expected, atol=1e-4)


@EVERY
def test_a_new_merchant_beside_a_new_account_has_columns_too(wires, wire):
    node = {"columns": ROW, "neighbors": [3, 1000]}
    expected = wires.json([node], context=[SHOP])
    np.testing.assert_allclose(getattr(wires, wire)([node], context=[SHOP]), expected, atol=1e-6)
    other = {**SHOP, "columns": {"risk": -2.5, "category": "fuel"}}
    assert abs(np.subtract(getattr(wires, wire)([node], context=[other]), expected)).max() > 1e-3


FEW = {name: value for name, value in ROW.items() if name != "country"}
GOOD = {"columns": ROW}
OF_MERCHANT = {"risk": 1.0, "category": "toys"}
WRONG = [
    ([{"columns": ROW | {"age": "old"}}], [], "inline[0].columns: 'age': 'old' instead of a whole number"),
    ([GOOD, {"columns": ROW | {"opened": "soon"}}], [], "inline[1].columns: 'opened': 'soon' instead of a"),
    ([{"columns": FEW}], [], "inline[0].columns: 'country' is missing; a row has amount (float"),
    (
        [{"columns": ROW, "neighbors": [1000]}],
        [{**SHOP, "columns": {"risk": "high", "category": "toys"}}],
        "context[0].columns: 'risk': 'high' instead of a number",
    ),
    (
        [{"columns": ROW, "neighbors": [1000]}],
        [SHOP | {"id": 999, "columns": OF_MERCHANT}, {**SHOP, "columns": {"risk": 1.0}}],
        "context[1].columns: 'category' is missing",
    ),
    (
        [{"columns": ROW, "neighbors": [1000]}],
        [SHOP | {"id": 999, "columns": OF_MERCHANT}, {**SHOP, "columns": OF_MERCHANT | {"risk": "high"}}],
        "context[1].columns: 'risk': 'high' instead of a number",
    ),
]  # fmt: skip


@pytest.mark.sample(10)
@EVERY
@pytest.mark.parametrize(("nodes", "context", "message"), WRONG, ids=[each[2][:30] for each in WRONG])
def test_a_wrong_row_is_named_by_place_column_and_value(wires, wire, nodes, context, message):
    more = {"context": context} if context else {}
    with pytest.raises(Refused) as refused:
        getattr(wires, wire)(nodes, **more)
    assert message in str(refused.value)


@EVERY
@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1])
def test_an_integer_that_preprocessing_would_round_is_refused(wires, wire, value):
    with pytest.raises(Refused, match=f"'age': {value} is beyond ±{2**53}"):
        getattr(wires, wire)([{"columns": ROW | {"age": value}}])


@pytest.mark.parametrize("wire", ["tensors", "oip"])
@pytest.mark.parametrize(("datatype", "limit"), [("FP16", 2**11), ("FP32", 2**24), ("FP64", 2**53)])
def test_a_float_tensor_for_integers_may_not_have_rounded_them(monkeypatch, wires, wire, datatype, limit):
    monkeypatch.setitem(TYPES, "age", datatype)
    for name, dtype in (("FP16", np.float16), ("FP32", np.float32)):
        monkeypatch.setitem(DTYPES, name, dtype)
    nodes = [{"columns": ROW | {"age": age}} for age in (limit - 1, 30)]
    found = getattr(wires, wire)(nodes)
    monkeypatch.setitem(TYPES, "age", "INT64")
    np.testing.assert_array_equal(found, getattr(wires, wire)(nodes))
    monkeypatch.setitem(TYPES, "age", datatype)
    for age in (limit, limit + 1, -limit):
        with pytest.raises(
            Refused, match=rf"inline\[1\].columns: 'age': -?{limit}.* is beyond ±{limit - 1}"
        ):
            getattr(wires, wire)([{"columns": ROW}, {"columns": ROW | {"age": age}}])


@OF_JSON
@pytest.mark.parametrize("value", [[[1]], {"a": 1}, 2**70], ids=str)
def test_a_value_that_no_column_has_is_named_by_its_column(wires, wire, value):
    with pytest.raises(Refused, match=r"\$(\.inline)?\[0\]\.columns\['amount'\]"):
        getattr(wires, wire)([{"columns": ROW | {"amount": value}}])


@OF_JSON
def test_a_list_for_a_column_that_is_no_vector_is_named_with_the_value(wires, wire):
    with pytest.raises(Refused, match=r"inline\[0\].columns: 'amount': \[1\] instead of a number"):
        getattr(wires, wire)([{"columns": ROW | {"amount": [1]}}])


@pytest.mark.parametrize(
    ("inputs", "parameters", "message"),
    [
        (
            [("amount", [1.0, 2.0]), ("age", [3]), ("neighbor_counts", [0, 0])],
            {},
            "'neighbor_counts' has 2 values for 1 of 'age'",
        ),
        ([("amount", [1.0]), ("neighbor_counts", [0, 0])], {}, "has 2 values for 1 of 'amount'"),
        ([("neighbor_counts", [0])], {}, "'neighbor_counts' also needs input 'features', or columns"),
        ([("neighbors", [1])], {}, "'neighbors' also needs input 'neighbor_counts'"),
        ([("amount", [1.0])], {}, "those of a new node are in `inline`"),
        ([("amount", [1.0]), ("neighbor_counts", [0])], {"inline": "[]"}, "both in inputs and in"),
        ([], {"inline": "[" + "1," * 40_000 + "1]"}, "parameter inline has 80003 characters"),
        ([], {"inline": '[{"columns": {"age": 1, "age": 2}}]'}, "'age' is repeated"),
        ([], {"inline": 5}, "must be a JSON list, in a string, not 5"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_go_together_are_refused(wires, inputs, parameters, message):
    tensors = [
        {"name": name, "datatype": TYPES.get(name, "INT64"), "shape": [len(data)], "data": data}
        for name, data in inputs
    ]
    body = json.dumps({"inputs": tensors, "parameters": parameters})
    answer = httpx.post(f"{wires.server.url}/v2/models/risk/infer", content=body)
    assert answer.status_code in (400, 413)
    assert message in answer.json()["error"]


def test_metadata_names_the_columns_as_tensors(wires):
    found = {each["name"]: each for each in wires.client.get_model_metadata("risk", as_json=True)["inputs"]}
    assert {name: found[name]["datatype"] for name in TYPES} == TYPES
    assert {"node_ids", "neighbors", "neighbor_counts"} < found.keys()


def test_the_log_has_the_values_by_name_whatever_the_wire(wires):
    node = {"columns": ROW | {"age": 51}, "neighbors": [3, 1000]}
    for wire in ("json", "queue", "parameter", "tensors", "oip"):
        getattr(wires, wire)([node], context=[SHOP])
    wanted, end = [], time.monotonic() + 30
    while len(wanted) < 5 and time.monotonic() < end:  # the log is written ten times a second
        logged = [entry for entry in LogReader(wires.log) if entry.inputs.inline]
        wanted = [entry for entry in logged if entry.inputs.inline[0].columns == node["columns"]]
    assert [entry.inputs.context[0].columns for entry in wanted] == [SHOP["columns"]] * 5
    assert len({entry.input_hash for entry in wanted}) == 1
