"""A server under test as a child process: start, wait until it answers, stop.

A context manager, so that no failure of a measurement leaves a server behind.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.load import Request


class ServerFailed(RuntimeError):
    """The server did not start, or gave a wrong answer to the checked request."""


@dataclass(frozen=True)
class Running:
    """A server that has answered its checked request."""

    port: int
    pid: int
    ready_s: float


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_row(answer: object, length: int) -> list[float] | None:
    """The first list of exactly `length` numbers anywhere in a JSON answer."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if not isinstance(answer, list):
        return None
    if len(answer) == length and all(isinstance(x, int | float) for x in answer):
        return answer
    return next((row for part in answer if (row := find_row(part, length)) is not None), None)


def ask(port: int, request: Request, node: int, timeout_s: float = 30.0) -> tuple[int, bytes]:
    """Send one request. Returns: status and body. Raises: OSError, HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request(request.method, request.path, request.for_node(node), headers)
        response = connection.getresponse()
        return response.status, response.read()


def check_answer(status: int, body: bytes, num_outputs: int) -> None:
    """Raise ServerFailed unless the answer is a success with one row of finite floats."""
    if status != 200:
        raise ServerFailed(f"checked request: status {status}: {body[:300]!r}")
    row = find_row(json.loads(body), num_outputs)
    if row is None or not all(map(math.isfinite, row)):
        raise ServerFailed(f"checked request: no {num_outputs} finite floats in {body[:300]!r}")


def wait_ready(process: subprocess.Popen[bytes], port: int, request: Request, timeout_s: float) -> bytes:
    """Ask until the server answers with success; returns that answer's body."""
    deadline = time.monotonic() + timeout_s
    last = "nothing listened"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailed(f"exited with {process.returncode} before it was ready")
        # Servers that load in the background refuse, reset or answer 4xx/503 meanwhile.
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, body = ask(port, request, node=0)
            if status == 200:
                return body
            last = f"status {status}: {body[:300]!r}"
        time.sleep(0.1)
    raise ServerFailed(f"not ready after {timeout_s:.0f} s ({last})")


def stop(process: subprocess.Popen[bytes], grace_s: float = 20.0) -> None:
    """SIGTERM to the server; SIGKILL to the process group that we made for it, if need be."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    # The group outlives its leader where a server leaves workers behind.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def serve(
    command: list[str],
    port: int,
    request: Request,
    *,
    num_outputs: int,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 180.0,
) -> Iterator[Running]:
    """Run a server for the length of a `with` block; its log's tail is in any ServerFailed."""
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            check_answer(200, wait_ready(process, port, request, timeout_s), num_outputs)
            yield Running(port, process.pid, time.monotonic() - started)
        except ServerFailed as error:
            log.seek(0)
            tail = log.read().decode(errors="replace")[-2000:]
            raise ServerFailed(f"{error}\n{tail}") from None
        finally:
            stop(process)
