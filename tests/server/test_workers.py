"""Several workers on one port."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.servers import RunningServer, running, spawn


def children(server: RunningServer) -> list[int]:
    pid = server.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: object) -> None:
    end = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def score(server: RunningServer) -> int:
    return httpx.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1]}, timeout=60).status_code


def test_a_killed_worker_is_restarted_while_the_other_serves() -> None:
    with running(server__workers=2, fresh=True) as server:
        assert " (2 workers)" not in server.url
        before = children(server)
        assert len(before) == 2
        for _ in range(20):
            assert score(server) == 200
        line = 'hopline_requests_total{model="sage",version="2",outcome="ok"}'
        wait_until(lambda: server.metric(line) == 20)  # whichever worker is asked, after a tick
        os.kill(before[0], signal.SIGKILL)
        time.sleep(0.05)  # the kernel takes the dead listener out
        for _ in range(20):
            assert score(server) == 200
        wait_until(lambda: len(children(server)) == 2 and before[0] not in children(server))
        wait_until(lambda: server.metric(line) == 40)  # the dead worker's count is not lost
        assert any("signal 9, SIGKILL" in text for text in server.log)
        server.process.terminate()
        assert server.process.wait(120) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in before)


# a worker that waits 3 s for a processor would be taken for another that hangs
@pytest.mark.quiet
def test_a_worker_that_hangs_is_killed_and_no_client_waits_for_it() -> None:
    """Under load; its clients lose their connections, and are answered by the others."""
    answered = [0] * 8
    lost: list[httpx.TransportError] = []
    over = threading.Event()

    def ask(number: int) -> None:
        with httpx.Client(timeout=120) as client:
            while not over.is_set():
                try:
                    answer = client.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1]})
                    assert answer.status_code == 200
                    answered[number] += 1
                except httpx.NetworkError as error:  # a time-out is none
                    lost.append(error)
                except httpx.RemoteProtocolError as error:
                    lost.append(error)

    with running(server__workers=2, server__worker_hang_s=3.0) as server:
        before = children(server)
        clients = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for client in clients:
            client.start()
        try:
            wait_until(lambda: all(answered))
            os.kill(before[0], signal.SIGSTOP)
            wait_until(lambda: len(children(server)) == 2 and before[0] not in children(server))
            seen = list(answered)
            wait_until(lambda: all(now > then for now, then in zip(answered, seen, strict=True)))
        finally:
            over.set()
            for client in clients:
                client.join()
        assert any(
            "hangs: its event loop has not turned for 3 s; killing it" in text for text in server.log
        )
        assert before[1] in children(server)
        assert len(lost) <= 16


@pytest.mark.release
def test_workers_that_cannot_write_a_file_serve_on() -> None:
    """As on a full disk: their metrics stay unchanged, and nothing else is missing."""
    with running(server__workers=2) as server:
        before = children(server)
        for pid in before:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        wait_until(lambda: len([text for text in server.log if "metrics stay unchanged" in text]) == 2)
        for _ in range(20):
            assert score(server) == 200
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        assert children(server) == before
        for pid in before:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        line = 'hopline_requests_total{model="sage",version="2",outcome="ok"}'
        wait_until(lambda: server.metric(line) == 20)


def test_sigterm_drains_every_worker() -> None:
    import concurrent.futures

    with (
        running(server__workers=2) as server,
        httpx.Client() as client,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        slow = {"nodes": [1], "as_of": 3500}
        url = f"{server.url}/v1/models/slow/score"
        answers = [pool.submit(client.post, url, json=slow, timeout=60) for _ in range(8)]
        server.wait_for_waiting(8)
        server.process.terminate()
        assert [answer.result().status_code for answer in answers] == [200] * 8
        assert server.process.wait(120) == 0


def test_workers_end_with_their_supervisor() -> None:
    with running(server__workers=2) as server:
        workers = children(server)
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_a_worker_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    process = spawn(
        server__workers=2, tls__cert_file=tmp_path / "cert.pem", tls__key_file=tmp_path / "cert.pem"
    )
    out, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert out == ""
    assert "tls.cert_file" in error


def test_workers_get_one_memory_for_their_tables(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = """
import sys
from hopline.config.schema import Config
from hopline.serve import run
config = Config().replace(server__http_port=0, server__grpc_port=-1, server__workers=2)
sys.exit(run(config, service="tests.server.descriptors:Reads"))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HOPLINE_TEST_OUT": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        assert " is ready with 2 workers: serving " in process.stdout.readline()
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()  # type: ignore[union-attr]
    inodes = [path.read_text() for path in tmp_path.iterdir()]
    assert len(inodes) == 2
    assert len(set(inodes)) == 1


def test_sighup_replaces_the_workers_one_by_one_and_loses_nothing() -> None:
    import threading

    with running(server__workers=2, server__drain_delay_s=0.2) as server:
        before = children(server)
        statuses: list[int] = []
        going = threading.Event()
        going.set()

        def ask() -> None:
            with httpx.Client(timeout=60) as client:
                while going.is_set():
                    answer = client.post(f"{server.url}/v1/models/sage/score", json={"nodes": [1]})
                    statuses.append(answer.status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("replaced 2 workers" in text for text in server.log))
        going.clear()
        for thread in threads:
            thread.join()
        assert not set(before) & set(children(server))
        assert len(children(server)) == 2
        assert set(statuses) == {200}
