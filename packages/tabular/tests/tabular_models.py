"""Tables of made-up payments, and pipelines fitted on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, RobustScaler, StandardScaler

CATEGORIES = ("grocery", "fuel", "travel", "games")


def payments(num_rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """Numbers, whole numbers and strings; some of each absent."""
    rng = np.random.default_rng(seed)
    country = rng.choice(["DE", "FR", "US"], num_rows).astype(object)
    country[rng.random(num_rows) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "amount": rng.lognormal(3, 1.5, num_rows).round(2),
            "age": rng.integers(18, 90, num_rows),
            "balance": np.where(rng.random(num_rows) < 0.1, np.nan, rng.normal(1000, 500, num_rows)),
            "category": rng.choice(CATEGORIES, num_rows),
            "country": country,
            "weekday": rng.integers(0, 7, num_rows),
        }
    )


def is_fraud(frame: pd.DataFrame) -> Any:
    """0 or 1 for each row."""
    return ((np.log1p(frame.amount) + 2 * (frame.category == "games") + frame.age % 3) > 5).astype(int)


def risk_class(frame: pd.DataFrame) -> Any:
    """ "low", "medium" or "high" for each row."""
    return np.array(["low", "medium", "high"])[np.digitize(np.log(frame.amount), [2.5, 3.5])]


def preprocessing() -> ColumnTransformer:
    """Logarithms, scales, medians for absent numbers, one column for each category."""
    return ColumnTransformer(
        [
            ("log", make_pipeline(FunctionTransformer(np.log1p), StandardScaler()), ["amount"]),
            (
                "numbers",
                make_pipeline(SimpleImputer(strategy="median", add_indicator=True), RobustScaler()),
                ["age", "balance"],
            ),
            ("categories", OneHotEncoder(handle_unknown="ignore"), ["category", "country", "weekday"]),
        ]
    )


def pipeline(predictor: Any, target: Any = is_fraud, steps: Any = None) -> Any:
    """Preprocessing and a predictor, fitted on 600 payments."""
    frame = payments()
    return make_pipeline(preprocessing() if steps is None else steps, predictor).fit(frame, target(frame))


def columns_of(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Rows as requests bring them."""
    return {
        name: [None if value != value else value for value in frame[name].tolist()]
        for name in frame.columns
    }
