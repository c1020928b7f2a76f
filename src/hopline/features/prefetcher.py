"""The interface of the prefetcher process, as the feature fetcher uses it. A package has the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from hopline.config.schema import Config
from hopline.doors import Door
from hopline.errors import ConfigError
from hopline.types import IdArray

if TYPE_CHECKING:
    from hopline.observe.metrics import Metrics

#: "socket": see `open_prefetcher`, which has its arguments.
DOOR = Door("hopline.prefetchers", packages={"socket": "'hopline[redis]'"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """The nodes of a request: with the graph, they determine the rows that it reads.

    Attributes:
        model, version: that answers it.
        as_of: its time cut.
        seeds: node type -> int64 global ids.
    """

    model: str
    version: str
    as_of: int
    seeds: Mapping[str, IdArray]

    @property
    def num_seeds(self) -> int:
        """Over all node types."""
        return sum(ids.shape[0] for ids in self.seeds.values())


class PrefetchResponse(NamedTuple):
    """The prefetcher's response: rows are in L1, except for those listed.

    Attributes:
        lacking: node type -> int64 ids that could not be had; None: whatever is not in L1.
        reason: why, where there are any.
    """

    lacking: Mapping[str, IdArray] | None
    reason: str


class Prefetcher(Protocol):
    """Brings rows into L1 on request."""

    @property
    def was_lost(self) -> bool:
        """True if it went away a moment ago: rows that it had claimed will not come."""
        ...

    async def fetch(
        self, absent: Mapping[str, IdArray], wanted: Wanted | None, timeout_s: float
    ) -> PrefetchResponse | None:
        """Have rows fetched.

        Args:
            absent: node type -> int64 distinct ids that are not in L1.
            wanted: what they are needed for; None where that does not describe them.
            timeout_s: the longest that this takes.

        Returns: None where the prefetcher cannot help: fetch them yourself, in the time that is left.
        """
        ...

    async def close(self) -> None:
        """End the connection; every caller that waits gets None."""
        ...


def open_prefetcher(
    path: Path, graph_version: str, rows: tuple[int, int], config: Config, metrics: Metrics
) -> Prefetcher:
    """A worker's connection to the prefetcher at a Unix socket.

    Args:
        graph_version, rows: identity of the worker's graph, and of its L1 feature cache.

    Raises: ConfigError: no installed package has a prefetcher; the message says how to install it.
    """
    try:
        connect = DOOR.require("socket")
    except ModuleNotFoundError as error:
        raise ConfigError(f"features.prefetcher: {error}") from error
    return cast(Prefetcher, connect(path, graph_version, rows, config, metrics))
