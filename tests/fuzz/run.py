"""Fuzz parsers: `python -m tests.fuzz.run [--seconds N | --runs N] [HARNESS…]`.

Each harness runs in a process of its own, a few at a time, beginning with its kept corpus, and stops at the
first input that fails. Prints a table, and for each failure its message and where the input is. With
`--keep`, inputs that reach new code are added to the corpus, the smallest ones that do.

Exit status 1: something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.fuzz.harnesses import HARNESSES

CORPUS = Path(__file__).parent / "corpus"
_ROOT = Path(__file__).parents[2]
#: Of one input: its length, and seconds and memory after which libFuzzer itself ends the process.
_MAX_BYTES, _TIMEOUT_S = 2048, 20
#: Inputs of a kept corpus are shorter, so that the corpus stays small.
_MAX_KEPT_BYTES = 512


@dataclass(frozen=True)
class Budget:
    """How long a harness runs: whichever comes first. 0 is no limit.

    Attributes:
        seconds: in all. runs: inputs.
        seed: of the inputs that are drawn.
    """

    seconds: int = 0
    runs: int = 0
    seed: int = 1


@dataclass(frozen=True)
class Found:
    """What a harness did.

    Attributes:
        runs: inputs that were tried. edges: of the code that were reached.
        failure: the message and the traceback; "" where nothing failed.
        crash: the input that failed, where there is one.
    """

    harness: str
    runs: int
    edges: int
    failure: str
    crash: bytes | None


def fuzz_all(harnesses: Sequence[str], budget: Budget, *, keep: bool = False) -> Iterator[Found]:
    """Run some, as many at a time as there are processors; yields them as they end.

    Args:
        keep: add to each corpus what reaches new code.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        places = {harness: _Place(Path(name) / harness) for harness in harnesses}
        jobs = [place.job(harness, budget) for harness, place in places.items()]
        with (Path(name) / "starter").open("w+") as log, _starter(log) as starter:
            assert starter.stdin is not None
            assert starter.stdout is not None
            json.dump(jobs, starter.stdin)
            starter.stdin.close()
            for line in starter.stdout:
                harness, code = line.split()
                place = places.pop(harness)
                if keep and code == "0":
                    corpus = str(CORPUS / harness)
                    _child(harness, "-merge=1", f"-max_len={_MAX_KEPT_BYTES}", corpus, str(place.finds))
                yield place.found(harness, int(code))
            log.seek(0)
            assert not places, f"these did not run: {', '.join(places)}: {log.read()[-4000:]}"


class _Place:
    """Files of a harness's run."""

    def __init__(self, folder: Path) -> None:
        self.finds, self._crashes, self._output = folder / "finds", folder / "crashes", folder / "output"
        self.finds.mkdir(parents=True)
        self._crashes.mkdir()

    def job(self, harness: str, budget: Budget) -> dict[str, object]:
        """As `child.fuzz_each` takes it."""
        options = [f"-max_total_time={budget.seconds}", f"-seed={budget.seed}"]
        options += [f"-runs={budget.runs or -1}", f"-max_len={_MAX_BYTES}", f"-timeout={_TIMEOUT_S}"]
        options += ["-rss_limit_mb=0", f"-artifact_prefix={self._crashes}/", "-print_final_stats=1"]
        arguments = [*options, str(self.finds), str(CORPUS / harness)]
        return {"harness": harness, "arguments": arguments, "output": str(self._output)}

    def found(self, harness: str, code: int) -> Found:
        """What it did, with its exit code."""
        text = self._output.read_text(errors="replace")
        runs = re.search(r"stat::number_of_executed_units: (\d+)", text)
        edges = re.findall(r"cov: (\d+)", text)
        failed = sorted(self._crashes.iterdir())
        return Found(
            harness,
            int(runs[1]) if runs else 0,
            int(edges[-1]) if edges else 0,
            _failure(text, code) if code else "",
            failed[0].read_bytes() if failed else None,
        )


@contextlib.contextmanager
def _starter(log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.child"],
        cwd=_ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def _child(harness: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.child", harness, *arguments],
        cwd=_ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _failure(text: str, code: int) -> str:
    """The exception, or the end of what a process printed that ended without one."""
    _, _, exception = text.partition("=== Uncaught Python exception: ===")
    return exception.strip()[-4000:] or text.strip()[-1000:] or f"exit code {code}"


def main() -> int:
    """Returns: 0, or 1 if something failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="tests.fuzz.run", description=__doc__, formatter_class=raw)
    parser.add_argument("harness", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=0, help="of each; 30 unless --runs is given")
    parser.add_argument("--runs", type=int, default=0, help="inputs of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add what reaches new code to the corpus")
    parser.add_argument(
        "--crashes", type=Path, default=Path("build/fuzz"), help="folder for inputs that fail"
    )
    args = parser.parse_args()
    if unknown := set(args.harness) - set(HARNESSES):
        parser.error(f"no such harness: {', '.join(sorted(unknown))}; there are {', '.join(HARNESSES)}")
    budget = Budget(args.seconds or (0 if args.runs else 30), args.runs, args.seed)
    results = list(fuzz_all(args.harness or list(HARNESSES), budget, keep=args.keep))
    for found in results:
        if found.failure:
            print(f"{found.harness}: {found.failure}")
            if found.crash is not None:
                args.crashes.mkdir(parents=True, exist_ok=True)
                path = args.crashes / found.harness
                path.write_bytes(found.crash)
                print(f"input: {path}, {len(found.crash)} bytes: {found.crash[:200]!r}")
            print()
    print(f"{'harness':<20}{'inputs':>10}{'edges':>8}")
    for found in results:
        print(
            f"{found.harness:<20}{found.runs:>10,}{found.edges:>8,}" + ("  FAILED" if found.failure else "")
        )
    return 1 if any(found.failure for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
