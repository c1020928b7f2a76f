"""Writes the state beside the loop: on a thread of its own, and never so that the loop waits.

A disk that is full, slow or broken costs the state, not the watch: what could not be kept is counted and
said. Knows the folder; nothing of detectors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hopline_mesh.changes import Context
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.state.checkpoint import Arrays
from hopline_mesh.state.folder import StateFolder

logger = logging.getLogger("hopline_mesh")

#: Writings that may wait for a slow disk; more are left out.
_MAX_WAITING = 24


class Keeper:
    """Takes what is to be kept, and writes it in its order.

    Args:
        folder: None keeps nothing.
        why_not: for people, why nothing outlives this process; "" where it does.

    Attributes:
        failures: writings that were left out or failed.
        size_bytes: of all that is kept.
    """

    def __init__(self, folder: StateFolder | None, why_not: str = "") -> None:
        self.failures = 0
        self.size_bytes = 0
        self._folder = folder
        self._problem, self._why_not = "", why_not
        self._waiting = 0
        self._lock = threading.Lock()  # of _waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mesh-state")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What to say of the state: nothing while all is kept."""
        said = self._problem or self._why_not
        return (Gap("state", said),) if said else ()

    def keep(self, snapshot: Snapshot, context: Context) -> None:
        """Keep an interval. Returns at once."""
        folder = self._folder
        if folder is not None:
            self._submit("history", lambda: folder.append(snapshot, context))

    def checkpoint(
        self,
        meta: Mapping[str, Any],
        arrays: Arrays,
        *,
        time_s: float,
        names: Sequence[str],
        shape: Mapping[str, Any],
    ) -> None:
        """Keep what was learned. Returns at once; the arrays must not be changed later."""
        folder = self._folder
        if folder is not None:
            self._submit(
                "checkpoint",
                lambda: folder.save(meta, arrays, time_s=time_s, names=names, shape=shape),
            )

    def note(self, note: Mapping[str, Any]) -> None:
        """Keep something small that must not be older than the last interval. Returns at once."""
        folder = self._folder
        if folder is not None:
            self._submit("note", lambda: folder.write_note(note))

    def settle(self, timeout_s: float = 10.0) -> None:
        """Wait until all that was given before is written.

        Raises:
            TimeoutError: the disk takes longer.
        """
        self._thread.submit(int).result(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, so long at most."""
        done: Future[None] = self._thread.submit(self._folder.close if self._folder else lambda: None)
        try:
            done.result(timeout_s)
        except TimeoutError:
            logger.warning("state: the disk did not answer in %.0f s; what waited is lost", timeout_s)
        except OSError as error:
            logger.warning("state: %s", error)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, what: str, write: Callable[[], object]) -> None:
        with self._lock:
            late = self._waiting >= _MAX_WAITING
            self._waiting += not late
        if late:
            self._fail(f"the disk does not keep up: {what} left out")
            return
        self._thread.submit(self._write, what, write)

    def _write(self, what: str, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            self._fail(f"{what}: {error.strerror or error}")
        else:
            if self._folder is not None:
                self.size_bytes = self._folder.size
            if self._problem:
                logger.info("state: is kept again")
            self._problem = ""
        finally:
            with self._lock:
                self._waiting -= 1

    def _fail(self, problem: str) -> None:
        self.failures += 1
        if problem != self._problem:  # once, not every interval
            logger.warning("state: %s; the watch goes on without it", problem)
        self._problem = problem
