"""A part of a phase as a separate process: orders on stdin, what it found as JSON in the last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def run(name: str, **orders: Any) -> Any:
    """Run `benchmarks.stream_phases.<name>` to its end.

    Raises: RuntimeError: it failed; the text is the end of what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.stream_phases.{name}"],
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        cwd=_ROOT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def orders() -> dict[str, Any]:
    """Of this process."""
    found: dict[str, Any] = json.loads(sys.stdin.read())
    return found


def tell(found: Any) -> None:
    """The last line."""
    print(json.dumps(found), flush=True)
