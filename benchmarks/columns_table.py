"""The table of `benchmarks.columns`, and its preprocessing: 20 columns become 128 features."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Categories of each code: with the numbers, 128 features.
CATEGORIES = (4, 6, 8, 10, 14, 18, 24, 32)
NUMBERS = tuple(f"amount_{at}" for at in range(12))
CODES = tuple(f"code_{at}" for at in range(len(CATEGORIES)))


def draw(num_nodes: int) -> Any:
    """The table of nodes, a `pandas.DataFrame`; one in twenty numbers is missing."""
    import pandas as pd

    random = np.random.default_rng(7)
    found: dict[str, Any] = {}
    for name in NUMBERS:
        values = random.lognormal(2, 1, num_nodes)
        values[random.random(num_nodes) < 0.05] = np.nan
        found[name] = values
    for name, size in zip(CODES, CATEGORIES, strict=True):
        words = np.array([f"{name}={at}" for at in range(size)], object)
        found[name] = words[random.integers(0, size, num_nodes)]
    return pd.DataFrame(found)


def transformer() -> Any:
    """The preprocessing, not fitted."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    codes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer([("numbers", numbers, list(NUMBERS)), ("codes", codes, list(CODES))])
