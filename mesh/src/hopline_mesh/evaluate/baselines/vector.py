"""A whole mesh as one vector of numbers around 0, for detectors over all series together.

Amounts become logarithms. Each series is its distance from its normal median, in units of its normal
spread. Series that are not measured, or did not exist in the training, are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline_mesh.evaluate.baselines.bounds import watched
from hopline_mesh.evaluate.baselines.rows import Rows, Values
from hopline_mesh.incident import Evidence
from hopline_mesh.schema import kind_of
from hopline_mesh.snapshot import Snapshot

#: The smallest spread, so that a nearly constant series does not dominate: 5 % of an amount, 0.01 of a
#: share.
_LEAST = {"amount": 0.05, "share": 0.01, "real": 0.01}
#: Maximum distance from the median.
_FARTHEST = 20.0


class MeshVector:
    """Converts snapshots to vectors.

    Args:
        snapshots: normal ones; at least one.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        schema = snapshots[0].schema
        self._rows = Rows()
        nodes, edges = self._rows.stack(snapshots)
        self._shapes = nodes.shape[1:], edges.shape[1:]
        columns = [*schema.node_features] * nodes.shape[1] + [*schema.edge_features] * edges.shape[1]
        self._amount = np.array([kind_of(column) == "amount" for column in columns], dtype=bool)
        raw = np.concatenate([nodes.reshape(len(nodes), -1), edges.reshape(len(edges), -1)], axis=1)
        values = self._taken(raw)
        seen = ~np.isnan(values).all(axis=0)
        values[:, ~seen] = 0.0
        self._median = np.nanmedian(values, axis=0)
        low, high = np.nanpercentile(values, [15.87, 84.13], axis=0)
        least = np.array([_LEAST[kind_of(column)] for column in columns])
        self._spread = np.maximum((high - low) / 2, least)
        self._used = seen & np.array([watched(column) for column in columns], dtype=bool)
        self.training = self._scaled(values)

    def of(self, snapshot: Snapshot) -> Values:
        """Return the vector of a snapshot, float64 [series]."""
        found: Values = self._scaled(self._taken(self._raw(snapshot))[None])[0]
        return found

    def evidence(
        self, snapshot: Snapshot, errors: Values, threshold: float, most: int = 20
    ) -> list[Evidence]:
        """Return evidence for the series with the largest errors.

        Args:
            errors: float64 [series], at least 0.
            threshold: the error at which an anomaly score is 1.0.
        """
        raw = self._raw(snapshot)
        (_, node_width), (_, edge_width) = self._shapes
        num_nodes = self._shapes[0][0] * node_width
        by_row = {int(row): at for at, row in enumerate(self._rows.edges(snapshot))}
        found = []
        for series in np.argsort(-errors)[:most].tolist():
            if errors[series] <= 0 or np.isnan(raw[series]):
                continue
            caller = None
            if series < num_nodes:
                slot, column = divmod(series, node_width)
                feature = snapshot.schema.node_features[column]
                service = snapshot.roster.name(slot)
            else:
                row, column = divmod(series - num_nodes, edge_width)
                feature = snapshot.schema.edge_features[column]
                service = snapshot.roster.name(int(snapshot.edge_dst[by_row[row]]))
                caller = snapshot.roster.name(int(snapshot.edge_src[by_row[row]]))
            usual = float(np.expm1(self._median[series]) if self._amount[series] else self._median[series])
            found.append(
                Evidence(
                    feature, service, caller, usual, float(raw[series]), float(errors[series] / threshold)
                )
            )
        return found

    def _raw(self, snapshot: Snapshot) -> Values:
        nodes, edges = np.full(self._shapes[0], np.nan), np.full(self._shapes[1], np.nan)
        known = snapshot.nodes < len(nodes)
        nodes[snapshot.nodes[known]] = snapshot.node_features[known]
        rows = self._rows.edges(snapshot)
        known = rows < len(edges)
        edges[rows[known]] = snapshot.edge_features[known]
        return np.concatenate([nodes.ravel(), edges.ravel()])

    def _taken(self, raw: Values) -> Values:
        taken: Values = np.where(self._amount, np.log1p(np.maximum(raw, 0.0)), raw)
        return taken

    def _scaled(self, taken: Values) -> Values:
        scaled: Values = (taken - self._median) / self._spread
        scaled[..., ~self._used] = 0.0
        found: Values = np.clip(np.nan_to_num(scaled, nan=0.0), -_FARTHEST, _FARTHEST)
        return found
