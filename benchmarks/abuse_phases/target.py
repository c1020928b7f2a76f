"""The attacked server, and what is measured while it is attacked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.abuse_phases import probe

#: Address space of each process of the server: a fault ends the server, not the machine.
_ADDRESS_SPACE_BYTES = 6 << 30
_START_S, _STOP_S = 120.0, 20.0
#: After an attack and its connections have gone, until what stays is counted, in seconds.
_SETTLE_S = 1.0


@dataclass(frozen=True)
class Setup:
    """Start of a server; cases with the same setup share one.

    Attributes:
        auth: whether clients have to say who they are.
        live: whether the graph takes events.
        tls: whether connections are encrypted, with an RSA key of 4,096 bits.
        settings: others, by name.
    """

    auth: bool = False
    live: bool = False
    tls: bool = False
    settings: tuple[tuple[str, str], ...] = ()


#: Without credentials, with a graph that does not change.
PLAIN = Setup()


@dataclass(frozen=True)
class Target:
    """A server that answers.

    Attributes:
        port, grpc_port: on loopback.
        pid: of the process that was started; the worker is a child of it where `live` is on.
        key: of a client that may do everything; "" without `auth`.
        folder: for files of the attack.
        tls: as in `Setup`.
    """

    port: int
    grpc_port: int
    pid: int
    key: str = ""
    folder: Path = Path()
    tls: bool = False

    def pids(self) -> list[int]:
        """All processes of the server."""
        found = [self.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
                found += [int(child) for child in children.split()]
        return found

    @property
    def is_alive(self) -> bool:
        """True if the process runs and is not a zombie."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False


@dataclass(frozen=True)
class Measured:
    """Effect of one attack on other callers.

    Attributes:
        blocked_ms: the longest that `/healthz` waited on another connection.
        cpu_ms: processor time of the server meanwhile: where it is much shorter than the wait, other
            programs had the processors.
        loop_ms: the part of it that the loops' own threads had.
        queued_ms: how long these threads meanwhile were ready to run and had no processor.
        peak_bytes: growth of resident memory at its highest, all processes of the server together.
        stays_bytes: the same a second after the attack's connections were closed.
        survived: whether the server still answers.
        status: as the attack reports it.
    """

    blocked_ms: float
    cpu_ms: float
    loop_ms: float
    queued_ms: float
    peak_bytes: int
    stays_bytes: int
    survived: bool
    status: Mapping[str, int]


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))


def clients_file(folder: Path) -> str:
    """Write the file of one client that may do everything; returns its key."""
    import hashlib

    key = f"hop_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    (folder / "clients.toml").write_text(
        "[clients.tester]\nscore = true\nread = true\nadmin = true\n\n"
        f'[[clients.tester.keys]]\nid = "1"\nsha256 = "{digest}"\n'
    )
    return key


def _certificate(folder: Path) -> dict[str, str]:
    """Settings of a new certificate with the dearest usual key."""
    settings = {f"tls.{name}_file": str(folder / f"{name}.pem") for name in ("cert", "key")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:4096", "-nodes", "-days", "1", "-subj", "/CN=x"]
    command += ["-out", settings["tls.cert_file"], "-keyout", settings["tls.key_file"]]
    subprocess.run(command, check=True, capture_output=True)
    return settings


@contextlib.contextmanager
def serve(python: str, served: Path, setup: Setup) -> Iterator[Target]:
    """A server for the length of a `with` block.

    Args:
        python: interpreter whose Hopline is started.
        served: folder with `graph` and `models`.

    Raises: RuntimeError: it did not start; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="hopline-abuse-") as name, tempfile.TemporaryFile() as log:
        folder = Path(name)
        settings = {"log.level": "error", "models.state": str(folder / "state"), **dict(setup.settings)}
        key = ""
        if setup.auth:
            key = clients_file(folder)
            settings["auth.clients_file"] = str(folder / "clients.toml")
        if setup.live:
            settings |= {"live.folder": str(folder / "live"), "live.spare_nodes": "10000"}
            settings["live.spare_edges"] = "100000"
        if setup.tls:
            settings |= _certificate(folder)
        words = [python, "-m", "hopline.cli", "serve", "--graph", str(served / "graph")]
        words += ["--repository", str(served / "models"), "--port", "0", "--grpc-port", "0"]
        words += ["--live"] if setup.live else []
        for item in settings.items():
            words += ["--set", "=".join(item)]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=log, start_new_session=True, preexec_fn=_limit
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            found = re.search(r"https?://127.0.0.1:(\d+) grpcs?://127.0.0.1:(\d+)", line)
            if found is None:
                process.wait(_START_S)
                log.seek(0)
                raise RuntimeError(f"the server did not start: {log.read().decode()[-2000:]}")
            yield Target(int(found[1]), int(found[2]), process.pid, key, folder, setup.tls)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def measure(target: Target, attack: Callable[[], Mapping[str, int]]) -> Measured:
    """Attack, and look at the server from another process meanwhile."""
    pids = target.pids()
    words = [sys.executable, str(Path(probe.__file__)), *(["--tls"] if target.tls else [])]
    words += map(str, [target.port, *pids])
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdout.readline()
        try:
            status = attack()
            time.sleep(0.2)  # what the attack left to be done
        finally:
            watcher.stdin.close()
        found = json.loads(watcher.stdout.read())
    time.sleep(_SETTLE_S)
    stays = sum(map(probe.rss_bytes, pids)) - int(found["before_bytes"])
    alive = bool(found["answers"]) and target.is_alive
    return Measured(
        blocked_ms=found["blocked_ms"],
        cpu_ms=found["cpu_ms"],
        loop_ms=found["loop_ms"],
        queued_ms=found["queued_ms"],
        peak_bytes=int(found["peak_bytes"]),
        stays_bytes=max(0, stays),
        survived=alive,
        status=status,
    )
