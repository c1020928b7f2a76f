"""Events and deviations over HTTP, through real connections."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import pytest

from hopline.ingress.keys import new_key
from hopline_mesh.changes import Context
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.out.between import Between
from hopline_mesh.out.board import Board
from hopline_mesh.proto import message
from hopline_mesh.schema import Schema
from packages.mesh.tests.detect.meshes import play
from packages.mesh.tests.out.serving import serving


class Judge:
    def __init__(self):
        snapshots = list(play(41))
        self.detector = MeshDetector(DetectorSettings())
        self.detector.fit(snapshots[:-1], [Context()] * 40)
        self.detector.step(snapshots[-1], Context())
        self.newest = snapshots[-1]
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def live(self):
        self.may_go_on.wait(10)
        return self.detector.live(self.newest)


@pytest.fixture(scope="module")
def judge():
    return Judge()


@pytest.fixture
def served(judge):
    board = Board()
    with ThreadPoolExecutor(1) as thread, serving(board, grpc_port=-1) as found:
        found.do(lambda: setattr(board, "live", Between(judge.live, thread, asyncio.Lock())))
        yield found


def post(served, body, **more):
    return httpx.post(f"{served.url}/v1/mesh/events", json=body, timeout=20, **more)


def test_an_event_changes_the_deviations_of_its_service_or_call_path(served):
    url = f"{served.url}/v1/mesh/deviations"
    before = {each["service"]: each for each in httpx.get(url).json()["services"]}
    assert list(before) == ["front", "cart", "store", "pay"]
    assert list(before["front"]["calls"]) == ["cart", "pay"]
    told = post(
        served,
        {
            "events": [
                {"service": "pay", "values": {"p99_ms": 900, "cpu_cores": 5, "memory_bytes": None}},
                {"caller": "front", "callee": "pay", "values": {"client_ms": 950.5}},
                {"caller": "cart", "callee": "store", "gone": True},
                {"service": "nobody", "values": {"p99_ms": 1}},
            ]
        },
    )
    assert told.status_code == 200
    answer = told.json()
    assert answer["accepted"] == 3
    assert answer["refused"][0]["event"] == 3
    assert "'nobody' was not in the last interval" in answer["refused"][0]["reason"]
    assert set(answer["services"]) <= set(before)
    after = {
        each["service"]: each for each in httpx.get(url, params={"service": "pay,front"}).json()["services"]
    }
    assert list(after) == ["pay", "front"]
    client_ms = [each["front"]["calls"]["pay"]["client_ms"] for each in (before, after)]
    assert client_ms[1] > 5 > abs(client_ms[0])
    assert httpx.get(url, params={"service": "cart"}).json()["services"][0]["calls"] == {}
    assert after["pay"]["deviations"]["p99_ms"] > 5 > abs(before["pay"]["deviations"]["p99_ms"])
    assert after["pay"]["deviations"]["memory_bytes"] is None
    again = httpx.get(url, params={"service": "front"}).json()["services"][0]
    assert again == after["front"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"events": []}, 400, "at least one event is needed"),
        ({"event": {}}, 400, "unknown field `event`"),
        (
            {"events": [{"service": "pay", "values": {"p99_ms": "high"}}]},
            400,
            "Expected `float | null`, got `str`",
        ),
        ({"events": [{"servce": "pay"}]}, 400, "did you mean 'service'"),
        ({"events": [{"service": "pay", "values": {}}] * 1001}, 413, "at most 1000 are allowed"),
        ([], 400, 'send {"events": [{'),
    ],
)
def test_what_is_no_event_is_refused(served, body, status, text):
    answer = post(served, body)
    assert (answer.status_code, text in answer.json()["error"]["message"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            {"service": "pay", "values": {"p99_ms": 1e308}},
            "p99_ms of 'pay' is 1e+308: too large; it must be below 1e+30",
        ),
        ({"service": "pay", "values": {"p99_ms": 1e30}}, "too large"),
        (
            {"caller": "front", "callee": "pay", "values": {"client_ms": 3e38}},
            "client_ms of 'front → pay' is 3e+38: too large",
        ),
        ({"service": "pay", "values": {"p99_ms": -1e308}}, "it must be an amount, 0 or more"),
        ({"service": "pay", "values": {"error_share": 1e308}}, "it must be a share, 0 to 1"),
    ],
)
def test_a_value_that_is_too_large_is_named_as_such(served, event, said):
    answer = post(served, {"events": [event]}).json()
    assert answer["accepted"] == 0
    assert said in answer["refused"][0]["reason"]


def test_the_largest_value_of_an_event_is_accepted(served):
    answer = post(served, {"events": [{"service": "pay", "values": {"p99_ms": 9.9e29}}]}).json()
    assert (answer["accepted"], answer["refused"]) == (1, [])


def test_as_many_events_as_documented_are_taken_whatever_their_size(served):
    schema = Schema()
    long = "n" * 253
    event = {
        "caller": f"{long}/{long}",
        "callee": f"{long}/{long}",
        "values": dict.fromkeys((*schema.node_features, *schema.edge_features), 1234.567890123456),
    }
    told = post(served, {"events": [event] * 1000})
    assert told.status_code == 200
    assert told.json()["accepted"] + len(told.json()["refused"]) == 1000
    assert post(served, {"events": [event] * 1001}).status_code == 413


def test_many_events_leave_others_their_turns(served, monkeypatch):
    turns, taken_in, done = [], [], []

    def look():
        turns.append(1)
        if not done:
            served.loop.call_soon(look)

    take = served.board.live.take

    def noted(event):
        taken_in.append(len(turns))
        return take(event)

    monkeypatch.setattr(served.board.live, "take", noted)
    served.do(look)
    try:
        events = [{"service": "pay", "values": {"p99_ms": 10.0 + k}} for k in range(800)]
        assert post(served, {"events": events}).json()["accepted"] == 800
    finally:
        done.append(True)
    assert len(set(taken_in)) == 800 // 16


def test_only_json_and_only_post(served):
    url = f"{served.url}/v1/mesh/events"
    plain = httpx.post(url, content=b'{"events":[{"service":"pay","values":{"p99_ms":1}}]}')
    assert plain.status_code == 400, "a page from elsewhere could send it"
    assert "content-type: application/json" in plain.json()["error"]["message"]
    for method in ("PUT", "GET", "HEAD"):
        answer = httpx.request(method, url)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert httpx.get(f"{served.url}/v1/mesh/deviations?service=nobody").status_code == 400


def test_without_a_watch_there_is_nothing_yet():
    with serving(grpc_port=-1) as empty:
        answer = httpx.get(f"{empty.url}/v1/mesh/deviations")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")


def test_the_first_waits_and_nobody_else_does(served, judge):
    judge.may_go_on.clear()
    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(httpx.get, f"{served.url}/v1/mesh/deviations", timeout=20)
            assert httpx.get(f"{served.url}/healthz", timeout=5).status_code == 200
            assert not first.done()
            judge.may_go_on.set()
            assert first.result().status_code == 200
    finally:
        judge.may_go_on.set()


def test_events_need_a_key_that_may_score(judge, tmp_path):
    reader, sender = new_key(), new_key()
    clients = tmp_path / "clients.toml"
    clients.write_text(
        f'[clients.reader]\nread = true\nkeys = [{{ id = "{reader.id}", sha256 = "{reader.sha256}" }}]\n'
        f'[clients.sender]\nscore = true\nkeys = [{{ id = "{sender.id}", sha256 = "{sender.sha256}" }}]\n'
    )
    board = Board()
    body = {"events": [{"service": "pay", "values": {"p99_ms": 900}}]}
    with ThreadPoolExecutor(1) as thread, serving(board, grpc_port=-1, clients_file=clients) as found:
        found.do(lambda: setattr(board, "live", Between(judge.live, thread, asyncio.Lock())))
        assert post(found, body).status_code == 401
        assert post(found, body, headers={"x-api-key": reader.text}).status_code == 403
        assert post(found, body, headers={"x-api-key": sender.text}).status_code == 200
        url = f"{found.url}/v1/mesh/deviations"
        assert httpx.get(url, headers={"x-api-key": reader.text}).status_code == 200
        assert httpx.get(url).status_code == 401


def test_a_sidecar_reports_them_over_the_socket(judge, tmp_path):
    board = Board()
    path = tmp_path / "mesh.sock"
    with (
        ThreadPoolExecutor(1) as thread,
        serving(board, grpc_port=-1, socket=path) as found,
        grpc.insecure_channel(f"unix:{path}") as channel,
    ):

        def call(method, **fields):
            request = message(f"hopline.mesh.v1.{method}Request")
            response = message(f"hopline.mesh.v1.{method}Response")
            return channel.unary_unary(
                f"/hopline.mesh.v1.Mesh/{method}", request.SerializeToString, response.FromString
            )(request(**fields), timeout=20)

        with pytest.raises(grpc.RpcError, match="the watch has not started"):
            call("GetDeviations")
        found.do(lambda: setattr(board, "live", Between(judge.live, thread, asyncio.Lock())))
        before = {each.service: each for each in call("GetDeviations").services}
        assert list(before) == ["front", "cart", "store", "pay"]
        told = call(
            "ReportEvents",
            events=[
                {"service": "pay", "values": {"p99_ms": 900.0, "memory_bytes": float("nan")}},
                {"caller": "front", "callee": "cart", "gone": True},
                {"service": "pay", "values": {"p99_ms": -1.0}},
            ],
        )
        assert (told.accepted, [each.event for each in told.refused]) == (2, [2])
        assert "it must be an amount" in told.refused[0].reason
        assert told.touched == len(told.services) > 0
        (after,) = call("GetDeviations", services=["front"]).services
        assert [each.callee for each in before["front"].calls] == ["cart", "pay"]
        assert [each.callee for each in after.calls] == ["pay"]
        assert abs(after.calls[0].deviations["client_ms"]) < 5
        (pay,) = call("GetDeviations", services=["pay"]).services
        assert pay.deviations["p99_ms"] > 5
        assert pay.deviations["memory_bytes"] != pay.deviations["memory_bytes"]
        with pytest.raises(grpc.RpcError, match="at least one event is needed"):
            call("ReportEvents")
        with pytest.raises(grpc.RpcError, match="'nobody' was not in the last interval"):
            call("GetDeviations", services=["nobody"])
