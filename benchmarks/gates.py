"""Gates of a rollout on honest retrainings and on broken versions: 50 of each, at the defaults.

    python -m benchmarks.gates            the seeds that judge
    python -m benchmarks.gates --choose   the seeds on which the defaults were chosen

Models are trained on generated data: GraphSAGE for two classes, a rare class, five classes and a number,
and boosted trees for two classes and for four. A candidate answers rows that no training saw, one row in a
request; the gates look after every 75 rows, as a rollout does. Only the pure gates run: no server, no
clock.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import commit, machine
from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.row_keys import row_keys
from hopline.errors import BadRequest
from hopline.rollout.gates import Gates, verdict
from hopline.types import AnyArray, ScoreRequest, ScoreResult

CHOOSING, JUDGING = range(10, 15), range(700, 705)
_NODES, _TRAINED, _MORE, _COLUMNS = 4500, 1500, 1650, 8
_CATEGORY = _COLUMNS - 1
_TRIED = range(_MORE, _NODES)
_LOOK_EVERY = 75


class Answers(NamedTuple):
    """Outputs of one version by row; rows that are refused; the time that an answer takes, ms."""

    outputs: dict[str, AnyArray]
    refused: frozenset[int] = frozenset()
    milliseconds: float = 1.0


@dataclass
class World:
    """Generated rows, a graph between them, and what is to be predicted."""

    seed: int
    task: str

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.x = rng.normal(size=(_NODES, _COLUMNS)).astype(np.float32)
        self.x[:, _CATEGORY] = rng.integers(0, 4, _NODES)
        self.edges = rng.integers(0, _NODES, (2, 5 * _NODES))
        weights = rng.normal(size=_COLUMNS)
        weights[_CATEGORY] = 0.3
        mean = np.zeros_like(self.x)
        np.add.at(mean, self.edges[1], self.x[self.edges[0]])
        mean /= np.maximum(np.bincount(self.edges[1], minlength=_NODES), 1)[:, None]
        noise = rng.normal(size=_NODES)
        product = self.x[:, 0] * self.x[:, 1]
        self.value = self.x @ weights + mean @ rng.normal(size=_COLUMNS) + product + noise
        shares = {"binary": [0.6], "rare": [0.95], "classes": [0.2, 0.4, 0.6, 0.8]}
        cuts = shares.get(self.task, [0.25, 0.5, 0.75] if self.task == "trees4" else [0.6])
        self.label = np.digitize(self.value, np.quantile(self.value, cuts))


class Sage:
    """A GraphSAGE of two layers, trained on the first rows."""

    def __init__(self, world: World, seed: int = 0, steps: int = 150, rows: int = _TRAINED) -> None:
        import torch

        torch.manual_seed(seed)
        self._world, self._torch = world, torch
        width = {"classes": 5}.get(world.task, 1)
        layers = [(_COLUMNS, 32), (_COLUMNS, 32), (32, width), (32, width)]
        self._layers = torch.nn.ModuleList([torch.nn.Linear(*layer) for layer in layers])
        degree = np.bincount(world.edges[1], minlength=_NODES).clip(1)
        share = torch.tensor((1 / degree[world.edges[1]]).astype(np.float32))
        ends = torch.tensor(world.edges[::-1].copy())
        size = (_NODES, _NODES)
        self._mean = torch.sparse_coo_tensor(ends, share, size, check_invariants=True).coalesce()
        x = torch.tensor(world.x)
        wanted = torch.tensor(world.value if world.task == "number" else world.label)[:rows]
        optimizer = torch.optim.Adam(self._layers.parameters(), 1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            found = self._forward(x)[:rows]
            if world.task == "classes":
                loss = torch.nn.functional.cross_entropy(found, wanted)
            elif world.task == "number":
                loss = (found[:, 0] - wanted).square().mean()
            else:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(found[:, 0], wanted.float())
            loss.backward()
            optimizer.step()

    def _forward(self, x: Any) -> Any:
        own, near, own_again, near_again = self._layers
        hidden = (own(x) + near(self._mean @ x)).relu()
        return own_again(hidden) + near_again(self._mean @ hidden)

    def logits(self, x: AnyArray) -> AnyArray:
        """Float [n, classes]; [n, 1] for two classes and for a number."""
        with self._torch.no_grad():
            found: AnyArray = self._forward(self._torch.tensor(x)).numpy()
        return found


class Trees:
    """Boosted trees that read the columns alone."""

    def __init__(self, world: World, seed: int = 0, steps: int = 150, rows: int = _TRAINED) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        self._model = HistGradientBoostingClassifier(
            max_iter=steps // 2, random_state=seed, early_stopping=False, max_features=0.6
        ).fit(world.x[:rows], world.label[:rows])

    def logits(self, x: AnyArray) -> AnyArray:
        """As `Sage.logits`."""
        found = np.log(self._model.predict_proba(x).clip(1e-9))
        return found[:, 1:] - found[:, :1] if found.shape[1] == 2 else found


FAMILIES: dict[str, Callable[..., Any]] = {
    "binary": Sage,
    "rare": Sage,
    "classes": Sage,
    "number": Sage,
    "trees": Trees,
    "trees4": Trees,
}


def answers(task: str, logits: AnyArray) -> Answers:
    """The outputs that a server gives for logits."""
    if task == "number":
        return Answers({"value": logits[:, 0]})
    if logits.shape[1] == 1:
        probabilities = 1 / (1 + np.exp(-logits[:, 0]))
        return Answers({"probabilities": probabilities, "label": (probabilities >= 0.5).astype(int)})
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return Answers({"probabilities": shares, "label": shares.argmax(axis=1)})


def honest(world: World, number: int) -> Iterator[tuple[str, Answers]]:
    """Retrainings of one world's model that a team would roll out."""
    train = FAMILIES[world.task]
    yield "more steps", answers(world.task, train(world, 0, 300).logits(world.x))
    yield "other seed", answers(world.task, train(world, 100 + number).logits(world.x))
    yield "a day more", answers(world.task, train(world, 0, 150, _MORE).logits(world.x))
    yield "all three", answers(world.task, train(world, 200 + number, 225, _MORE).logits(world.x))


def faults(world: World, model: Any, kind: str) -> Answers:
    """A broken version of one world's model."""
    rng = np.random.default_rng(world.seed)
    x, task = world.x, world.task
    logits = model.logits(x)
    if kind == "inverted":
        return answers(task, -logits)
    if kind == "shifted bias":
        logits = logits.copy()
        logits[:, 0] += rng.choice([-1, 1]) * 0.7 * logits.std()
    elif kind == "columns permuted":
        order = rng.permutation(_COLUMNS)
        logits = model.logits(x[:, order if (order != np.arange(_COLUMNS)).any() else order[::-1]])
    elif kind == "column of zeros":
        without = [np.where(np.arange(_COLUMNS) == at, np.float32(0), x) for at in range(_COLUMNS)]
        effect = [np.abs(model.logits(each) - logits).mean() for each in without]
        logits = model.logits(without[int(np.argmax(effect))])
    elif kind == "stale features":
        stale = x.copy()
        stale[:, :4] = x[rng.permutation(_NODES), :4]
        logits = model.logits(stale)
    elif kind == "part null":
        logits = np.where(rng.random((_NODES, 1)) < 0.05, np.nan, logits)
    elif kind == "constant":
        logits = np.broadcast_to(logits.mean(axis=0), logits.shape)
    elif kind == "class order":
        order = np.arange(logits.shape[1])
        first, second = rng.choice(len(order), 2, replace=False)
        order[[first, second]] = order[[second, first]]
        logits = logits[:, order]
    elif kind == "segment broken":
        broken = x.copy()
        broken[x[:, _CATEGORY] == rng.integers(4)] = 0
        logits = model.logits(broken)
    elif kind == "slow":
        return answers(task, logits)._replace(milliseconds=2.5)
    elif kind == "refusing":
        refused = frozenset(np.flatnonzero(rng.random(_NODES) < 0.1).tolist())
        return answers(task, logits)._replace(refused=refused)
    return answers(task, logits)


_OF_SCORES = ("binary", "rare", "classes", "number", "trees")
FAULTS: dict[str, tuple[tuple[str, str], ...]] = {
    kind: tuple((kind, task) for task in _OF_SCORES)
    for kind in (
        "inverted",
        "shifted bias",
        "columns permuted",
        "column of zeros",
        "stale features",
        "part null",
        "constant",
        "segment broken",
    )
} | {
    "class order": tuple(
        ("class order", task) for task in ("classes", "trees4", "classes", "trees4", "trees4")
    ),
    "slow or refusing": (
        ("slow", "binary"),
        ("refusing", "classes"),
        ("slow", "trees"),
        ("refusing", "number"),
        ("refusing", "rare"),
    ),
}


class Judged(NamedTuple):
    """The last word of the gates and why, and the rows after which they first let the candidate advance."""

    word: str
    why: str
    good_after: int | None


def judge(current: Answers, candidate: Answers, seed: int) -> Judged:
    """Let the gates look as the rows come, until they roll the candidate back or there are no more rows."""
    rng = np.random.default_rng(seed)
    one, other = OutcomeCounts(), OutcomeCounts()
    word, why, good_after = "wait", "", None
    for number, row in enumerate(rng.permutation(_TRIED).tolist(), 1):
        wanted, found = _result("1", current, row), _result("2", candidate, row)
        for side, tally in ((current, one), (candidate, other)):
            tally.count(wanted, side.milliseconds * rng.uniform(0.5, 1.5) / 1e3)
        outcome = BadRequest("column 'country' is missing") if row in candidate.refused else found
        keys = partial(row_keys, ScoreRequest("m", nodes=[row]))
        other.compare(wanted, outcome, Gates().tolerance, keys)
        if number % _LOOK_EVERY == 0 or number == len(_TRIED):
            word, why, _ = verdict(Gates(), one, other, slow_latency=[0] * len(one.latency))
            if word == "bad":
                return Judged(word, f"after {number} rows: {why}", good_after)
            if word == "good" and good_after is None:
                good_after = number
    return Judged(word, why, good_after)


def _result(version: str, side: Answers, row: int) -> ScoreResult:
    return ScoreResult("m", version, "g", {name: values[[row]] for name, values in side.outputs.items()})


def main() -> None:
    """Judge all versions; print a table, and one JSON line last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--choose", action="store_true", help="the seeds on which the defaults were chosen")
    parser.add_argument("--reasons", action="store_true", help="print the reason of every rollback")
    args = parser.parse_args()
    seeds = CHOOSING if args.choose else JUDGING
    worlds = {(seed, task): World(seed, task) for seed in seeds for task in FAMILIES}
    models = {key: FAMILIES[key[1]](world) for key, world in worlds.items()}
    usual = {key: answers(key[1], models[key].logits(world.x)) for key, world in worlds.items()}
    rows: dict[str, list[bool]] = {}
    good_after: dict[str, list[int]] = {"honest": [], "fault": []}
    chosen = [(seed, task) for seed in seeds for task in _OF_SCORES]
    variants = ("more steps", "other seed", "a day more", "all three")
    for number, key in enumerate(chosen):
        made = dict(honest(worlds[key], key[0]))
        for turn in range(2):
            kind = variants[(number + 2 * turn + number // 4) % 4]
            found = judge(usual[key], made[kind], key[0])
            passes = found.word == "good"
            rows.setdefault(f"honest: {kind}", []).append(passes)
            if found.good_after is not None:
                good_after["honest"].append(found.good_after)
            if not passes or args.reasons:
                print(f"  honest, {kind}, {key[1]}, seed {key[0]}: {found.word}, {found.why}")
    for name, cases in FAULTS.items():
        for seed, (kind, task) in zip(seeds, cases, strict=True):
            key = (seed, task)
            found = judge(usual[key], faults(worlds[key], models[key], kind), seed)
            is_back = found.word == "bad"
            rows.setdefault(f"fault: {name}", []).append(is_back)
            if is_back and found.good_after is not None:
                good_after["fault"].append(found.good_after)
            if not is_back or args.reasons:
                print(f"  fault, {kind}, {task}, seed {seed}: {found.word}, {found.why}")
    print(f"{'versions':28}{'right':>8}{'of':>5}")
    for name, right in rows.items():
        print(f"{name:28}{sum(right):8}{len(right):5}")
    median = int(np.median(good_after["honest"]))
    print(
        f"An honest version may advance after {median} rows (median), {max(good_after['honest'])} at most"
    )
    print(f"Faults that could advance a step before they were rolled back: {len(good_after['fault'])}")
    sums = {
        side: (sum(map(sum, judged)), sum(map(len, judged)))
        for side in ("honest", "fault")
        if (judged := [right for name, right in rows.items() if name.startswith(side)])
    }
    print(
        json.dumps(
            {
                "benchmark": "gates",
                "seeds": "choosing" if args.choose else "judging",
                "honest_pass": sums["honest"][0],
                "honest": sums["honest"][1],
                "faults_rolled_back": sums["fault"][0],
                "faults": sums["fault"][1],
                "honest_good_after": good_after["honest"],
                "faults_that_advanced": len(good_after["fault"]),
                "by_kind": {name: f"{sum(right)}/{len(right)}" for name, right in rows.items()},
                "machine": machine(),
                "commit": commit(),
            }
        )
    )


if __name__ == "__main__":
    main()
