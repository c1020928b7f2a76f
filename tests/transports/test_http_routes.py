"""Everything of HTTP that is not scoring."""

from __future__ import annotations

import gzip
import socket
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopline.config.schema import Config
from hopline.transports.pages import index_page
from tests.fake_service import FakeService
from tests.servers import RunningServer


def test_health_and_readiness(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/healthz").json() == {"live": True}
    ready = httpx.get(f"{server.url}/readyz").json()
    assert ready["ready"] is True
    assert ready["reasons"] == [
        "model loading: LOADING: its weights are being read",
        "model loading/1: not the same in all workers: this worker has graph g; worker b has graph h",
    ]
    assert httpx.head(f"{server.url}/readyz").status_code == 200


def test_metrics_are_prometheus_text(server: RunningServer) -> None:
    httpx.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1]})
    response = httpx.get(f"{server.url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert families["hopline_requests"].type == "counter"
    assert families["hopline_stage_seconds"].type == "histogram"
    assert any(s.labels["transport"] == "http" for s in families["hopline_transport_answers"].samples)


def test_unknown_paths_and_methods(server: RunningServer) -> None:
    response = httpx.get(f"{server.url}/v3/x")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    assert "/v3/x" in response.json()["error"]["message"]
    assert httpx.get(f"{server.url}/v2/x").json() == {"error": "unknown path /v2/x; see / for an overview"}
    for path in ("/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status"):
        assert httpx.get(f"{server.url}{path}").status_code == 404
    response = httpx.get(f"{server.url}/v1/models/sage/score")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "use POST" in response.json()["error"]["message"]
    assert httpx.post(f"{server.url}/healthz").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "//v2/models/sage", "/v2//models/sage", "/v2/models/sage//", "/v2/./models/sage",
        "/v2/x/../models/sage", "/%76%32/models/sage", "/v2/m%6Fdels/sage", "/v2%2Fmodels%2Fsage",
        "/v2/models%2fsage", "/v2\\models\\sage", "/v2%5Cmodels%5Csage", "/v2/models/%2E/sage",
        "/v2/models/sage%00", "/v2/models/sage%2F", "http://x//v2/models/sage", "/healthz/.", "//",
        "/%2E/healthz", "/v2/models/%5C", "/v2/models/%2e%2e", "/v2;a=1/models/sage",
    ],
)  # fmt: skip
def test_a_path_has_one_spelling(server: RunningServer, path: str) -> None:
    """A proxy's rule for a path sees what was sent; no other spelling may lead to the same route."""
    host, _, port = server.address.rpartition(":")
    for method in ("GET", "POST"):
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), answer


def test_names_that_need_it_are_encoded_in_a_path(server: RunningServer) -> None:
    # Names of folders may have any letters; clients encode them alike (RFC 3986, 2.1 and 6.2.2).
    for name, shown in (
        ("caf%C3%A9", "café"),
        ("caf%c3%a9", "café"),
        ("a%20b", "a b"),
        ("2@ab+c", "2@ab+c"),
        ("2%40ab", "2@ab"),
    ):
        response = httpx.get(f"{server.url}/v2/models/{name}")
        assert (response.status_code, f"no model '{shown}'" in response.json()["error"]) == (404, True)
    assert "one spelling" in httpx.get(f"{server.url}/v2/models/%FF").json()["error"]


@pytest.mark.parametrize("path", ["/v2/models/s%61ge", "/v2/models/s%61%67e/", "/v2/models/sage/", "/v2/"])
def test_names_may_be_encoded_and_a_slash_at_the_end_does_not_count(
    server: RunningServer, path: str
) -> None:
    """RFC 3986, 6.2.2.2: an encoded letter is the letter."""
    assert httpx.get(server.url + path).status_code == 200


INFER = {"inputs": [{"name": "node_ids", "datatype": "INT64", "shape": [1], "data": [1]}]}


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/models/sage/score?as_of=5", "as_of", {"nodes": [1]}),
        ("/v1/models/sage/score?a=1&version=9", "version", {"nodes": [1]}),
        ("/v1/models/sage/score?on%5Fmissing=", "on_missing", {"nodes": [1]}),
        ("/v2/models/sage/infer?timeout=5", "timeout", INFER),
        ("/v2/repository/models/sage/unload?version=1", "version", {}),
    ],
)
def test_what_belongs_into_the_body_is_refused_in_the_address(
    server: RunningServer, path: str, field: str, body: dict[str, Any]
) -> None:
    for _ in range(2):  # a target is remembered
        response = httpx.post(f"{server.url}{path}", json=body)
        assert (response.status_code, response.headers["hopline-error"]) == (400, "bad_request")
        assert f"'{field}' is in the query string, where it is ignored" in response.text
    other = f"{server.url}/v1/models/sage/score?code=x&api-version=2"
    assert httpx.post(other, json={"nodes": [1]}).status_code == 200


def test_request_ids_come_back(server: RunningServer) -> None:
    url = f"{server.url}/v1/models/sage/score"
    response = httpx.post(url, json={"nodes": [1]}, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    made = [httpx.post(url, json={"nodes": [1]}).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    odd = httpx.post(url, json={"nodes": [1]}, headers={"x-request-id": "two words"})
    assert odd.headers["x-request-id"] != "two words"


def test_refusals_carry_retry_after(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}/v1/models/busy/score", json={"nodes": [1]})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["retry_after_s"] == 0.05


def test_missing_ids_are_all_named(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1, -2, -3]})
    assert response.status_code == 404
    assert response.json()["error"]["missing"] == [-2, -3]


def test_the_timeout_header_is_the_deadline(server: RunningServer) -> None:
    url = f"{server.url}/v1/models/slow/score"
    response = httpx.post(url, json={"nodes": [1], "as_of": 9999}, headers={"timeout-ms": "20"})
    assert response.status_code == 504


def test_compressed_bodies_are_bounded(server: RunningServer) -> None:
    url = f"{server.url}/v1/models/sage/score"
    headers = {"content-encoding": "gzip"}
    assert httpx.post(url, content=gzip.compress(b'{"nodes":[1]}'), headers=headers).status_code == 200
    bomb = httpx.post(url, content=gzip.compress(b" " * 50_000_000), headers=headers)
    assert bomb.status_code == 413
    assert "once decompressed" in bomb.json()["error"]["message"]
    assert httpx.post(url, content=b"not gzip", headers=headers).status_code == 400
    cut = httpx.post(url, content=gzip.compress(b'{"nodes":[1]}')[:-4], headers=headers)
    assert cut.status_code == 400
    other = httpx.post(url, content=b"x", headers={"content-encoding": "br"})
    assert "gzip, deflate" in other.json()["error"]["message"]


def test_models_are_described(server: RunningServer) -> None:
    models = httpx.get(f"{server.url}/v1/models").json()["models"]
    assert models[0]["name"] == "sage"
    assert httpx.get(f"{server.url}/v1/models/sage/versions/1").json()["version"] == "1"
    assert httpx.get(f"{server.url}/v2/models/sage/versions/1/config").status_code == 200
    assert httpx.get(f"{server.url}/v2/models/sage/versions/7").status_code == 404
    assert httpx.get(f"{server.url}/v2/models/loading/ready").status_code == 503


def test_the_repository_index_can_be_of_ready_models(server: RunningServer) -> None:
    url = f"{server.url}/v2/repository/index"
    everything = httpx.post(url, json={}).json()
    ready = httpx.post(url, json={"ready": True}).json()
    assert len(ready) == len(everything) - 2
    assert httpx.post(url, content=b"[").status_code == 400
    assert httpx.post(url, content=b'{"ready":true,"ready":false}').status_code == 400


@pytest.mark.parametrize(
    ("body", "header", "text"),
    [
        (b'{"inputs":[]}', b"99", "the body has 13 bytes"),
        (b'{"inputs":[]}', b"x", "is 'x'"),
        (b'{"inputs":[]}extra', b"13", "follow the data of the last input"),
        (b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[1]}]}', None, "neither data nor"),
        (
            b'{"inputs":[{"name":"a","datatype":"INT64","shape":[1],"data":[1]}]}',
            None,
            "unexpected input 'a'",
        ),
        (b'{"inputs":[],"colour":1}', None, "unknown field `colour`"),
        (b'{"inputs":[],"parameters":{"colour":1}}', None, "unknown parameter 'colour'"),
        (b'{"inputs":[],"parameters":{"binary_data_output":"no"}}', None, "must be true or false"),
        (
            b'{"inputs":[],"outputs":[{"name":"label","parameters":{"binary_data":0}}]}',
            None,
            "must be true or false",
        ),
        (b'{"inputs":[', None, "not valid JSON"),
        (
            b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[1],'
            b'"parameters":{"binary_data_size":8}}]}',
            None,
            "0 bytes are left",
        ),
        (
            b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[1],'
            b'"parameters":{"shared_memory_region":"r"}}]}',
            None,
            "shared memory is not supported",
        ),
    ],
)
def test_malformed_inference_requests_say_why(
    server: RunningServer, body: bytes, header: bytes | None, text: str
) -> None:
    headers = {} if header is None else {b"inference-header-content-length": header}
    response = httpx.post(f"{server.url}/v2/models/sage/infer", content=body, headers=headers)
    assert response.status_code == 400
    assert text in response.json()["error"]


def test_the_page_lists_models_and_escapes_their_names(server: RunningServer) -> None:
    response = httpx.get(server.url)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert ">sage</a>" in response.text
    service: Any = FakeService(Config())
    service._models = {"<script>": service.describe("sage")}
    service._models["<script>"] = __import__("dataclasses").replace(
        service._models["<script>"], name="<script>"
    )
    assert b"<script>" not in index_page(service)
    assert b"&lt;script&gt;" in index_page(service)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/graph"), ("POST", "/v1/graph/events")])
def test_a_graph_that_does_not_change_says_how_to_have_one_that_does(
    server: RunningServer, method: str, path: str
) -> None:
    answer = httpx.request(method, f"{server.url}{path}", content=b"[]")
    assert answer.status_code == 400
    assert "serve it with live.enabled (--live)" in answer.json()["error"]["message"]
    assert httpx.put(f"{server.url}{path}").status_code == 405
