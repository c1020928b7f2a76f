"""A Hopline server as a child process, started by its command line.

A separate process runs what would run in production: without torch, with the real transports. Examples use
this module, too.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopline.errors import Unavailable

#: Command with the same arguments as `hopline`.
HOPLINE = (sys.executable, "-m", "hopline.cli")
_STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running server.

    Attributes:
        url: HTTP address.
        grpc: gRPC address host:port, "" if gRPC is off.
        process: the child process.
        output: lines that it printed before it was ready.
    """

    url: str
    grpc: str
    process: subprocess.Popen[str]
    output: tuple[str, ...]


@contextlib.contextmanager
def serving(
    graph: Path,
    repository: Path,
    *,
    port: int = 0,
    grpc_port: int = 0,
    settings: Sequence[str] = (),
    command: Sequence[str] = HOPLINE,
) -> Iterator[Served]:
    """Run a server for the duration of a `with` block.

    Args:
        graph, repository: folders to serve.
        port, grpc_port: 0 picks a free one; grpc_port -1 turns gRPC off.
        settings: further settings, each "section.key=value".
        command: command to start.

    Raises: Unavailable: the server exited before it was ready; its stderr has the reason.
    """
    arguments = [
        ("--graph", graph),
        ("--repository", repository),
        ("--port", port),
        ("--grpc-port", grpc_port),
        *(("--set", setting) for setting in ("log.level=warning", *settings)),
    ]
    process = subprocess.Popen(
        [*command, "serve", *(str(word) for pair in arguments for word in pair)],
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C must reach only this process, which then stops the server once.
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        output: list[str] = []
        for line in process.stdout:
            found = re.search(r": serving .* at (https?://\S+)(?: grpcs?://(\S+))?", line)
            if found:
                yield Served(found[1], found[2] or "", process, tuple(output))
                break
            output.append(line.rstrip())
        else:
            raise Unavailable(f"the server exited with code {process.wait()} before it was ready")
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
