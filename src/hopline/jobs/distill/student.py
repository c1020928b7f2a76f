"""The student: an MLP over a node's own row."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from hopline.jobs.distill.settings import Settings


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
