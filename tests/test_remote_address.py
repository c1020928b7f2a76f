"""Reads of addresses that do not send are given up; slow ones that do are not."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopline import remote_address
from hopline.errors import RepositoryUnavailable, SnapshotUnavailable
from hopline.remote_address import LEAST_BYTES, RemoteFiles, limited, open_address
from hopline.snapshots.manifest import SnapshotFile
from hopline.snapshots.store import SnapshotStore
from hopline_stores.repository import FsspecRepository


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Ends what still waits, after the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_address, "LIMIT_S", 0.05)
    monkeypatch.setattr(remote_address, "_LOOK_S", 0.005)


@pytest.fixture
def dripping(released: threading.Event) -> Iterator[str]:
    """URL of a server that promises a megabyte, sends two bytes, and no more."""

    class Drip(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{}")
            released.wait()

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Drip)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/x"
    released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("step", [0, 1])
def test_a_read_without_progress_is_given_up(released: threading.Event, step: int) -> None:
    num_bytes = 0

    def progress() -> int:
        nonlocal num_bytes
        num_bytes += step
        return num_bytes

    with pytest.raises(TimeoutError, match=r"less than 64 KiB in 0\.05 s"):
        limited(released.wait, progress)


@pytest.mark.usefixtures("short")
def test_a_slow_read_that_makes_progress_goes_on(released: threading.Event) -> None:
    """It takes many times the limit."""
    looks = 0

    def progress() -> int:
        nonlocal looks
        looks += 1
        if looks == 60:
            released.set()
        return looks * LEAST_BYTES

    assert limited(released.wait, progress) is True
    assert looks >= 60


def test_the_error_of_a_read_is_its_own() -> None:
    def fail() -> None:
        raise FileNotFoundError("absent")

    with pytest.raises(FileNotFoundError, match="absent"):
        limited(fail)


@pytest.mark.usefixtures("short")
def test_a_check_ends_a_read(released: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_address, "LIMIT_S", 60.0)

    def check() -> None:
        raise InterruptedError("the server ends")

    with pytest.raises(InterruptedError, match="the server ends"):
        limited(released.wait, check=check)


@pytest.mark.usefixtures("short")
def test_reads_that_were_given_up_do_not_pile_up(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Semaphore(0)
    free = threading.BoundedSemaphore(2)
    monkeypatch.setattr(remote_address, "_free", free)

    def read() -> None:
        released.wait()
        ended.release()

    for _ in range(2):
        with pytest.raises(TimeoutError, match="64 KiB"):
            limited(read)
    with pytest.raises(TimeoutError, match="reads wait for addresses already"):
        limited(read)
    released.set()
    ended.acquire()
    ended.acquire()
    assert free.acquire(timeout=10)
    assert free.acquire(timeout=10)


@pytest.mark.usefixtures("short")
def test_an_address_that_drips_is_unavailable(dripping: str, tmp_path: Path) -> None:
    store = SnapshotStore(dripping)
    with pytest.raises(SnapshotUnavailable, match="TimeoutError: the address sent less than 64 KiB"):
        store.pointer()
    with pytest.raises(SnapshotUnavailable, match="less than 64 KiB"):
        store.fetch(SnapshotFile("0" * 64, 1_000_000), tmp_path / "file", "x", lambda: None)
    repository = FsspecRepository(dripping, tmp_path / "cache")
    with pytest.raises(RepositoryUnavailable, match="less than 64 KiB"):
        repository.fetch("risk", "1")


def test_a_pipe_at_a_folder_s_address_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest.json")
    files, root = open_address(f"file://{tmp_path}", "graph")
    assert isinstance(files, RemoteFiles)
    with pytest.raises(OSError, match="is a pipe, a socket or a device, not a file"):
        files.read(f"{root}/latest.json")
    with pytest.raises(OSError, match="is a pipe"):
        files.copy(f"{root}/latest.json", tmp_path / "copy")
