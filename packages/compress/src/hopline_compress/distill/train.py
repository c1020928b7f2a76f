"""The student, an MLP over a node's own row, and its training: soft labels of a teacher, early stopping.

One seed gives one result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hopline.errors import BadRequest
from hopline.types import FloatArray, IdArray
from hopline_compress.distill.propagate import directions
from hopline_compress.distill.settings import Settings


class Student(nn.Module):
    """An MLP from features, and structure features if any, to logits.

    Args:
        num_inputs: width of x. num_structure: width of the structure features, 0 if it has none.
        num_classes: width of the answer.
    """

    def __init__(self, num_inputs: int, num_structure: int, num_classes: int, settings: Settings) -> None:
        super().__init__()
        widths = [num_inputs + num_structure] + [settings.hidden] * (settings.layers - 1)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:])
        self.out = nn.Linear(widths[-1], num_classes)
        self.dropout = settings.dropout

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [n, num_inputs + num_structure]. Returns: logits float32 [n, num_classes]."""
        h = self._drop(x)
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            h = self._drop(torch.relu(norm(linear(h))))
        answer: Tensor = self.out(h)
        return answer

    def widened(self, reduced_by: Tensor, settings: Settings) -> Student:
        """The equivalent student over unreduced features, from one that learned from reduced ones.

        Args:
            reduced_by: float32 [F, R], the matrix that the features were multiplied by.
        """
        first = self.hidden[0] if len(self.hidden) else self.out
        assert isinstance(first, nn.Linear)
        num_inputs, num_reduced = reduced_by.shape
        num_structure = first.in_features - num_reduced
        wide = Student(num_inputs, num_structure, self.out.out_features, settings)
        state = self.state_dict()
        name = "hidden.0.weight" if len(self.hidden) else "out.weight"
        weight = state[name]
        state[name] = torch.cat([weight[:, :num_reduced] @ reduced_by.T, weight[:, num_reduced:]], 1)
        wide.load_state_dict(state)
        return wide.eval()

    def _drop(self, h: Tensor) -> Tensor:
        if not self.training or not self.dropout:
            return h
        # Takes a third of the time of torch's own dropout on a CPU.
        return h * ((torch.rand(h.shape) >= self.dropout) / (1 - self.dropout))


Advance = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Trained:
    """A student at its best epoch.

    Attributes:
        module: in eval mode; float32 [n, F + S] to logits float32 [n, C].
        best_epoch: from 0. score: of the validation rows then.
        judged_by: "labels", or "teacher" if validation rows have none.
        history: validation score of each epoch.
    """

    module: Student
    best_epoch: int
    score: float
    judged_by: str
    history: list[float] = field(default_factory=list)

    def probabilities(self, x: FloatArray) -> FloatArray:
        """x: float32 [n, F + S]. Returns: float32 [n, C], rows sum to 1."""
        with torch.no_grad():
            answer: FloatArray = self.module(torch.from_numpy(x)).softmax(1).numpy()
        return answer


def train_student(
    x: FloatArray,
    soft: FloatArray,
    labels: IdArray,
    fit_rows: IdArray,
    valid_rows: IdArray,
    settings: Settings,
    *,
    structure: FloatArray | None = None,
    advance: Advance | None = None,
) -> Trained:
    """Distil a teacher's answers into an MLP (GLNN, arXiv 2110.08727).

    Args:
        x: float32 [N, F].
        soft: float32 [N, C], the teacher's probabilities; only those of fit_rows and, if valid_rows have
            no labels, of valid_rows are used.
        labels: int64 [N], -1 unknown; only those of fit_rows and valid_rows are used.
        fit_rows: int64 [n], rows that the student learns from.
        valid_rows: int64 [m], rows that choose the epoch: by accuracy on labels if there are any, else by
            agreement with the teacher. Their labels are not learned from, even if fit_rows has them.
        structure: float32 [N, S], `structure_features`, or None.
        advance: called after each epoch with its number from 1, the largest possible number, and the score.
    """
    _check(x, soft, labels, fit_rows, valid_rows)
    reduced_by = directions(x, settings.width) if 0 < settings.width < x.shape[1] else None
    own = x if reduced_by is None else x @ reduced_by
    inputs = torch.from_numpy(own if structure is None else np.concatenate([own, structure], axis=1))
    target = torch.from_numpy(soft[fit_rows] ** (1 / settings.temperature))
    target = target / target.sum(1, keepdim=True)
    # Rows that choose the epoch are not learned from.
    known = torch.from_numpy(np.where(np.isin(fit_rows, valid_rows), -1, labels[fit_rows]))
    fit = inputs[torch.from_numpy(fit_rows)]
    valid, truth, judged_by = _judge(inputs, soft, labels, valid_rows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        num_structure = 0 if structure is None else structure.shape[1]
        module = Student(own.shape[1], num_structure, soft.shape[1], settings)
        optimizer = torch.optim.Adam(
            module.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        best: dict[str, Any] = {}
        best_score, best_held_loss, best_epoch, history = -1.0, 0.0, 0, []
        for epoch in range(settings.epochs):
            module.train()
            optimizer.zero_grad()
            rows = torch.randint(len(fit), (settings.batch,)) if len(fit) > settings.batch else slice(None)
            answer = module(fit[rows]).log_softmax(1)
            loss = _loss(answer, target[rows], known[rows], settings)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            module.eval()
            with torch.no_grad():
                judged = module(valid)
                score = float((judged.argmax(1) == truth).float().mean())
                held_loss = float(nn.functional.cross_entropy(judged, truth))
            history.append(score)
            if advance is not None:
                advance(epoch + 1, settings.epochs, score)
            # With few validation rows, many epochs have the same score.
            if (score, -held_loss) > (best_score, -best_held_loss):
                best, best_epoch = copy.deepcopy(module.state_dict()), epoch
                best_score, best_held_loss = score, held_loss
            elif epoch - best_epoch >= settings.patience:
                break
    module.load_state_dict(best)
    if reduced_by is not None:
        module = module.widened(torch.from_numpy(reduced_by), settings)
    return Trained(module.eval(), best_epoch, best_score, judged_by, history)


def _check(
    x: FloatArray, soft: FloatArray, labels: IdArray, fit_rows: IdArray, valid_rows: IdArray
) -> None:
    if not len(x) == len(soft) == len(labels):
        raise BadRequest(f"{len(x)} rows of features, {len(soft)} of soft labels and {len(labels)} labels")
    for name, rows in (("fit_rows", fit_rows), ("valid_rows", valid_rows)):
        if not len(rows):
            raise BadRequest(f"{name} is empty: a student needs at least one row there")


def _judge(
    inputs: Tensor, soft: FloatArray, labels: IdArray, valid_rows: IdArray
) -> tuple[Tensor, Tensor, str]:
    labelled = valid_rows[labels[valid_rows] >= 0]
    if len(labelled):
        return inputs[torch.from_numpy(labelled)], torch.from_numpy(labels[labelled]), "labels"
    return (
        inputs[torch.from_numpy(valid_rows)],
        torch.from_numpy(soft[valid_rows].argmax(1).astype(np.int64)),
        "teacher",
    )


def _loss(answer: Tensor, target: Tensor, labels: Tensor, settings: Settings) -> Tensor:
    divergence = nn.functional.kl_div(answer, target, reduction="batchmean")
    known = labels >= 0
    if not settings.label_weight or not known.any():
        return divergence
    right = nn.functional.nll_loss(answer[known], labels[known])
    return (1 - settings.label_weight) * divergence + settings.label_weight * right
