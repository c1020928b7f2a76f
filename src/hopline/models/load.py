"""A loaded unit and all that it holds: memory, graph and feature sources, gauges, processes.

One object owns them, from the first one taken on, and gives them back once, the last one taken first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator

from hopline.answering.served import Version
from hopline.answering.unit import Unit
from hopline.errors import Overloaded
from hopline.remote_address import is_address


class Load:
    """Resources of one loaded unit; released once.

    Args:
        model: name.
        unit: that is loaded.

    Attributes:
        content: of the files that it was made of (`version_folder.content_of`), and the model's limits.
    """

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
