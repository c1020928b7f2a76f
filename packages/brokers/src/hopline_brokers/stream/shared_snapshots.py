"""Snapshots that the hosts of a fleet share: a new host starts from the newest one and the stream after it.

    <address>/<lineage>/<offset>.<random>/graph/ …, state.bin   as in a live folder
    <address>/<lineage>/<offset>.<random>/complete              written last: the snapshot is whole

Hosts do not agree on who publishes. Each one publishes the snapshots that it writes, unless there is one of
about that age; two of one offset have different folders, since hosts count their changes differently.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hopline.config.urls import shown
from hopline.errors import GraphError, HoplineError
from hopline.files import draft_of, publish_folder
from hopline.graph import storage
from hopline.graph.live.home import name_of
from hopline.graph.live.log import Log
from hopline.graph.live.manifest import NAME, LiveManifest, SnapshotEntry, write_manifest
from hopline.graph.live.state import read_state
from hopline.graph.live.version import StreamOffset, read_offset, read_version
from hopline.remote_address import open_address

log = logging.getLogger("hopline.stream")

_COMPLETE = "complete"
_KEPT = 2
_LONGEST_MESSAGE = 300
ResultT = TypeVar("ResultT")


class SharedSnapshots:
    """The snapshots of one graph at an address."""

    def __init__(self, address: str, lineage: str) -> None:
        self._address = address
        self._lineage = lineage
        self._place = (
            _Remote(f"{address.rstrip('/')}/{lineage}")
            if "://" in address
            else _Local(Path(address) / lineage)
        )

    def fetch(self, folder: Path) -> bool:
        """Put the newest snapshot into a live folder, if that is new; whether it did.

        A failure is logged: the graph then starts from its beginning, and reads the whole stream.
        """
        if (folder / NAME).exists() or any((folder / "log").glob("*")):
            return False
        try:
            names = self._newest_first()
        except HoplineError as error:
            log.error("%s; starting from the original graph", error)
            return False
        for name in names:
            try:
                self._fetch(name, folder)
            except (HoplineError, OSError) as error:
                log.error("the snapshot %s of %s cannot be used: %s", name, self._address, error)
                continue
            log.info("starting from the snapshot %s of %s", name, self._address)
            return True
        return False

    def publish(self, folder: Path, entry: SnapshotEntry) -> None:
        """Publish a snapshot of this host's live folder, unless there is one of its offset or a later one.

        Raises: GraphError: it cannot be written there.
        """
        offset = read_version(entry.name, "snapshot").offset
        if not offset.is_named:
            return
        names = self._newest_first()
        if names and _offset(names[0])[:2] >= offset[:2]:
            return
        name = f"{offset._replace(digest=-1)}.{secrets.token_hex(4)}"
        self._called(lambda: self._place.publish(folder / entry.folder, name))
        log.info("published the snapshot %s to %s", name, self._address)
        kept = [name, *names[: _KEPT - 1]]
        # Also what hosts that ended meanwhile did not finish, if it is too old to be used.
        for old in self._newest_first("*"):
            if old not in kept and _offset(old)[:2] < _offset(kept[-1])[:2]:
                self._called(lambda old=old: self._place.remove(old))  # type: ignore[misc]

    def _newest_first(self, file: str = _COMPLETE) -> list[str]:
        found = set[tuple[StreamOffset, str]]()
        for name in self._called(lambda: self._place.names(file)):
            with contextlib.suppress(HoplineError):  # a folder of something else
                found.add((_offset(name), name))
        return [name for _, name in sorted(found, reverse=True)]

    def _fetch(self, name: str, folder: Path) -> None:
        snapshots = folder / "snapshots"
        snapshots.mkdir(parents=True, exist_ok=True)
        draft = draft_of(snapshots / name)
        try:
            self._called(lambda: self._place.fetch(name, draft))
            state = read_state(draft / "state.bin")
            if state.lineage != self._lineage:
                raise GraphError(f"it belongs to graph {state.lineage}, not {self._lineage}")
            graph = storage.read(draft / "graph")
            target = snapshots / f"{state.sequence:020d}"
            publish_folder(draft, target, durable=True)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        entry = SnapshotEntry(state.sequence, graph.version, f"snapshots/{target.name}", name_of(state))
        # First: a folder with the manifest must have a log.
        Log.open(folder / "log", self._lineage, next_sequence=state.sequence + 1).close()
        write_manifest(folder, LiveManifest(self._lineage, self._address, (entry,)))

    def _called(self, call: Callable[[], ResultT]) -> ResultT:
        """Answer of the address; drivers raise whatever their libraries do."""
        try:
            return call()
        except HoplineError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0][:_LONGEST_MESSAGE]
            raise GraphError(
                f"live.snapshots: {shown(self._address)} cannot be used: {type(error).__name__}: {reason}"
            ) from error


class _Local:
    """A folder of a file system that hosts share.

    A snapshot is whole once it has the file `_COMPLETE`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, file: str = _COMPLETE) -> list[str]:
        return [path.parent.name for path in self._root.glob(f"*/{file}")]

    def fetch(self, name: str, folder: Path) -> None:
        shutil.copytree(self._root / name, folder)

    def publish(self, folder: Path, name: str) -> None:
        shutil.copytree(folder, self._root / name)
        (self._root / name / _COMPLETE).touch()

    def remove(self, name: str) -> None:
        (self._root / name / _COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(self._root / name, ignore_errors=True)


class _Remote:
    """A folder of an object store; as `_Local`."""

    def __init__(self, url: str) -> None:
        self._files, root = open_address(url, "live.snapshots")
        self._root = root.rstrip("/")

    def names(self, file: str = _COMPLETE) -> list[str]:
        found = self._files.matching(f"{self._root}/*/{file}")
        return [path.rstrip("/").split("/")[-2] for path in found]

    def fetch(self, name: str, folder: Path) -> None:
        self._files.copy_folder(f"{self._root}/{name}/", f"{folder}/")

    def publish(self, folder: Path, name: str) -> None:
        self._files.driver.put(f"{folder}/", f"{self._root}/{name}/", recursive=True)
        self._files.driver.pipe_file(f"{self._root}/{name}/{_COMPLETE}", b"1")

    def remove(self, name: str) -> None:
        # Unfinished, or another host removes it too.
        with contextlib.suppress(FileNotFoundError):
            self._files.driver.rm_file(f"{self._root}/{name}/{_COMPLETE}")
        with contextlib.suppress(FileNotFoundError):
            self._files.driver.rm(f"{self._root}/{name}", recursive=True)


def _offset(name: str) -> StreamOffset:
    return read_offset(name.partition(".")[0])
