"""Everything that the example serves: trains it, packages it, and says what its answers must be.

<folder>/graph                              Tolokers
<folder>/models/fraud_trees/1               the checkout's trees, with their preprocessing
                fraud/1                     pipeline: trees, rules
                workers/1                   the GNN, all neighbours; workers_sampled/1: 25 at each hop
                tolokers_trees/1            trees on its embedding
                tolokers_risk/1             pipeline: GNN, trees, rules; tolokers_risk_sampled/1
                fraud_trees/2, /3           later, by `Checkout.publish`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

import hopline
from examples.fraud import embedding, risk, trees
from examples.fraud.embedding import Embedding, Neighbourhood
from examples.fraud.risk import Split
from examples.fraud.rules import rules_on
from examples.fraud.tolokers import Tolokers, load
from examples.fraud.transactions import Transactions, generate
from hopline.types import FloatArray
from hopline_demo.process import serving

GNN, GNN_SAMPLED, GNN_TREES = "workers", "workers_sampled", "tolokers_trees"
RISK, RISK_SAMPLED = "tolokers_risk", "tolokers_risk_sampled"
FANOUTS = [25, 25]
_NUM_TRANSACTIONS = 40_000
_PARITY_ROWS, _NODES_OF_A_REQUEST = 400, 2000

_RISK = f"""\
description = "A crowd worker: what a GNN says of the neighbourhood, trees on that, rules"

[inputs]
nodes = true

[[step]]
id = "gnn"
kind = "model"
model = "{{gnn}}"
nodes = "input.nodes"

[[step]]
id = "trees"
kind = "model"
model = "{GNN_TREES}"
columns = {{{{ "state_*" = "gnn.embedding" }}}}

"""


@dataclass(frozen=True, eq=False)
class Checkout:
    """The fraud model.

    Attributes:
        repository: folder of models.
        train, validation, test: transactions, in the order of time; validation rows check packages.
        first: what version 1 was made from.
    """

    repository: Path
    train: Transactions
    validation: Transactions
    test: Transactions
    first: Pipeline

    def better(self) -> Pipeline:
        """Version 2: twice the training data."""
        return trees.fitted(self.train)

    def broken(self) -> Pipeline:
        """Version 3: see `trees.fitted_in_cents`."""
        return trees.fitted_in_cents(self.train)

    def publish(self, estimator: Pipeline, version: str) -> None:
        """Put a version into the repository; a running server loads it when it is asked to."""
        trees.package(estimator, self.validation.frame[:_PARITY_ROWS], self.repository, version)


@dataclass(frozen=True, eq=False)
class Risk:
    """The model of crowd workers, of one public split.

    Attributes:
        data, split: what it was trained on.
        scores: probability of each node as the estimators have it, without a server: float32 [n].
        auc: on the test nodes.
    """

    data: Tolokers
    split: Split
    scores: FloatArray
    auc: float


@dataclass(frozen=True, eq=False)
class Built:
    """All of it.

    Attributes:
        graph, repository: what to serve.
    """

    graph: Path
    repository: Path
    checkout: Checkout
    risk: Risk


def build(folder: Path, progress: Callable[[str], object] = lambda text: None) -> Built:
    """Train and package what the server starts with.

    Args:
        folder: empty, or to be made.
        progress: called with what is being done.
    """
    repository = folder / "models"
    progress("trees of the checkout")
    checkout = build_checkout(repository)
    return Built(folder / "graph", repository, checkout, build_risk(folder, progress))


def build_checkout(repository: Path) -> Checkout:
    """`fraud_trees/1` and the pipeline `fraud/1`, which need no graph.

    Version 1 is older: it knows only the first half of what the others are trained on.
    """
    repository.mkdir(parents=True, exist_ok=True)
    train, validation, test = generate(_NUM_TRANSACTIONS).parts()
    first = trees.fitted(train[: len(train) // 2])
    checkout = Checkout(repository, train, validation, test, first)
    checkout.publish(first, "1")
    trees.write_pipeline(repository)
    return checkout


def build_risk(folder: Path, progress: Callable[[str], object] = lambda text: None) -> Risk:
    """The GNN of the first public split, trees on what it answers, and their pipelines."""
    data = load()
    split = Split.of(data, 0)
    graph = hopline.Graph.from_edges(data.edge_index, data.features).save(folder / "graph")
    progress("GNN of crowd workers")
    neighbourhood = Neighbourhood(data.features.shape[1])
    states = embedding.states_of(neighbourhood, data.features, data.edge_index)
    learned = risk.learn(data, states, split, lambda: None)
    module = Embedding(neighbourhood, learned.opinions)
    for name, fanouts in ((GNN, [-1, -1]), (GNN_SAMPLED, FANOUTS)):
        progress(f"packaging {name}")
        hopline.package(
            module,
            graph,
            folder / "models",
            name=name,
            fanouts=fanouts,
            task="embedding",
            progress=False,
        )
    progress("trees on the embedding")
    answered = _answered(folder, len(data.y))
    as_columns = [f"state_{at}" for at in range(answered.shape[1])]
    inputs = answered.copy()
    inputs[split.train, -1] = learned.inputs[split.train, -1]
    estimator = risk.fitted(pd.DataFrame(inputs, columns=as_columns), data.y, split)
    frame = pd.DataFrame(answered, columns=as_columns)
    sample = frame.iloc[split.test[:_PARITY_ROWS]]
    hopline.package_tabular(estimator, sample, folder / "models", name=GNN_TREES, progress=False)
    for name, gnn in ((RISK, GNN), (RISK_SAMPLED, GNN_SAMPLED)):
        place = folder / "models" / name / "1"
        place.mkdir(parents=True)
        (place / "pipeline.toml").write_text(_RISK.format(gnn=gnn) + rules_on("trees.probabilities"))
    scores = trees.scores(estimator, frame)
    return Risk(data, split, scores, risk.auc(estimator, frame, data.y, split.test))


def _answered(folder: Path, num_nodes: int) -> FloatArray:
    """The embedding of every node as a server answers it, float32 [n, d].

    Trees compare with values that occur in their training data. PyG's differ from these in the last bit,
    which is enough to send a row down another branch; so trees learn from what they will be asked with.
    """
    with (
        serving(
            folder / "graph", folder / "models", grpc_port=-1, settings=[f"models.names={GNN}"]
        ) as served,
        hopline.Client(served.url) as client,
    ):
        found: list[Any] = []
        for at in range(0, num_nodes, _NODES_OF_A_REQUEST):
            nodes = np.arange(at, min(at + _NODES_OF_A_REQUEST, num_nodes))
            found.append(client.score(GNN, nodes, outputs=["embedding"]).outputs["embedding"])
    embeddings: FloatArray = np.concatenate(found)
    return embeddings
