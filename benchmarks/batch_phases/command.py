"""`hopline batch` as a child process, and PyG's loops in theirs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PEER_PYTHON = ROOT / ".venv-bench" / "bin" / "python"


def words(serve_dir: Path, to: str, *more: str) -> list[str]:
    """The command line of a run on the workload."""
    return [
        *(sys.executable, "-m", "hopline.cli", "batch", "--model", "sage", "--to", to, "--json"),
        *("--repository", str(serve_dir / "repository"), "--graph", str(serve_dir / "graph"), *more),
    ]


def hopline(serve_dir: Path, to: str, *more: str) -> dict[str, Any]:
    """Run to the end; the report.

    Raises:
        RuntimeError: it failed; the text is what it said.
    """
    done = subprocess.run(words(serve_dir, to, *more), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def pyg(workload: Path, way: str, batches: int) -> float:
    """PyG's nodes a second: the better of sampling in the process and in two others.

    Raises:
        RuntimeError: it is not set up, or failed.
    """
    if not PEER_PYTHON.is_file():
        raise RuntimeError("no .venv-bench: run benchmarks/setup")
    settings = (("--workers", "2", "--threads", "1"), ("--workers", "0", "--threads", "2"))
    rates = []
    for setting in settings:
        command = [str(PEER_PYTHON), "-m", "benchmarks.peers.batch_pyg", "--workload", str(workload)]
        command += ["--way", way, "--batches", str(batches), *setting]
        environment = os.environ | {"PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-500:])
        rates.append(float(json.loads(done.stdout.splitlines()[-1])["nodes_per_s"]))
    return max(rates)


def clear(out: Path) -> None:
    """Remove what a run wrote or left."""
    for path in (out, out.with_name(out.name + ".run"), out.with_name(out.name + ".partial")):
        shutil.rmtree(path, ignore_errors=True)
