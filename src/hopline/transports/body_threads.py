"""Threads that decompress and count large bodies, and encode large answers, outside the event loop."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor

from hopline.transports import json_scan, proto_scan

#: Few, since they take CPU time from the event loop.
THREADS = ThreadPoolExecutor(2, "bodies")


@functools.cache
def load_kernels() -> Future[None]:
    """Load the counting kernels once, before the first body that needs them; compile them if not cached."""
    return THREADS.submit(_load)


def _load() -> None:
    json_scan.warm_up()
    proto_scan.warm_up()
