"""Files and folders that are published completely or not at all.

Content is written to a hidden draft next to the final name, `.<name>.<random>.draft`, and then renamed.
Readers see the old content or the new content, never a part. A failed write removes its draft and keeps the
old content. A killed writer leaves its draft; `remove_drafts` is for the owner of a folder. Two writers of
one name do not disturb each other: the last rename wins.

Callers choose how durable the content is:

- `durable=True`: the content is on disk before its name is, and the name before the call returns. After a
  power failure the complete old or new content exists. For content that exists nowhere else: the state of
  rollouts, drift references, graphs, manifests and positions of live graphs, manifests and results of batch
  runs, precomputed answers, converted prediction logs, the clients file.
- `durable=False`: no wait for the disk. Other processes never see a part, even if the writer is killed.
  After a power failure the content may be empty or torn. For content that is not needed after the process
  or the machine stops (metrics, acknowledgements and outcome counts of workers), that is verified by its
  hash when read (packaged models, copies of remote versions, drift windows), or that can be loaded again
  (parts of a Parquet feature store).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from hopline.errors import ConfigError

_DRAFT = ".draft"
#: Memory that most containers let a process write, also on a read-only root.
_SHARED_MEMORY = "/dev/shm"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Identifies the time since this machine started; "" where that is not known."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def write_atomically(path: Path, content: bytes, *, durable: bool, mode: int | None = None) -> None:
    """Replace a file's content, or create the file.

    Args:
        path: in a folder that exists. A symlink is itself replaced.
        durable: see the module docstring.
        mode: permissions; None for 0o666 without the umask's bits.

    Raises: OSError: with this path; the old content is unchanged.
    """
    draft = draft_of(path)
    with _errors_name(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(draft, flags, 0o666 if mode is None else 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                if mode is not None:
                    os.fchmod(handle, mode)
                if durable:
                    file.flush()
                    os.fsync(handle)
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        if durable:
            sync(path.parent)


def publish_file(draft: Path, path: Path, *, durable: bool) -> None:
    """Rename a finished draft to its final path, replacing an existing file.

    Raises: OSError: with this path; if the rename failed, the draft still exists.
    """
    with _errors_name(path):
        if durable:
            sync(draft)
        os.replace(draft, path)
        if durable:
            sync(path.parent)


def publish_folder(draft: Path, folder: Path, *, durable: bool) -> None:
    """Rename a finished folder to its final path; an existing one is exchanged in one step, then removed.

    If the kernel or file system cannot exchange, the folder is missing for a moment, but is never partial.

    Raises: OSError: with this folder's path; if the rename failed, draft and folder are unchanged.
    """
    with _errors_name(folder):
        if durable:
            for parent, _, names in os.walk(draft):
                for name in names:
                    sync(Path(parent, name))
                sync(Path(parent))
        if not folder.exists():
            os.rename(draft, folder)
        elif not _exchange(draft, folder):
            _step_aside(draft, folder)
        if durable:
            sync(folder.parent)
    shutil.rmtree(draft, ignore_errors=True)  # the old content, if any


def draft_of(path: Path) -> Path:
    """Return an unused hidden name next to the path."""
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}{_DRAFT}")


def is_draft(path: Path) -> bool:
    """Return True if the name was created by `draft_of`."""
    return path.name.startswith(".") and path.name.endswith(_DRAFT)


def remove_drafts(folder: Path) -> list[Path]:
    """Remove the drafts of killed writers; only for callers that know that there is no other writer.

    Returns: the removed paths.
    Raises: OSError: a draft cannot be removed.
    """
    found = [path for path in folder.iterdir() if is_draft(path)]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return found


def check_regular(path: Path) -> None:
    """Check that a path, and all below it, are files and folders: a pipe or a device may never end.

    Raises: OSError: one is not; or the path cannot be read.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        for each in path.iterdir():
            check_regular(each)
    elif not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is a pipe, a socket or a device, not a file", str(path))


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file or folder (flock(2)) until its descriptor is closed, or its process ends.

    Args:
        shared: together with other holders of a shared lock.
        wait: until it is free.

    Returns: False if another process has it.
    Raises: OSError: the file system has no locks.
    """
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing, and stays; waits for it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        lock(handle)
        yield
    finally:
        os.close(handle)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step (Linux's renameat2 with RENAME_EXCHANGE); False if not supported."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0)


def _step_aside(draft: Path, folder: Path) -> None:
    """Swap draft and folder with three renames; on failure nothing has changed."""
    old = draft_of(folder)
    os.rename(folder, old)
    try:
        os.rename(draft, folder)
    except OSError:
        os.rename(old, folder)
        raise
    os.rename(old, draft)


@contextlib.contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Make disk errors name the final path, which the caller knows, instead of the draft."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def temporary_root() -> str:
    """A folder for temporary files: TMPDIR, /tmp or the like, else shared memory.

    Raises: ConfigError: none of them can be written.
    """
    import tempfile  # a function platform's cold start needs it not

    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
            return _SHARED_MEMORY
        raise ConfigError(
            f"no folder for temporary files can be written (/tmp, /var/tmp, {_SHARED_MEMORY}): mount a "
            "volume at /tmp, or set TMPDIR to a writable folder"
        ) from None


def expanded(path: Path | str, what: str) -> Path:
    """A path with `~` replaced by the home folder.

    Args:
        what: the setting or argument that the path is of, for the error.

    Raises: ConfigError: this user has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{what}: {str(path)!r} is in the home folder, and user {os.getuid()} has none: name a folder "
            "by its full path, or set HOME"
        ) from None
