"""Learns a model from intervals that are taken as normal: self-supervised, deterministic under a seed.

The loss is the Huber loss of the measured targets, and the cross entropy of call paths: all pairs of a mesh
up to 1,000 nodes, above that five pairs without a call path for each one. The last part of the intervals is
the validation set; the weights with the lowest validation loss are returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"training a mesh's model needs {error.name}: pip install 'hopline-mesh[train]'", name=error.name
    ) from None
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, softplus

from hopline_mesh.errors import MeshError
from hopline_mesh.model import torch_model
from hopline_mesh.model.frames import Frame
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.torch_model import Inputs, Parameters
from hopline_mesh.model.weights import Weights

#: Nodes up to which all pairs are compared, and pairs without a call path for each with one above that.
ALL_PAIRS_UP_TO, NON_EDGES = 1000, 5

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hyperparameters of a training.

    Attributes:
        steps: maximum number.
        patience: number of evaluations without improvement after which it stops.
        every: steps between two evaluations.
        learning_rate: of Adam, at first; it falls to 0 along a cosine.
        batch_frames: intervals of a step, fewer where they have many nodes.
        batch_nodes: nodes of a step.
        held_out: share of the intervals, the last ones, for validation.
        denoise: share of nodes whose own `x` a step masks (sets to 0), so that they are reconstructed from
            their neighbours and their past.
        huber: error from which the loss grows linearly.
        link_weight: weight of the call paths' loss.
    """

    steps: int = 1200
    patience: int = 8
    every: int = 50
    learning_rate: float = 3e-3
    batch_frames: int = 32
    batch_nodes: int = 4096
    held_out: float = 0.15
    denoise: float = 0.2
    huber: float = 1.0
    link_weight: float = 0.05


def train(
    frames: Sequence[Frame],
    shape: ModelShape,
    *,
    seed: int = 0,
    schedule: Schedule | None = None,
    progress: Progress | None = None,
    start: Weights | None = None,
) -> Weights:
    """Learn a model.

    Args:
        frames: intervals, oldest first.
        seed: same frames and seed, same weights.
        progress: called with steps done and steps at most.
        start: weights to begin with; None = random ones.

    Raises:
        MeshError: fewer than two intervals with nodes.
        SnapshotInvalid: a frame that does not fit the shape.
    """
    schedule = schedule or Schedule()
    for frame in frames:
        frame.check(shape)
    frames = [frame for frame in frames if len(frame.x)]
    if len(frames) < 2:
        raise MeshError(f"a model is trained on at least 2 intervals with services, not on {len(frames)}")
    held = max(1, round(len(frames) * schedule.held_out))
    rng = np.random.default_rng(seed)
    weights = torch_model.parameters(start or Weights.initial(shape, seed))
    optimiser = torch.optim.Adam(list(weights.values()), lr=schedule.learning_rate)
    best, kept, idle = math.inf, {name: value.detach().clone() for name, value in weights.items()}, 0
    seen, unseen = frames[:-held], frames[-held:]
    order = _batches(len(seen), rng)
    with _one_thread():
        tests = [
            _Batch(unseen[at : at + 64], schedule, np.random.default_rng(seed)) for at in range(0, held, 64)
        ]
        for step in range(schedule.steps):
            if step % schedule.every == 0:
                loss = _evaluate(shape, weights, tests, schedule)
                idle = 0 if loss < best - 1e-6 else idle + 1
                if loss < best:
                    best, kept = loss, {name: value.detach().clone() for name, value in weights.items()}
                if idle >= schedule.patience:
                    break
            rate = 0.5 * schedule.learning_rate * (1 + math.cos(math.pi * step / schedule.steps))
            optimiser.param_groups[0]["lr"] = rate
            batch = _Batch(_take(seen, order, schedule), schedule, rng)
            optimiser.zero_grad(set_to_none=True)
            loss_of(shape, weights, batch, schedule, hide=True).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimiser.step()
            if progress is not None:
                progress(step + 1, schedule.steps)
        if _evaluate(shape, weights, tests, schedule) < best:
            kept = {name: value.detach() for name, value in weights.items()}
    if progress is not None:
        progress(schedule.steps, schedule.steps)
    return Weights(shape, {name: value.numpy() for name, value in kept.items()})


def fine_tune(
    weights: Weights,
    frames: Sequence[Frame],
    *,
    seed: int = 0,
    schedule: Schedule | None = None,
    progress: Progress | None = None,
) -> Weights:
    """Continue a training from given weights, with a small learning rate; the given weights are unchanged.

    Raises:
        MeshError: fewer than two intervals with nodes.
        SnapshotInvalid: a frame that does not fit the weights.
    """
    schedule = schedule or Schedule(steps=200, every=25, learning_rate=5e-4)
    return train(frames, weights.shape, seed=seed, schedule=schedule, progress=progress, start=weights)


class _Batch:
    """Several intervals as one graph, on tensors, with the pairs that are compared."""

    def __init__(self, frames: Sequence[Frame], schedule: Schedule, rng: np.random.Generator) -> None:
        sizes = [len(frame.x) for frame in frames]
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        ends = [
            np.stack([frame.sources, frame.targets]).astype(np.int64) + begin
            for frame, begin in zip(frames, begins, strict=True)
        ]
        self.given = Inputs(
            _cat([frame.x for frame in frames]),
            _cat([frame.h for frame in frames]),
            torch.from_numpy(np.concatenate(ends, axis=1)),
            _cat([frame.e for frame in frames]),
            _cat([frame.g for frame in frames]),
        )
        self.node_targets = _cat([frame.node_targets for frame in frames])
        self.edge_targets = _cat([frame.edge_targets for frame in frames])
        self.num_nodes = sum(sizes)
        hidden = rng.random(self.num_nodes) < schedule.denoise
        self.shown = torch.from_numpy(~hidden).to(torch.float32)[:, None]
        self.others = torch.from_numpy(
            np.concatenate(
                [non_edges(n, edges - b, rng) + b for n, edges, b in zip(sizes, ends, begins, strict=True)],
                axis=1,
            )
        )


def non_edges(num_nodes: int, edges: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pairs of nodes without a call path: all of a small mesh, else some; a node and itself is none.

    Args:
        edges: int64 [2, e].

    Returns: int64 [2, p].
    """
    calls = np.unique(edges[0] * num_nodes + edges[1])
    if num_nodes <= ALL_PAIRS_UP_TO:
        free = np.ones((num_nodes, num_nodes), bool)
        free.reshape(-1)[calls] = False
        np.fill_diagonal(free, False)
        return np.stack(np.nonzero(free))
    drawn = rng.integers(0, num_nodes, (2, NON_EDGES * edges.shape[1] * 11 // 10))
    places = np.searchsorted(calls, keys := drawn[0] * num_nodes + drawn[1])
    taken = calls[np.minimum(places, len(calls) - 1)] == keys if len(calls) else np.zeros(len(keys), bool)
    drawn = drawn[:, ~taken & (drawn[0] != drawn[1])]
    return drawn[:, : NON_EDGES * edges.shape[1]]


def loss_of(
    shape: ModelShape, weights: Parameters, batch: _Batch, schedule: Schedule, *, hide: bool
) -> Tensor:
    """The loss of some intervals; `hide` = with nodes' own inputs hidden, as in training."""
    given = batch.given
    if hide and schedule.denoise:
        given = given._replace(x=given.x * batch.shown)
    z = torch_model.encode(shape, weights, given)
    loss = _huber(torch_model.decode_nodes(weights, z), batch.node_targets, schedule.huber)
    if given.edges.shape[1]:
        expected = torch_model.decode_edges(weights, z, given.edges, given.g)
        loss = loss + _huber(expected, batch.edge_targets, schedule.huber)
        if schedule.link_weight:
            there = torch_model.link_logits(weights, z, given.edges)
            link = binary_cross_entropy_with_logits(there, torch.ones_like(there))
            if batch.others.shape[1]:
                link = link + softplus(torch_model.link_logits(weights, z, batch.others)).mean()
            loss = loss + schedule.link_weight * link
    return loss


def _huber(expected: Tensor, seen: Tensor, delta: float) -> Tensor:
    there = ~seen.isnan()
    if not bool(there.any()):
        return expected.sum() * 0
    return huber_loss(expected[there], seen[there], delta=delta)


def _evaluate(shape: ModelShape, weights: Parameters, tests: Sequence[_Batch], schedule: Schedule) -> float:
    with torch.no_grad():
        losses = [
            0.5 * float(loss_of(shape, weights, batch, schedule, hide=hide))
            for batch in tests
            for hide in (False, True)
        ]
    return sum(losses) / len(tests)


def _cat(arrays: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.float32, copy=False))


def _batches(count: int, rng: np.random.Generator) -> Iterator[int]:
    """Intervals in random order, again and again."""
    while True:
        yield from rng.permutation(count).tolist()


def _take(frames: Sequence[Frame], order: Iterator[int], schedule: Schedule) -> list[Frame]:
    taken: list[Frame] = []
    nodes = 0
    while len(taken) < min(schedule.batch_frames, len(frames)) and nodes < schedule.batch_nodes:
        taken.append(frames[next(order)])
        nodes += len(taken[-1].x)
    return taken


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch to one CPU; the watch uses the other one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
