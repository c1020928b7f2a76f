"""Trees on a worker's own figures, and trees that also see the GNN's embedding of them: ROC-AUC of both.

Test labels are only ever read to compute an AUC. Validation labels say when to stop, and which of two sizes
of trees to take; both for trees alone and for trees on embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from xgboost import XGBClassifier

from examples.fraud import embedding
from examples.fraud.embedding import Neighbourhood, Opinions
from examples.fraud.tolokers import Tolokers, load
from hopline.types import FloatArray, IdArray

#: (fraction done, what is being done)
Progress = Callable[[float, str], object]

_SIZES: tuple[dict[str, Any], ...] = (
    {"max_depth": 4, "learning_rate": 0.05, "min_child_weight": 5, "colsample_bytree": 0.8},
    {"max_depth": 5, "learning_rate": 0.03, "min_child_weight": 10, "colsample_bytree": 0.4},
)


@dataclass(frozen=True, eq=False)
class Split:
    """One public split: int64 node ids."""

    train: IdArray
    validation: IdArray
    test: IdArray

    @classmethod
    def of(cls, data: Tolokers, number: int) -> Split:
        masks = (data.train, data.validation, data.test)
        return cls(*(np.flatnonzero(mask[number]) for mask in masks))


@dataclass(frozen=True, eq=False)
class Learned:
    """The networks of one split, and what trees learn from: float32 [n, width + 1]."""

    opinions: Opinions
    inputs: FloatArray


def learn(data: Tolokers, states: FloatArray, split: Split, advance: Callable[[], object]) -> Learned:
    """Train the networks."""
    opinions, opinion = embedding.train(states, data.y, split.train, split.validation, advance=advance)
    return Learned(opinions, np.column_stack([states, opinion]))


def fitted(inputs: Any, labels: IdArray, split: Split) -> XGBClassifier:
    """The trees that do best on the validation nodes."""
    found = []
    for size in _SIZES:
        trees = XGBClassifier(
            **size,
            n_estimators=1500,
            subsample=0.8,
            early_stopping_rounds=40,
            eval_metric="auc",
            random_state=0,
            n_jobs=1,
        )
        rows, held = _rows(inputs, split.train), _rows(inputs, split.validation)
        trees.fit(rows, labels[split.train], eval_set=[(held, labels[split.validation])], verbose=False)
        found.append(trees)
    return max(found, key=lambda trees: float(trees.best_score))


def _rows(inputs: Any, nodes: IdArray) -> Any:
    return inputs.iloc[nodes] if hasattr(inputs, "iloc") else inputs[nodes]


def auc(trees: XGBClassifier, inputs: Any, labels: IdArray, nodes: IdArray) -> float:
    """ROC-AUC on some nodes."""
    return float(roc_auc_score(labels[nodes], trees.predict_proba(_rows(inputs, nodes))[:, 1]))


def auc_of_splits(
    num_splits: int = 10, progress: Progress = lambda done, text: None
) -> dict[str, list[float]]:
    """ROC-AUC on the test nodes of the first public splits.

    Args:
        num_splits: up to ten.
        progress: called with the progress of the work.

    Returns: "trees" on the workers' own figures, "gnn_trees" on the embedding, "gnn" the networks alone.
    """
    data = load()
    neighbourhood = Neighbourhood(data.features.shape[1])
    states = embedding.states_of(neighbourhood, data.features, data.edge_index)
    found: dict[str, list[float]] = {"trees": [], "gnn_trees": [], "gnn": []}
    for number in range(num_splits):
        progress(number / num_splits, f"split {number + 1} of {num_splits}")
        split = Split.of(data, number)
        learned = learn(data, states, split, lambda: None)
        gnn = learned.inputs[split.test, -1]
        found["gnn"].append(float(roc_auc_score(data.y[split.test], gnn)))
        for name, inputs in (("trees", data.x), ("gnn_trees", learned.inputs)):
            found[name].append(auc(fitted(inputs, data.y, split), inputs, data.y, split.test))
    progress(1.0, "")
    return found
