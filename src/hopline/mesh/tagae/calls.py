"""How many calls a caller sends on a call path for each request that it gets.

Rates rise and fall with load, and what is unusual of them is what load does not explain. This ratio load
leaves alone, so that its spread is small: a caller that repeats every call shows here, whatever the hour.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hopline.jit import njit
from hopline.mesh.roster import SlotArray
from hopline.mesh.schema import Schema
from hopline.mesh.snapshot import Snapshot
from hopline.mesh.tagae.roles import load_column

COLUMN = "calls_per_request"
#: Requests per second below which a caller's are too few to be a measure.
_FEWEST = np.float32(0.1)
#: Columns of call paths in the default schema.
_USUAL_WIDTH = 4


class CallsPerRequest:
    """One more column of the call paths, where both tables have a column of requests per second.

    Args:
        schema: what is measured.

    Attributes:
        columns: its name; () where it cannot be told, or is measured already.
        width: columns of call paths, this one too.
    """

    def __init__(self, schema: Schema) -> None:
        self._received, self._sent = load_column(schema.node_features), load_column(schema.edge_features)
        can_tell = self._received >= 0 and self._sent >= 0 and COLUMN not in schema.edge_features
        self.columns: tuple[str, ...] = (COLUMN,) if can_tell else ()
        self.width = len(schema.edge_features) + len(self.columns)
        self._rates = np.zeros(0, np.float32)
        self._room = np.zeros((0, 0), np.float32)  # kept: memory that is touched for the first time is slow

    def of(self, snapshot: Snapshot) -> NDArray[np.float32]:
        """`add` to a whole snapshot's call paths: float32 [e, width]."""
        return self.add(
            snapshot.nodes,
            snapshot.node_features,
            snapshot.edge_src,
            snapshot.edge_features,
            len(snapshot.roster),
        )

    def add(
        self,
        nodes: SlotArray,
        node_features: NDArray[np.float32],
        edge_src: SlotArray,
        edge_features: NDArray[np.float32],
        num_slots: int,
    ) -> NDArray[np.float32]:
        """The call paths' numbers, and how many calls each has for a request of its caller.

        Args:
            nodes, node_features, edge_src, edge_features: as a snapshot has them.
            num_slots: of the roster.

        Returns: float32 [e, Fe + 1], good until the next call; what was given where it cannot be told.
        """
        if not self.columns:
            return edge_features
        if len(self._rates) < num_slots:
            self._rates = np.full(num_slots + num_slots // 4, np.nan, np.float32)
        e, width = edge_features.shape
        if len(self._room) < e:
            self._room = np.empty((e + e // 4, width + 1), np.float32)
        out = self._room[:e]
        _add(nodes, node_features, self._received, edge_src, edge_features, self._sent, self._rates, out)
        return out


@njit(nogil=True, cache=True, error_model="numpy")
def _add(  # type: ignore[no-untyped-def]
    nodes, node_features, received, edge_src, edge_features, sent, rates, out
):
    """See `CallsPerRequest.add`; `rates`, float32 [slots], is scratch: all NaN before and after."""
    for row in range(len(nodes)):
        rate = node_features[row, received]
        rates[nodes[row]] = rate if rate >= _FEWEST else np.float32(math.nan)
    width = edge_features.shape[1]
    if width == _USUAL_WIDTH:  # said outright, a row is one load and one store: a third of the loop's time
        for row in range(len(edge_src)):
            out[row, 0], out[row, 1] = edge_features[row, 0], edge_features[row, 1]
            out[row, 2], out[row, 3] = edge_features[row, 2], edge_features[row, 3]
            out[row, _USUAL_WIDTH] = edge_features[row, sent] / rates[edge_src[row]]
    else:
        for row in range(len(edge_src)):
            for column in range(width):
                out[row, column] = edge_features[row, column]
            out[row, width] = edge_features[row, sent] / rates[edge_src[row]]
    for row in range(len(nodes)):
        rates[nodes[row]] = np.float32(math.nan)
