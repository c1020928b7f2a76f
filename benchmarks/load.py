"""One wrk run against one server: uniform node ids, percentiles in microseconds.

wrk has one thread whichever server is measured. Its percentiles include its own
correction for coordinated omission (a stall counts once for every request that
would have been sent during it), which is the same for all servers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ID = "$ID"
"""Where a request body takes the node id."""


@dataclass(frozen=True)
class Request:
    """Request to send: the body holds `$ID` once, in place of the node id."""

    path: str
    body: str
    method: str = "POST"

    def for_node(self, node: int) -> str:
        """The body that asks for one node."""
        return self.body.replace(ID, str(node))


@dataclass(frozen=True)
class Load:
    """One run's figures; times in ms, errors by wrk's own names."""

    num_requests: int
    rps: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    errors: dict[str, int]

    @property
    def failed(self) -> bool:
        """True if any request failed: then the run's figures are void."""
        return self.num_requests == 0 or any(self.errors.values())


class WrkNotFound(RuntimeError):
    """wrk is not installed."""


class WrkFailed(RuntimeError):
    """wrk gave no figures; most often nothing listened any more."""


def require_wrk() -> None:
    """Fail early and clearly where the load generator is missing."""
    if shutil.which("wrk") is None:
        raise WrkNotFound("wrk is not installed (Debian, Ubuntu: apt-get install wrk)")


def run(port: int, request: Request, *, connections: int, seconds: float, num_ids: int, seed: int) -> Load:
    """Drive the server on loopback for a bounded time.

    Args:
        seconds: rounded to wrk's resolution, whole seconds; at least one.
        num_ids: ids are drawn from 0 to num_ids - 1.
        seed: which ids are drawn.

    Raises: WrkFailed: there are no figures. Failed requests do not raise: see `Load.errors`.
    """
    before, after = request.body.split(ID)
    arguments = [request.path, before, after, str(num_ids), str(seed), request.method]
    script = Path(__file__).with_name("load.lua")
    return drive(port, script, arguments, connections=connections, seconds=seconds)


def drive(port: int, script: Path, arguments: list[str], *, connections: int, seconds: float) -> Load:
    """One bounded run of wrk with a script that ends with a line as `load.lua` writes it.

    Args:
        arguments: of the script.
        seconds: rounded to wrk's resolution, whole seconds; at least one.

    Raises: WrkFailed: there are no figures. Failed requests do not raise: see `Load.errors`.
    """
    whole_seconds = max(1, round(seconds))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{whole_seconds}s", "--timeout", "10s"]
    command += ["-s", str(script), f"http://127.0.0.1:{port}/", "--", *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=whole_seconds + 30, check=False
    )
    if result.returncode != 0:
        raise WrkFailed(f"wrk exited with {result.returncode}: {result.stdout}{result.stderr}".strip())
    facts = json.loads(result.stdout.strip().splitlines()[-1])
    return Load(
        num_requests=facts["requests"],
        rps=facts["requests"] / (facts["duration_us"] * 1e-6),
        p50_ms=facts["p50_us"] / 1e3,
        p99_ms=facts["p99_us"] / 1e3,
        max_ms=facts["max_us"] / 1e3,
        errors={name: facts[name] for name in ("connect", "read", "write", "status", "timeout")},
    )
