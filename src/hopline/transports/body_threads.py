"""Threads that decompress and count large and compressed bodies, off the event loop."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor

from hopline.transports import json_scan, proto_scan

#: Few, since they take processor time from the loop.
THREADS = ThreadPoolExecutor(2, "bodies")


@functools.cache
def load_kernels() -> Future[None]:
    """Load what counts, once, before a body is there that needs it; it is compiled where it never was."""
    return THREADS.submit(_load)


def _load() -> None:
    json_scan.warm_up()
    proto_scan.warm_up()
