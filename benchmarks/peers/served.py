"""Needs of a peer's server: its command line, and the model of the workload that it names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.model_workload import Facts
from benchmarks.peers.pyg_model import Scorer
from benchmarks.peers.typed_models import AttentionScorer, HeteroScorer


class Scores(Protocol):
    """The graph, the features and a model in memory; `score` is all that a server calls."""

    num_outputs: int

    def score(self, nodes: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Answers of some nodes in one batch, float32 [n, num_outputs]."""
        ...


_KINDS: dict[str, Callable[[Path, int], Scores]] = {
    "sage": Scorer,
    "gatv2": AttentionScorer,
    "hetero": HeteroScorer,
}


def load(workload: Path, num_threads: int) -> Scores:
    """The model of a workload's folder, whichever it is; `num_threads` are torch's."""
    return _KINDS[Facts.read(workload).model](workload, num_threads)


def arguments(description: str) -> argparse.ArgumentParser:
    """The command line that all peers share; a peer may add its own tuning."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    return parser
