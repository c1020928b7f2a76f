"""The files of one writer: appended, finished by size and age, converted, and deleted beyond a total size.

A file is JSON Lines while it is written, whatever its final format: whole lines are passed to the kernel,
so a killed process loses no complete line. A file gets its final name by a rename, after its bytes are on
the disk (fdatasync): a power failure loses at most the file that was being written. A writer holds a lock
(flock) on its file; an unlocked file was left by a killed writer, and the next writer in the folder
finishes it.

Finishing is slow, so it runs on a separate thread. Conversion runs in a separate process: it is Python for
seconds, which would hold the GIL of the event loop, and needs pyarrow, which a server never imports.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hopline.config.schema import PredictionLogConfig
from hopline.errors import ConfigError
from hopline.files import lock, publish_file, sync
from hopline.records.names import JOURNAL, PART, LogFile, log_files, stem_of

log = logging.getLogger(__name__)

_CONVERT = (sys.executable, "-P", "-c", "from hopline_drift.convert import main; main()")
_POLL_S = 0.05


class _Finisher:
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


#: Errors of a full disk, where a new file would fail, too.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Bytes at the end of a file that are searched for its last whole line.
_TAIL_BYTES = 2**16


class Journal:
    """The files of one worker; used by one thread, after `open`."""

    def __init__(
        self, settings: PredictionLogConfig, worker: int, clock: Callable[[], float] = time.time
    ) -> None:
        assert settings.path is not None
        self.folder = settings.path
        self._settings = settings
        self._worker = worker
        self._clock = clock
        self._finisher = _Finisher(settings)
        self._fd = -1
        self._path = self.folder
        self._size = 0
        self._opened = 0.0

    def open(self) -> None:
        """Create the folder and finish files of killed writers.

        Raises: ConfigError: the folder can never be written to. (A full disk does not raise: space may be
            freed later.)
        """
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _FULL:
                raise ConfigError(
                    f"prediction_log.path: {self.folder} cannot be created: {error.strerror}"
                ) from None
        if self.folder.is_dir() and not os.access(self.folder, os.W_OK | os.X_OK):
            raise ConfigError(f"prediction_log.path: {self.folder} is not writable")
        self._finisher.start()
        with contextlib.suppress(OSError):
            for file in log_files(self.folder):
                self._take_over(file)

    def write(self, lines: bytes | bytearray, begins: float) -> None:
        """Append whole lines; all or none of them.

        Args:
            lines: each with its newline.
            begins: time of the first one.
        Raises: OSError: writing failed.
        """
        if self._fd < 0:
            self._open_file(begins)
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._undo(keep=error.errno in _FULL)
            raise
        finally:
            left.release()
        self._size += len(lines)
        if self._size >= self._settings.rotate_bytes:
            self._finish()

    def turn(self) -> None:
        """Finish the file if it is old enough; call this regularly."""
        if self._fd < 0:
            return
        if os.fstat(self._fd).st_nlink == 0:
            log.warning("prediction log: %s was deleted; continuing with another file", self._path)
            self._abandon()
        elif self._clock() - self._opened >= self._settings.rotate_s:
            self._finish()

    def close(self, timeout_s: float) -> bool:
        """Finish the file and wait for conversions; return True if they ended in time."""
        if self._fd >= 0:
            self._finish()
        return self._finisher.close(timeout_s)

    def _open_file(self, begins: float) -> None:
        self.folder.mkdir(0o700, parents=True, exist_ok=True)
        number = 0
        while True:
            name = stem_of(begins, self._worker, os.getpid(), number) + JOURNAL + PART
            path = self.folder / name
            number += 1
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
                if _locked(fd):
                    break
                os.close(fd)
        self._fd, self._path, self._size, self._opened = fd, path, 0, self._clock()

    def _undo(self, *, keep: bool) -> None:
        """Handle a failed write: cut the file after its last whole line, or abandon it."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            keep = False
        if not keep:
            self._abandon()

    def _abandon(self) -> None:
        """Stop writing to this file, and leave it like a killed writer would."""
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            os.close(fd)

    def _finish(self) -> None:
        fd, self._fd = self._fd, -1
        self._finisher.finish(fd, self._path)

    def _take_over(self, file: LogFile) -> None:
        """Finish a file of a killed writer."""
        if file.is_finished:
            if file.form == JOURNAL:
                self._finisher.convert(file.path)
            return
        try:
            fd = os.open(file.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:  # another worker was faster
            return
        try:
            torn = _cut_torn_line(fd) if lock(fd, wait=False) else None
        except OSError:  # no locks, or the disk failed
            torn = None
        if torn is None:  # its writer still runs
            os.close(fd)
            return
        if torn:
            log.warning("prediction log: %s ended in an incomplete line of %d bytes", file.path, torn)
        self._finisher.finish(fd, file.path)


def _locked(fd: int) -> bool:
    """Lock a new file; False if another worker locked it first, as an abandoned file."""
    try:
        return lock(fd, wait=False) and os.fstat(fd).st_nlink > 0
    except OSError:  # a file system without locks: no worker takes over files there
        return True


def _cut_torn_line(fd: int) -> int:
    """Cut bytes after the last newline of a file; return their number."""
    size = os.fstat(fd).st_size
    end = size
    while end:
        begin = max(0, end - _TAIL_BYTES)
        newline = os.pread(fd, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end < size:
        os.ftruncate(fd, end)
    return size - end
