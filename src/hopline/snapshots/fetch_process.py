"""Fetches a snapshot in a separate process of low priority: drivers in Python would delay requests.

The parent holds the lock of the cache and waits on a thread. The process ends with its parent.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from hopline.config.schema import LogConfig
from hopline.errors import HoplineError, RuntimeFailure
from hopline.observe.logs import configure_logs
from hopline.process.child import command, exit_reason
from hopline.process.parent import die_with_parent, read_orders
from hopline.process.time_slice import lower_priority
from hopline.process.wire import PackedError, pack_error, unpack_error
from hopline.snapshots.cache import SnapshotCache
from hopline.snapshots.manifest import SnapshotAddress
from hopline.snapshots.store import SnapshotStore

_NICE = 5
#: Seconds between looks whether the server stops.
_LOOK_S = 0.1


class FetchOrders(msgspec.Struct, frozen=True):
    """Orders of the process.

    Attributes:
        address: of one snapshot, with its id. setting: that it is of, for errors.
        folder, max_bytes: of the cache.
        log_level, log_format: as in the settings.
    """

    address: str
    setting: str
    folder: str
    max_bytes: int
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


class _Report(msgspec.Struct):
    """The line that the process writes at its end: bytes that it fetched, or an error by `pack_error`."""

    fetched_bytes: int = 0
    error: PackedError | None = None


def fetch(orders: FetchOrders, check: Callable[[], object]) -> int:
    """Run the process to its end; returns how many bytes it fetched.

    Args:
        check: is called often meanwhile; raises to stop.

    Raises:
        HoplineError: what the fetch raised; the message is that of the process.
        RuntimeFailure: the process ended without a report.
    """
    entry = command(f"{__name__}:main")
    with subprocess.Popen(entry, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # its end says why
                process.stdin.write(msgspec.json.encode(orders) + b"\n")
            while process.poll() is None:
                check()
                try:
                    process.wait(_LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.kill()
            raise
        said = process.stdout.read()
        code = process.returncode
    if not said:
        raise RuntimeFailure(
            f"the process that fetches {orders.address} ended with {exit_reason(code)}; its log says why"
        )
    report = msgspec.json.decode(said, type=_Report)
    if report.error is not None:
        raise unpack_error(report.error)
    return report.fetched_bytes


def main() -> None:
    """Entry of the process."""
    die_with_parent()
    orders = msgspec.json.decode(read_orders(), type=FetchOrders)
    lower_priority(_NICE)
    configure_logs(LogConfig(orders.log_level, orders.log_format))
    address = SnapshotAddress.parse(orders.address)
    cache = SnapshotCache(Path(orders.folder), orders.max_bytes)
    try:
        cache.copy(address, lambda: SnapshotStore(address.base, orders.setting))
        report = _Report(cache.fetched_bytes)
    except HoplineError as error:
        report = _Report(0, pack_error(error))
    sys.stdout.buffer.write(msgspec.json.encode(report))
    sys.stdout.buffer.flush()


def orders_of(address: str, setting: str, cache: SnapshotCache, log: LogConfig) -> FetchOrders:
    """Orders for a snapshot that goes into a cache."""
    return FetchOrders(address, setting, str(cache.folder), cache.max_bytes, log.level, log.format)
