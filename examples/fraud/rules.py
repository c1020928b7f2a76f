"""Decisions from a score: the shop makes them, so they are in a pipeline and not in a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from hopline.types import AnyArray, FloatArray

#: Above the first a transaction is blocked; from the second on the customer is asked for a second factor.
BLOCK, STEP_UP = 0.82, 0.60
DECISIONS = ("block", "step_up", "allow")


def rules_on(score: str) -> str:
    """The end of a pipeline.toml: the rules, and the outputs `score` and `decision`."""
    return f"""\
[[step]]
id = "verdict"
kind = "rules"
default = "allow"
rules = [
    {{ when = "{score} > {BLOCK:.2f}", then = "block" }},
    {{ when = "{score} >= {STEP_UP:.2f}", then = "step_up" }},
]

[outputs]
score = "{score}"
decision = "verdict.decision"
"""


def decided(scores: FloatArray) -> AnyArray:
    """The same in NumPy, for comparison: a text for each score."""
    # The rules' limits are of the scores' own type: 0.82 as float32 is no more than 0.82.
    block, step_up = np.float32(BLOCK), np.float32(STEP_UP)
    return np.select([scores > block, scores >= step_up], ["block", "step_up"], "allow")


def counted(decisions: Iterable[str]) -> dict[str, int]:
    """Counts of the decisions."""
    counts = Counter(decisions)
    return {name: counts[name] for name in DECISIONS}
