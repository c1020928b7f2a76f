"""Who asks, through the real transports: keys, tokens, permissions and rates over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import jwt
import pytest

from hopline import AsyncClient, Client
from hopline.config.schema import Config
from hopline.errors import BadRequest, PermissionDenied, RateLimited, Unauthenticated
from hopline.ingress.clients_edit import add_key, remove_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.keys import new_key
from hopline.transports.http import HttpApp
from hopline.transports.proto import message, methods
from packages.tokens.tests.issuers import AUDIENCE, issuing
from tests.fake_service import FakeService
from tests.servers import RunningServer, running, spawn
from turnserve.http1.messages import Request

SECRET = "a secret of thirty-two bytes or more"


@dataclass
class Door:
    """A server that asks who comes, and keys for it."""

    server: RunningServer
    file: Path
    keys: dict[str, str]

    def http(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {} if key is None else {"x-api-key": self.keys.get(key, key)}
        return httpx.request(method, self.server.url + path, headers=headers, **options)

    def score(self, model: str = "sage", key: str | None = None, **options: Any) -> httpx.Response:
        return self.http("POST", f"/v1/models/{model}/score", key, json={"nodes": [1]}, **options)

    def call(
        self, method: str, content: dict[str, Any], **metadata: str
    ) -> tuple[str, str, dict[str, Any]]:
        """(status, message, trailing metadata) of a gRPC call."""
        service, _, name = method.partition("/")
        known = {item.name: item for item in methods(service)}[name]
        with grpc.insecure_channel(self.server.grpc) as channel:
            call = channel.unary_unary(
                f"/{method}",
                message(known.input_type.full_name).SerializeToString,
                message(known.output_type.full_name).FromString,
            )
            request = message(known.input_type.full_name)(**content)
            try:
                response = call(request, metadata=tuple(metadata.items()), timeout=10)
            except grpc.RpcError as error:
                return error.code().name, error.details(), dict(error.trailing_metadata())
        return "OK", str(response), {}


INFER = "inference.GRPCInferenceService"


def infer(model: str) -> dict[str, Any]:
    return {
        "model_name": model,
        "inputs": [
            {"name": "node_ids", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [1]}}
        ],
    }


def write_key(file: Path, client: str, grant: Grant | None) -> str:
    key = new_key()
    add_key(file, client, KeyEntry(key.id, key.sha256), grant)
    return key.text


def settings(folder: Path) -> dict[str, Any]:
    (folder / "secret").write_text(SECRET)
    return {
        "auth__clients_file": folder / "clients.toml",
        "auth__jwt_key_file": folder / "secret",
        "auth__jwt_algorithms": "HS256",
        "auth__jwt_issuer": "issuer",
        "auth__jwt_audience": "hopline",
    }


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    file = folder / "clients.toml"
    keys = {
        "scorer": write_key(file, "scorer", Grant(("sage", "pe*"))),
        "reader": write_key(file, "reader", Grant(read=True)),
        "admin": write_key(file, "admin", Grant(admin=True)),
        "slow": write_key(file, "slow", Grant(("sage",), rate_per_s=0.01, burst=2)),
        "leaver": write_key(file, "leaver", Grant(("sage",))),
        "watcher": write_key(file, "watcher", Grant(("sage",), read=True, rate_per_s=0.01, burst=1)),
    }
    with running(**settings(folder)) as server:
        yield Door(server, file, keys)


def token(sub: str = "ada", ttl_s: float = 86_400, secret: str = SECRET, **claims: Any) -> str:
    content = {"sub": sub, "iss": "issuer", "aud": "hopline", "exp": time.time() + ttl_s, **claims}
    return jwt.encode(content, secret, "HS256")


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/v2/models/sage/ready"]
)
def test_probes_need_no_key(door: Door, path: str) -> None:
    assert door.http("GET", path).status_code == 200


@pytest.mark.parametrize("path", ["/readyz", "/v2/health/ready"])
@pytest.mark.parametrize("key", [None, "not-a-key"])
def test_a_stranger_learns_only_whether_the_server_is_ready(door: Door, path: str, key: str | None) -> None:
    answer = door.http("GET", path, key)
    assert answer.status_code == 200
    assert answer.json() == {"ready": True}
    head = door.http("HEAD", path, key)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(answer.content)))


@pytest.mark.parametrize("path", ["/readyz", "/v2/health/ready"])
def test_readiness_names_the_models_that_the_client_may_read(door: Door, path: str) -> None:
    scorer, reader = (door.http("GET", path, key).json() for key in ("scorer", "reader"))
    assert set(scorer["models"]) == {"sage", "people"}
    assert scorer["reasons"] == []
    assert {"sage", "link", "loading"} <= set(reader["models"])
    assert reader["reasons"] == [
        "model loading: LOADING: its weights are being read",
        "model loading/1: not the same in all workers: this worker has graph g; worker b has graph h",
    ]


def test_names_of_models_are_no_answer_to_a_stranger_who_guesses(door: Door) -> None:
    for path in ("/v2/models/nobody/ready", "/v2/models/sage/versions/99/ready"):
        answer = door.http("GET", path)
        assert (answer.status_code, answer.json()) == (503, {"ready": False})
    assert door.http("GET", "/v2/models/sage/versions/99/ready", "scorer").status_code == 404
    assert door.http("GET", "/v2/models/link/versions/99/ready", "scorer").status_code == 503
    for headers in ({}, {"x-api-key": door.keys["reader"]}):
        status, text, _ = door.call(f"{INFER}/ModelReady", {"name": "nobody"}, **headers)
        assert (status, text) == ("OK", "")  # ready is false


def test_a_wrong_name_is_not_answered_with_the_names_of_other_models(door: Door) -> None:
    """The client may score any model whose name begins with "pe", and knows no other."""
    said = "no model 'pear'; the list of models has those that you may read"
    answers = [
        door.score("pear", "scorer"),
        door.http("GET", "/v1/models/pear", "scorer"),
        door.http("GET", "/v2/models/pear/stats", "scorer"),
    ]
    for answer in answers:
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error if isinstance(error, str) else error["message"]) == said
    key = {"x-api-key": door.keys["scorer"]}
    assert door.call(f"{INFER}/ModelInfer", infer("pear"), **key)[:2] == ("NOT_FOUND", said)
    assert door.call(f"{INFER}/ModelMetadata", {"name": "pear"}, **key)[:2] == ("NOT_FOUND", said)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/models/sage/score", {"scorer"}),
        ("POST", "/v1/models/sage/versions/1/score", {"scorer"}),
        ("POST", "/v1/models/link/score", set()),
        ("POST", "/v2/models/sage/infer", {"scorer"}),
        ("POST", "/v2/models/sage/versions/1/infer", {"scorer"}),
        ("POST", "/v2/models/link/infer", set()),
        ("GET", "/", {"reader", "admin"}),
        ("GET", "/metrics", {"reader", "admin"}),
        ("GET", "/openapi.json", {"scorer", "reader", "admin"}),
        ("GET", "/docs", {"scorer", "reader", "admin"}),
        ("GET", "/v1/models", {"scorer", "reader", "admin"}),
        ("GET", "/v1/models/sage", {"scorer", "reader", "admin"}),
        ("GET", "/v1/models/link", {"reader", "admin"}),
        ("GET", "/v2", {"scorer", "reader", "admin"}),
        ("GET", "/v2/models/link", {"reader", "admin"}),
        ("GET", "/v2/models/link/config", {"reader", "admin"}),
        ("GET", "/v2/models/link/stats", {"reader", "admin"}),
        ("GET", "/v2/models/stats", {"scorer", "reader", "admin"}),
        ("POST", "/v2/repository/index", {"scorer", "reader", "admin"}),
        ("POST", "/v2/repository/models/sage/load", {"admin"}),
        ("POST", "/v2/repository/models/sage/unload", {"admin"}),
        ("HEAD", "/metrics", {"reader", "admin"}),
    ],
)
def test_every_route_requires_its_permission(door: Door, method: str, path: str, allowed: set[str]) -> None:
    nobody = door.http(method, path)
    assert nobody.status_code == 401
    assert nobody.headers["www-authenticate"] == 'Bearer realm="hopline"'
    assert nobody.headers["hopline-error"] == "unauthenticated"
    for key in ("scorer", "reader", "admin"):
        status = door.http(method, path, key).status_code
        assert (status not in (401, 403)) == (key in allowed), (key, status)
        assert key in allowed or status == 403


def test_lists_show_what_the_client_may_read(door: Door) -> None:
    def names(answer: httpx.Response, key: str | None = None) -> set[str]:
        rows = answer.json() if key is None else answer.json()[key]
        return {row["name"] for row in rows}

    everything = names(door.http("GET", "/v1/models", "reader"), "models")
    assert {"sage", "people", "link"} < everything
    assert names(door.http("GET", "/v1/models", "scorer"), "models") == {"sage", "people"}
    assert names(door.http("GET", "/v2/models/stats", "scorer"), "model_stats") == {"sage", "people"}
    assert names(door.http("POST", "/v2/repository/index", "scorer")) == {"sage", "people"}
    _, listed, _ = door.call(f"{INFER}/RepositoryIndex", {}, **{"x-api-key": door.keys["scorer"]})
    assert "people" in listed
    assert "link" not in listed


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "authentication required"),
        ({"x-api-key": "hopline_made_up"}, "unknown API key"),
        ({"authorization": "Basic YTpi"}, "must be Bearer"),
        ({"authorization": f"Bearer {token(ttl_s=-60)}"}, "the token has expired"),
        ({"authorization": f"Bearer {token(nbf=time.time() + 86_400, ttl_s=172_800)}"}, "not valid yet"),
        ({"authorization": f"Bearer {token(secret=SECRET[::-1])}"}, "signature is not the issuer's"),
        ({"authorization": f"Bearer {token(aud='elsewhere')}"}, "another audience"),
        (
            {"authorization": f"Bearer {jwt.encode({'sub': 'ada'}, '', 'none')}"},
            "not signed with an algorithm of its key: HS256",
        ),
        ({"authorization": "Bearer x.y.z"}, "neither a key of this server nor a JSON Web Token"),
        ({"authorization": "Bearer x", "x-api-key": "y"}, "not both"),
    ],
)
def test_forged_and_expired_credentials_are_refused_by_both_transports(
    door: Door, headers: dict[str, str], message: str
) -> None:
    answer = httpx.post(f"{door.server.url}/v1/models/sage/score", json={"nodes": [1]}, headers=headers)
    assert answer.status_code == 401
    assert message in answer.json()["error"]["message"]
    status, text, trailers = door.call(f"{INFER}/ModelInfer", infer("sage"), **headers)
    assert status == "UNAUTHENTICATED"
    assert message in text
    assert trailers["hopline-error"] == "unauthenticated"


def test_a_token_scores_what_it_claims(door: Door) -> None:
    headers = {"authorization": f"Bearer {token(scope='openid hopline:score:sage')}"}
    for model, status, code in [("sage", 200, "OK"), ("people", 403, "PERMISSION_DENIED")]:
        answer = httpx.post(
            f"{door.server.url}/v1/models/{model}/score", json={"nodes": [1]}, headers=headers
        )
        assert answer.status_code == status
        assert door.call(f"{INFER}/ModelInfer", infer(model), **headers)[0] == code


@pytest.mark.parametrize(
    ("method", "content", "allowed"),
    [
        ("ModelInfer", infer("sage"), {"scorer"}),
        ("ModelInfer", infer("link"), set()),
        ("ServerMetadata", {}, {"scorer", "reader", "admin"}),
        ("ModelMetadata", {"name": "link"}, {"reader", "admin"}),
        ("ModelConfig", {"name": "link"}, {"reader", "admin"}),
        ("ModelStatistics", {"name": "link"}, {"reader", "admin"}),
        ("ModelStatistics", {}, {"scorer", "reader", "admin"}),
        ("RepositoryIndex", {}, {"scorer", "reader", "admin"}),
        ("RepositoryModelLoad", {"model_name": "sage"}, {"admin"}),
        ("RepositoryModelUnload", {"model_name": "sage"}, {"admin"}),
    ],
)
def test_every_method_requires_its_permission(
    door: Door, method: str, content: dict[str, Any], allowed: set[str]
) -> None:
    assert door.call(f"{INFER}/{method}", content)[0] == "UNAUTHENTICATED"
    for key in ("scorer", "reader", "admin"):
        status, _, _ = door.call(f"{INFER}/{method}", content, **{"x-api-key": door.keys[key]})
        assert (status == "PERMISSION_DENIED") == (key not in allowed), (key, status)


def test_health_over_grpc_needs_no_key(door: Door) -> None:
    for method, content in [("ServerLive", {}), ("ServerReady", {}), ("ModelReady", {"name": "sage"})]:
        assert door.call(f"{INFER}/{method}", content)[0] == "OK"
    assert door.call("grpc.health.v1.Health/Check", {})[0] == "OK"


def test_a_stream_is_checked_request_by_request(door: Door) -> None:
    request_kind = message("inference.ModelInferRequest")
    with grpc.insecure_channel(door.server.grpc) as channel:
        call = channel.stream_stream(
            f"/{INFER}/ModelStreamInfer",
            request_kind.SerializeToString,
            message("inference.ModelStreamInferResponse").FromString,
        )
        requests = [request_kind(**infer(model)) for model in ("sage", "link", "sage")]
        metadata = (("x-api-key", door.keys["scorer"]),)
        errors = [answer.error_message for answer in call(iter(requests), metadata=metadata, timeout=10)]
        assert errors[0] == errors[2] == ""
        assert "'scorer' may not score model 'link'" in errors[1]
        with pytest.raises(grpc.RpcError) as caught:  # nobody's stream is not begun
            next(call(iter(requests[:1]), timeout=10))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_client_at_its_rate_sees_metrics_models_and_rollouts(door: Door) -> None:
    key = door.keys["watcher"]
    paths = ("/metrics", "/v1/models", "/v2/models/sage", "/v1/rollouts", "/docs", "/v2")

    def seen() -> dict[str, int]:
        codes = {path: door.http("GET", path, key).status_code for path in paths}
        status, text, _ = door.call(f"{INFER}/ServerMetadata", {}, **{"x-api-key": key})
        assert status == "OK", text
        return codes

    before = seen()
    assert 429 not in before.values()
    assert [door.score(key="watcher").status_code for _ in range(2)] == [200, 429]
    assert seen() == before


def test_a_client_above_its_rate_is_refused_by_both_transports_together(door: Door) -> None:
    assert door.score(key="slow").status_code == 200
    status, _, _ = door.call(f"{INFER}/ModelInfer", infer("sage"), **{"x-api-key": door.keys["slow"]})
    assert status == "OK"
    answer = door.score(key="slow")
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "rate_limited"
    assert 90 < float(answer.headers["retry-after"]) <= 100
    status, text, trailers = door.call(
        f"{INFER}/ModelInfer", infer("sage"), **{"x-api-key": door.keys["slow"]}
    )
    assert status == "RESOURCE_EXHAUSTED"
    assert "'slow' may send 0.01 requests per second, bursts of 2" in text
    assert 90_000 < int(trailers["retry-after-ms"]) <= 100_000
    assert door.score(key="scorer").status_code == 200  # others are not held up


def test_a_revoked_key_is_refused_within_seconds_on_an_open_connection(door: Door) -> None:
    url = f"{door.server.url}/v1/models/sage/score"
    with httpx.Client(headers={"x-api-key": door.keys["leaver"]}) as client:
        assert client.post(url, json={"nodes": [1]}).status_code == 200
        remove_key(door.file, "leaver", None)
        end = time.monotonic() + 60
        while (answer := client.post(url, json={"nodes": [1]})).status_code == 200:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert answer.status_code == 401
    assert "revoked" in answer.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_strangers_large_body_is_refused_before_it_is_read(door: Door, chunked: bool) -> None:
    host, _, port = door.server.address.partition(":")
    length = "transfer-encoding: chunked" if chunked else "content-length: 10000000"
    for header, status in [("", b"401"), (f"x-api-key: {door.keys['reader']}\r\n", b"403")]:
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            head = f"POST /v1/models/sage/score HTTP/1.1\r\nhost: h\r\n{header}{length}\r\n\r\n"
            stranger.sendall(head.encode())
            answer = b"".join(iter(lambda: stranger.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in answer


def test_a_large_body_of_a_client_is_read(door: Door) -> None:
    body = b'{"nodes": [1]' + b" " * 200_000 + b"}"
    for content in (body, iter([body[:100_000], body[100_000:]])):
        answer = httpx.post(
            f"{door.server.url}/v1/models/sage/score",
            content=content,
            headers={"x-api-key": door.keys["scorer"]},
        )
        assert answer.status_code == 200


def test_clients_bring_their_credentials(door: Door) -> None:
    with Client(door.server.url, api_key=door.keys["scorer"]) as client:
        assert client.score("sage", [3]).outputs["label"].tolist() == [1]
        assert {info.name for info in client.models()} == {"sage", "people"}
        with pytest.raises(PermissionDenied, match="'scorer' may not score model 'link'"):
            client.score_pairs("link", [(1, 2)])
    with Client(door.server.url, token=token(scope="hopline:score")) as client:
        assert client.score("sage", [3]).outputs["label"].tolist() == [1]
    with Client(door.server.url, retries=0) as client:
        assert client.ready()
        with pytest.raises(Unauthenticated):
            client.score("sage", [3])
        assert "hopline_" not in repr(client)
    limited = token("limited", hopline={"score": True, "rate_per_s": 0.01, "burst": 1})
    with Client(door.server.url, token=limited, retries=0) as client:
        client.score("sage", [3])
        with pytest.raises(RateLimited) as caught:
            client.score("sage", [3])
    assert 90 < caught.value.retry_after_s <= 100
    with pytest.raises(BadRequest, match="not both"):
        Client(api_key="a", token="b")


async def test_the_async_client_brings_its_credentials(door: Door) -> None:
    async with AsyncClient(door.server.url, api_key=door.keys["scorer"]) as client:
        assert (await client.score("sage", [3])).outputs["label"].tolist() == [1]


def test_the_score_command_takes_a_key(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer
    from typer.testing import CliRunner

    from hopline.commands.score import score

    app = typer.Typer()
    app.command()(score)

    def asked(*options: str) -> str:
        return (
            CliRunner()
            .invoke(app, ["sage", "3", "--url", door.server.url, *options], catch_exceptions=False)
            .output
        )

    assert "label" in asked("--api-key", door.keys["scorer"])
    assert "label" in asked("--token", token(scope="hopline:score"))
    with pytest.raises(Unauthenticated):
        asked()
    monkeypatch.setenv("HOPLINE_API_KEY", door.keys["scorer"])
    assert "label" in asked()
    assert "label" in asked("--token", token(scope="hopline:score"))
    assert door.keys["scorer"] not in asked("--help")


def test_the_log_has_no_secrets(door: Door) -> None:
    door.score(key="hopline_secret_of_somebody")
    log = "".join(door.server.log)
    assert not any(key in log for key in [*door.keys.values(), "secret_of_somebody", SECRET])


def test_workers_share_keys_and_rates(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    key = write_key(file, "c", Grant(("sage",), rate_per_s=0.01, burst=10))
    with running(server__workers=2, **settings(tmp_path)) as server:
        url = f"{server.url}/v1/models/sage/score"
        statuses = [
            httpx.post(url, json={"nodes": [1]}, headers={"x-api-key": key}).status_code for _ in range(40)
        ]
        assert statuses.count(200) == 10  # each on a connection of its own, to whichever worker
        assert statuses.count(429) == 30


@pytest.mark.sample(3)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server.host": "0.0.0.0"}, "server.host: '0.0.0.0' can be reached by other"),
        ({"auth.clients_file": "absent.toml"}, "auth.clients_file: absent.toml does not exist"),
        ({"auth.jwt_key_file": "absent.pem"}, "auth.jwt_issuer: must be set"),
    ],
)
def test_a_server_that_would_let_in_anybody_does_not_start(
    workers: int, changes: dict[str, str], message: str
) -> None:
    process = spawn(server__workers=workers, **changes)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert message in error


def test_a_server_that_is_configured_so_lets_in_anybody() -> None:
    with running(server__host="0.0.0.0", auth__allow_anonymous=True, server__grpc_port=-1) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.post(f"{url}/v1/models/sage/score", json={"nodes": [1]}).status_code == 200


def test_a_request_carries_its_client_and_no_more_than_its_priority(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    key = write_key(file, "payments", Grant(("sage",), priority="low"))
    config = Config().replace(auth__clients_file=file)
    seen: list[Any] = []

    class Watching(FakeService):
        def submit(self, request: Any, deliver: Any) -> Any:
            seen.append(request)
            return super().submit(request, deliver)

    app = HttpApp(Watching(config), config, Gatekeeper(config))
    headers = {b"x-api-key": key.encode()}
    for target, body in [
        (b"/v1/models/sage/score", b'{"nodes": [1]}'),
        (
            b"/v2/models/sage/infer",
            b'{"inputs": [{"name": "node_ids", "datatype": "INT64", "shape": [1], "data": [1]}]}',
        ),
    ]:
        app(Request(b"POST", target, headers, body))
    assert [(request.client, request.priority) for request in seen] == [("payments", "low")] * 2


async def test_who_may_change_one_model_begins_rollouts_of_that_one(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    key = write_key(file, "owner", Grant(admin=("sage",)))
    config = Config().replace(auth__clients_file=file)
    app = HttpApp(FakeService(config), config, Gatekeeper(config))

    def status(body: bytes) -> int:
        answer: Any = app(Request(b"POST", b"/v1/rollouts", {b"x-api-key": key.encode()}, body))
        return getattr(answer, "status", 200)

    for body in (b'{"model": "link"}', b'{"model": "sage", "model": "link"}', b"{}", b"not json", b"\xff"):
        assert status(body) == 403
    assert status(b'{"model": "sage", "version": "2"}') != 403
    await asyncio.sleep(0)  # the service refuses it


def test_who_is_not_let_in_has_nothing_read(tmp_path: Path) -> None:
    (tmp_path / "clients.toml").touch()
    config = Config().replace(auth__clients_file=tmp_path / "clients.toml")
    app = HttpApp(FakeService(config), config, Gatekeeper(config))
    for headers, body in [({}, b"not json"), ({b"content-encoding": b"gzip"}, b"no gzip")]:
        answer: Any = app(Request(b"POST", b"/v1/models/sage/score", headers, body))
        assert answer.status == 401


@pytest.mark.release
def test_tokens_of_an_issuer_are_accepted_by_both_transports_also_while_it_is_down() -> None:
    with issuing() as issuer:
        issuer.rotate("a")
        settings = {
            "auth__jwt_discovery": True,
            "auth__jwt_issuer": issuer.url,
            "auth__jwt_audience": AUDIENCE,
        }
        with running(**settings) as server:
            door = Door(server, Path(), {})
            assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
            issuer.is_up = False
            headers = {"authorization": f"Bearer {issuer.token('a', scope='hopline:score:sage')}"}
            answer = httpx.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1]}, headers=headers)
            assert answer.status_code == 200
            assert door.call(f"{INFER}/ModelInfer", infer("sage"), **headers)[0] == "OK"
            stranger = issuer.token("a", aud="elsewhere")
            assert door.call(f"{INFER}/ModelInfer", infer("sage"), authorization=f"Bearer {stranger}")[
                0
            ] == ("UNAUTHENTICATED")


def test_a_token_whose_keys_are_not_there_yet_is_to_be_sent_again() -> None:
    with issuing() as issuer:
        issuer.rotate("a")
        issuer.is_up = False
        with running(
            auth__jwt_jwks_url=f"{issuer.url}/keys",
            auth__jwt_issuer=issuer.url,
            auth__jwt_audience=AUDIENCE,
        ) as server:
            headers = {"authorization": f"Bearer {issuer.token('a')}"}
            answer = httpx.get(f"{server.url}/v1/models", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "issuer_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert httpx.get(f"{server.url}/readyz", headers=headers).json() == {"ready": True}
            status, _, trailers = Door(server, Path(), {}).call(f"{INFER}/ServerMetadata", {}, **headers)
            assert (status, trailers["hopline-error"]) == ("UNAVAILABLE", "issuer_unavailable")


def test_an_issuer_that_hangs_delays_nobody(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    keys = {"scorer": write_key(file, "scorer", Grant(("sage",)))}
    with issuing() as other, socket.create_server(("127.0.0.1", 0)) as silent:
        other.rotate("a")
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with running(
            auth__clients_file=file,
            auth__jwt_jwks_url=f"{url}/keys",
            auth__jwt_issuer=url,
            auth__jwt_audience=AUDIENCE,
        ) as server:
            door = Door(server, file, keys)
            headers = {"authorization": f"Bearer {other.token('a', iss=url)}"}
            for _ in range(20):
                refused = httpx.get(f"{server.url}/v1/models", headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "issuer_unavailable")
                assert door.score(key="scorer").status_code == 200
                assert (
                    door.call(f"{INFER}/ModelInfer", infer("sage"), **{"x-api-key": keys["scorer"]})[0]
                    == "OK"
                )
            assert "has not answered yet" in "".join(server.log)
    assert server.process.returncode == 0  # the drain did not wait for the issuer either


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v2/models/sage/ready", "/nowhere"])
@pytest.mark.parametrize("framing", ["content-length: 1000000", "transfer-encoding: chunked"])
def test_a_large_body_of_a_stranger_is_refused_before_it_is_sent_whatever_the_path(
    door: Door, path: str, framing: str
) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: here\r\n{framing}\r\n\r\n"
    host, _, port = door.server.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_client_with_a_key_gets_404_for_a_missing_path(door: Door) -> None:
    assert door.http("POST", "/nowhere", "scorer", content=b" " * 100_000).status_code == 404


@pytest.mark.parametrize(
    "scope",
    [" ".join(f"hopline:score:{at}" for at in range(101)), "hopline:score:" + "*a" * 1500 + "b"],
)
def test_a_token_with_too_many_model_names_is_refused(door: Door, scope: str) -> None:
    headers = {"authorization": f"Bearer {token(scope=scope)}"}
    answer = httpx.get(f"{door.server.url}/v1/models", headers=headers)
    assert answer.status_code == 401
    assert "use patterns such as risk-*" in answer.text


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
def test_a_time_that_is_no_number_of_seconds_is_refused(door: Door, name: str) -> None:
    claims = {"exp": int(time.time()) + 60} | {name: 10**400}
    signed = jwt.encode({"sub": "a", "iss": "issuer", "aud": "hopline", **claims}, SECRET, "HS256")
    answer = httpx.get(f"{door.server.url}/v1/models", headers={"authorization": f"Bearer {signed}"})
    assert answer.status_code == 401


@pytest.mark.parametrize("method", [f"{INFER}/ModelReady", "grpc.health.v1.Health/Check"])
def test_a_stranger_may_send_a_name_over_grpc_and_no_more(door: Door, method: str) -> None:
    field = "name" if method.startswith(INFER) else "service"
    assert door.call(method, {field: "sage" if field == "name" else ""})[0] == "OK"
    assert door.call(method, {field: "a" * 1000})[0] == "RESOURCE_EXHAUSTED"
