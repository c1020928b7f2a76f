"""A model without message-passing layers: one stage over a node's own row, with no plan.

`plan.py` and `execute.py` return the same bits, but for one node their calls cost more than the stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hopline.types import FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.engine.level import Level
    from hopline.engine.narrow_kernels import Matrix


class Flat:
    """The fast path of a model with one stage.

    Args:
        level: the only one, with a runner.
        features: of its nodes.
    """

    def __init__(self, level: Level, features: Matrix) -> None:
        assert level.runner is not None
        self._level = level
        self._runner = level.runner
        self._features = features

    @staticmethod
    def of(levels: list[dict[str, Level]], node_type: str, features: Mapping[str, Matrix]) -> Flat | None:
        """The fast path of a model, or None where the model has more than one plain stage."""
        level = levels[-1][node_type]
        if (
            len(levels) > 1
            or level.runner is None
            or level.port is not None
            or level.state_cache is not None
        ):
            return None
        return Flat(level, features[node_type])

    def run(self, ids: IdArray) -> FloatArray:
        """Final states of int64 [n] ids: float32 [n, d], valid until the next call."""
        level, features = self._level, self._features
        rows = ids if level.own_slots is None else level.own_slots.slots(ids)
        num_rows = ids.shape[0]
        structure = None if level.structure is None else level.structure.rows(ids, features, rows)
        out = level.out(num_rows)
        return self._runner.run(num_rows, features, rows, features, rows, {}, out, structure)
