"""Does what a page says: runs its Python, starts its servers, sends its curls.

Python blocks share one namespace and a work folder. `hopline serve` gets free ports, and the addresses
that pages name stand for them. A JSON block after a curl shows the form of its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from hopline import Client
from tests.warm_start import start

ROOT = Path(__file__).resolve().parents[2]
HTTP, GRPC = "http://127.0.0.1:8700", "127.0.0.1:8701"


def play(check_docs: Any, page: str, folder: Path) -> None:
    """Follow a page from its first block to its last; raises what goes wrong, with the page's lines."""
    namespace: dict[str, Any] = {"__name__": "page"}
    real = {HTTP: HTTP, GRPC: GRPC}
    answer: Any = None
    with contextlib.ExitStack() as running, contextlib.chdir(folder), mock.patch.dict(os.environ):
        server = running.enter_context(contextlib.ExitStack())
        for block in check_docs.blocks((ROOT / page).read_text()):
            text = block.text
            for address, actual in real.items():
                text = text.replace(address, actual)
            if block.info == "python":
                # Blank lines before it, so that tracebacks name the page's own lines.
                code = compile("\n" * (block.line - 1) + text, str(ROOT / page), "exec")
                try:
                    exec(code, namespace)
                finally:
                    _close_clients_at_end(running, namespace)
            elif block.info == "bash":
                for words in _commands(text):
                    if words[:2] == ["hopline", "serve"]:
                        server.close()
                        real[HTTP], real[GRPC] = server.enter_context(_serving(words[2:]))
                    elif (
                        words[:2]
                        in (
                            ["hopline", "batch"],
                            ["hopline", "quantize"],
                            ["hopline", "distill"],
                            ["hopline", "generate"],
                            ["hopline", "skew"],
                        )
                        or words[:3] in (["hopline", "mesh", "evaluate"], ["hopline", "mesh", "simulate"])
                        or words[:2] == ["hopline", "init"]
                        or words[:3] == ["hopline", "graph", "describe"]
                        or (words[:3] == ["hopline", "graph", "build"] and words[3].endswith(".toml"))
                    ):
                        subprocess.run([sys.executable, "-m", "hopline.cli", *words[1:]], check=True)
                    elif words[0] == "cd":
                        os.chdir(words[1])
                        running.enter_context(mock.patch.object(sys, "path", [os.getcwd(), *sys.path]))
                        running.callback(_forget_modules, Path.cwd())
                    elif words[0] == "python":
                        subprocess.run([sys.executable, *words[1:]], check=True)
                    elif words[0] == "curl":
                        answer = _curl(words[1:])
            elif block.info == "json" and answer is not None:
                assert _form(json.loads(text)) == _form(answer), f"{page}:{block.line}: {answer}"
                answer = None


def _forget_modules(folder: Path) -> None:
    """Modules of a page's own files have names that other pages may have, too."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            del sys.modules[name]


def _commands(text: str) -> list[list[str]]:
    """The commands of a bash block; quoted text may go over several lines."""
    found: list[list[str]] = []
    pending = ""
    for line in text.splitlines():
        pending += line + "\n"
        with contextlib.suppress(ValueError):  # a quotation that is still open
            if not line.endswith("\\"):
                found.append(shlex.split(pending.replace("\\\n", " "), comments=True))
                pending = ""
    assert not pending, f"not a whole command: {pending}"
    return [words for words in found if words]


@contextlib.contextmanager
def _serving(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """`hopline serve` on free ports: (HTTP address, gRPC address)."""
    free = ("--port=0", "--grpc-port=0", "--set", "server.drain_delay_s=0")
    with tempfile.TemporaryFile("w+") as log:
        process = start(["-m", "hopline.cli", "serve", *arguments, *free], stderr=log)
        assert process.stdout is not None
        try:
            found = re.search(r"(http://\S+) grpc://(\S+)", process.stdout.readline())
            if found is None:
                log.seek(0)
                raise AssertionError(f"hopline serve {shlex.join(arguments)}: {log.read()}")
            yield found[1], found[2]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
    assert process.returncode == 0


def _curl(arguments: list[str]) -> Any:
    """What curl would print, as JSON."""
    url = next(word for word in arguments if word.startswith("http"))
    if "-d" not in arguments:
        response = httpx.request(arguments[arguments.index("-X") + 1] if "-X" in arguments else "GET", url)
    else:
        response = httpx.post(url, content=arguments[arguments.index("-d") + 1])
    assert response.is_success, f"{url}: {response.text}"
    return response.json()


def _form(value: Any) -> Any:
    """A JSON value without its numbers and texts: keys, nesting and kinds."""
    if isinstance(value, dict):
        return {key: _form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_form(item) for item in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


def _close_clients_at_end(stack: contextlib.ExitStack, namespace: dict[str, Any]) -> None:
    for value in list(namespace.values()):
        if isinstance(value, Client):
            stack.callback(value.close)
