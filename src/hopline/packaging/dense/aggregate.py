"""PyG's aggregations over rows of edges, for those that are not a reduction of the engine.

Variance, softmax, power mean, several of them, and scaling by degrees need all messages of a node together,
or several sums of them: some operators on rows of edges. The engine's own sum, mean and maximum of
neighbours' rows copy no rows and are preferred (`regions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr as pyg

from hopline.errors import NotSplittable
from hopline.packaging.dense import groups
from hopline.packaging.dense.groups import highest, total

#: Whose code is traced.
OPENED = (pyg.AttentionalAggregation, pyg.PowerMeanAggregation)
#: `owner` and `nodes` of `groups.py`.
_Ends = tuple[Tensor, Tensor]
#: PyG's: variances below are rounding, and their root is 0.
_MIN_VARIANCE = 1e-5


class EdgeAggregation(nn.Module):
    """An aggregation of `torch_geometric.nn.aggr`, over messages of edges.

    Args:
        module: PyG's. refusal: the error for what has no form here, which names the conv.

    Raises: NotSplittable: another class, or a mode that has no form here.
    """

    mean_degree: Tensor
    mean_log_degree: Tensor

    def __init__(self, module: Any, refusal: Callable[[str], NotSplittable]) -> None:
        super().__init__()
        self._scalers: list[str] = []
        self._steps: list[tuple[Callable[..., Tensor], Any]] = []
        if type(module) is pyg.DegreeScalerAggregation:
            self._scalers = list(module.scaler)
            self.register_buffer("mean_degree", module.avg_deg_lin.detach().clone())
            self.register_buffer("mean_log_degree", module.avg_deg_log.detach().clone())
            module = module.aggr
        several = type(module) is pyg.MultiAggregation
        if several and module.mode != "cat":
            raise refusal(f"its aggregations are combined by {module.mode!r}, not concatenated")
        for each in module.aggrs if several else [module]:
            step = _STEPS.get(type(each))
            if step is None:
                names = ", ".join(sorted(kind.__name__ for kind in _STEPS))
                raise refusal(
                    f"its aggregation {type(each).__name__} has no form here; known are {names}, several "
                    "of them, and these scaled by degrees"
                )
            self._steps.append((step, each))
        # Their parameters, and nothing of their forward.
        self.parts = nn.ModuleList(each for _, each in self._steps)

    def forward(self, messages: Tensor, owner: Tensor, nodes: Tensor) -> Tensor:
        """Aggregate.

        Args:
            messages: float32 [e, d]. owner, nodes: as in `groups.py`.

        Returns: float32 [n, d], or [n, P, d] of several parts in PyG's order: aggregations, for one
            scaler after another.
        """
        count = groups.count(owner, nodes, messages.dtype).unsqueeze(1)
        parts = [step(messages, (owner, nodes), count, each) for step, each in self._steps]
        if self._scalers:
            scales = [self._scale(name, count) for name in self._scalers]
            parts = [part * scale for scale in scales for part in parts]
        return parts[0] if len(parts) == 1 else torch.stack(parts, dim=1)

    def _scale(self, name: str, count: Tensor) -> Tensor:
        """[n, 1] from the number of messages."""
        if name == "amplification":
            return torch.log(count + 1) / self.mean_log_degree
        if name == "attenuation":
            return self.mean_log_degree / torch.log(count.clamp(min=1) + 1)
        if name == "linear":
            return count / self.mean_degree
        if name == "inverse_linear":
            return self.mean_degree / count.clamp(min=1)
        return torch.ones_like(count)


def _mean(rows: Tensor, ends: _Ends, count: Tensor, module: Any) -> Tensor:
    return total(rows, *ends) / count.clamp(min=1)


def _max(rows: Tensor, ends: _Ends, count: Tensor, module: Any) -> Tensor:
    has_nan = total(rows.isnan().to(rows.dtype), *ends) > 0
    found = torch.where(has_nan, torch.full((), torch.nan), highest(rows, *ends))
    return torch.where(count > 0, found, torch.zeros(()))


def _var(rows: Tensor, ends: _Ends, count: Tensor, module: Any) -> Tensor:
    # PyG subtracts squares, which rounds more: the gate allows the module's rounding, not ours in addition
    spread = rows - _mean(rows, ends, count, module)[ends[0]]
    return _mean(spread * spread, ends, count, module)


def _std(rows: Tensor, ends: _Ends, count: Tensor, module: Any) -> Tensor:
    root = _var(rows, ends, count, module).clamp(min=_MIN_VARIANCE).sqrt()
    return torch.where(root <= math.sqrt(_MIN_VARIANCE), torch.zeros(()), root)


def _median(rows: Tensor, ends: _Ends, count: Tensor, module: Any) -> Tensor:
    """The lower of two, as PyG's; NaN counts as the largest number."""
    is_known = ~rows.isnan()
    by_value = torch.where(is_known, rows, torch.full((), torch.inf)).sort(dim=0)
    # a stable order by owner: each node's values together, in their order
    places = torch.arange(rows.shape[0]).unsqueeze(1)
    order = (ends[0][by_value.indices] * rows.shape[0] + places).sort(dim=0).indices
    at = ((count - 1.0) / 2).floor().clamp(min=0.0)
    place = torch.where(count > 0, count.cumsum(dim=0) - count + at, torch.zeros(())).long().squeeze(1)
    found = by_value.values.gather(0, order)[place]
    found = torch.where(at < total(is_known.to(rows.dtype), *ends), found, torch.full((), torch.nan))
    return torch.where(count > 0, found, torch.full((), float(module.fill_value)))


def _softmax(rows: Tensor, ends: _Ends, count: Tensor, module: Any) -> Tensor:
    scores = rows * module.t
    weights = (scores - highest(scores, *ends)[ends[0]]).exp()
    # The highest score has weight 1, so that only a node without neighbours has a smaller sum.
    return total(weights * rows, *ends) / total(weights, *ends).clamp(min=1.0)


_STEPS: dict[type, Callable[..., Tensor]] = {
    pyg.SumAggregation: lambda rows, ends, *_: total(rows, *ends), pyg.MeanAggregation: _mean,
    pyg.MaxAggregation: _max, pyg.MinAggregation: lambda rows, *rest: -_max(-rows, *rest),
    pyg.MedianAggregation: _median, pyg.VarAggregation: _var, pyg.StdAggregation: _std,
    pyg.SoftmaxAggregation: _softmax,
}  # fmt: skip
