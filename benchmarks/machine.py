"""Description of the machine in a benchmark's JSON line."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def _first(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:  # not Linux
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def machine() -> dict[str, str | int | float]:
    """Processor, cores, memory, interpreter and load average now; never a host name."""
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "load_average_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def stolen_s() -> float:
    """Seconds that a hypervisor gave to others while this machine wanted them, all processors together."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:  # not Linux
        return 0.0
    return int(first[8]) / os.sysconf("SC_CLK_TCK")


def commit(folder: Path | None = None) -> str:
    """The commit measured, `+dirty` where the tree differs from it; `none` outside git.

    Args:
        folder: of another checkout; None is this one.
    """
    root = folder or Path(__file__).resolve().parents[1]

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    return (head + ("+dirty" if git("status", "--porcelain") else "")) or "none"
