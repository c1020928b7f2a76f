"""Entries of fork servers that are not as they should be, and a factory of a model with times."""

import threading
import time

import msgspec

from hopline.isolated import fork_server
from tests.scripted import open_scripted


def open_with_times(orders):
    """A scripted model that converts `as_of`, which makes another request of it."""
    version = open_scripted(orders)
    version.computer.with_cut = lambda request: msgspec.structs.replace(request, as_of=0)
    return version


def with_a_second_thread():
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    fork_server.main()
