"""A real Prometheus for tests (Debian's package `prometheus`), and promtool."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from packages.mesh.tests.answering import answering, free_port


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
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with answering(command, port, "/-/ready", folder / "log") as url:
        yield url
