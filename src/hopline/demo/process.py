"""A Hopline server as a child process: started by its command line, stopped in order.

It is a process of its own so that what answers is what would run in production: without torch, with
the real transports. Also used by the examples.
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

#: Any command that takes what `hopline` takes.
HOPLINE = (sys.executable, "-m", "hopline.cli")
_STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server that takes requests.

    Attributes:
        url: of HTTP.
        grpc: host:port of gRPC, "" where it is off.
        process: the child.
        said: lines that it printed before the one that says it is ready.
    """

    url: str
    grpc: str
    process: subprocess.Popen[str]
    said: tuple[str, ...]


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
    """Serve for the length of a `with` block.

    Args:
        graph, repository: what to serve.
        port, grpc_port: 0 picks a free one; grpc_port -1 leaves gRPC out.
        settings: further ones, "section.key=value" each.
        command: what to start.

    Raises: Unavailable: the server ended before it was ready; it said why on stderr.
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
        # Ctrl-C is for us: we stop the server in order, once.
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            found = re.search(r": serving .* at (https?://\S+)(?: grpcs?://(\S+))?", line)
            if found:
                yield Served(found[1], found[2] or "", process, tuple(said))
                break
            said.append(line.rstrip())
        else:
            raise Unavailable(f"the server ended with exit code {process.wait()} before it was ready")
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
