"""Harnesses under atheris, each in a process of its own.

    python -m tests.fuzz.child HARNESS [libFuzzer's arguments]    this process is that of the harness
    python -m tests.fuzz.child < JOBS                             a fork for each job, a few at a time

To import and to instrument what the harnesses test takes longer than a second of fuzzing: it is done once
for all jobs. The address space of a harness is limited, and so are each input's processor time and memory.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import atheris

from tests.fuzz.harnesses import COMPILED, HARNESSES

_ADDRESS_SPACE_BYTES = 6 << 30
#: Of the whole run, as libFuzzer's -rss_limit_mb, which counts what its starter had.
_MAX_PEAK_KIB = 3 << 20
#: Of one input of at most some KiB. Instrumented code takes several times as long as usual. The fastest of
#: some attempts counts: what else the machine does only adds to it.
_MAX_CPU_S, _ATTEMPTS, _MAX_GROWTH_KIB = 1.0, 3, 64 << 10

Check = Callable[[bytes], None]


def _peak_kib(file: int) -> int:
    """The most memory that this program had; getrusage's counts that of whatever started it."""
    status = os.pread(file, 4096, 0)
    return int(status.partition(b"VmHWM:")[2].split(None, 1)[0])


def bounded(check: Check) -> Check:
    """The same check; it also fails where one input costs too much."""

    own = os.open("/proc/self/status", os.O_RDONLY)

    def run(data: bytes) -> None:
        kib = _peak_kib(own)
        for _ in range(_ATTEMPTS):
            began = time.process_time()
            check(data)
            if (spent := time.process_time() - began) < _MAX_CPU_S:
                break
        peak = _peak_kib(own)
        grown = peak - kib
        assert peak < _MAX_PEAK_KIB, f"{peak} KiB are held after {len(data)} bytes"
        assert grown < _MAX_GROWTH_KIB, f"{len(data)} bytes grew memory by {grown} KiB"
        assert spent < _MAX_CPU_S, f"{len(data)} bytes took {spent:.2f} s"

    return run


def load(names: Sequence[str]) -> dict[str, Check]:
    """The checks of harnesses; the modules that they test are instrumented."""
    for compiled in COMPILED:
        importlib.import_module(compiled)
    tested = sorted({prefix for name in names for prefix in HARNESSES[name]})
    with atheris.instrument_imports(include=tested):
        found = {name: importlib.import_module(f"tests.fuzz.harnesses.{name}").check for name in names}
    gc.freeze()  # what was imported is not looked at again
    return found


def fuzz(name: str, check: Check, arguments: list[str]) -> None:
    """Fuzz; ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    # libFuzzer runs itself again by this command where it merges corpora.
    command = f"{sys.executable} -m tests.fuzz.child {name}"
    atheris.Setup([command, *arguments], bounded(check))
    atheris.Fuzz()


def fuzz_each(jobs: list[dict[str, Any]]) -> None:
    """Fork for each job, as many at a time as there are processors.

    Prints the name of its harness and its exit code when one has ended.

    Args:
        jobs: each has `harness`, libFuzzer's `arguments`, and `output`, a file for what it prints.
    """
    checks = load([job["harness"] for job in jobs])
    running: dict[int, str] = {}
    while jobs or running:
        if jobs and len(running) < (os.cpu_count() or 1):
            job = jobs.pop(0)
            if not (pid := os.fork()):
                _fuzz_alone(checks[job["harness"]], **job)
            running[pid] = job["harness"]
        else:
            pid, status = os.wait()
            print(running.pop(pid), os.waitstatus_to_exitcode(status), flush=True)


def _fuzz_alone(check: Check, harness: str, arguments: list[str], output: str) -> NoReturn:
    """The fork of a job; it leaves out what its parent does at its end, such as removing folders."""
    code = 1
    try:
        with open(output, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        fuzz(harness, check, arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:]:
        fuzz(sys.argv[1], load(sys.argv[1:2])[sys.argv[1]], sys.argv[2:])
    else:
        fuzz_each(json.load(sys.stdin))
