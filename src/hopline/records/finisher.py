"""Finishes full files of the log: sync, rename, convert, and delete the oldest ones.

All of this is slow, so it runs on a separate thread. Conversion runs in a separate process: it is Python
for seconds, which would hold the GIL of the event loop, and needs pyarrow, which a server never imports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from hopline.config.schema import PredictionLogConfig
from hopline.files import publish_file, sync
from hopline.records.names import JOURNAL, PART, log_files

log = logging.getLogger(__name__)

_CONVERT = (sys.executable, "-P", "-c", "from hopline.records.convert import main; main()")
_POLL_S = 0.05


class Finisher:
    """Finishes files in the order of arrival.

    Args:
        settings: format and limits; `path` is set.
    """

    def __init__(self, settings: PredictionLogConfig) -> None:
        assert settings.path is not None
        self._folder = settings.path
        self._settings = settings
        self._work: queue.SimpleQueue[tuple[int, Path] | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hopline-log-finisher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self, fd: int, path: Path) -> None:
        """Finish an open and locked file, and close it."""
        self._work.put((fd, path))

    def convert(self, path: Path) -> None:
        """Convert a finished .jsonl file, if the log has another format."""
        if self._settings.format != "jsonl":
            self._work.put((-1, path))

    def close(self, timeout_s: float) -> bool:
        """Finish pending files, but abandon conversions that take longer than `timeout_s`."""
        self._work.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._hurry.set()
            self._thread.join(1.0)
            return False
        return True

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            fd, path = work
            try:
                if fd >= 0:
                    path = _seal(fd, path)
                self._convert(path)
                delete_oldest(self._folder, self._settings.keep_bytes)
            except OSError as error:
                log.warning("prediction log: %s could not be finished: %s", path, error)

    def _convert(self, source: Path) -> None:
        form = "." + self._settings.format
        if form == JOURNAL or not source.name.endswith(JOURNAL) or self._hurry.is_set():
            return
        target = source.with_name(source.name.removesuffix(JOURNAL) + form)
        process = subprocess.Popen(
            [*_CONVERT, str(source), str(target)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        while process.poll() is None and not self._hurry.is_set():
            time.sleep(_POLL_S)
        if process.poll() is None:
            process.kill()
        with process.stderr:
            stderr = process.stderr.read()
        if process.wait() and not self._hurry.is_set():
            log.warning(
                "prediction log: %s was not converted: %s", source, stderr.strip() or process.returncode
            )


def _seal(fd: int, path: Path) -> Path:
    """Sync a file and give it its final name; closing the descriptor releases the lock."""
    final = path.with_name(path.name.removesuffix(PART))
    try:
        if os.fstat(fd).st_size == 0:
            path.unlink(missing_ok=True)
            return path
        with contextlib.suppress(OSError):  # a file that cannot be synced is renamed, too
            os.fdatasync(fd)
        publish_file(path, final, durable=False)
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        sync(path.parent)
    return final


def delete_oldest(folder: Path, keep_bytes: int) -> list[Path]:
    """Delete finished files, oldest first, until all files of the log have at most `keep_bytes`.

    Returns: the deleted files. Several workers may do this at the same time.
    """
    sizes = []
    for file in log_files(folder):
        with contextlib.suppress(FileNotFoundError):
            sizes.append((file, file.path.stat().st_size))
    total = sum(size for _, size in sizes)
    deleted = []
    for file, size in sizes:
        if total <= keep_bytes:
            break
        if file.is_finished:
            file.path.unlink(missing_ok=True)
            total -= size
            deleted.append(file.path)
    return deleted
