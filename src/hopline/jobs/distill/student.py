"""The student: an MLP over a node's own row."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from hopline.jobs.distill.settings import Settings


class Student(nn.Module):
    """Features, and structure features if it has any, to logits.

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
        h = nn.functional.dropout(x, self.dropout, self.training)
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            h = nn.functional.dropout(torch.relu(norm(linear(h))), self.dropout, self.training)
        answer: Tensor = self.out(h)
        return answer
