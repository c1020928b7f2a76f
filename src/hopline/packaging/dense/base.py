"""Dense convolutions: convs rewritten over the stage inputs of `hopline.artifact`.

The engine feeds the inputs in the order of `needs`, which are the arguments of `forward`:

    needs = (StageInput("", "attend", edge_type, attention=...),   # attended rows of neighbours
             StageInput("", "self"))                               # the node's own row

The rows of an attention (`attend.py`) are `prepare_source` (keys and values): code that `lower.py` appends
to the stage below. The node's `query` row is in the state below or in the stage's query file.

A form uses the kinds `self`, `reduce`, `attend` and `count`. Code of the model over rows of edges uses
`sources`, `owners`, `nodes`, `is_self`, `edge_attr`, `edge_weight` (`stage_code.py`). Code around convs
uses `features`, students use `structure` (`hopline_compress`). The engine also feeds `degree`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hopline.artifact import StageInput
from hopline.errors import NotSplittable


@dataclass(frozen=True, slots=True)
class ConvCall:
    """One call of a conv in the traced model.

    Attributes:
        conv: the PyG module.
        name: its path in the model, for messages.
        edge_type: key of the relation that the call's edges come from.
        source_dim: columns of the source value.
        has_destination: the call gives the nodes' own rows.
        same_type: source and destination are rows of one node type.
        has_edge_attr: the call passes attributes of edges.
    """

    conv: Any
    name: str
    edge_type: str
    source_dim: int
    has_destination: bool
    same_type: bool
    has_edge_attr: bool

    def refusal(self, reason: str) -> NotSplittable:
        """The error for a conv that has no dense form."""
        return NotSplittable(f"{self.name} ({type(self.conv).__name__}) cannot be a stage: {reason}")


class DenseConv(nn.Module):
    """A conv over dense inputs; `forward` takes them in the order of `needs`.

    Attributes:
        needs: what the engine must feed, without names and columns, which the splitter decides.
        prepare_source: row-wise code that runs one level below, so that the state cache holds its result.
        query: row-wise code from the destination's value to the query row; or "destination": that value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.needs: tuple[StageInput, ...] = ()
        self.prepare_source: nn.Module | None = None
        self.query: Any = None


def linear(weight: Any, bias: Any = None) -> nn.Linear:
    """A torch Linear with the given weight [out, in] and bias [out]."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().contiguous(), requires_grad=False)
    return layer
