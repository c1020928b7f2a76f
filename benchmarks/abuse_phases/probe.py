"""Another client of the attacked server: how long its `/healthz` waits, and how memory grows.

    python probe.py [--tls] PORT PID [PID…]

A separate process, so that the attack's work does not count as the server's. It measures from its start
to the end of its standard input, and prints one JSON object. Imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import sys
import time
from pathlib import Path

_REQUEST = b"GET /healthz HTTP/1.1\r\nhost: probe\r\n\r\n"
_PAUSE_S = 0.0005
#: A server that does not answer within it counts as gone, in seconds.
GIVE_UP_S = 60.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes(pid: int) -> int:
    """Memory of a process that is private or mapped by it now; 0 when it has gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def forget_peak(pid: int) -> None:
    """Reset the kernel's peak of a process."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had since `forget_peak`."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def cpu_s(pids: list[int]) -> float:
    """Processor time of all threads of these processes, in seconds."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return total / 1e9


def loop_s(pids: list[int]) -> tuple[float, float]:
    """Of the processes' first threads, which run their loops: processor time, and time in which they were
    ready and other programs had the processors, in seconds."""
    ran = waited = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
            ran, waited = ran + int(words[0]), waited + int(words[1])
    return ran / 1e9, waited / 1e9


def connected(port: int, tls: bool) -> socket.socket:
    """A connection to the server, whose certificate is not checked."""
    plain = socket.create_connection(("127.0.0.1", port), GIVE_UP_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not tls:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def main(port: int, pids: list[int], *, tls: bool) -> dict[str, float]:
    """Ask until standard input ends."""
    before = sum(map(rss_bytes, pids))
    for pid in pids:
        forget_peak(pid)
    longest_s, longest_cpu_s, longest_loop_s, count, answers = 0.0, 0.0, (0.0, 0.0), 0, True
    with connected(port, tls) as client:
        print("ready", flush=True)
        while answers and not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            before_loop_s, before_cpu_s, began = loop_s(pids), cpu_s(pids), time.perf_counter()
            try:
                client.sendall(_REQUEST)
                answers = client.recv(4096).startswith(b"HTTP/1.1 200")
            except OSError:
                answers = False
            waited_s = time.perf_counter() - began
            if waited_s > longest_s:
                longest_s, longest_cpu_s = waited_s, cpu_s(pids) - before_cpu_s
                ran_s, ready_s = loop_s(pids)
                longest_loop_s = ran_s - before_loop_s[0], ready_s - before_loop_s[1]
            count += 1
    sys.stdin.read()  # until the attack is over, also where the server has gone
    return {
        "blocked_ms": longest_s * 1e3,
        "cpu_ms": longest_cpu_s * 1e3,
        "loop_ms": longest_loop_s[0] * 1e3,
        "queued_ms": longest_loop_s[1] * 1e3,
        "peak_bytes": max(0, sum(map(peak_bytes, pids)) - before),
        "before_bytes": before,
        "asked": count,
        "answers": answers,
    }


if __name__ == "__main__":
    has_tls = sys.argv[1] == "--tls"
    ports, *numbers = map(int, sys.argv[1 + has_tls :])
    print(json.dumps(main(ports, numbers, tls=has_tls)))
