"""`observe` and `judge` in plain NumPy, over whole histories: slow, and from scratch at each interval."""

from __future__ import annotations

import numpy as np

from hopline_mesh.detect import kernels


def transformed(values: np.ndarray, kinds: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Values on the scale on which they are compared; NaN where one cannot have been measured."""
    with np.errstate(all="ignore"):
        scales = {
            kernels.AMOUNT: np.where(values >= 0, np.log(values + offset), np.nan),
            kernels.SHARE: np.where((values >= -0.001) & (values <= 1.001), values, np.nan),
            kernels.REAL: np.arcsinh(values),
            kernels.PLAIN: values,
        }
        result = np.full(values.shape, np.nan)
        for kind, scale in scales.items():
            result = np.where(kinds == kind, scale, result)
        return np.where(np.abs(values) < kernels.ABSURD, result, np.nan)


def window_mean(ring: np.ndarray, anchor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of what a ring holds, from scratch, and how much that is."""
    there = ring != kernels.ABSENT
    count = there.sum(axis=0)
    total = np.where(there, ring.astype(np.int64), 0).sum(axis=0)
    return anchor + kernels.STEP * total / np.maximum(count, 1), count


def nearer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """See `kernels.nearer`."""
    return np.where((a > 0) & (b > 0), np.minimum(a, b), np.where((a < 0) & (b < 0), np.maximum(a, b), 0))


def lasting(history: list[np.ndarray], hold: int) -> np.ndarray:
    """Debounced deviation of the newest of some intervals, in quarters; oldest first."""
    newest = history[-1].astype(int)
    sizes = [np.abs(newest)]
    for k in range(1, hold):
        other = history[-1 - k].astype(int) if k < len(history) else np.zeros_like(newest)
        sizes.append(np.where((other > 0) == (newest > 0), np.abs(other), 0))
    ordered = np.sort(np.stack(sizes), axis=0)
    # One between may be smaller, if the oldest is out of bounds itself.
    least = np.where((hold >= 4) & (sizes[-1] > 0), ordered[1], ordered[0])
    return np.minimum(np.stack(sizes).sum(axis=0) / hold, kernels.UNEVEN * least)
