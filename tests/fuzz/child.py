"""One harness in this process, under atheris: `python -m tests.fuzz.child HARNESS [libFuzzer's arguments]`.

Its address space is limited, and each input's processor time and memory are bounded.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable

import atheris

from tests.fuzz.harnesses import COMPILED, HARNESSES

_ADDRESS_SPACE_BYTES = 6 << 30
#: Of the whole run, as libFuzzer's -rss_limit_mb, which counts what its starter had.
_MAX_PEAK_KIB = 3 << 20
_STATUS = os.open("/proc/self/status", os.O_RDONLY)
#: Of one input of at most some KiB. Instrumented code takes several times as long as usual. The fastest of
#: some attempts counts: what else the machine does only adds to it.
_MAX_CPU_S, _ATTEMPTS, _MAX_GROWTH_KIB = 1.0, 3, 64 << 10


def _peak_kib() -> int:
    """The most memory that this program had; getrusage's counts that of whatever started it."""
    status = os.pread(_STATUS, 4096, 0)
    return int(status.partition(b"VmHWM:")[2].split(None, 1)[0])


def bounded(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """The same check; it also fails where one input costs too much."""

    def run(data: bytes) -> None:
        kib = _peak_kib()
        for _ in range(_ATTEMPTS):
            began = time.process_time()
            check(data)
            if (spent := time.process_time() - began) < _MAX_CPU_S:
                break
        peak = _peak_kib()
        grown = peak - kib
        assert peak < _MAX_PEAK_KIB, f"{peak} KiB are held after {len(data)} bytes"
        assert grown < _MAX_GROWTH_KIB, f"{len(data)} bytes grew memory by {grown} KiB"
        assert spent < _MAX_CPU_S, f"{len(data)} bytes took {spent:.2f} s"

    return run


def main(name: str, arguments: list[str]) -> None:
    """Fuzz; ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    for compiled in COMPILED:
        importlib.import_module(compiled)
    with atheris.instrument_imports(include=list(HARNESSES[name])):
        harness = importlib.import_module(f"tests.fuzz.harnesses.{name}")
    gc.freeze()  # what was imported is not looked at again
    # libFuzzer runs itself again by this command where it merges corpora.
    command = f"{sys.executable} -m tests.fuzz.child {name}"
    atheris.Setup([command, *arguments], bounded(harness.check))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
