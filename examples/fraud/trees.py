"""The checkout's model: scikit-learn preprocessing and XGBoost, fitted together, packaged as one artifact.

And the pipeline in which rules follow it: what a score means is for the shop to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from xgboost import XGBClassifier

import hopline
from examples.fraud.rules import rules_on
from examples.fraud.transactions import Transactions
from hopline_tabular.packaging import TabularReport

MODEL, PIPELINE = "fraud_trees", "fraud"
AMOUNTS = ["amount", "amount_24h"]
TEXTS = ["merchant_category", "country", "entry"]
NUMBERS = [
    *("hour", "account_age_days", "email_age_days", "transactions_24h", "is_new_device", "distance_km"),
]
_NUM_TREES = 120

_PIPELINE = f"""\
description = "A card transaction: its score, and what the checkout does"

[inputs.columns]
amount = "FP64"
amount_24h = "FP64"
merchant_category = "BYTES"
country = "BYTES"
entry = "BYTES"
hour = "INT64"
account_age_days = "FP64"
email_age_days = "FP64"
transactions_24h = "INT64"
is_new_device = "INT64"
distance_km = "FP64"

[[step]]
id = "trees"
kind = "model"
model = "{MODEL}"
columns = {{ "*" = "input.columns" }}

{rules_on("trees.probabilities")}"""


def preprocessing() -> ColumnTransformer:
    """Logarithms of amounts, medians for absent numbers, a column for each category."""
    return ColumnTransformer(
        [
            ("amounts", FunctionTransformer(np.log1p), AMOUNTS),
            ("numbers", SimpleImputer(strategy="median", add_indicator=True), NUMBERS),
            ("texts", OneHotEncoder(handle_unknown="ignore"), TEXTS),
        ]
    )


def fitted(train: Transactions) -> Pipeline:
    """Preprocessing and trees.

    Always as many trees: most transactions are harmless, and how near to 0 their scores come hangs on
    little else. Had one version more trees than another, the gate on shifted scores would see just that.
    """
    before = preprocessing().fit(train.frame)
    trees = XGBClassifier(
        n_estimators=_NUM_TREES,
        max_depth=4,
        learning_rate=0.1,
        subsample=0.8,
        colsample_bytree=0.8,
        random_state=0,
        n_jobs=1,
    )
    trees.fit(before.transform(train.frame), train.is_fraud)
    return make_pipeline(before, trees)


def fitted_in_cents(train: Transactions) -> Pipeline:
    """A fault from practice: this export had amounts in cents, and the checkout sends euros.

    On data from the same export it is as good as ever, and its package agrees with it.
    """
    frame = train.frame.assign(**{name: train.frame[name] * 100 for name in AMOUNTS})
    return fitted(Transactions(frame, train.is_fraud))


def package(estimator: Pipeline, sample: pd.DataFrame, repository: Path, version: str) -> TabularReport:
    """Package the checkout's model; `sample`: rows that it was not trained on."""
    return hopline.package_tabular(
        estimator, sample, repository, name=MODEL, version=version, progress=False
    )


def write_pipeline(repository: Path) -> None:
    """The pipeline `fraud`: trees, then rules."""
    folder = repository / PIPELINE / "1"
    folder.mkdir(parents=True)
    (folder / "pipeline.toml").write_text(_PIPELINE)


def scores(estimator: Pipeline, frame: pd.DataFrame) -> Any:
    """Probability of fraud as the estimator itself has it, float32 [n]."""
    return estimator.predict_proba(frame)[:, 1].astype(np.float32)
