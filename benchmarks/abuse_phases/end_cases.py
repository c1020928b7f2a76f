"""Attacks that begin and do not end: handshakes, loads; and pages that use someone's browser."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator

from benchmarks.abuse_phases import http_wire as http
from benchmarks.abuse_phases.case import Attack, Case
from benchmarks.abuse_phases.http_cases import SCORE
from benchmarks.abuse_phases.model_cases import EVENTS, LOAD
from benchmarks.abuse_phases.target import Setup, Target

#: Half-open handshakes, and the limit of each in seconds.
_HELLOS, _LIMIT_S = 400, 3.0
_TLS = Setup(tls=True, settings=(("server.read_timeout_s", f"{_LIMIT_S:g}"),))
#: Loads from addresses at a time, and how many of them a worker lets wait.
_LOADS, _WAITING = 60, 8
IN_TIME, LATE = "closed in time", "open"


def hellos(target: Target) -> Attack:
    """400 ClientHellos together, and nothing after them; each must be closed in time."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()

    def attack() -> Counter[str]:
        with contextlib.ExitStack() as stack:
            opened = [
                stack.enter_context(socket.create_connection(("127.0.0.1", target.port)))
                for _ in range(_HELLOS)
            ]
            for each in opened:
                each.sendall(hello)
            end = time.monotonic() + _LIMIT_S + 3.0
            return Counter(IN_TIME if _is_closed(each, end) else LATE for each in opened)

    return attack


def _is_closed(client: socket.socket, end: float) -> bool:
    try:
        while True:
            client.settimeout(max(0.01, end - time.monotonic()))
            if not client.recv(65536):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True


def pages(target: Target) -> Attack:
    """Requests that a page of another site lets a browser send, and requests for a name that leads here."""
    page = [
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("content-type", "text/plain"),
    ]
    load = json.dumps({"parameters": {"graph": "http://127.0.0.1:9/x"}}).encode()
    sent = [
        (SCORE, b'{"nodes": [1]}'),
        (EVENTS, b"[]"),
        (LOAD, load),
        (LOAD.replace("load", "unload"), b"{}"),
    ]
    requests = [http.request(path, body, page) for path, body in sent]
    rebound = http.request("/v1/models", method="GET").replace(b"host: abuse", b"host: evil.example")
    return lambda: http.each_alone(target.port, [*requests, rebound] * 200)


@contextlib.contextmanager
def _dripping() -> Iterator[str]:
    """URL of a server that promises a megabyte and sends a byte now and then."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        is_over = threading.Event()

        def drip(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                client.recv(65536)
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                while not is_over.wait(0.5):
                    client.sendall(b" ")

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=drip, args=[client], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            is_over.set()
            listening.shutdown(socket.SHUT_RDWR)


def dripping_loads(target: Target) -> Attack:
    """60 loads from addresses that drip: 8 wait, the others are refused, and a local load works."""

    def attack() -> Counter[str]:
        with _dripping() as url:
            loads = [http.HttpSocket(target.port) for _ in range(_LOADS)]
            for number, each in enumerate(loads):
                body = json.dumps({"parameters": {"graph": f"{url}/{number}"}}).encode()
                each.send([http.request(LOAD, body)])
            for each in loads[_WAITING:]:
                each.wait(1)
            found = sum((each.summary(1) for each in loads), Counter[str]())
            found += http.each_alone(target.port, [http.request(LOAD, b"{}")])
            for each in loads:
                each.close()
            return found

    return attack


def pipes(target: Target) -> Attack:
    """Loads of a graph with a pipe among its files."""
    folder = target.folder / "piped"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.mkfifo(folder / "graph.json")
    requests = [http.request(LOAD, json.dumps({"parameters": {"graph": str(folder)}}).encode())] * 20
    return lambda: http.each_alone(target.port, requests)


CASES = (
    Case("tls_hellos", hellos, required=frozenset({IN_TIME}), setup=_TLS),
    Case("pages", pages, required=frozenset({"403"})),
    Case(
        "dripping_loads",
        dripping_loads,
        allowed=frozenset({http.SILENT}),
        required=frozenset({"503", "200"}),
    ),
    Case("pipes", pipes, required=frozenset({"400"})),
)
