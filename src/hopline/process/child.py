"""Child processes, as their parent sees them: one way to start, watch and end them.

    parent                               child (see `parent.py`)
      start(entry, orders) ── exec ────►   reads its orders: the first line of stdin, JSON
            ◄─────────── "ready" pipe ──   says that it is ready, in a line, where it was given such a pipe
            ◄───────────────────── beats   and may show from then on that its event loop turns
      end(grace_s) ── SIGTERM ─────────►   finishes what it has, and ends
              └─ after grace_s: SIGKILL
      the parent dies ── stdin ends ───►   the same: stdin is the stop pipe from the second line on

A child is a fresh interpreter, never a fork: threads and event loops do not survive one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hopline.process.parent import MAX_SAID_BYTES

log = logging.getLogger(__name__)


class Child:
    """A child process; made by `start`.

    Attributes:
        pid: its id.
        ready: set once the child has said that it is ready.
        said: that line.
        num_beats: heartbeats of its event loop since then.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str, ready_end: int) -> None:
        self.pid = process.pid
        self.ready = asyncio.Event()
        self.said = ""
        self.num_beats = 0
        self._process = process
        self._name = name
        self._ready_end = ready_end
        if ready_end >= 0:
            asyncio.get_running_loop().add_reader(ready_end, self._on_ready)

    @classmethod
    async def start(
        cls,
        entry: str,
        orders: Mapping[str, Any],
        *,
        name: str,
        pass_fds: Sequence[int] = (),
        says_ready: bool = True,
        stdout: int | None = None,
    ) -> Child:
        """Start a child.

        Raises: OSError: the system cannot start another process.
        """
        ends = os.pipe() if says_ready else ()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(entry),
                stdin=asyncio.subprocess.PIPE,
                stdout=stdout,
                pass_fds=(*ends[1:], *pass_fds),
                # A terminal's Ctrl-C goes to the whole group; children get theirs from their parent.
                start_new_session=True,
            )
        except BaseException:
            if ends:
                os.close(ends[0])
            raise
        finally:
            if ends:
                os.close(ends[1])
        child = cls(process, name, ends[0] if ends else -1)
        assert process.stdin is not None
        sent = {**orders, "ready": ends[1]} if ends else orders
        process.stdin.write(json.dumps(sent).encode() + b"\n")
        return child

    @property
    def code(self) -> int | None:
        """Exit code, or minus the signal that ended it; None while it lives."""
        return self._process.returncode

    def stop(self) -> None:
        """Ask it to finish and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it immediately."""
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Until it has ended; returns its `code`."""
        code = await self._process.wait()
        self._close()
        return code

    async def wait_ready(self) -> int | None:
        """Until it is ready; returns its `code` where it has ended instead, else None."""
        ended = asyncio.ensure_future(self.wait())
        ready = asyncio.ensure_future(self.ready.wait())
        try:
            await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
            return None if self.ready.is_set() else ended.result()
        finally:
            ended.cancel()
            ready.cancel()

    async def end(self, grace_s: float) -> int:
        """Ask it to end, and kill it where it has not ended after `grace_s` seconds; returns its `code`."""
        self.stop()
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            log.error(
                "%s (process %d) did not end within %g s and is killed", self._name, self.pid, grace_s
            )
            self.kill()
            return await self.wait()

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            # `send_signal` would wait for the process first, and asyncio would not learn its exit code.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _on_ready(self) -> None:
        said = os.read(self._ready_end, MAX_SAID_BYTES)
        if not said:
            self._close_ready_end()
            return
        if not self.ready.is_set():
            line, _, said = said.partition(b"\n")
            self.said = line.decode(errors="replace").strip()
            self.ready.set()
        self.num_beats += len(said)

    def _close_ready_end(self) -> None:
        if self._ready_end >= 0:
            asyncio.get_running_loop().remove_reader(self._ready_end)
            os.close(self._ready_end)
            self._ready_end = -1

    def _close(self) -> None:
        self._close_ready_end()
        assert self._process.stdin is not None
        self._process.stdin.close()


def command(entry: str) -> tuple[str, ...]:
    """The words that start a child: `entry` is "module:function"."""
    module, _, function = entry.partition(":")
    return (sys.executable, "-PXfaulthandler", "-c", f"from {module} import {function}; {function}()")


def exit_reason(code: int) -> str:
    """End of a process, in words: "exit code 1", "signal 9, SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    names = {each.value: f", {each.name}" for each in signal.Signals}
    return f"signal {-code}{names.get(-code, '')}"
