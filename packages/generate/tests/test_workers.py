"""Several workers of one server share the process of a generative model."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from packages.generate.tests.models import naive_version
from tests.servers import running


def engines(socket_folder: Path) -> list[int]:
    """Processes of generative models that listen in this folder."""
    sockets = {
        line.split()[6]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if line.endswith(".sock") and str(socket_folder) in line
    }
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            links = {os.readlink(file) for file in (process / "fd").iterdir()}
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"generate.process" in command and any(f"socket:[{inode}]" in links for inode in sockets):
            found.append(int(process.name))
    return found


def tokens(metrics: str) -> float:
    """Generated tokens of all workers."""
    found = re.search(r'hopline_tokens_total\{[^}]*kind="generated"\} (\S+)', metrics)
    return float(found[1]) if found else 0.0


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_two_workers_have_one_process_and_it_ends_with_them(tmp_path: Path, sockets: Path) -> None:
    repository = tmp_path / "repository"
    naive_version(repository, step_s=0.001)
    settings = {
        "models.repository": str(repository),
        "generate.socket_folder": str(sockets),
        "server.workers": 2,
    }
    with running("hopline.service:Service", **settings) as server:
        (pid,) = engines(sockets)

        def ask(number: int) -> str:
            body = {"model": "echo", "prompt": f"text {number}", "max_tokens": 20}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
            text: str = answer.json()["choices"][0]["text"]
            return text

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(ask, range(40))) == [f"text {number}" for number in range(40)]
        assert engines(sockets) == [pid]
        end = time.monotonic() + 120
        while tokens(httpx.get(f"{server.url}/metrics").text) < 40 * len("text 0"):
            assert time.monotonic() < end  # the other worker's numbers come a moment later
            time.sleep(0.05)
    assert engines(sockets) == []
    assert not list(sockets.glob("*.sock"))
