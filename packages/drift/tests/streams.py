"""Seeded streams of requests to made-up models, and a server's clock under the test's control."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from hopline.answering.served import Ran
from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest, ScoreResult
from hopline_drift.monitor import DriftMonitor

SHOPS = np.array(["food", "travel", "games", "jewels"], object)
USUAL = (0.5, 0.3, 0.15, 0.05)
SLICE_S = 600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_400.0  # the start of a slice

    def __call__(self) -> float:
        return self.now


class FakeServed:
    """Enough of a `Version` for recorders."""

    graph_version = "g"

    def __init__(self, name: str = "fraud", version: str = "1", model: Any = None) -> None:
        self.name = name
        self.version = version
        self.model = model

    def graph_model(self) -> Any:
        return self.model

    def info(self, versions: tuple[str, ...]) -> Any:
        return SimpleNamespace(properties={}, versions=versions)


def settings(folder: Any, worker: int = 0, **others: Any) -> Config:
    base = {"drift.enabled": True, "drift.path": folder, "drift.reference_size": 2000}
    changes = {name.replace("__", "."): value for name, value in others.items()}
    return load_config(overrides={**base, **changes}).replace(worker__index=worker)


def monitor(folder: Any, clock: Clock, worker: int = 0, **others: Any) -> DriftMonitor:
    return DriftMonitor(settings(folder, worker, **others), Metrics(), clock, seed=worker)


class Traffic:
    """Payments: an amount, a shop, and a score that follows the amount.

    Attributes:
        amount: mean of its logarithm.
        shops: shares of SHOPS.
        offset: of scores.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.amount = 3.0
        self.shops = USUAL
        self.offset = 0.0

    def batch(self, served: Any, count: int) -> Ran:
        amounts = self.random.lognormal(self.amount, 1.0, count)
        shops = self.random.choice(SHOPS, count, p=self.shops)
        scores = 1 / (1 + np.exp(-(np.log(amounts) - 5 + self.random.normal(0, 1, count) + self.offset)))
        requests = [
            ScoreRequest(served.name, columns={"amount": [float(amount)], "shop": [shop]})
            for amount, shop in zip(amounts, shops, strict=True)
        ]
        outcomes = [
            answer(
                served, {"probabilities": np.array([score], np.float32), "label": np.array([score > 0.5])}
            )
            for score in scores
        ]
        return ran(served, requests, outcomes)


def answer(served: Any, outputs: Mapping[str, Any], **others: Any) -> ScoreResult:
    return ScoreResult(served.name, served.version, served.graph_version, outputs, **others)


def ran(served: Any, requests: list[ScoreRequest], outcomes: list[Any]) -> Ran:
    return Ran(served, requests, outcomes, [0.0] * len(requests), 0.0, {}, 0.0)


def quantities(monitor: DriftMonitor, model: str = "fraud") -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> what the report says of it."""
    (version,) = monitor.report(model)["versions"]
    return {(each["kind"], each["name"]): each for each in version["quantities"]}
