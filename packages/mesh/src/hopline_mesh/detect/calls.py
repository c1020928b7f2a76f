"""Calls per request: the number of calls on a call path for each request that the caller gets.

Rates follow the load. This ratio does not depend on the load, so its spread is small: it shows a caller
that repeats every call at any time of day.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.roles import load_column
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

COLUMN = "calls_per_request"
#: Minimum requests per second of a caller for a meaningful ratio.
_FEWEST = np.float32(0.1)


class CallsPerRequest:
    """An additional column of call paths, if both tables have a column of requests per second.

    Args:
        schema: the measured columns.

    Attributes:
        columns: its name; () if it cannot be computed, or is measured already.
    """

    def __init__(self, schema: Schema) -> None:
        self._received, self._sent = load_column(schema.node_features), load_column(schema.edge_features)
        can_tell = self._received >= 0 and self._sent >= 0 and COLUMN not in schema.edge_features
        self.columns: tuple[str, ...] = (COLUMN,) if can_tell else ()

    def of(self, snapshot: Snapshot) -> NDArray[np.float32]:
        """Return the call paths' columns, with calls per request.

        Returns: float32 [e, columns]; only the measured ones if it cannot be computed.
        """
        if not self.columns:
            return snapshot.edge_features
        rate_of = np.full(len(snapshot.roster), np.nan, np.float32)
        rates = snapshot.node_features[:, self._received]
        rate_of[snapshot.nodes] = np.where(rates >= _FEWEST, rates, np.nan)
        with np.errstate(all="ignore"):  # absurd values are left out later
            sent = snapshot.edge_features[:, self._sent] / rate_of[snapshot.edge_src]
        return np.concatenate([snapshot.edge_features, sent[:, None]], axis=1, dtype=np.float32)
