"""A real Prometheus for tests (Debian's package `prometheus`), and promtool."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx


def promtool(*arguments: object, cwd: Path | None = None) -> str:
    """What promtool prints; it must succeed."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def prometheus(data: Path, config: str = "", *, files: dict[str, str] | None = None) -> Iterator[str]:
    """Its URL, with this data and this configuration; `files` lie beside the configuration."""
    folder = data.parent / "prometheus-config"
    folder.mkdir(exist_ok=True)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    (folder / "prometheus.yml").write_text(config)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=log,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 30
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, "Prometheus did not get ready"
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/-/ready").status_code == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)
        log.close()
