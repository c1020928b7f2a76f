"""The JSON API, probes, metrics and files of the page, over real connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopline.errors import ConfigError
from hopline.ingress.keys import new_key
from hopline_mesh.incident import Verdict
from hopline_mesh.out.board import Board
from hopline_mesh.out.http import MeshHttp, page_files
from packages.mesh.tests.out.drawn import incident, snapshot, verdict
from packages.mesh.tests.out.serving import Served, serving
from turnserve.http1.messages import Pending, Request


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """With three intervals and an incident in the last one."""
    with serving() as found:
        for number in range(3):
            seen = 40.0 if number < 2 else 812.0
            said = verdict(970.0 + 15 * number, *([incident()] if number == 2 else []))
            shown = snapshot(said.time_s, p99_ms=seen, client_ms=seen)
            found.publish(said, shown)
        yield found


def test_nothing_yet_is_reported_as_nothing() -> None:
    with serving(grpc_port=-1) as empty:
        ready = httpx.get(f"{empty.url}/readyz")
        assert ready.status_code == 503
        assert "no snapshot was collected yet" in ready.json()["reasons"][0]
        assert httpx.get(f"{empty.url}/healthz").status_code == 200
        assert httpx.get(f"{empty.url}/v1/mesh/verdict").json()["verdict"] is None
        assert httpx.get(f"{empty.url}/v1/mesh/graph").json() == {"graph": None}
        assert httpx.get(f"{empty.url}/v1/mesh/incidents").json() == {"incidents": []}
        empty.publish(verdict(1000.0, state="blind"))
        assert httpx.get(f"{empty.url}/readyz").status_code == 503, "nothing was collected yet"
        empty.publish(verdict(1015.0, state="learning"), snapshot(1015.0))
        empty.publish(verdict(1030.0, state="blind"))
        assert httpx.get(f"{empty.url}/readyz").status_code == 200, "Prometheus is down, this is not"


def test_verdict_incident_and_graph_are_reported(served: Served) -> None:
    told = httpx.get(f"{served.url}/v1/mesh/verdict").json()
    assert told["verdict"]["state"] == "anomalous"
    assert told["verdict"]["incidents"][0]["suspects"][0]["service"] == "shop/cart"
    (only,) = httpx.get(f"{served.url}/v1/mesh/incidents").json()["incidents"]
    assert only["id"] == "i-1"
    one = httpx.get(f"{served.url}/v1/mesh/incidents/i-1").json()
    assert [point[2] for point in one["series"][0]["points"]] == [40.0, 40.0, 812.0]
    assert [point[1] for point in one["series"][1]["points"]] == [None, None, 41.0]
    graph = httpx.get(f"{served.url}/v1/mesh/graph").json()["graph"]
    assert [node["service"] for node in graph["nodes"]] == ["shop/web", "shop/cart", "shop/pay", "shop/db"]
    edges = {
        (graph["nodes"][edge["caller"]]["service"], graph["nodes"][edge["callee"]]["service"]): edge
        for edge in graph["edges"]
    }
    assert edges["shop/web", "shop/cart"]["share"] == pytest.approx(1 / 3)
    assert edges["shop/web", "shop/cart"]["blamed"]
    assert not edges["shop/cart", "shop/db"]["blamed"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/mesh/incidents/absent", 404, "incident_not_found"),
        ("/v1/mesh/incidents/" + "x" * 5000, 404, "incident_not_found"),
        ("/v1/mesh/graph?limit=many", 400, "bad_request"),
        ("/v1/mesh/graph?limit=-1", 400, "bad_request"),
        ("/v1/mesh/verdict?after=nan&wait=1", 400, "bad_request"),
        ("/v1/mesh/graph?around=" + "x" * 5000, 400, "bad_request"),
        ("/page/../http.py", 404, "not_found"),
        ("/page/%2e%2e%2fhttp.py", 404, "not_found"),
        ("/page/%2e%2e/http.py", 404, "not_found"),
        ("/page//etc/passwd", 404, "not_found"),
        ("/v1/mesh", 404, "not_found"),
    ],
)
def test_what_is_not_there_is_refused(served: Served, path: str, status: int, code: str) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 5) as raw:  # no client that tidies paths up
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert f'"{code}"' in answer


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/mesh/deviations?servce=x", "'servce'; did you mean 'service'? known: service"),
        ("/v1/mesh/deviations?service=a&service=b", "service: given 2 times"),
        ("/v1/mesh/verdict?afer=1", "'afer'; did you mean 'after'? known: after, wait"),
        ("/v1/mesh/graph?near=shop/cart", "'near'; known: limit, around"),
        ("/v1/mesh/graph?around=zz", "service 'zz' was not in the last interval"),
        ("/v1/mesh/graph?around=zz&limit=0", "service 'zz' was not in the last interval"),
        ("/v1/mesh/incidents?open=true", "'open'; this path has none"),
        ("/v1/mesh/incidents/i-1?id=i-2", "'id'; this path has none"),
        ("/v1/mesh/changes?" + "x" * 3000 + "=1", "this path has none"),
    ],
)
def test_parameters_that_would_be_ignored_are_refused(served: Served, path: str, said: str) -> None:
    answer = httpx.get(f"{served.url}{path}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "bad_request")
    assert said in error["message"]
    assert len(error["message"]) < 400


def test_no_route_takes_a_parameter_that_it_does_not_know(served: Served) -> None:
    for pattern, route in MeshHttp(Board()).routes.items():
        path = pattern.replace("{id}", "i-1").replace("{name}", "app.js")
        body = None if route.methods[0] == b"GET" else {}
        answer = httpx.request(route.methods[0].decode(), f"{served.url}{path}?odd=1", json=body)
        if pattern in ("/", "/page/{name}"):  # files, which have no data to choose from
            assert answer.status_code == 200
        else:
            assert (answer.status_code, "'odd'" in answer.text) == (400, True), pattern


@pytest.mark.parametrize(
    "by", ["ada\nfatal: all is well", "ada\x00", "\x1b[2Jada", "ada\u202eadmin", "a\u2028b"]
)
def test_control_characters_in_the_name_of_a_mark_are_refused(served: Served, by: str) -> None:
    url = f"{served.url}/v1/mesh/incidents/i-1/mark"
    refused = httpx.post(url, json={"mark": "muted", "by": by})
    assert refused.status_code == 400
    assert "by: has the control character U+" in refused.json()["error"]["message"]
    assert httpx.get(f"{served.url}/v1/mesh/incidents/i-1").json()["incident"]["mark"] is None
    kept = httpx.post(url, json={"mark": "muted", "by": "Ada Lovelace, été 🐧"})
    assert kept.json()["incident"]["mark"]["by"] == "Ada Lovelace, été 🐧"
    assert httpx.post(url, json={"mark": None}).status_code == 200


def test_nothing_can_be_changed_and_bodies_are_bounded(served: Served) -> None:
    refused = httpx.post(f"{served.url}/v1/mesh/verdict", content=b"{}")
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, HEAD"
    large = httpx.request("GET", f"{served.url}/v1/mesh/verdict", content=b"x" * 3_000_000)
    assert large.status_code == 413
    assert "larger than 2097152 bytes" in large.text
    assert "server." not in large.text, "the watch has no such setting"


def test_an_incident_is_reported_with_what_happened_and_links(served: Served) -> None:
    served.do(lambda: setattr(served.board, "links", ("traces=https://t/?s={service}&from={start_ms}",)))
    found = httpx.get(f"{served.url}/v1/mesh/incidents").json()["incidents"][0]
    assert (found["name"], found["headline"]) == ("shop/cart", "p99 latency 40 ms → 812 ms")
    assert found["links"] == [{"name": "traces", "url": "https://t/?s=shop%2Fcart&from=400000"}]
    served.do(lambda: setattr(served.board, "links", ()))


def test_an_incident_is_marked_by_json_only(served: Served) -> None:
    url = f"{served.url}/v1/mesh/incidents/i-1/mark"
    marked = httpx.post(url, json={"mark": "muted", "by": "ada"})
    assert (marked.status_code, marked.json()["incident"]["mark"]["kind"]) == (200, "muted")
    assert served.do(lambda: served.board.is_muted("i-1"))
    assert httpx.post(url, content=b'{"mark": null}').status_code == 400  # a form of another origin
    assert httpx.get(url).status_code == 405
    assert httpx.post(url, json={"mark": "gone"}).status_code == 400
    assert httpx.post(f"{served.url}/v1/mesh/incidents/absent/mark", json={"mark": None}).status_code == 404
    assert httpx.post(url, json={"mark": None}).json()["incident"]["mark"] is None


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        (None, None, 200),  # no browser
        ("watch.mesh.svc:9092", None, 200),
        ("127.0.0.1:9092", "http://127.0.0.1:9092", 200),
        ("localhost:9092", "http://localhost:9092", 200),
        ("10.0.0.5:9092", "http://10.0.0.5:9092", 200),
        ("[::1]:9092", "http://[::1]:9092", 200),
        ("mesh.example.com", "https://mesh.example.com", 200),  # the setting page_url
        ("127.0.0.1:9092", "https://mesh.example.com", 200),  # the same, behind a proxy
        ("evil.example", "http://evil.example", 403),  # a name that was made to lead here
        ("127.0.0.1:9092", "http://evil.example", 403),
        ("127.0.0.1:9092", "http://127.0.0.1:8000", 403),
        ("mesh.example.com", "http://mesh.example.com", 403),
        ("127.0.0.1:9092", "null", 403),
        ("127.0.0.1.evil.example", "http://127.0.0.1.evil.example", 403),
    ],
)
def test_pages_of_others_change_nothing(host: str | None, origin: str | None, status: int) -> None:
    board = Board()
    board.publish(verdict(1000.0, incident()), snapshot(1000.0))
    with serving(board, grpc_port=-1, page_url="https://Mesh.example.com:443/watch/") as found:
        sent = {"host": host, "origin": origin}
        headers = {name: value for name, value in sent.items() if value is not None}
        marked = httpx.post(
            f"{found.url}/v1/mesh/incidents/i-1/mark", json={"mark": "muted"}, headers=headers
        )
        assert marked.status_code == status
        assert board.is_muted("i-1") == (status == 200)
        if status == 403:
            assert "set page_url" in marked.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9092", 200),
        ("[::1]:9092", 200),
        ("localhost:9092", 200),
        ("watch", 200),
        ("watch.mesh.svc:9092", 200),
        ("watch.mesh.svc.cluster.local.", 200),
        ("mesh.example.com", 200),  # the setting page_url
        ("Mesh.example.com:9092", 200),
        ("evil.example", 403),  # a name that was made to lead here
        ("127.0.0.1.evil.example:9092", 403),
        ("svc.evil.example", 403),
        ("evil.example.", 403),
    ],
)
def test_pages_of_others_read_nothing(host: str, status: int) -> None:
    with serving(grpc_port=-1, page_url="https://Mesh.example.com:443/watch/") as found:
        for path in ("/v1/mesh/verdict", "/v1/mesh/graph", "/v1/mesh/incidents", "/metrics"):
            answer = httpx.get(f"{found.url}{path}", headers={"host": host})
            assert answer.status_code == status, path
            if status == 403:
                assert "set page_url" in answer.json()["error"]["message"]
        assert httpx.get(f"{found.url}/healthz", headers={"host": host}).status_code in (200, 503)


def test_where_a_key_is_needed_a_page_may_have_any_name(tmp_path: Path) -> None:
    key = new_key()
    clients = tmp_path / "clients.toml"
    clients.write_text(
        f'[clients.ada]\nadmin = true\nkeys = [{{ id = "{key.id}", sha256 = "{key.sha256}" }}]\n'
    )
    board = Board()
    board.publish(verdict(1000.0, incident()), snapshot(1000.0))
    with serving(board, grpc_port=-1, clients_file=clients) as found:
        url = f"{found.url}/v1/mesh/incidents/i-1/mark"
        sent = {"host": "mesh.example", "origin": "http://mesh.example", "x-api-key": key.text}
        assert httpx.post(url, json={"mark": "muted"}, headers=sent).status_code == 200


@pytest.mark.parametrize(
    ("host", "page_url", "url", "link"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:{port}", "http://127.0.0.1:{port}"),
        ("0.0.0.0", "", "http://127.0.0.1:{port}", ""),
        ("::", "", "http://[::1]:{port}", ""),
        ("0", "", "http://127.0.0.1:{port}", ""),
        ("0.0.0.0", "https://mesh.example.com", "http://127.0.0.1:{port}", "https://mesh.example.com"),
    ],
)
def test_a_link_leads_to_the_page_or_there_is_none(host: str, page_url: str, url: str, link: str) -> None:
    with serving(host=host, grpc_port=-1, allow_anonymous=True, page_url=page_url) as found:
        port = found.outputs.http_port
        assert found.outputs.url == url.format(port=port)
        assert found.outputs.link == link.format(port=port)
        assert httpx.get(f"{found.outputs.url}/healthz").status_code == 200


def test_a_watch_that_hangs_is_not_live_and_one_that_is_blind_is() -> None:
    now = [0.0]
    board = Board(interval_s=15.0, monotonic=lambda: now[0])
    with serving(board, grpc_port=-1) as found:
        now[0] = 299.0
        assert httpx.get(f"{found.url}/healthz").status_code == 200
        now[0] = 301.0  # the first step never ended
        hung = httpx.get(f"{found.url}/healthz")
        assert (hung.status_code, hung.json()["reasons"]) == (503, ["no interval was completed for 301 s"])
        found.publish(Verdict(1000.0, "blind", 0.0))
        assert httpx.get(f"{found.url}/healthz").status_code == 200
        now[0] = 700.0
        assert httpx.get(f"{found.url}/healthz").status_code == 503


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/v1/mesh/verdict", "/absent", "/metrics"])
def test_every_answer_forbids_what_comes_from_elsewhere(served: Served, path: str) -> None:
    headers = httpx.get(f"{served.url}{path}").headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_page_files_name_nothing_from_elsewhere(served: Served) -> None:
    for name, (body, content_type) in page_files().items():
        text = body.decode()
        assert "//" not in text.replace("http://www.w3.org/", "").replace("// ", "").replace("//\n", ""), (
            name
        )
        assert "innerHTML" not in text
        assert httpx.get(f"{served.url}/page/{name}").headers["content-type"] == content_type.decode()
    assert httpx.head(f"{served.url}/").headers["content-type"].startswith("text/html")


def test_waiting_for_the_next_verdict_ends_when_it_comes() -> None:
    with serving(grpc_port=-1) as found:
        found.publish(verdict(1000.0), snapshot(1000.0))
        threading.Timer(0.2, found.publish, (verdict(1015.0), snapshot(1015.0))).start()
        begin = time.perf_counter()
        told = httpx.get(f"{found.url}/v1/mesh/verdict?after=1000&wait=60", timeout=60).json()
        assert told["verdict"]["time_s"] == 1015.0
        assert time.perf_counter() - begin < 20
        again = httpx.get(f"{found.url}/v1/mesh/verdict?after=1015&wait=0.1").json()
        assert again["verdict"]["time_s"] == 1015.0
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{found.url}/v1/mesh/verdict?after=1015&wait=10", timeout=0.2)
        deadline = time.monotonic() + 60
        while found.do(lambda: len(found.board._readers)):  # who went away is forgotten
            assert time.monotonic() < deadline
            time.sleep(0.01)


async def test_verdict_that_comes_at_once_is_not_missed() -> None:
    board = Board()
    board.publish(verdict(1000.0), snapshot(1000.0))
    app = MeshHttp(board)
    waiting = app(Request(b"GET", b"/v1/mesh/verdict?after=1000&wait=20", {}))
    assert isinstance(waiting, Pending)
    answered = asyncio.Event()
    waiting.receiver = lambda pending: answered.set()
    board.publish(verdict(1015.0), snapshot(1015.0))  # before any task has begun
    await asyncio.wait_for(answered.wait(), 5)
    assert waiting.response is not None
    assert b'"time_s":1015.0' in waiting.response.body
    gone = app(Request(b"GET", b"/v1/mesh/verdict?after=1015&wait=20", {}))
    assert isinstance(gone, Pending)
    gone.cancel()  # nor has this one
    for _ in range(3):
        await asyncio.sleep(0)
    assert not board._readers
    assert app._num_waiting == 0


def test_metrics_can_be_scraped_and_are_bounded(served: Served) -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(httpx.get(f"{served.url}/metrics").text)
    }
    assert all(name.startswith("hopline_mesh_") for name in families)
    values = {
        name: families[f"hopline_mesh_{name}"].samples[0].value
        for name in ("services", "edges", "score", "incidents_open", "incidents", "snapshots")
    }
    assert values == {
        "services": 4,
        "edges": 4,
        "score": 3.0,
        "incidents_open": 1,
        "incidents": 1,
        "snapshots": 3,
    }


def test_keys_are_requested_where_there_are_clients(tmp_path: Path) -> None:
    key = new_key()
    clients = tmp_path / "clients.toml"
    clients.write_text(
        f'[clients.ops]\nread = true\nkeys = [{{ id = "{key.id}", sha256 = "{key.sha256}" }}]\n'
    )
    with serving(grpc_port=-1, clients_file=clients, open_metrics=True) as found:
        for path in ("/", "/page/app.js", "/healthz", "/metrics"):
            assert httpx.get(f"{found.url}{path}").status_code == 200, path
        refused = httpx.get(f"{found.url}/v1/mesh/incidents")
        assert refused.status_code == 401
        allowed = httpx.get(f"{found.url}/v1/mesh/incidents", headers={"x-api-key": key.text})
        assert allowed.status_code == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "0.0.0.0"}, "allow_anonymous = true"),
        ({"host": "no such host"}, "host: 'no such host' is not an address"),
        ({"allow_anonymous": True, "clients_file": Path("clients.toml")}, "contradicts"),
        ({"cert_file": Path("cert.pem")}, "together with key_file"),
        (
            {"cert_file": Path("absent.pem"), "key_file": Path("absent.key")},
            r"^(cert|key)_file: .*absent.(pem|key)",
        ),
        ({"clients_file": Path("absent.toml")}, r"^clients_file: absent.toml does not exist"),
    ],
)
def test_ports_that_must_not_open_do_not(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said), serving(**settings):
        pass


def test_taken_port_is_reported() -> None:
    with (
        serving(grpc_port=-1) as first,
        pytest.raises(ConfigError, match="in use"),
        serving(http_port=first.outputs.http_port),
    ):
        pass
