"""Both clients against a real server; retries against a scripted one."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hopline
from hopline import errors
from hopline.client.wire import inline_body, read_error, read_json, read_result, score_body
from hopline.types import InlineNode
from tests.servers import RunningServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(server__grpc_port=-1) as started:
        yield started


class Blocking:
    """AsyncClient, called as if it blocked: one suite runs over both."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = hopline.AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            async def main() -> Any:
                return await method(*args, **options)

            return self._runner.run(main())

        return call

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(params=[hopline.Client, Blocking], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = []

    def build(url: str, **options: Any) -> Any:
        made.append(request.param(url, **options))
        return made[-1]

    yield build
    for client in made:
        client.close()


def test_nodes_are_scored_into_arrays(make: Any, server: RunningServer) -> None:
    client = make(server.url)
    result = client.score("sage", np.array([4, 5]), outputs=["probabilities", "label", "embedding"])
    assert (result.model, result.version, result.graph_version) == ("sage", "2", "fake-graph")
    assert result.outputs["probabilities"].dtype == np.float32
    np.testing.assert_array_equal(
        result.outputs["probabilities"], np.array([[0.9, 0.1], [0.1, 0.9]], dtype=np.float32)
    )
    assert result.outputs["label"].dtype == np.int64
    assert result.outputs["embedding"].shape == (2, 4)
    assert result.missing is None
    assert client.score("people", ["n1"], version="1").version == "1"


def test_unknown_nodes_are_nan_and_marked(make: Any, server: RunningServer) -> None:
    result = make(server.url).score("sage", [7, -1], on_missing="null")
    assert result.missing.tolist() == [False, True]
    assert result.outputs["label"].tolist() == [1, -1]
    assert np.isnan(result.outputs["probabilities"][1]).all()


def test_pairs_and_inline_nodes_are_scored(make: Any, server: RunningServer) -> None:
    client = make(server.url)
    assert client.score_pairs("link", [(1, 2), (np.int64(2), 1)]).outputs["label"].tolist() == [1, 0]
    inline = [
        InlineNode(np.ones(3, np.float32), {"": np.array([1, 2, 3])}),
        {"features": [1, 2, 3], "neighbors": [1]},
    ]
    assert client.score_inline("sage", inline, [4]).outputs["label"].tolist() == [0, 1, 1]


def test_rows_are_scored_and_absent_values_are_null(make: Any, server: RunningServer) -> None:
    client = make(server.url)
    rows = [{"amount": 3.0, "category": "ab"}, {"amount": np.float64(4), "category": "abc"}]
    options: Any = {"outputs": ["embedding"], "key": "k", "priority": "low", "attributes": {"a": 1}}
    by_rows = client.score("table", rows=rows, **options)
    assert by_rows.outputs["embedding"][:, 0].tolist() == [1215.0, 1217.0]
    columns = {"amount": np.array([3.0, 4.0]), "category": ["ab", "abc"]}
    by_columns = client.score("table", columns=columns, **options)
    assert np.array_equal(by_columns.outputs["embedding"], by_rows.outputs["embedding"])
    with pytest.raises(errors.BadRequest, match="not a number"):
        client.score("table", columns={"amount": [np.nan], "category": ["x"]})
    with pytest.raises(errors.BadRequest, match="not both"):
        client.score("table", rows=rows, columns=columns)


def test_errors_are_the_same_classes(make: Any, server: RunningServer) -> None:
    client = make(server.url, retries=0)
    with pytest.raises(errors.NodeNotFound) as caught:
        client.score("sage", [1, -5, -6])
    assert caught.value.missing == (-5, -6)
    with pytest.raises(errors.ModelNotFound, match="there are: sage"):
        client.score("absent", [1])
    with pytest.raises(errors.ModelNotFound):
        client.score("b c", [1])
    # No name has a slash, and a path with an encoded one has another meaning for some proxies.
    with pytest.raises(errors.BadRequest, match="one spelling"):
        client.score("a/b c", [1])
    with pytest.raises(errors.Overloaded) as refused:
        client.score("busy", [1])
    assert refused.value.retry_after_s == 0.05
    with pytest.raises(errors.ModelNotReady):
        client.score("loading", [1])
    with pytest.raises(errors.HoplineError, match="internal error"):
        client.score("broken", [1])


def test_a_timeout_is_a_deadline(make: Any, server: RunningServer) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        make(server.url).score("slow", [1], as_of=60_000, timeout=0.1)
    with pytest.raises(errors.DeadlineExceeded):
        make(server.url, timeout=0.1).score("slow", [1], as_of=60_000)


@pytest.mark.parametrize(
    ("as_of", "sent"),
    [
        (1_300_000_000, 1_300_000_000),
        (np.int64(5), 5),
        ("2011-03-13", "2011-03-13"),
        (datetime.date(2011, 3, 13), "2011-03-13"),
        (datetime.datetime(2011, 3, 13, 7, 6, 40), "2011-03-13T07:06:40"),
        (datetime.datetime(2011, 3, 13, 7, 6, 40, tzinfo=datetime.UTC), "2011-03-13T07:06:40+00:00"),
        (np.datetime64("2011-03-13T07:06:40.5"), "2011-03-13T07:06:40.500"),
    ],
)
def test_a_time_cut_may_be_a_number_or_a_moment(
    make: Any, server: RunningServer, as_of: Any, sent: Any
) -> None:
    assert score_body([1], None, None, as_of=as_of)["as_of"] == sent
    assert make(server.url).score("sage", [1], as_of=as_of).outputs["label"].tolist() == [1]


def test_one_value_where_a_list_is_due_is_refused(make: Any, server: RunningServer) -> None:
    client = make(server.url)
    for call, text in (
        (lambda: client.score("people", "n1"), r"nodes must be a list of ids, for example \['n1'\]"),
        (lambda: client.score("sage", 42), r"nodes must be a list of ids, for example \[42\]"),
        (lambda: client.score("sage", [1], outputs="label"), r"outputs must be a list of names"),
        (lambda: client.score("table", columns={"category": "ab"}), r"column 'category' must be a list"),
        (lambda: client.score_pairs("link", ["ab"]), r"each pair must be a list of two ids"),
        (lambda: client.score_pairs("link", (1, 2)), r"each pair must be a list of two ids"),
        (lambda: client.score_pairs("link", [(1, 2, 3)]), r"each pair must be \(source, destination\)"),
        (lambda: client.score_inline("sage", {"features": [1, 2, 3]}), "inline must be a list of nodes"),
        (lambda: client.send_events({"op": "add_node"}), "events must be a list of events"),
        (lambda: client.send_events(None), "events must be a list of events"),
    ):
        with pytest.raises(errors.BadRequest, match=text):
            call()


def test_ids_may_be_in_anything_that_has_a_list(make: Any, server: RunningServer) -> None:
    import torch

    client = make(server.url)
    for nodes in (torch.tensor([4, 5]), range(4, 6), (4, 5), iter([4, 5]), np.array([4, 5], np.uint8)):
        assert client.score("sage", nodes).outputs["label"].tolist() == [0, 1]


def test_pairs_may_be_rows_of_an_array(make: Any, server: RunningServer) -> None:
    import torch

    client = make(server.url)
    expected = client.score_pairs("link", [(1, 2), (3, 4)]).outputs["probabilities"]
    for pairs in (
        np.array([[1, 2], [3, 4]]),
        torch.tensor([[1, 2], [3, 4]]),
        list(torch.tensor([[1, 2], [3, 4]])),
    ):
        np.testing.assert_array_equal(client.score_pairs("link", pairs).outputs["probabilities"], expected)


def test_nan_is_not_sent_as_if_it_were_absent(make: Any, server: RunningServer) -> None:
    """JSON has no NaN; as null, a time cut would be no cut, and the removal of one edge that of all."""
    client = make(server.url)
    remove = {"op": "remove_edge", "src": 1, "dst": 2, "id": "a"}
    for call, text in (
        (lambda: client.score("sage", [1], as_of=float("nan")), "as_of is NaN"),
        (lambda: client.score("sage", [1], as_of=np.float64("nan")), "as_of is NaN"),
        (lambda: client.score("sage", [1], timeout=float("nan")), "the timeout is NaN"),
        (lambda: client.send_events([remove, remove | {"time": float("nan")}]), r"events\[1\].time is NaN"),
        (lambda: client.send_events([remove | {"id": np.float64("nan")}]), r"events\[0\].id is NaN"),
        (lambda: client.score("sage", [object()]), "cannot be encoded as JSON"),
    ):
        with pytest.raises(errors.BadRequest, match=text):
            call()


INF = float("inf")


def test_a_time_that_is_missing_is_null() -> None:
    row = {"a": pd.NaT, "b": np.datetime64("NaT"), "c": float("nan"), "d": 1.5, "e": np.float32(2**24 - 1)}
    sent = {"a": None, "b": None, "c": None, "d": 1.5, "e": 16777215.0}
    assert score_body((), [row], None)["rows"] == [sent]
    assert inline_body([InlineNode(columns=row)], ())["inline"][0]["columns"] == sent


@pytest.mark.parametrize(
    ("method", "arguments", "options", "text"),
    [
        ("score", (["x"],), {"as_of": -INF}, "as_of is infinite, which JSON does not have"),
        ("score", (["x"],), {"as_of": np.float32("inf")}, "as_of is infinite"),
        ("score", (["x"],), {"attributes": {"amount": INF}}, "attributes.amount is infinite"),
        ("score", (), {"rows": [{"a": Decimal("1.5")}]}, r"a is Decimal\('1.5'\); pass a float"),
        (
            "score",
            (),
            {"rows": [{"a": np.float32(2**24)}]},
            r"float32.* may be a rounded integer; pass an int",
        ),
        ("score", (), {"rows": [{"a": np.float16(-2048)}]}, r"float16.* may be a rounded integer"),
        ("score", (), {"rows": [{"a": pd.NA}]}, r"a is <NA>; pass a float, or None for a missing"),
        ("score", ([b"x"],), {}, r"nodes\[0\] is b'x'; JSON has text, not bytes: decode it"),
        ("score", (np.array(["x", "y"], "S"),), {}, r"nodes\[0\] is b'x'"),
        ("score", ({"x", "y"},), {}, "nodes must be a list of ids, which has an order"),
        ("score", ({"x": 0},), {}, "nodes must be a list of ids"),
        ("score_pairs", ({(1, 2), (3, 4)},), {}, "pairs must be a list of pairs"),
        ("score_pairs", ([(b"x", b"y")],), {}, r"pairs\[0\]\[0\] is b'x'"),
        ("score", (), {"rows": [{"amount": INF}]}, r"rows\[0\].amount is infinite"),
        ("score", (), {"columns": {"amount": [1.0, -INF]}}, r"columns.amount\[1\] is infinite"),
        ("score_inline", ([InlineNode(columns={"a": pd.NA})],), {}, r"inline\[0\].columns.a is <NA>; pass"),
        (
            "score_inline",
            ([InlineNode(features=[1.0, INF])],),
            {},
            r"inline\[0\].features\[1\] is infinite.* one for each column, in order",
        ),
        ("score_inline", ([InlineNode([1.0], {"": [b"x"]})],), {}, r"inline\[0\].neighbors.\[0\] is b'x'"),
        ("send_events", ([{"op": "add_node", "node": b"x"}],), {}, r"events\[0\].node is b'x'"),
        (
            "send_events",
            ([{"op": "set_features", "features": {1.0, 2.0}}],),
            {},
            r"events\[0\].features is a set",
        ),
        ("send_events", ([{"op": "set_features", "features": [1, np.nan]}],), {}, r"features\[1\] is NaN"),
    ],
)
def test_no_value_is_sent_as_another_one(method: str, arguments: Any, options: Any, text: str) -> None:
    """JSON has no infinity, no bytes and no sets: null, base64 and any order would be other requests."""
    client = hopline.Client("http://127.0.0.1:1")
    if method.startswith("score"):
        arguments = ("sage", *arguments)
    with pytest.raises(errors.BadRequest, match=text):
        getattr(client, method)(*arguments, **options)


def test_inline_nodes_of_series_tensors_and_lists(make: Any, server: RunningServer) -> None:
    import torch

    client = make(server.url)
    row = np.arange(1.0, 4)
    expected = client.score_inline("sage", [InlineNode(row, {"": [1, 2]})]).outputs["probabilities"]
    neighbors: Any = [1, 2]
    for features, listed in (
        (pd.Series(row), neighbors),
        (torch.tensor(row), {"": torch.tensor(neighbors)}),
        (row, {"": pd.Series(neighbors)}),
        (row, np.array(neighbors)),
    ):
        found = client.score_inline("sage", [InlineNode(features, listed)]).outputs["probabilities"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("127.0.0.1:8700", "must begin with http://, for example http://127.0.0.1:8700"),
        ("localhost:8700", "must begin with http://, for example http://localhost:8700"),
        ("grpc://localhost:8701", "must begin with http://, for example http://localhost:8701"),
        ("http://", "has no host"),
        ("http://[::1", "not a server URL"),
        ("", "not a server URL"),
        ("http://127.0.0.1:8700?x=1", "a query"),
    ],
)
def test_an_address_without_scheme_or_host_is_refused(url: str, text: str) -> None:
    for client in (hopline.Client, hopline.AsyncClient):
        with pytest.raises(errors.BadRequest, match=text):
            client(url)


@pytest.mark.parametrize("secret", ["hopline_12_secret\n", " hopline_12_secret", "hopline_12_secrét"])
@pytest.mark.parametrize("name", ["api_key", "token"])
def test_a_key_that_no_header_can_have_is_refused_and_not_shown(name: str, secret: str) -> None:
    for client in (hopline.Client, hopline.AsyncClient):
        with pytest.raises(errors.BadRequest, match=f"{name} has a blank, a line break") as caught:
            client("http://127.0.0.1:9", **{name: secret})
        assert "12" not in str(caught.value)


def test_models_and_readiness(make: Any, server: RunningServer) -> None:
    client = make(server.url)
    infos = {info.name: info for info in client.models()}
    assert infos["sage"].inputs[0].name == "node_ids"
    assert client.ready()
    client.wait_ready(1)
    nowhere = make("http://127.0.0.1:9", retries=0)
    assert not nowhere.ready()
    with pytest.raises(errors.Unavailable, match="not ready within"):
        nowhere.wait_ready(0.05)
    with pytest.raises(errors.Unavailable, match="cannot be reached"):
        nowhere.score("sage", [1])


class Script(BaseHTTPRequestHandler):
    """Answers what the test wrote down, one after another."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        seen, plan = self.server.seen, self.server.plan  # type: ignore[attr-defined]
        seen.append(time.monotonic())
        status, body = plan.pop(0)
        if status == 0:
            self.connection.close()
            return
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_DELETE = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Script)
    server.seen, server.plan, server.paths = [], [], []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


GOOD = (200, {"model": "m", "version": "1", "graph_version": "g", "outputs": {"label": [1]}})
BUSY = (503, {"error": {"code": "overloaded", "message": "full", "retry_after_s": 0.1}})
WRONG = (400, {"error": {"code": "bad_request", "message": "no"}})


def test_refusals_are_retried_after_the_time_named(make: Any, scripted: Any) -> None:
    scripted.plan += [BUSY, BUSY, GOOD]
    assert make(scripted.url).score("m", [1]).outputs["label"].tolist() == [1]
    assert scripted.seen[2] - scripted.seen[0] >= 0.2


def test_retries_are_bounded(make: Any, scripted: Any) -> None:
    scripted.plan += [BUSY] * 3
    with pytest.raises(errors.Overloaded):
        make(scripted.url, retries=2).score("m", [1])
    assert len(scripted.seen) == 3
    scripted.plan += [BUSY] * 3
    with pytest.raises(errors.Overloaded):  # the wait would outlast the timeout
        make(scripted.url, retries=2, timeout=0.05).score("m", [1])
    assert len(scripted.seen) == 4


def test_broken_connections_are_retried_and_other_errors_are_not(make: Any, scripted: Any) -> None:
    scripted.plan += [(0, None), GOOD]
    make(scripted.url).score("m", [1])
    scripted.plan += [WRONG]
    with pytest.raises(errors.BadRequest, match="no"):
        make(scripted.url).score("m", [1])
    assert len(scripted.seen) == 3


def test_a_request_of_unknown_effect_is_sent_once(make: Any, scripted: Any) -> None:
    scripted.plan += [(0, None), GOOD]
    with pytest.raises(errors.Unavailable, match="may have been done or not"):
        make(scripted.url).send("POST", "/v1/graph/events", {"op": "add_edge", "src": 1, "dst": 2})
    assert len(scripted.seen) == 1
    make(scripted.url).send("POST", "/v1/graph/events", {}, retries=1)


class Dripping(BaseHTTPRequestHandler):
    """Sends a good answer, a byte at a time."""

    def do_POST(self) -> None:
        body = json.dumps(GOOD[1]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        for byte in body:
            threading.Event().wait(0.05)
            try:
                self.wfile.write(bytes([byte]))
            except ConnectionError:
                return

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_timeout_counts_for_the_whole_answer(make: Any) -> None:
    with HTTPServer(("127.0.0.1", 0), Dripping) as dripping:
        thread = threading.Thread(target=dripping.handle_request)
        thread.start()
        with pytest.raises(errors.DeadlineExceeded, match=r"no answer within 0\.4 s"):
            make(f"http://127.0.0.1:{dripping.server_port}", timeout=0.4).score("m", [1])
        thread.join()


def context(client: hopline.Client) -> ssl.SSLContext:
    return client._http.get()._transport._pool._ssl_context  # type: ignore[attr-defined, no-any-return]


def test_clients_share_the_usual_authorities_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with (
        hopline.Client("https://a") as first,
        hopline.Client("https://b") as second,
        hopline.Client("https://a", verify=own) as given,
        hopline.Client("https://a", verify=False) as unverified,
        hopline.Client("http://a") as plain,
    ):
        usual = context(first)
        assert context(second) is usual
        assert usual.cert_store_stats()["x509"] > 0
        assert context(given) is own
        assert context(unverified).verify_mode == ssl.CERT_NONE
        # what has no use for authorities has none, and refuses every server
        assert context(plain).cert_store_stats()["x509"] == 0
        for strict in (usual, context(plain)):
            assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        with hopline.Client("https://a") as other:
            assert context(other) is not usual
    asynchronous = hopline.AsyncClient("https://a")
    assert context(asynchronous) is not usual  # type: ignore[arg-type]
    asyncio.run(asynchronous.close())


#: Prints the number of connections that a server gets of a client, its forked child, and the client again.
FORKED = """
import asyncio, os, sys
import hopline

url, kind = sys.stdin.read().split()
if kind == "async":
    client = hopline.AsyncClient(url)
    runner = asyncio.Runner()
    send = lambda runner: runner.run(client.send("GET", "/"))
else:
    client = hopline.Client(url)
    runner = None
    send = lambda runner: client.send("GET", "/")
send(runner)
child = os.fork()
if not child:
    send(runner and asyncio.Runner())
    os._exit(0)
os.waitpid(child, 0)
send(runner)
"""


class Keeping(BaseHTTPRequestHandler):
    """Answers over connections that stay open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.seen.append(self.client_address)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_forked_process_has_connections_of_its_own(kind: str) -> None:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Keeping)
    server.seen = []
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        words = f"http://127.0.0.1:{server.server_port} {kind}"
        subprocess.run([sys.executable, "-c", FORKED], input=words.encode(), check=True, timeout=60)
        server.shutdown()
        thread.join()
    parent, child, again = server.seen
    assert parent == again != child


def test_every_code_has_its_class() -> None:
    for code, kind in errors.BY_CODE.items():
        body = json.dumps({"error": {"code": code, "message": "text"}}).encode()
        assert type(read_error(500, body)) is kind
    assert type(read_error(404, b'{"error":{"code":"not_found","message":"x"}}')) is errors.BadRequest
    assert type(read_error(502, b"<html>bad gateway")) is errors.Unavailable
    assert type(read_error(500, b"\xff")) is errors.HoplineError


def test_a_subclass_of_another_package_is_no_answer_of_a_server() -> None:
    code = """
from hopline import errors
class Wrong(errors.BadRequest):
    def __init__(self, first, second):
        pass
from hopline.client.wire import inline_body, read_error
print(type(read_error(400, b'{"error":{"code":"bad_request","message":"x"}}')).__name__)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert printed == "BadRequest\n"


@pytest.mark.parametrize("outputs", [{"a": [1, [2.0, 3.0]]}, {"label": [2**70]}, {"a": [{"b": 1}]}])
def test_an_answer_whose_outputs_are_no_arrays_is_reported(outputs: Any) -> None:
    answer = {"model": "m", "version": "1", "graph_version": "g", "outputs": outputs, "degraded": []}
    with pytest.raises(errors.HoplineError, match="not arrays"):
        read_result(json.dumps(answer).encode())


@pytest.mark.parametrize("content", [b'{"model":"\xff"}', b'{"model":"\xff', b"[" * 100_000])
@pytest.mark.parametrize("read", [read_result, read_json])
def test_an_answer_that_is_no_json_is_reported(read: Any, content: bytes) -> None:
    with pytest.raises(errors.HoplineError, match="cannot be read"):
        read(content)


def test_an_answer_that_is_not_hoplines_is_reported(make: Any, scripted: Any) -> None:
    scripted.plan += [(200, {"surprise": 1})]
    with pytest.raises(errors.HoplineError, match="cannot be read"):
        make(scripted.url).score("m", [1])


def test_cancelling_an_async_call_withdraws_it(server: RunningServer) -> None:
    line = 'hopline_requests_total{model="slow",version="2",outcome="cancelled"}'
    before = server.metric(line)

    async def main() -> None:
        async with hopline.AsyncClient(server.url) as client:
            call = asyncio.create_task(client.score("slow", [1], as_of=60_000))
            await asyncio.to_thread(server.wait_for_waiting, 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(main())
    end = time.monotonic() + 60
    while server.metric(line) < before + 1:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, Any]:
        return {
            name: [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    assert calls(hopline.Client) == calls(hopline.AsyncClient)


TAKEN = (200, {"sequence": 3, "graph_version": "g+3", "applied": 1, "duplicates": [1], "refused": []})


def test_events_are_sent_and_their_outcome_is_read(make: Any, scripted: Any) -> None:
    refused = [{"index": 0, "id": "", "code": "unknown_node", "reason": "who?"}]
    scripted.plan += [(200, TAKEN[1] | {"refused": refused, "num_refused": 2000})]
    outcome = make(scripted.url).send_events([{"op": "set_features", "node": 1, "features": np.ones(2)}])
    assert (outcome.sequence, outcome.graph_version, outcome.applied) == (3, "g+3", 1)
    assert (outcome.duplicates, outcome.num_refused) == ((1,), 2000)
    assert (outcome.refused[0].code, outcome.refused[0].reason) == ("unknown_node", "who?")


def test_a_node_is_removed_once_by_the_path_of_its_id(make: Any, scripted: Any) -> None:
    """A repetition after a lost answer would report a node that this call has removed as unknown."""
    for node, node_type, path in [
        (7, "node", "/v1/graph/nodes/node/7"),
        (np.int64(-7), "node", "/v1/graph/nodes/node/-7"),
        ("a bä?", "user", "/v1/graph/nodes/user/a%20b%C3%A4%3F"),
    ]:
        scripted.plan += [TAKEN]
        assert make(scripted.url).remove_node(node, node_type).applied == 1
        assert scripted.paths[-1] == path
    scripted.plan += [AWAY]
    with pytest.raises(errors.WriterUnavailable, match="made or not"):
        make(scripted.url).remove_node(7)
    for node in ("a/b", "..", "", "a\\b", "a\n", None, True, 1.5):
        with pytest.raises(errors.BadRequest, match=r"a path cannot name node .* use send_events"):
            make(scripted.url).remove_node(node)
    assert len(scripted.seen) == 4


AWAY = (503, {"error": {"code": "writer_unavailable", "message": "made or not", "retry_after_s": 0.01}})


def test_only_events_with_ids_are_sent_again(make: Any, scripted: Any) -> None:
    event = {"op": "remove_edge", "src": 1, "dst": 2}
    scripted.plan += [AWAY, (0, None), TAKEN]
    assert make(scripted.url).send_events([event | {"id": "a"}, event | {"id": 7}]).applied == 1
    for events in ([event], [event | {"id": "a"}, event], b'{"op": "remove_edge"}'):
        scripted.plan += [AWAY]
        with pytest.raises(errors.WriterUnavailable, match="made or not"):
            make(scripted.url).send_events(events)
    assert len(scripted.seen) == 6


def test_a_server_whose_graph_does_not_change_says_so(make: Any, server: RunningServer) -> None:
    client = make(server.url)
    for call in (
        lambda: client.send_events([{"op": "add_node", "node": 1}]),
        lambda: client.remove_node(1),
        client.graph_state,
    ):
        with pytest.raises(errors.BadRequest, match=r"live\.enabled \(--live\)"):
            call()
