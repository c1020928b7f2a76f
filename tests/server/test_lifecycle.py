"""One server process from start to end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import socket
import subprocess
import sys
import time

import grpc
import httpx
import pytest

from hopline.config.schema import Config
from hopline.server import Server
from tests.fake_service import FakeService
from tests.servers import running, spawn
from tests.transports.dialects import Ask, infer_request


def test_importing_the_server_is_light() -> None:
    heavy = ("torch", "numpy", "grpc", "uvloop")
    code = f"import hopline.server, sys; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_serving_does_not_import_torch() -> None:
    code = (
        "import hopline.transports.http, hopline.transports.grpc, hopline.client, sys;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sigterm_finishes_what_was_admitted_over_http_and_grpc() -> None:
    from hopline.transports.proto import message

    with (
        running(server__drain_delay_s=2.0, fresh=True) as server,
        httpx.Client() as client,
        concurrent.futures.ThreadPoolExecutor(16) as pool,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            message("inference.ModelInferRequest").SerializeToString,
            message("inference.ModelInferResponse").FromString,
        )
        infer(infer_request(Ask(nodes=[1])))  # connected before the clock starts
        slow = {"nodes": [1], "as_of": 1500}
        url = f"{server.url}/v1/models/slow/score"
        over_http = [pool.submit(client.post, url, json=slow, timeout=10) for _ in range(8)]
        over_grpc = [
            pool.submit(infer, infer_request(Ask("slow", nodes=[1], as_of=1500))) for _ in range(4)
        ]
        server.wait_for_waiting(12)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until_logged("draining")
        during = httpx.get(f"{server.url}/readyz")
        assert during.status_code == 503
        assert "the server is draining" in during.json()["reasons"]
        assert during.headers["connection"] == "close"
        # Announced, but still serving.
        assert httpx.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1]}).status_code == 200
        assert [each.result().status_code for each in over_http] == [200] * 8
        assert all(each.result().model_name == "slow" for each in over_grpc)
        assert server.process.wait(10) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz")


@pytest.mark.release
def test_the_last_answer_says_that_the_connection_closes() -> None:
    with running(server__drain_delay_s=0.0) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            body = b'{"nodes":[1],"as_of":700}'
            head = b"POST /v1/models/slow/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            client.sendall(head % len(body) + body)
            server.wait_for_waiting(1)
            server.process.send_signal(signal.SIGTERM)
            answer = client.recv(65536)
        assert b"200 OK" in answer
        assert b"connection: close" in answer
        assert server.process.wait(10) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("sent", [0, 20, 90])
def test_a_connected_client_that_is_slow_to_send_its_request_is_answered(sent: int) -> None:
    body = b'{"nodes":[1]}'
    head = b"POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with running(server__drain_delay_s=0.0) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall((head + body)[:sent])
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_logged("draining")
            time.sleep(0.5)  # as a client does that has no processor
            client.sendall((head + body)[sent:])
            assert b"200 OK" in client.recv(65536)
        assert server.process.wait(10) == 0


@pytest.mark.release
def test_a_client_that_sends_nothing_delays_the_end_by_seconds_only() -> None:
    with running(server__drain_delay_s=0.0) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            server.process.send_signal(signal.SIGTERM)
            assert client.recv(1) == b""
            assert server.process.wait(10) == 0


@pytest.mark.release
def test_the_drain_is_bounded() -> None:
    with running(server__drain_timeout_s=0.3, server__drain_delay_s=0) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as waiting:
            body = b'{"nodes":[1],"as_of":60000}'
            waiting.sendall(
                b"POST /v1/models/slow/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            server.wait_for_waiting(1)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0
            assert time.monotonic() - began < 30  # the request takes 60 s
    assert any("requests unanswered" in line for line in server.log)


def test_a_second_signal_cuts_the_drain_short() -> None:
    with running(server__drain_timeout_s=60, server__drain_delay_s=0) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as waiting:
            body = b'{"nodes":[1],"as_of":60000}'
            waiting.sendall(
                b"POST /v1/models/slow/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            server.wait_for_waiting(1)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(5) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_thread_that_never_ends_does_not_keep_the_server(workers: int, num_signals: int) -> None:
    settings = {"server__workers": workers, "server__drain_delay_s": 0, "server__drain_timeout_s": 60}
    with running("tests.server.unending:Unending", **settings) as server:
        for _ in range(num_signals):
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_logged("draining")
        assert server.process.wait(5 + 10 * (num_signals == 1)) == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("setting", ["http_port", "grpc_port"])
def test_a_port_in_use_is_reported_before_anything_is_loaded(setting: str, workers: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = spawn(**{f"server__{setting}": port, "server__workers": workers})
        out, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert out == ""
    assert f"server.{setting}: port {port} on 127.0.0.1 is in use by another process" in error


@pytest.mark.release
def test_grpc_can_be_off() -> None:
    with running(server__grpc_port=-1) as server:
        assert server.grpc == ""
        assert httpx.get(f"{server.url}/readyz").status_code == 200


def test_an_address_that_is_not_ours_is_reported() -> None:
    process = spawn(server__host="203.0.113.7", auth__allow_anonymous=True)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "server.http_port: cannot listen on 203.0.113.7" in error


async def test_stop_is_remembered_until_startup_is_over() -> None:
    ready: list[Server] = []
    config = Config().replace(server__http_port=0, server__grpc_port=-1, server__drain_delay_s=0.0)
    server = Server(config, "tests.fake_service:FakeService", ready.append)
    server.stop()
    assert await server.serve() == 0
    assert not ready


class Pressed(FakeService):
    """Has something to run whenever it is asked."""

    num_asked = 0

    def is_pressed(self) -> bool:
        """As `Service.is_pressed`."""
        Pressed.num_asked += 1
        return True


async def test_the_service_decides_whether_refusals_wait() -> None:
    ready: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    config = Config().replace(server__http_port=0, server__grpc_port=-1, server__drain_delay_s=0.0)
    server = Server(config, f"{__name__}:Pressed", ready.set_result)
    serving = asyncio.create_task(server.serve())
    await ready
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as client:
        for expected in (0, 3):  # the connection is new, then one that was refused: it leaves three turns
            answer = await client.post("/v1/models/busy/score", json={"nodes": [1]})
            assert (answer.status_code, Pressed.num_asked) == (503, expected)
    server.stop()
    assert await serving == 0


def test_a_ready_server_says_which_version_of_each_model_answers() -> None:
    process = spawn(server__grpc_port=-1)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=20)
    served = FakeService(Config())
    named = ", ".join(
        f"{name} version {served.describe(name).version}" for name in served.model_names()[:5]
    )
    assert f" is ready: serving {named}" in line
    assert line.split(" at ")[1].startswith("http://127.0.0.1:")


def test_many_models_are_counted() -> None:
    server = Server(Config(), "", lambda server: None)
    server._service = FakeService(Config())
    info = server._service.describe(server._service.model_names()[0])
    server._service._models = {f"m{number}": info for number in range(9)}
    assert server.serving().count(" version ") == 5
    assert server.serving().endswith(" and 4 more models")
