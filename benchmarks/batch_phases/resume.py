"""kill -9 at random moments: each run resumes, and ends with the bytes of one that was never killed."""

from __future__ import annotations

import hashlib
import random
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.batch_phases.command import clear, hopline, words

#: Seconds of work between marks: the run is short.
_CHECKPOINT_S = "0.2"


def measure(serve_dir: Path, scratch: Path, kills: int, seed: int = 7) -> dict[str, Any]:
    """resume_identical and what happened at each kill."""
    out = scratch / "killed"
    to = f"npy:{out}"
    more = ("--checkpoint-s", _CHECKPOINT_S)
    clear(out)
    began = time.perf_counter()
    whole = hopline(serve_dir, to, "--restart", *more)
    seconds = time.perf_counter() - began
    expected = content(out)
    moments = random.Random(seed)
    runs = []
    for _ in range(kills):
        clear(out)
        # The first second is imports and the last moment is the end; kills fall between them.
        moment = moments.uniform(min(1.0, 0.2 * seconds), 0.9 * seconds)
        child = subprocess.Popen(words(serve_dir, to, *more), stdout=subprocess.DEVNULL)
        time.sleep(moment)
        child.kill()
        child.wait()
        published = out.exists()
        report = hopline(serve_dir, to, *more)
        runs.append(
            {
                "after_s": round(moment, 2),
                "killed_before_end": not published,
                "resumed": report["resumed"],
                "share_recomputed": round(report["recomputed"] / whole["recomputed"], 3),
                "identical": content(out) == expected,
            }
        )
    clear(out)
    return {"resume_identical": all(run["identical"] for run in runs), "kills": runs}


def content(folder: Path) -> dict[str, str]:
    """sha256 of every file."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
