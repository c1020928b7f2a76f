"""Builds a folder that can be served, once for each set of parameters.

<folder>/graph                the snapshot
<folder>/models/fraud/1       the packaged model
<folder>/accounts.npz         ring of each account, and which accounts were held out
<folder>/demo.json            the `Outcome`; written last, so its existence marks a finished folder
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

import hopline
from hopline.artifact import read_spec
from hopline.engine.model import Model
from hopline.graph import Graph
from hopline.types import FloatArray, IdArray
from hopline_demo.network import FEATURE_NAMES, RECIPE, Network, generate
from hopline_demo.screen import Screen

MODEL = "fraud"
SEED = 1
#: Share of rings, and of other accounts, that are held out from training.
_HELD_OUT = 0.3
#: Fewest epochs of training, and fewest accounts over all epochs.
_LEAST_EPOCHS, _LEAST_VISITS = 6, 300_000
_CHUNK = 4096


class Recipe(msgspec.Struct, frozen=True):
    """The parameters that determine a folder's content."""

    accounts: int
    transfers: int
    epochs: int
    seed: int = SEED
    fanouts: tuple[int, int] = (10, 5)
    network: int = RECIPE
    hopline: str = hopline.__version__

    @classmethod
    def of(cls, accounts: int, transfers: int, epochs: int | None = None, seed: int = SEED) -> Recipe:
        """A recipe; with epochs None, small networks get more epochs."""
        by_size = max(_LEAST_EPOCHS, _LEAST_VISITS // max(accounts, 1))
        return cls(accounts, transfers, by_size if epochs is None else epochs, seed)


class Quality(msgspec.Struct, frozen=True):
    """Quality of a model on held-out accounts.

    Attributes:
        auc: area under the ROC curve: probability that a member scores above an honest account.
        average_precision: area under the precision-recall curve; random scores get the share of members.
        precision_at_members: of the m most suspicious accounts, share of members (m = number of members).
    """

    auc: float
    average_precision: float
    precision_at_members: float

    @classmethod
    def of(cls, is_fraud: NDArray[np.bool_], scores: FloatArray) -> Quality:
        """The quality of scores, float [n]."""
        from sklearn.metrics import average_precision_score, roc_auc_score

        top = np.argsort(-scores, kind="stable")[: np.count_nonzero(is_fraud)]
        return cls(
            float(roc_auc_score(is_fraud, scores)),
            float(average_precision_score(is_fraud, scores)),
            float(is_fraud[top].mean()),
        )


class Outcome(msgspec.Struct, frozen=True):
    """The results of a recipe.

    Attributes:
        num_rings, num_members: in the network.
        num_held_out, num_held_out_members: accounts that training did not see.
        features_only, with_graph: quality on held-out accounts; `with_graph` is of the packaged model with
            sampled neighbourhoods.
        parity: largest difference between the packaged model and PyG at full neighbourhoods.
        member, ordinary: example held-out accounts, each the median of its kind by score.
    """

    recipe: Recipe
    num_rings: int
    num_members: int
    num_held_out: int
    num_held_out_members: int
    features_only: Quality
    with_graph: Quality
    parity: float
    member: int
    ordinary: int


def finished(folder: Path, recipe: Recipe) -> Outcome | None:
    """The outcome of an earlier run in `folder`, if it used the same recipe."""
    try:
        outcome = msgspec.json.decode((folder / "demo.json").read_bytes(), type=Outcome)
        Graph.open(folder / "graph")
        read_spec(folder / "models" / MODEL / "1")
    except (OSError, ValueError):  # missing, of another format, or damaged: built again
        return None
    return outcome if outcome.recipe == recipe else None


def make(folder: Path, recipe: Recipe, screen: Screen) -> Outcome:
    """Generate, train and package; replaces the results of an earlier run in `folder`.

    Raises: HoplineError: an invalid size, or a folder with other content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.json").unlink(missing_ok=True)
    with screen.step("network") as step:
        network = generate(recipe.accounts, recipe.transfers, recipe.seed)
        graph = Graph.from_edges(
            np.stack([network.payer, network.payee]),
            network.features,
            edge_attr=network.amount,
            edge_time=network.time,
            feature_names=FEATURE_NAMES,
            attr_names=("amount",),
            progress=step.progress,
        ).save(folder / "graph", overwrite=True, progress=step.progress)
        step.say(
            f"{recipe.accounts:,} accounts, {recipe.transfers:,} transfers; {network.num_rings} fraud "
            f"rings with {network.is_fraud.sum():,} of the accounts"
        )
    held_out = hold_out(network, recipe.seed)
    np.savez(folder / "accounts.npz", ring=network.ring, held_out=held_out)
    return _learn(folder, recipe, screen, network, graph, held_out)


def hold_out(network: Network, seed: int) -> NDArray[np.bool_]:
    """Held-out accounts, bool [n]: whole rings (training sees none of their members), and others."""
    rng = np.random.default_rng(seed + 1)
    rings = np.zeros(network.num_rings, np.bool_)
    rings[rng.permutation(network.num_rings)[: max(1, round(network.num_rings * _HELD_OUT))]] = True
    others = rng.random(len(network.ring)) < _HELD_OUT
    return np.where(network.is_fraud, rings[network.ring], others)


def packaged_scores(folder: Path, global_ids: IdArray) -> FloatArray:
    """Probabilities of distinct accounts from the artifact itself, without a server: float32 [n]."""
    artifact = folder / "models" / MODEL / "1"
    model = Model(artifact, read_spec(artifact), Graph.open(folder / "graph"))
    found = []
    for at in range(0, len(global_ids), _CHUNK):
        states = model.final_states({"node": global_ids[at : at + _CHUNK]})["node"]
        found.append(model.outputs(("probabilities",), states)["probabilities"])
    return np.concatenate(found)


def _learn(
    folder: Path,
    recipe: Recipe,
    screen: Screen,
    network: Network,
    graph: Graph,
    held_out: NDArray[np.bool_],
) -> Outcome:
    is_fraud = network.is_fraud
    known, held = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    with screen.step("training") as step:
        import torch

        from hopline_demo.learning import train_mlp, train_sage

        # Small batches: several threads mostly wait for each other.
        torch.set_num_threads(1)
        mlp = train_mlp(
            network.features,
            is_fraud,
            known,
            epochs=recipe.epochs,
            seed=recipe.seed,
            progress=step.progress,
        )
        sage = train_sage(
            graph,
            is_fraud,
            known,
            fanouts=recipe.fanouts,
            epochs=recipe.epochs,
            seed=recipe.seed,
            progress=step.progress,
        )
        with torch.no_grad():
            by_features = mlp(torch.from_numpy(network.features[held]))[:, 0].numpy()
        step.say(f"GraphSAGE, 2 layers, {recipe.epochs} epochs; and an MLP that reads only the features")
    with screen.step("packaging") as step:
        report = hopline.package(
            sage,
            graph,
            folder / "models",
            name=MODEL,
            fanouts=recipe.fanouts,
            task="binary",
            classes=("in a fraud ring",),
            overwrite=True,
            progress=step.progress,
        )
        parity = report.spec.parity["max_abs_diff"]
        assert isinstance(parity, float)
        scores = packaged_scores(folder, held)
        step.say(
            f"ONNX, {report.num_bytes / 1e3:.0f} kB, fanouts {list(recipe.fanouts)}; "
            f"largest difference from PyG {parity:.0e}"
        )
    outcome = Outcome(
        recipe=recipe,
        num_rings=network.num_rings,
        num_members=int(is_fraud.sum()),
        num_held_out=len(held),
        num_held_out_members=int(is_fraud[held].sum()),
        features_only=Quality.of(is_fraud[held], by_features),
        with_graph=Quality.of(is_fraud[held], scores),
        parity=parity,
        member=_median(held[is_fraud[held]], scores[is_fraud[held]]),
        ordinary=_median(held[~is_fraud[held]], scores[~is_fraud[held]]),
    )
    (folder / "demo.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))
    return outcome


def _median(accounts: IdArray, scores: FloatArray) -> int:
    return int(accounts[np.argsort(scores, kind="stable")[len(scores) // 2]])
