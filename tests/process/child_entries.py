"""Entries of children that the tests start."""

import asyncio
import json
import os
import signal
import sys
import time

from hopline.process.parent import die_with_parent, on_parent_end, read_orders, say_ready


def served() -> None:
    """Say ready, wait for SIGTERM or the parent's end, and exit with the code of the orders."""
    orders = json.loads(read_orders())

    async def main() -> None:
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ending.set)
        on_parent_end(ending.set)
        say_ready(orders["ready"], orders.get("says", "ready"), beat_s=orders.get("beat_s", 0.0))
        await ending.wait()

    asyncio.run(main())
    if "mark" in orders:
        with open(orders["mark"], "w") as mark:
            mark.write("ended in order")
    sys.exit(orders.get("code", 0))


def deaf() -> None:
    """Say ready and hear nothing any more."""
    orders = json.loads(read_orders())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_ready(orders["ready"])
    time.sleep(1e6)


def bound() -> None:
    """As `deaf`, but the kernel ends it with its parent."""
    die_with_parent()
    deaf()


def refused() -> None:
    """End before it is ready."""
    sys.exit(json.loads(read_orders()).get("code", 7))


def descriptors() -> None:
    """Write the open descriptors to the file of the orders, and end."""
    orders = json.loads(read_orders())
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    with open(orders["file"], "w") as file:
        json.dump(numbers, file)
