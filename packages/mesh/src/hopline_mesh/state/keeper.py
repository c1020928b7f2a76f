"""Writes the state on a separate thread; the loop never waits for it.

If a disk is full, slow or broken, the watch continues without saving state: failed writes are counted and
reported. Knows the folder, and no detectors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hopline_mesh.changes import Context
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.state.checkpoint import Arrays
from hopline_mesh.state.folder import StateFolder

logger = logging.getLogger("hopline_mesh")

#: Maximum number of writes that wait for a slow disk; further ones are dropped.
_MAX_WAITING = 24


class Keeper:
    """Writes state in order.

    Args:
        folder: not used by any other thread from now on.
        why_not: for people, the reason if the state is lost when this process ends; else "".

    Attributes:
        failures: number of writes that were dropped or failed.
        size_bytes: of the saved state.
    """

    def __init__(self, folder: StateFolder, why_not: str = "") -> None:
        self.failures = 0
        self.size_bytes = 0
        self._folder = folder
        self._problem, self._why_not = "", why_not
        self._places = threading.BoundedSemaphore(_MAX_WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mesh-state")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Gaps of the state; empty while everything is saved."""
        reason = self._problem or self._why_not
        return (Gap("state", reason),) if reason else ()

    def keep(self, snapshot: Snapshot, context: Context) -> None:
        """Save an interval. Returns immediately."""
        self._submit("history", lambda: self._folder.append(snapshot, context))

    def checkpoint(
        self,
        meta: Mapping[str, Any],
        arrays: Arrays,
        *,
        time_s: float,
        names: Sequence[str],
        shape: Mapping[str, Any],
    ) -> None:
        """Save a checkpoint. Returns immediately; the arrays must not be changed later."""
        self._submit(
            "checkpoint",
            lambda: self._folder.save(meta, arrays, time_s=time_s, names=names, shape=shape),
        )

    def note(self, note: Mapping[str, Any]) -> None:
        """Save something small that must not be older than the last interval. Returns immediately."""
        self._submit("note", lambda: self._folder.write_note(note))

    def settle(self, timeout_s: float = 10.0) -> None:
        """Wait until all previous writes are done.

        Raises:
            TimeoutError: the disk is slower.
        """
        self._thread.submit(int).result(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish waiting writes, up to a timeout."""
        try:
            self._thread.submit(self._folder.close).result(timeout_s)
        except TimeoutError:
            logger.warning(
                "state: the disk did not respond within %.0f s; waiting writes are lost", timeout_s
            )
        except OSError as error:
            logger.warning("state: %s", error)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, what: str, write: Callable[[], object]) -> None:
        if self._places.acquire(blocking=False):
            self._thread.submit(self._write, what, write)
        else:
            self._fail(f"the disk is too slow: {what} not saved")

    def _write(self, what: str, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:  # at the boundary of the thread: reported as a gap
            self._fail(f"{what}: {getattr(error, 'strerror', None) or error}")
        else:
            self.size_bytes = self._folder.size
            if self._problem:
                logger.info("state: is saved again")
            self._problem = ""
        finally:
            self._places.release()

    def _fail(self, problem: str) -> None:
        self.failures += 1
        if problem != self._problem:  # logged once, not every interval
            logger.warning("state: %s; the watch continues without saving state", problem)
        self._problem = problem
