"""An event loop whose clock jumps to the next timer: seconds of outage pass in milliseconds, exactly."""

from __future__ import annotations

import asyncio
import functools
import selectors


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can run, and jumps when everything waits."""

    def __init__(self):
        super().__init__(_Selector(self))
        self.now = 1000.0

    def time(self):
        return self.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and no timer is set")
        if not ready and timeout:
            self._loop.now += timeout
        return ready


def virtual_time(test):
    """Run an async test in virtual time."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(asyncio.wait_for(test(*args, **kwargs), 1e4))

    return run


def now():
    """The running loop's time."""
    return asyncio.get_running_loop().time()
