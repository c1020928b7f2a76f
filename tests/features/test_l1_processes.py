"""The shared row cache among real processes: no torn row, no row fetched twice, no death that blocks.

Run as a module this file is the other process: `python -m tests.features.test_l1_processes <role> <fd> …`.
Roles that fork do so from there, since no thread runs in it.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from hopline.features.l1 import CachePlan, L1FeatureCache
from hopline.memory.arena import Arena
from tests.shared_memory import create_shared

ROOT = Path(__file__).resolve().parents[2]
#: Few slots for many ids: writers evict all the time, and every second write moves the index.
CHURNED = CachePlan(num_nodes=48, dim=2048, slots=(1, 6, 6))
#: Rows so long that a kill nearly always lands in the middle of one.
LONG = CachePlan(num_nodes=24, dim=16_384, slots=(4, 8))
CLAIMED = CachePlan(num_nodes=200_000, dim=1, slots=(1, 1))
VERSIONS = 2**17
ROUNDS = 30


def attach(plan: CachePlan, fd: int, writer: int) -> L1FeatureCache:
    return L1FeatureCache(Arena(plan.num_bytes, fd), plan, ttl_s=1e6, writer=writer)


def rows(ids: np.ndarray, version: int, dim: int) -> np.ndarray:
    """Numbers that tell id and version in every column, exact in float32."""
    base = ids * VERSIONS + version % VERSIONS
    return base[:, None].astype(np.float32) + ramp(dim)


def ramp(dim: int) -> np.ndarray:
    return (np.arange(dim) % 256).astype(np.float32)


def buffer(plan: CachePlan) -> np.ndarray:
    return np.empty((plan.num_nodes, plan.dim), np.float32)


def whole_rows(cache: L1FeatureCache, ids: np.ndarray, out: np.ndarray) -> int:
    """Read ids; how many are there, after a check that each is of one id and one version."""
    dim = cache.plan.dim
    missing, _ = cache.read(ids, out, time.monotonic())
    there = np.setdiff1d(np.arange(len(ids)), missing)
    base = out[there, 0]
    assert (base // VERSIONS == ids[there]).all(), "a row of another id"
    assert (out[there] == base[:, None] + ramp(dim)).all(), "a torn row"
    return len(there)


def batches(plan: CachePlan, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, values) of many versions, made beforehand so that a writer does nothing but write."""
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(0, plan.num_nodes, 8) for _ in range(16)]
    return [(ids, rows(ids, 16 * seed + number, plan.dim)) for number, ids in enumerate(drawn)]


def keep_writing(cache: L1FeatureCache, prepared: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Until killed, or long after everybody should have lost interest."""
    ends = time.monotonic() + 20
    while (now := time.monotonic()) < ends:
        for ids, values in prepared:
            cache.write(ids, values, now)


@contextlib.contextmanager
def shared(plan: CachePlan):
    fd = create_shared(plan.num_bytes)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def process(role: str, *fds: int, arguments: tuple[int, ...] = ()):
    """Another interpreter, once it is ready; killed afterwards."""
    command = [sys.executable, "-m", "tests.features.test_l1_processes", role, *map(str, fds + arguments)]
    with subprocess.Popen(command, cwd=ROOT, pass_fds=fds, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def test_a_reader_never_sees_a_torn_row_while_two_processes_write():
    with (
        shared(CHURNED) as fd,
        process("write", fd, arguments=(1,)),
        process("write", fd, arguments=(2,)),
    ):
        reader, ids, out = attach(CHURNED, fd, 0), np.arange(CHURNED.num_nodes), buffer(CHURNED)
        seen = whole_rows(reader, ids, out)  # compiled by now
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            seen += whole_rows(reader, ids, out)
        assert seen > 0


def test_a_writer_killed_in_the_middle_of_a_write_leaves_no_half_row():
    with shared(LONG) as fd, process("kill", fd) as nursery:
        assert nursery.wait(timeout=30) == 0


def test_two_processes_that_claim_the_same_rows_share_them_out():
    board_bytes = 2 * CLAIMED.num_nodes
    board_fd = create_shared(board_bytes)
    try:
        with shared(CLAIMED) as fd, process("claim", fd, board_fd):
            ours = attach(CLAIMED, fd, 0)
            turn, taken = board(board_fd)
            ids = np.arange(CLAIMED.num_nodes)
            contended = number = 0
            end = time.monotonic() + 60
            # On a busy machine they may take turns for a while.
            while number < ROUNDS or (not contended and time.monotonic() < end):
                number += 1
                turn[0] = number
                mine = ours.claim(ids, float(number), 1.0)
                wait_for(turn, 1, number)
                assert (mine != taken).all(), "claimed by both, or by neither"
                contended += 0 < mine.sum() < len(mine)
            assert contended > 0
    finally:
        os.close(board_fd)


def test_the_claims_of_a_dead_process_end_at_their_deadline():
    ids = np.arange(100)
    with shared(CLAIMED) as fd, process("die", fd) as claimant:
        ours = attach(CLAIMED, fd, 0)
        claimant.send_signal(signal.SIGKILL)
        claimant.wait()
        assert ours.pending(ids, 100.0).all()
        assert not ours.claim(ids, 100.499, 0.5).any()
        assert ours.claim(ids, 100.5, 0.5).all()


# --- the other process ---


def board(fd: int) -> tuple[np.ndarray, np.ndarray]:
    """(turn of each process, what the other one claimed)."""
    arena = Arena(2 * CLAIMED.num_nodes, fd)
    return arena.take((2,), np.int64), arena.take((CLAIMED.num_nodes,), np.bool_)


def wait_for(turn: np.ndarray, who: int, number: int) -> None:
    ends = time.monotonic() + 20
    while turn[who] < number and time.monotonic() < ends:
        os.sched_yield()
    assert turn[who] >= number


def ready() -> None:
    print("ready", flush=True)


def write(fd: int, writer: int) -> None:
    cache = attach(CHURNED, fd, writer)
    prepared = batches(CHURNED, writer)
    cache.write(*prepared[0], time.monotonic())
    ready()
    keep_writing(cache, prepared)


def claim(fd: int, board_fd: int) -> None:
    ours, (turn, taken) = attach(CLAIMED, fd, 1), board(board_fd)
    ids = np.arange(CLAIMED.num_nodes)
    ours.release(ids[ours.claim(ids, 0.0, 0.1)])  # compiled before the race
    ready()
    for number in itertools.count(1):
        wait_for(turn, 0, number)
        taken[:] = ours.claim(ids, float(number), 1.0)
        turn[1] = number


def die(fd: int) -> None:
    attach(CLAIMED, fd, 1).claim(np.arange(100), 100.0, 0.5)
    ready()
    signal.pause()


def kill(fd: int) -> None:
    """Fork a writer, kill it, look; again and again."""
    reader, ids, out = attach(LONG, fd, 0), np.arange(LONG.num_nodes), buffer(LONG)
    reader.write(ids[:2], rows(ids[:2], 0, LONG.dim), time.monotonic())  # compiled before the forks
    whole_rows(reader, ids, out)
    lives = [batches(LONG, life) for life in range(12)]
    ready()
    halves = 0
    for prepared in lives:
        pid = os.fork()
        if pid == 0:
            keep_writing(attach(LONG, fd, 1), prepared)
            os._exit(0)
        time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        used = int(reader._queues[1, 0])
        halves += int((reader._heads[4 : 4 + used, 0] & ((1 << 40) - 1) == 0).sum())
        whole_rows(reader, ids, out)
    assert halves > 0, "no kill hit a write: this test showed nothing"
    after = attach(LONG, fd, 1)
    after.write(ids[2:3], rows(ids[2:3], 1, LONG.dim), time.monotonic())
    assert whole_rows(after, ids[2:3], out) == 1


if __name__ == "__main__":
    {"write": write, "claim": claim, "die": die, "kill": kill}[sys.argv[1]](*map(int, sys.argv[2:]))
