"""One score for a mesh in parts: learns the combined scores of the parts in normal time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import StateDamaged
from hopline_mesh.model.meta import MetaModel

#: Windows of normal time that are learned from.
_WINDOWS = 10
#: Longest debounce.
_HELD = 16


class Overall:
    """A meta-model that is learned while the watch runs.

    Args:
        window: number of intervals after which it is learned again, at least 20.
        percentile: share of normal time that must be within bounds.
    """

    def __init__(self, window: int, percentile: float) -> None:
        self._window, self._percentile = max(20, window), percentile
        self._model: MetaModel | None = None
        self._version = 0
        self._usual: deque[NDArray[np.float64]] = deque(maxlen=_WINDOWS * self._window)
        self._since = 0
        self._held: deque[float] = deque(maxlen=_HELD)

    def judge(self, scores: NDArray[np.float64], version: int, *, hold: int, learn: bool) -> float:
        """The mesh's score that lasts.

        Args:
            scores: float64 [parts], of this interval.
            version: of the cut; what was learned of another one is forgotten.
            hold: intervals that it must have been as high.
            learn: whether this is normal time.

        Returns: 1.0 is the threshold; 0 before anything was learned.
        """
        if version != self._version:
            self.forget()
            self._version = version
        score = self._model.score(scores) if self._model is not None else 0.0
        self._held.append(score)
        if learn:
            self._usual.append(scores)
            self._since += 1
            if self._since >= self._window:
                self._model = MetaModel.fit(np.array(self._usual), self._percentile)
                self._since = 0
        recent = list(self._held)[-min(hold, _HELD) :]
        return min(recent) if len(recent) == min(hold, _HELD) else 0.0

    def forget(self) -> None:
        """Reset, because the parts have changed, or scores have another meaning."""
        self._model, self._since = None, 0
        self._usual.clear()
        self._held.clear()

    def export(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state: a JSON object, and arrays."""
        meta: dict[str, Any] = {
            "version": self._version,
            "since": self._since,
            "held": list(self._held),
            "model": None,
        }
        arrays: dict[str, NDArray[Any]] = {}
        if self._usual:
            arrays["usual"] = np.array(self._usual)
        if self._model is not None:
            meta["model"], kept = self._model.export()
            arrays |= {f"model.{name}": array for name, array in kept.items()}
        return meta, arrays

    def restore(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of `export`.

        Raises:
            StateDamaged: arrays of another shape.
        """
        usual = arrays.get("usual", np.zeros((0, 0)))
        if usual.ndim != 2 or not np.isfinite(usual).all():
            raise StateDamaged(f"the scores of the mesh's parts are {usual.shape}, or not finite")
        self._usual.extend(usual.astype(np.float64))
        self._held.extend(float(score) for score in meta["held"])
        self._version, self._since = int(meta["version"]), int(meta["since"])
        if meta["model"] is not None:
            model = {k.removeprefix("model."): array for k, array in arrays.items()}
            self._model = MetaModel.restore(meta["model"], model)
            if self._model.num_parts != usual.shape[1]:
                raise StateDamaged("the meta-model does not match the scores of the mesh's parts")
