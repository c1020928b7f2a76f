"""Children are started, watched and ended in one way; none outlives its parent, and nothing leaks."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hopline.process import child as child_module
from hopline.process.child import Child, exit_reason

ENTRIES = "tests.process.child_entries"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Children find the tests, where the current folder is not on their path (-P)."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))


def start(entry, orders=None, **options):
    return Child.start(f"{ENTRIES}:{entry}", orders or {}, name="a child", **options)


def open_files():
    return {os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}


async def gone(pid):
    async with asyncio.timeout(20):
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.005)


async def test_a_child_says_that_it_is_ready_and_ends_in_order(tmp_path):
    child = await start("served", {"mark": str(tmp_path / "mark"), "code": 5, "says": "ü" * 5000})
    assert await child.wait_ready() is None
    assert child.said[:2047] == "ü" * 2047
    assert child.ready.is_set()
    assert child.code is None
    assert await child.end(20) == 5
    assert child.code == 5
    assert (tmp_path / "mark").read_text() == "ended in order"


async def test_a_child_that_ends_before_it_is_ready_is_reported_by_its_code():
    child = await start("refused", {"code": 3})
    assert await child.wait_ready() == 3
    assert not child.ready.is_set()


async def test_a_child_that_does_not_end_in_time_is_killed(caplog):
    child = await start("deaf")
    assert await child.wait_ready() is None
    assert await child.end(0.05) == -signal.SIGKILL
    assert f"a child (process {child.pid}) did not end within 0.05 s and is killed" in caplog.text


async def test_a_child_that_has_ended_is_ended_without_harm():
    child = await start("refused")
    assert await child.wait() == 7
    child.stop()
    child.kill()
    assert await child.end(1) == 7


async def test_a_child_that_is_killed_more_than_once_is_reported_by_its_code():
    for _ in range(5):
        child = await start("deaf")
        assert await child.wait_ready() is None
        ended = asyncio.ensure_future(child.wait())
        await asyncio.sleep(0)
        for _ in range(300):
            child.kill()
        assert await ended == -signal.SIGKILL


async def test_a_child_keeps_only_the_descriptors_that_it_was_given(tmp_path):
    shared = os.memfd_create("shared", 0)
    try:
        child = await start("descriptors", {"file": str(tmp_path / "found")}, pass_fds=(shared,))
        assert await child.wait() == 0
        found = set(json.loads((tmp_path / "found").read_text()))
        listing = 1  # of the folder that is listed
        assert {0, 1, 2, shared} <= found
        assert len(found) == len({0, 1, 2, shared}) + 1 + listing  # and the one to say ready on
    finally:
        os.close(shared)


async def test_nothing_stays_open():
    await (await start("refused")).wait()
    before = open_files()
    for entry in ("served", "refused"):
        child = await start(entry)
        await child.wait_ready()
        await child.end(20)
    assert open_files() <= before


async def test_a_start_that_fails_leaves_nothing_open(monkeypatch):
    before = open_files()
    monkeypatch.setattr(child_module.sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        await start("served")
    assert open_files() <= before


PARENT = """
import asyncio, sys
from hopline.process.child import Child

async def main():
    child = await Child.start(sys.argv[1], {"mark": sys.argv[2]}, name="a child")
    await child.wait_ready()
    print(child.pid, flush=True)
    await asyncio.sleep(1e6)

asyncio.run(main())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(("entry", "in_order"), [("served", True), ("bound", False)])
async def test_a_child_ends_when_its_parent_is_killed(tmp_path, entry, in_order):
    mark = tmp_path / "mark"
    words = [sys.executable, "-c", PARENT, f"{ENTRIES}:{entry}", str(mark)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        parent.kill()
    await gone(pid)
    assert mark.exists() == in_order


def test_reasons_are_in_words():
    assert exit_reason(0) == "exit code 0"
    assert exit_reason(3) == "exit code 3"
    assert exit_reason(-9) == "signal 9, SIGKILL"
    assert exit_reason(-63) == "signal 63"
