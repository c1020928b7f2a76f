"""Opens what a URL names, through fsspec: s3:// (s3fs), gs:// (gcsfs), abfs:// (adlfs), https:// …

Each driver takes its credentials and endpoint from where it always does: environment, files, the role of
the machine. Drivers wait for as long as an address sends a byte now and then; `RemoteFiles` does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hopline.config.setting import did_you_mean
from hopline.config.urls import shown
from hopline.errors import ConfigError
from hopline.files import check_regular

ResultT = TypeVar("ResultT")

#: A read that brings less than `LEAST_BYTES` in this time, in seconds, is given up.
LIMIT_S = 30.0
LEAST_BYTES = 64 * 1024
#: Reads at a time in a process; one that was given up counts until its driver ends it.
MAX_READS = 64
#: How often a read is looked at, in seconds.
_LOOK_S = 0.5
_free = threading.BoundedSemaphore(MAX_READS)


class RemoteFiles:
    """The files at an address.

    Attributes:
        driver: for what writes.
        is_local: the files are on this machine.

    Methods block, and raise what the driver raises, or `TimeoutError` where the address does not send.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        protocols = (driver.protocol,) if isinstance(driver.protocol, str) else driver.protocol
        self.is_local = "file" in protocols

    def read(self, path: str) -> bytes:
        """Return the content of a small file, which must come within the limit."""
        self._check(path)
        content: bytes = limited(lambda: self.driver.cat_file(path))
        return content

    def copy(
        self, path: str, target: Path, check: Callable[[int], object] = lambda num_bytes: None
    ) -> None:
        """Copy a file to a local path.

        Args:
            check: is called often with the number of bytes so far; raises to stop.
        """
        from fsspec.callbacks import Callback

        self._check(path)
        is_given_up = False

        class Checked(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                self.value += inc
                check(self.value)
                if is_given_up:
                    raise TimeoutError

        try:
            limited(
                lambda: self.driver.get_file(path, str(target), callback=Checked()),
                lambda: _bytes_of(target),
                lambda: check(0),
            )
        except BaseException:
            is_given_up = True
            raise

    def copy_files(self, paths: list[str], targets: list[Path]) -> None:
        """Copy files to local paths."""
        local = [str(target) for target in targets]
        limited(lambda: self.driver.get(paths, local), lambda: sum(map(_bytes_of, targets)))

    def copy_folder(self, path: str, target: str) -> None:
        """Copy all below a path, as fsspec's `get` reads final slashes."""
        limited(lambda: self.driver.get(path, target, recursive=True), lambda: _bytes_of(Path(target)))

    def entries(self, path: str) -> list[dict[str, Any]]:
        """Return what lies in a folder, in the form of fsspec's `ls`."""
        return limited(lambda: self.driver.ls(path, detail=True))

    def below(self, path: str) -> dict[str, dict[str, Any]]:
        """Return all files below a folder: path -> entry."""
        return limited(lambda: self.driver.find(path, detail=True))

    def matching(self, pattern: str) -> list[str]:
        """Return the paths that match a pattern."""
        return limited(lambda: self.driver.glob(pattern))

    def size(self, path: str) -> int | None:
        """Return the size of a file; None without one."""
        return limited(lambda: self.driver.info(path)["size"] if self.driver.exists(path) else None)

    def _check(self, path: str) -> None:
        if self.is_local:
            check_regular(Path(path))


def limited(
    read: Callable[[], ResultT],
    progress: Callable[[], int] = lambda: 0,
    check: Callable[[], object] = lambda: None,
) -> ResultT:
    """Return the result of a read that blocks; give it up if it makes no progress.

    It runs on a separate thread, which nothing waits for once it is given up.

    Args:
        read: the read.
        progress: bytes so far.
        check: is called often meanwhile; raises to give the read up.

    Raises: TimeoutError: less than `LEAST_BYTES` came in `LIMIT_S`; or too many reads wait already.
    """
    free = _free
    if not free.acquire(blocking=False):
        raise TimeoutError(f"{MAX_READS} reads wait for addresses already; try again later")
    outcome: Future[ResultT] = Future()

    def run() -> None:
        try:
            outcome.set_result(read())
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            free.release()

    threading.Thread(target=run, name="hopline-read", daemon=True).start()
    seen, since = 0, time.monotonic()
    while True:
        wait([outcome], _LOOK_S)
        if outcome.done():
            return outcome.result()
        check()
        num_bytes = progress()
        if num_bytes - seen >= LEAST_BYTES:
            seen, since = num_bytes, time.monotonic()
        elif time.monotonic() - since > LIMIT_S:
            raise TimeoutError(f"the address sent less than {LEAST_BYTES // 1024} KiB in {LIMIT_S:g} s")


def _bytes_of(target: Path) -> int:
    """Size of a local file, or of all files in a folder; 0 without one."""
    try:
        if target.is_dir():
            return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        return target.stat().st_size
    except OSError:  # not there yet, or renamed
        return 0


def is_address(text: str | Path) -> bool:
    """True if a text is a URL, not the path of a folder."""
    return isinstance(text, str) and "://" in text


def open_address(url: str, setting: str) -> tuple[RemoteFiles, str]:
    """The files at a URL, and the path in the terms of their driver. Nothing is connected to yet.

    Args:
        setting: the setting or argument that the URL is of, for errors.

    Raises:
        ConfigError: an unknown scheme, an address that its driver refuses, or a missing driver (names the
            package).
    """
    try:
        import fsspec
        from fsspec.registry import known_implementations
    except ImportError:
        raise ConfigError(
            f"{setting}: {shown(url)}: URLs need fsspec: pip install 'hopline[remote]'"
        ) from None
    scheme = url.partition("://")[0]
    try:
        _ = urlsplit(url).port  # raises where the host or the port is none
        # Nothing remembered: a file that was uploaded a moment ago must be seen.
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        module = known_implementations.get(scheme, {}).get("class", "").partition(".")[0]
        package = f"the package {module}" if module not in ("", "fsspec") else f"more ({error})"
        raise ConfigError(f"{setting}: {scheme}:// needs {package}, which is not installed") from None
    except Exception as error:  # drivers raise whatever their libraries do
        known = sorted({*fsspec.available_protocols(), "s3", "gs"})
        near = "" if scheme in known else did_you_mean(scheme, known)
        raise ConfigError(f"{setting}: {shown(url)} cannot be used: {error}{near}") from None
    return RemoteFiles(files), root
