"""Loading, unloading and rollouts through HTTP, gRPC and the command line, on two real workers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.client import Admin, Client
from hopline.errors import BadRequest, Conflict, ModelNotFound
from tests import loaded_units_rig
from tests.servers import RunningServer, running
from tests.transports.held_loads import ALLOWED

SERVICE = "hopline.service:Service"
LOOSE = {"min_requests": 10**6, "max_disagreement": 1.0, "max_psi": 1e6, "max_p99_ratio": 1e3}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loaded_units_rig.repository(tmp_path_factory.mktemp("wire"))


@pytest.fixture
def root(source: Path, tmp_path: Path) -> Path:
    shutil.copytree(source, tmp_path / "root")
    for version in ("2", "3"):
        (tmp_path / "root" / "models" / "sage" / version).rename(tmp_path / version)
    return tmp_path / "root"


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with running(
        SERVICE, graph__path=root / "graph", models__repository=root / "models", server__workers=2
    ) as started:
        yield started


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.url, retries=5) as client:
        yield client


def publish(root: Path, version: str) -> None:
    shutil.copytree(root.parent / version, root / "models" / "sage" / version)


def versions(server: RunningServer, count: int = 24, **options: Any) -> set[str]:
    """Who answers, asked over new connections, so that both workers are."""
    found = set()
    for i in range(count):
        with Client(server.url, retries=5) as client:
            found.add(client.score("sage", [f"n{i}"], **options).version)
    return found


def command(server: RunningServer, *words: str) -> tuple[int, str]:
    words = (*words, "--url", server.url)
    result = CliRunner().invoke(build_app(words), words, catch_exceptions=False)
    return result.exit_code, result.output


def test_load_and_unload_through_every_door(server: RunningServer, client: Client, root: Path) -> None:
    publish(root, "2")
    http = triton_http.InferenceServerClient(server.address)
    grpc = triton_grpc.InferenceServerClient(server.grpc)
    states = {row["version"]: row["state"] for row in http.get_model_repository_index()}
    assert states == {"1": "READY", "2": "UNAVAILABLE"}
    http.load_model("sage")
    assert versions(server) == {"2"}
    index = grpc.get_model_repository_index(as_json=True)["models"]
    assert {row["version"]: row["state"] for row in index} == {"1": "READY", "2": "READY"}
    grpc.unload_model("sage")
    assert not http.is_model_ready("sage")
    with pytest.raises(ModelNotFound):
        client.score("sage", ["n1"])
    code, told = command(server, "models", "load", "sage", "--version", "1")
    assert (code, told) == (0, "sage: serving 1; loaded: 1\n")
    assert versions(server) == {"1"}
    code, told = command(server, "models", "list")
    assert code == 0
    assert re.search(r"sage.*1.*READY.*serves", told)
    assert re.search(r"sage.*2.*UNAVAILABLE.*not loaded", told)
    http.close()
    grpc.close()


@pytest.mark.release
def test_a_rollout_through_commands(server: RunningServer, root: Path) -> None:
    publish(root, "2")
    loose = ["--gate", "min_requests=100000", "--gate", "max_disagreement=1", "--gate", "max_psi=1000"]
    code, told = command(
        server, "rollout", "start", "sage", "2", "--steps", "50,100", "--preflight", "0", *loose
    )
    assert code == 0, told
    assert "canary of 2 against 1, 50 % of requests" in told
    assert versions(server, 40) == {"1", "2"}
    page = httpx.get(server.url).text
    assert "<h2>sage: canary of 2, running</h2>" in page
    assert 'style="width:50%"' in page
    assert 'http-equiv="refresh"' in page
    code, told = command(server, "rollout", "status", "sage")
    assert re.search(r"candidate 2\s+\d+", told)
    assert command(server, "rollout", "promote", "sage", "--reason", "looks good")[0] == 0
    assert versions(server) == {"2"}
    began = time.monotonic()
    code, told = command(server, "rollout", "rollback", "sage")
    assert time.monotonic() - began < 1
    assert "serves 1" in told
    assert 'http-equiv="refresh"' not in httpx.get(server.url).text
    assert versions(server) == {"1"}
    assert "promoted  looks good" in command(server, "rollout", "status")[1]


@pytest.mark.release
def test_refusals_come_back_as_their_classes(server: RunningServer, client: Client) -> None:
    admin = Admin(client)
    with pytest.raises(ModelNotFound, match="there are: 1"):
        admin.load("sage", "9")
    with pytest.raises(Conflict, match="no rollout of sage"):
        admin.decide("sage", "promote")
    with pytest.raises(
        BadRequest, match=r"unknown field `stps` \(did you mean 'steps'\?\); known fields are model"
    ):
        admin.begin_rollout("sage", "1", stps=[5])
    with pytest.raises(BadRequest, match=r"'max_p99_ratio'.*; known fields are max_error_rate"):
        admin.begin_rollout("sage", "1", gates={"max_p9_ratio": 2})
    with pytest.raises(
        BadRequest, match=r"'canari' - at .*; known are 'ab', 'blue_green', 'canary', 'shadow'"
    ):
        admin.begin_rollout("sage", "1", kind="canari")
    for wrong in ("min_requests=nan", "max_psi=inf", "max_psi=much"):
        with pytest.raises(BadRequest, match="is not a number"):
            command(server, "rollout", "start", "sage", "1", "--gate", wrong)
    with pytest.raises(BadRequest, match="max_error_rate is a share"):
        admin.begin_rollout("sage", "1", gates={"max_error_rate": 7})
    with pytest.raises(BadRequest, match="'file:x' of load is unknown"):
        client.send("POST", "/v2/repository/models/sage/load", {"parameters": {"file:x": "y"}})
    with pytest.raises(ModelNotFound, match="no model 'nobody'"):
        admin.rollout("nobody")


def test_a_worker_that_dies_comes_back_with_what_was_requested(server: RunningServer, root: Path) -> None:
    publish(root, "2")
    publish(root, "3")
    with Client(server.url, retries=5) as client:
        Admin(client).load("sage", "2")
    children = subprocess.run(
        ["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(children[0]), signal.SIGKILL)
    end = time.monotonic() + 20
    while len(_workers(server)) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(1.0)
    # version 3 lies in the repository, but nobody asked for it
    assert versions(server, 40) == {"2"}


def _workers(server: RunningServer) -> list[str]:
    found = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True)
    return found.stdout.split()


@pytest.mark.sample(1)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_request_is_lost_or_answered_twice_while_everything_changes(
    server: RunningServer, root: Path, protocol: str
) -> None:
    publish(root, "2")
    publish(root, "3")
    sent, answered, failed = [0], [0], []
    running_ = threading.Event()
    running_.set()

    def ask(number: int) -> None:
        while running_.is_set():
            try:
                sent[0] += 1
                if protocol == "http":
                    client.score("sage", [f"n{number}"])
                else:
                    tensor = triton_grpc.InferInput("node_ids", [1], "BYTES")
                    tensor.set_data_from_numpy(np.array([f"n{number}"], dtype=object))
                    grpc.infer("sage", [tensor])
                answered[0] += 1
            except Exception as error:
                failed.append(error)

    with Client(server.url, retries=0) as client, Client(server.url) as other:
        grpc = triton_grpc.InferenceServerClient(server.grpc)
        admin = Admin(other)
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        admin.load("sage", "2", serve=False)
        admin.begin_rollout("sage", "2", steps=[50, 100], gates=LOOSE, preflight=0)
        time.sleep(0.3)
        admin.decide("sage", "advance")
        admin.decide("sage", "promote")
        admin.decide("sage", "rollback")
        admin.load("sage", "3")
        admin.unload("sage", "1")
        admin.unload("sage", "2")
        running_.clear()
        for thread in threads:
            thread.join()
        grpc.close()
    assert failed == []
    assert answered == sent
    assert sent[0] > 50


@pytest.fixture
def held(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """Two workers whose loads of version 2 wait; see `held_loads.py`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with running(
        "tests.transports.held_loads:HeldLoads",
        graph__path=root / "graph",
        models__repository=root / "models",
        server__workers=2,
    ) as started:
        yield started


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.sample(1)
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_client_that_hangs_up_during_a_load_stops_nothing(
    held: RunningServer, root: Path, transport: str
) -> None:
    publish(root, "2")
    if transport == "http":
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{held.url}/v2/repository/models/sage/load", timeout=0.5)
    else:
        grpc = triton_grpc.InferenceServerClient(held.grpc)
        with pytest.raises(Exception, match="Deadline Exceeded"):
            grpc.load_model("sage", client_timeout=0.5)
        grpc.close()
    assert versions(held) == {"1"}
    (root / ALLOWED).touch()
    wait_until(lambda: versions(held) == {"2"})
    index = httpx.post(f"{held.url}/v2/repository/index").json()
    assert {row["version"]: row["state"] for row in index} == {"1": "READY", "2": "READY"}


@pytest.mark.release
def test_callers_of_one_load_wait_for_it_together(held: RunningServer, root: Path) -> None:
    publish(root, "2")
    url = f"{held.url}/v2/repository/models/sage/load"
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(httpx.post, url, timeout=60) for _ in range(6)]
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, timeout=0.5)
        (root / ALLOWED).touch()
        assert [call.result().status_code for call in calls] == [200] * 6
    assert versions(held) == {"2"}


def test_a_rollback_sent_to_both_workers_at_once_ends_the_canary_on_both(
    server: RunningServer, root: Path
) -> None:
    publish(root, "3")
    body = {
        "model": "sage",
        "version": "3",
        "steps": [50, 100],
        "min_step_s": 600,
        "preflight": 0,
        "gates": LOOSE,
    }
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    head = (
        b"POST /v1/rollouts/sage/rollback HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n"
    )
    for _ in range(4):
        assert httpx.post(f"{server.url}/v1/rollouts", json=body, timeout=60).status_code == 200
        assert versions(server, 40) == {"1", "3"}
        with contextlib.ExitStack() as stack:
            # connected before, so that the requests themselves reach both workers in one moment
            clients = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(12)]
            for client in clients:
                client.sendall(head)
            for client in clients:
                client.sendall(b"\r\n")
            statuses = sorted(client.makefile("rb").readline().split()[1] for client in clients)
        assert statuses == [b"200"] + [b"409"] * 11
        assert versions(server, 40) == {"1"}
