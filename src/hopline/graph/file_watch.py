"""Compares the files of a graph with their digests: once on a host, and again each one that has changed.

A small graph is compared before it answers. A large one answers at first, and is read meanwhile on a thread
of low priority, at a limited rate, in one process of the host at a time: the others take its outcome from a
note (`integrity.CheckNote`). The thread then looks whether a file was written to: one that is right again
had other bytes for a moment, perhaps, and what was computed meanwhile is used no more (`identity`). A file
that was replaced under its name is not looked at any more: the process has the earlier one mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hopline.errors import GraphError
from hopline.graph import digest, storage
from hopline.graph.integrity import CheckNote
from hopline.graph.snapshot import Graph
from hopline.process.cgroup import usable_cpus

log = logging.getLogger(__name__)

#: A graph of at most so many bytes is compared before it answers: half a second of two cores.
AT_START_BYTES = 256 << 20
#: Bytes that are read in a second while requests are answered: a fifth of a core.
BYTES_PER_S = 128 << 20
#: Seconds between looks whether a file has changed, and at the note of a process that reads.
_LOOK_S = 2.0
_LOWEST_PRIORITY = 19


class FileWatch:
    """The files of one open graph.

    Args:
        folder: of the graph, which is opened next.
        shared: a folder for notes where the user has no cache folder; None for none.
        are_right: True if the files were compared just now.
        waits: compare a large graph now, too.

    Attributes:
        damage: the error that was found; "" for none so far.
        identity: of the files that were compared last; what was made of an earlier one may be wrong.

    Raises: GraphError: the folder has no graph; or a file of it is damaged, as far as is known.
    """

    def __init__(
        self, folder: Path, shared: Path | None = None, *, are_right: bool = False, waits: bool = False
    ) -> None:
        self.damage = ""
        self._folder = folder
        self._manifest = storage.read(folder)
        self._shared = shared
        self._served = self._identities()
        self.identity = _hash(self._served)
        self._right = dict(self._served) if are_right else {}
        self._stopped = threading.Event()
        #: When the next part of a file may be read.
        self._due = 0.0
        if waits or sum(each[2] for each in self._served.values()) <= AT_START_BYTES:
            with ThreadPoolExecutor(usable_cpus()) as pool:
                self.damage = self._compared(pool.map)
        else:
            self.damage = self._note(self._served).read() or ""
        self.check()

    def start(self, version: str) -> None:
        """Begin to look. Raises: GraphError: the graph was written to while it was opened."""
        if self._manifest.version != version or self._identities() != self._served:
            error = GraphError(f"{self._folder} was written again while it was opened; try again")
            error.may_pass = True
            raise error
        threading.Thread(target=self._look, name="hopline-files", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def check(self) -> None:
        """Raise GraphError if damage was found."""
        if self.damage:
            raise GraphError(self.damage)

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        began, is_new = time.monotonic(), not self._right
        while not self._stopped.is_set():
            self.damage = self._compared(self._slowly)
            if self.damage:
                log.error("%s; nothing is answered from this graph any more", self.damage)
                return
            if is_new and self._right:
                is_new = False
                log.info("compared %s with its digests in %.1f s", self._folder, time.monotonic() - began)
            self._stopped.wait(_LOOK_S)

    def _identities(self) -> dict[str, tuple[int, ...]]:
        """Device, inode, size and times of the files that exist."""
        found: dict[str, tuple[int, ...]] = {}
        for name in self._manifest.arrays:
            with contextlib.suppress(OSError):
                at = os.stat(self._folder / f"{name}.npy")
                found[name] = (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
        return found

    def _compared(self, run: digest.Run) -> str:
        """The error in files that changed since they were compared; "" for none, or if stopped."""
        now = {
            name: at for name, at in self._identities().items() if at[:2] == self._served.get(name, ())[:2]
        }
        changed = [name for name, at in now.items() if at != self._right.get(name)]
        if not changed:
            return ""
        try:
            with self._note(now).alone() as note:
                wrong = note.read()
                if wrong is None:
                    wrong = next(filter(None, (self._wrong(name, run) for name in changed)), "")
                    if self._stopped.is_set():
                        return ""
                    note.write(wrong)
        except FileNotFoundError:
            return ""  # replaced meanwhile
        except OSError as error:
            return f"{self._folder} cannot be read: {error}"
        if not wrong:
            self._right, self.identity = now, _hash(now)
        return wrong

    def _note(self, names: Iterable[str]) -> CheckNote:
        paths = [self._folder / f"{name}.npy" for name in names]
        return CheckNote(paths, f"digests of {self._manifest.version}".encode(), self._shared)

    def _wrong(self, name: str, run: digest.Run) -> str:
        stored = self._manifest.arrays[name]
        path = self._folder / f"{name}.npy"
        if self._stopped.is_set():
            return ""
        actual = digest.of_file(path, stored.dtype, stored.shape, stored.file_bytes, run)
        is_right = actual == stored.blake2b or self._stopped.is_set()
        return "" if is_right else storage.changed(path, actual, stored)

    def _slowly(self, function: Callable[[int], bytes], places: Iterable[int]) -> Iterator[bytes]:
        """As `map`, at the limited rate; ends when this is stopped."""
        for place in places:
            if self._stopped.wait(max(0.0, self._due - time.monotonic())):
                return
            self._due = max(self._due, time.monotonic()) + digest.LEAF_BYTES / BYTES_PER_S
            yield function(place)


def _hash(identities: dict[str, tuple[int, ...]]) -> str:
    return hashlib.blake2b(repr(identities).encode(), digest_size=16).hexdigest()


def open_compared(folder: Path) -> Graph:
    """Open a graph whose files were compared with their digests, now or before on this host.

    Raises: GraphError: as `Graph.open`, or a file is damaged.
    """
    FileWatch(folder, waits=True)
    return Graph.open(folder)
