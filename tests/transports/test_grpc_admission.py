"""Who calls is asked on the head of a call: nothing of its messages is stored, unpacked or read before."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from hopline.config.reader import load_config
from hopline.ingress.clients_edit import add_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.keys import new_key
from hopline.transports.grpc import HEALTH, INFERENCE, GrpcApp
from hopline.transports.proto import message
from tests.fake_service import FakeService
from tests.transports.grpc_rig import endpoint_of
from tests.transports.http2_rig import Client, Served
from tests.transports.test_grpc_call import eventually, failed, framed, infer_request
from turnserve.budget import Budget
from turnserve.grpc import call as grpc_call
from turnserve.grpc import unpacking as grpc_unpacking
from turnserve.grpc.status import StatusCode as Code

INFER, STREAM = f"/{INFERENCE}/ModelInfer", f"/{INFERENCE}/ModelStreamInfer"
BOMB = framed(gzip.compress(bytes(900_000)), 1)


class Door:
    """An endpoint that asks who calls, with keys of clients that may do one thing each."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        file = folder / "clients.toml"
        grants = {
            "scorer": Grant(("sage",)),
            "reader": Grant(read=True),
            "slow": Grant(("sage",), rate_per_s=0.01, burst=1),
        }
        self.keys = {}
        for name, grant in grants.items():
            key = new_key()
            add_key(file, name, KeyEntry(key.id, key.sha256), grant)
            self.keys[name] = key.text
        config = load_config(overrides={"auth.clients_file": str(file)})
        self.service = FakeService(config)
        self.budget = Budget(50_000_000)
        self.served = Served()
        app = GrpcApp(self.service, Gatekeeper(config))
        self.served.endpoint = endpoint_of(app, budget=self.budget, **limits)

    def call(self, client: Client, path: str, key: str, **headers: str) -> int:
        """Begin a call as somebody, or as nobody."""
        found = {"x_api_key": self.keys.get(key, key)} if key else {}
        return client.call(path, end=False, **found, **headers)


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be unpacked or read."""

    def fail(*_: Any) -> Any:
        raise AssertionError("a message was unpacked")

    monkeypatch.setattr(grpc_unpacking, "decompress", fail)
    monkeypatch.setattr(grpc_call.Call, "_take", fail)


@pytest.mark.parametrize("path", [INFER, STREAM])
@pytest.mark.parametrize(
    ("key", "code", "text"),
    [
        ("", Code.UNAUTHENTICATED, "authentication required"),
        ("hopline_made_up", Code.UNAUTHENTICATED, "unknown API key"),
        ("reader", Code.PERMISSION_DENIED, "may not score"),
    ],
)
@pytest.mark.usefixtures("unread")
async def test_who_may_not_call_is_refused_on_the_head(
    door: Door, path: str, key: str, code: Code, text: str
) -> None:
    client = Client(door.served)
    number = door.call(client, path, key, grpc_encoding="gzip")
    client.exchange()
    assert text in failed(client.answers[number], code)
    assert client.answers[number].reset == 0  # the rest need not be sent
    assert client.server.idle


@pytest.mark.usefixtures("unread")
async def test_what_is_sent_without_waiting_for_the_refusal_is_dropped(door: Door) -> None:
    client = Client(door.served)
    for _ in range(30):
        number = door.call(client, INFER, "", grpc_encoding="gzip")
        client.send(number, BOMB)
    client.server.data_received(client.h2.data_to_send())
    assert client.server.output.held.num_bytes == door.budget.used == 0
    await eventually(lambda: client.exchange() or all(answer.ended for answer in client.answers.values()))
    assert {answer.status for answer in client.answers.values()} == {Code.UNAUTHENTICATED}


@pytest.mark.parametrize(
    "method", ["RepositoryModelLoad", "ModelConfig", "ServerMetadata", "RepositoryIndex", "ModelStatistics"]
)
@pytest.mark.usefixtures("unread")
async def test_every_method_that_is_not_open_checks_first(door: Door, method: str) -> None:
    client = Client(door.served)
    number = door.call(client, f"/{INFERENCE}/{method}", "")
    client.exchange()
    assert "authentication required" in failed(client.answers[number], Code.UNAUTHENTICATED)


async def test_a_rate_counts_calls_before_their_messages(door: Door) -> None:
    client = Client(door.served)
    first, second = (door.call(client, INFER, "slow") for _ in range(2))
    client.exchange()
    assert "may send 0.01 requests" in failed(client.answers[second], Code.RESOURCE_EXHAUSTED)
    assert not client.answers[first].ended


async def test_whoever_may_call_is_served(door: Door) -> None:
    client = Client(door.served)
    packed = framed(gzip.compress(infer_request([1]).SerializeToString()), 1)
    for path in (INFER, STREAM):
        number = door.call(client, path, "scorer", grpc_encoding="gzip")
        client.send(number, packed)
        client.h2.end_stream(number)
        client.exchange()
        assert client.answers[number].status == 0
        assert len(client.answers[number].messages) == 1
    number = door.call(client, INFER, "scorer")
    request = infer_request([1])
    request.model_name = "people"
    client.send(number, framed(request.SerializeToString()))
    client.h2.end_stream(number)
    client.exchange()
    text = failed(client.answers[number], Code.PERMISSION_DENIED)
    assert "'scorer' may not score model 'people'" in text


@pytest.mark.parametrize(
    "path", [f"/{HEALTH}/Check", f"/{HEALTH}/Watch", f"/{INFERENCE}/ServerLive", f"/{INFERENCE}/ModelReady"]
)
async def test_what_anybody_may_call_takes_little(door: Door, path: str) -> None:
    client = Client(door.served)
    number = door.call(client, path, "")
    client.send(number, b"\0" + (512 + 1).to_bytes(4, "big"))
    client.exchange()
    assert "the limit is 512" in failed(client.answers[number], Code.RESOURCE_EXHAUSTED)
    client = Client(door.served)
    number = door.call(client, path, "", grpc_encoding="gzip")
    client.send(number, framed(gzip.compress(bytes(60_000)), 1))
    client.h2.end_stream(number)
    client.exchange()
    assert "larger than 512" in failed(client.answers[number], Code.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    "name", ["SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "TraceSetting", "LogSettings"]
)
@pytest.mark.usefixtures("unread")
async def test_what_is_not_implemented_is_refused_on_the_head(door: Door, name: str) -> None:
    client = Client(door.served)
    number = door.call(client, f"/{INFERENCE}/{name}", "")
    client.exchange()
    text = failed(client.answers[number], Code.UNIMPLEMENTED)
    assert text.startswith(f"{name}: ")


# Names


def plain() -> Client:
    served = Served()
    served.endpoint = endpoint_of(GrpcApp(FakeService(load_config())))
    return Client(served)


async def asked(method: str, **content: Any) -> Any:
    """The answer to a call of a method, whose message is found by its name."""
    client = plain()
    request = message(f"inference.{method}Request")(**content)
    number = client.call(f"/{INFERENCE}/{method}", request.SerializeToString())
    await eventually(lambda: client.exchange() or client.answers[number].ended)
    return client.answers[number]


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("ModelInfer", "model_name"),
        ("ModelInfer", "model_version"),
        ("ModelMetadata", "name"),
        ("ModelReady", "version"),
        ("ModelStatistics", "name"),
        ("RepositoryModelLoad", "model_name"),
        ("RepositoryModelUnload", "model_name"),
    ],
)
async def test_what_is_no_name_is_refused_and_quoted_in_part(method: str, field: str) -> None:
    other = {"model_name": "sage"} if method == "ModelInfer" else {}
    for name, what in (
        ("a\0b", "control character"),
        ("x" * 5_000, "5000 characters"),
        ("a\nb", "control"),
    ):
        text = failed(await asked(method, **(other | {field: name})), Code.INVALID_ARGUMENT)
        assert what in text
        assert field in text
        assert len(text) < 300


async def test_a_name_may_have_200_characters_of_any_script() -> None:
    for name in ("x" * 200, "Käse 中文 🧀"):
        assert "no model" in failed(await asked("ModelInfer", model_name=name), Code.NOT_FOUND)


@pytest.mark.parametrize("content", [{"name": "absent"}, {"name": "sage", "version": "9"}])
async def test_a_model_that_there_is_not_is_not_ready(content: dict[str, str]) -> None:
    answer = await asked("ModelReady", **content)
    assert answer.status == 0
    assert answer.messages == [b""]  # ready is false
