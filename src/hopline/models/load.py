"""A loaded unit and all that it holds: memory, graph and feature sources, gauges, processes.

One object owns them, from the first one taken on, and gives them back once, the last one taken first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from hopline.answering.served import Version, WatchedFiles
from hopline.answering.unit import Unit
from hopline.errors import ArtifactError, Overloaded
from hopline.files import locked, write_atomically
from hopline.remote_address import is_address


class Load:
    """Resources of one loaded unit; released once.

    Attributes:
        content: of the files that it was made of (`version_folder.content_of`), and its graph's version.
        limits: of the model's serving.toml, as text.
        files: that its answers are read from, where those are watched.
        identity: of these files, when it began to read them.
    """

    limits = ""
    files: WatchedFiles | None = None
    identity = ""

    def __init__(self, model: str, unit: Unit) -> None:
        self.model = model
        self.unit = unit
        self.content: dict[str, str] = {}
        self._served: Version | None = None
        self._held = contextlib.AsyncExitStack()

    @property
    def served(self) -> Version:
        """The version that answers, once it is made."""
        assert self._served is not None, f"{self} is not made yet"
        return self._served

    @served.setter
    def served(self, served: Version) -> None:
        """Replace the version that answers: one that wraps the earlier one releases that too."""
        self._served = served

    @property
    def is_suspect(self) -> bool:
        """True if its files were written to since: its caches may hold what was wrong for a moment."""
        return self.files is not None and self.files.identity != self.identity

    def hold(self, give_back: Callable[[], object]) -> None:
        """Own something; `give_back` is called once, and must not block."""
        self._held.callback(give_back)

    def hold_async(self, give_back: Callable[[], Awaitable[object]]) -> None:
        """As `hold`, for a resource with an async release."""
        self._held.push_async_callback(give_back)

    async def give_back(self) -> None:
        """Release what answers, then all that it held; nothing the second time.

        Each is released even where releasing another one fails.
        """
        held, self._held = self._held.pop_all(), contextlib.AsyncExitStack()
        served, self._served = self._served, None
        async with held:
            if served is not None:
                await served.release()

    def __repr__(self) -> str:
        return f"{self.model}/{self.unit.id}"

    def check_same(self, first: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Check that the first load's content is the present one. Raises: ArtifactError: what differs."""
        changed = sorted(name for name in first.keys() | now.keys() if first.get(name) != now.get(name))
        if changed:
            raise ArtifactError(
                f"{self} is loaded with another {', '.join(changed[:5])} than there is now: package what "
                f"changed as another version, or unload {self.unit.id} and load it again"
            )


class FirstContents:
    """The content of each unit's first load: all workers of a server answer from the same, or not at all.

    Args:
        folder: that the workers share while the server runs, also those that replace others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, load: Load) -> None:
        """Keep the content of a first load, or compare a later one. Raises: ArtifactError: they differ."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(load.model, load.unit.id)
        with locked(self._folder / "lock"):
            if not file.exists():
                write_atomically(file, msgspec.json.encode(load.content), durable=False)
            first = msgspec.json.decode(file.read_bytes())
        load.check_same(first, load.content)

    def forget(self, model: str, unit_id: str) -> None:
        """The server unloads a unit: its next load is a first one."""
        self._file(model, unit_id).unlink(missing_ok=True)

    def _file(self, model: str, unit_id: str) -> Path:
        return self._folder / sha256(f"{model}/{unit_id}".encode()).hexdigest()


class LoadLimit:
    """Bounds the loads that are under way in a worker.

    Args:
        most: at a time. Half of them may be of graphs at addresses, and never keep the others waiting.
    """

    def __init__(self, most: int) -> None:
        self._most = most // 2
        self._num_loads = {"an address": 0, "this host": 0}

    @contextlib.contextmanager
    def counted(self, graph: str) -> Iterator[None]:
        """Count a load while it is under way.

        Args:
            graph: path or address; "" for the server's own.

        Raises: Overloaded: too many are.
        """
        kind = "an address" if is_address(graph) else "this host"
        if self._num_loads[kind] >= self._most:
            raise Overloaded(
                f"{self._most} loads from {kind} are under way, and no more may wait; try again later", 5.0
            )
        self._num_loads[kind] += 1
        try:
            yield
        finally:
            self._num_loads[kind] -= 1
