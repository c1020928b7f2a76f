"""What tests write into files of precomputed answers; processes of their own import this, and no torch."""

import msgspec
import numpy as np

from hopline.engine.precomputed_file import PrecomputedPlan

N, D, C = 300, 8, 3


def plan(**changes):
    made = PrecomputedPlan("m", "1", "a" * 64, "g0", "node", N, D, C)
    return msgspec.structs.replace(made, **changes)


def content(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((n, D)).astype(np.float32),
        rng.standard_normal((n, C)).astype(np.float32),
        rng.integers(0, 2**63, n).astype(np.uint64),
    )
