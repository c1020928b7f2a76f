"""A process at its limit of open files says so."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from hopline.process.open_files import OpenFiles

#: Prints how often it was warned: five times at the limit, below it, and at it again.
AT_THE_LIMIT = """
import logging, os, resource
from hopline.process.open_files import OpenFiles

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("hopline.process.open_files").addHandler(handler)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(1))
except OSError:
    pass
files = OpenFiles()
counts = []
for now in (1000.0, 1001.0, 1059.0, 1060.5, 1061.0):
    files.tick(now)
    counts.append(len(lines))
os.close(held.pop())
files.tick(2000.0)
counts.append(len(lines))
held.append(os.dup(1))
files.tick(2001.0)
counts.append(len(lines))
for each in held:
    os.close(each)
print(*counts)
print(lines[0])
"""


def test_the_limit_is_named_at_most_once_a_minute() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_LIMIT], capture_output=True, text=True, check=True, timeout=60
    )
    counts, line = done.stdout.splitlines()
    assert counts.split() == ["1", "1", "1", "2", "2", "2", "3"]
    assert "limit of 64 open files is reached" in line
    assert "ulimit -n" in line


def test_below_the_limit_nothing_is_said_and_nothing_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    files = OpenFiles()
    before = os.listdir("/proc/self/fd")
    with caplog.at_level(logging.WARNING):
        for now in range(300):
            files.tick(float(now))
    assert not caplog.records
    assert len(os.listdir("/proc/self/fd")) == len(before)
