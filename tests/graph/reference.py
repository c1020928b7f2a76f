"""The oracle: neighbour lists by Python dicts and sorting, nothing shared with the code under test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline.graph import Adjacency


def neighbor_lists(
    src: Sequence[int], dst: Sequence[int], num_dst: int, time: Sequence[int] | None = None
) -> list[list[int]]:
    """For each destination, the positions of its edges in canonical order."""
    lists: dict[int, list[int]] = {node: [] for node in range(num_dst)}
    for edge, node in enumerate(dst):
        lists[node].append(edge)
    return [
        sorted(edges, key=lambda e: (0 if time is None else time[e], src[e], e))
        for _, edges in sorted(lists.items())
    ]


def assert_adjacency_equals_lists(
    adjacency: Adjacency,
    lists: list[list[int]],
    src: Sequence[int],
    **columns: Sequence[float] | None,
) -> None:
    order = [edge for edges in lists for edge in edges]
    np.testing.assert_array_equal(adjacency.indptr, np.cumsum([0, *map(len, lists)]))
    np.testing.assert_array_equal(adjacency.indices, np.asarray(src)[order] if order else [])
    for name, column in columns.items():
        if column is not None:
            np.testing.assert_array_equal(getattr(adjacency, name), np.asarray(column)[order])
    assert adjacency.max_degree == max(map(len, lists), default=0)
