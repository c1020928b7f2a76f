"""A real PostgreSQL on a free port."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def program(name: str) -> str:
    """A program of PostgreSQL, which Debian keeps out of PATH."""
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)),
        None,
    )
    assert found is not None, f"the tests need {name} of PostgreSQL: see scripts/test"
    return found


@contextlib.contextmanager
def postgres(*options: str) -> Iterator[str]:
    """A running server with an empty database; the address of it. It refuses to run as root."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    is_root = os.getuid() == 0
    user = "postgres" if is_root else getpass.getuser()
    if is_root:
        shutil.chown(folder, user)

    def run(name: str, *words: object) -> None:
        before = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if is_root else ()
        subprocess.run(
            [*before, program(name), *map(str, words)], cwd=folder, check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder), "LC_ALL": "C.UTF-8"},
        )  # fmt: skip

    data = folder / "data"
    try:
        run("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off {' '.join(options)}"
        run("pg_ctl", "-D", data, "-o", settings, "-l", folder / "log", "-w", "-t", 60, "start")
        try:
            yield f"postgres://postgres@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
