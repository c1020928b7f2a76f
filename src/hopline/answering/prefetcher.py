"""The interface of the prefetcher process, as the feature fetcher uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hopline.types import IdArray


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
