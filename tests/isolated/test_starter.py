"""Processes forked from one that has everything imported: what they inherit, and what becomes of them."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from hopline.answering.limits import ModelLimits
from hopline.config.schema import Config
from hopline.errors import ModelNotReady
from hopline.isolated import starter as process_starter
from hopline.isolated.starter import ProcessStarter
from hopline.isolated.version import ProcessVersion, Program
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest
from tests.fake_version import hand_in
from tests.scripted import FACTORY


@pytest.fixture
async def starter():
    starter = ProcessStarter()
    yield starter
    await starter.close()


@contextlib.asynccontextmanager
async def running(starter, name="m"):
    version = ProcessVersion(
        name, "1", Config(), ModelLimits(isolate=True), Metrics(), program=Program(FACTORY), starter=starter
    )
    await version.begin()
    try:
        yield version
    finally:
        await version.release()


async def asked(version, value=3.0, **attributes):
    future = asyncio.get_running_loop().create_future()
    request = ScoreRequest("m", columns={"x": [value]}, attributes=attributes or None)
    hand_in(version, request, future.set_result)
    return await asyncio.wait_for(future, 20)


async def answers(version):
    return (await asked(version)).outputs["y"].tolist() == [6.0]


async def until(holds, within_s=60.0):
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.005)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def open_files(pid="self"):
    return {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}


async def test_all_processes_are_forked_from_one_that_has_one_thread_and_no_runtime(starter):
    assert starter.pid is None  # nothing is started before it is wanted
    async with running(starter) as first, running(starter, "n") as second:
        fork_server = starter.pid
        assert parent_of(first.pid) == parent_of(second.pid) == fork_server
        assert os.listdir(f"/proc/{fork_server}/task") == [str(fork_server)]
        maps = Path(f"/proc/{fork_server}/maps").read_text()
        assert ("numba" in maps, "onnxruntime" in maps) == (True, False)
        assert await answers(first)
        assert await answers(second)


async def test_a_process_inherits_no_descriptors_of_the_others(starter):
    async with running(starter) as first, running(starter, "n") as second:
        mine, theirs = open_files(first.pid), open_files(second.pid)
        sockets = {name for name in mine & theirs if name.startswith(("socket:", "pipe:"))}
        stderr = os.readlink(f"/proc/{first.pid}/fd/2")
        assert sockets <= {stderr}
        assert not any("pidfd" in name for name in theirs)
        assert os.getsid(first.pid) == first.pid


async def test_a_process_that_is_replaced_is_forked_again(starter):
    async with running(starter) as version:
        pid, fork_server = version.pid, starter.pid
        outcome = await asked(version, do="crash")
        assert isinstance(outcome, ModelNotReady)
        await until(lambda: version.pid not in (None, pid))
        assert (parent_of(version.pid), starter.pid) == (fork_server, fork_server)
        assert await answers(version)
        assert not os.path.exists(f"/proc/{pid}")  # and it was waited for


async def test_a_lost_fork_server_takes_its_processes_along_and_others_are_started(starter):
    async with running(starter) as version:
        pid, fork_server = version.pid, starter.pid
        os.kill(fork_server, signal.SIGKILL)
        await until(lambda: version.pid not in (None, pid))
        assert starter.pid != fork_server
        await until(lambda: not os.path.exists(f"/proc/{pid}"))  # once init has waited for it
        assert await answers(version)


@pytest.mark.sample(1)
@pytest.mark.parametrize("victim", ["fork server", "model"])
async def test_a_model_whose_process_is_killed_while_it_loads_is_loaded_by_another(starter, victim):
    model = running(starter)
    loading = asyncio.ensure_future(model.__aenter__())
    await until(lambda: starter.pid is not None)
    fork_server = starter.pid
    if victim == "fork server":
        os.kill(fork_server, signal.SIGKILL)
    else:
        children = Path(f"/proc/{fork_server}/task/{fork_server}/children")
        await until(lambda: starter._living)
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    version = await asyncio.wait_for(loading, 60)
    assert (starter.pid == fork_server) is (victim == "model")
    assert await answers(version)
    await model.__aexit__(None, None, None)


async def test_a_load_whose_processes_are_always_killed_fails_and_leaves_the_next_one_alone(starter):
    loading = asyncio.ensure_future(running(starter).__aenter__())
    killed = set()
    while not loading.done():
        if starter.pid not in {None, *killed}:
            os.kill(starter.pid, signal.SIGKILL)
            killed.add(starter.pid)
        await asyncio.sleep(0.005)
    with pytest.raises(ModelNotReady, match="the process that starts those of models has ended"):
        await loading
    assert len(killed) == 2
    async with running(starter, "n") as version:
        assert await answers(version)


async def test_a_fork_server_with_a_second_thread_forks_nothing(starter, monkeypatch):
    monkeypatch.setattr(process_starter, "_ENTRY", "tests.isolated.fork_entries:with_a_second_thread")
    async with running(starter) as version:
        words = Path(f"/proc/{version.pid}/cmdline").read_bytes()
        assert b"fork_server import start" in words
        assert await answers(version)
        pid = version.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: version.pid not in (None, pid))
        assert await answers(version)


async def test_a_fork_server_that_cannot_start_is_reported(starter, monkeypatch):
    monkeypatch.setattr(process_starter, "_ENTRY", "sys:exit")
    with pytest.raises(ModelNotReady, match="the process that starts those of models has ended"):
        async with running(starter):
            pass


async def test_a_start_that_is_given_up_leaves_no_process_and_no_descriptor(starter):
    async with running(starter) as version:
        before = open_files()
        children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
        for wait_s in (0.0, 0.002, 0.01):
            starting = asyncio.ensure_future(running(starter, "n").__aenter__())
            await asyncio.sleep(wait_s)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await until(lambda: children.read_text().split() == [str(version.pid)])
        await until(lambda: open_files() <= before)
        assert await answers(version)


async def test_a_fork_server_nobody_needs_ends_and_another_takes_its_place(starter, monkeypatch):
    monkeypatch.setattr(process_starter, "_IDLE_S", 0.02)
    async with running(starter):
        fork_server = starter.pid
    await until(lambda: starter.pid is None)
    await until(lambda: not os.path.exists(f"/proc/{fork_server}"))
    async with running(starter) as version:
        assert await answers(version)


async def test_a_closed_starter_leaves_nothing(starter):
    before = open_files()
    async with running(starter):
        fork_server = starter.pid
    await starter.close()
    assert not os.path.exists(f"/proc/{fork_server}")
    assert open_files() <= before
