"""Dense convolutions: convs rewritten over the stage inputs of `hopline.artifact`.

The engine feeds the inputs in the order of `needs`, which are the arguments of `forward`:

    needs = (ConvInput("attend", edge_type, "source", attention=...),   # attended rows of neighbours
             ConvInput("self", value="destination"))                    # the node's own row

`prepare_source` is row-wise code that may run one level below, once for each node. `lower.py` decides that.
If it lifts the code, it appends it to the stage below and sets `lifted_source`: the inputs of `needs` are
then prepared. `must_lift` is for code that a reduction follows, which always runs below.

The rows of an attention (`attend.py`) are `prepare_source` (keys and values), always lifted.
The node's query row is `prepare_query`, in the state below (`is_query_state`) or in the stage's query file.

A conv uses the kinds `self`, `reduce`, `attend`, `sources`, `positions`, `mask`, `is_self` and `edge_attr`.
The kind `features` comes from code around the convs (`split.py`), `structure` from students
(`hopline_compress`).
The engine also feeds `edge_weight`, `degree` and `count`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch_geometric.nn import aggr

from hopline.artifact import Attention, InputKind, Reduce
from hopline.errors import NotSplittable


@dataclass(frozen=True, slots=True)
class ConvInput:
    """One input that a dense conv needs, in the order of its `forward`.

    Attributes:
        kind: as in `hopline.artifact`.
        edge_type: key of the relation; "" for own rows.
        value: which of the conv's node values the columns come from: what it reads of its neighbours
            (`source`) or of the node itself (`destination`). For kind `self`, `source` means the
            node's own row of the source value.
        reduce, weighted: for kind `reduce`.
        attention: for kind `attend`; without the columns of the query, which the splitter decides.
    """

    kind: InputKind
    edge_type: str = ""
    value: Literal["", "source", "destination"] = ""
    reduce: Reduce | None = None
    weighted: bool = False
    attention: Attention | None = None


def block_inputs(edge_type: str) -> tuple[ConvInput, ...]:
    """The padded block of a relation's neighbours, as `block.gather` takes it."""
    sources = ConvInput("sources", edge_type, "source")
    return sources, ConvInput("positions", edge_type), ConvInput("mask", edge_type)


@dataclass(frozen=True, slots=True)
class ConvCall:
    """One call of a conv in the traced model.

    Attributes:
        conv: the PyG module.
        name: its path in the model, for messages.
        edge_type: key of the relation that the call's edges come from.
        source_dim, destination_dim: columns of the source and destination values; destination 0 where
            the call gives none.
        paired: the call passes (source, destination) rather than one value for both.
        same_type: source and destination are rows of one node type.
        has_edge_attr: the call passes attributes of edges.
        in_blocks: attention is computed over padded blocks, by the runtime: the model computes the
            attributes of edges, or a GPU is to compute it.
        is_same_value: source and destination are one value.
    """

    conv: Any
    name: str
    edge_type: str
    source_dim: int
    destination_dim: int
    paired: bool
    same_type: bool
    has_edge_attr: bool
    in_blocks: bool = False
    is_same_value: bool = False

    @property
    def has_destination(self) -> bool:
        """True if the call gives the nodes' own rows."""
        return self.destination_dim > 0

    def refusal(self, reason: str) -> NotSplittable:
        """The error for a conv that has no dense form."""
        return NotSplittable(f"{self.name} ({type(self.conv).__name__}) cannot be a stage: {reason}")


class DenseConv(nn.Module):
    """A conv over dense inputs; `forward` takes them in the order of `needs`.

    Attributes:
        needs: what the engine must feed.
        prepare_source: row-wise code that may run one level below, so that the state cache holds its
            result; `lifted_source` says whether it does.
        must_lift: the source code has to run below, because a reduction follows it.
        prepare_query: row-wise code from the destination's value to the query row of an attention.
        is_query_state: the state below holds the query row, because it is narrow.
        is_query_source: the query row is the node's own row of the source value.
        is_query_destination: the query row is the node's own row of the destination value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.needs: tuple[ConvInput, ...] = ()
        self.prepare_source: nn.Module | None = None
        self.must_lift = False
        self.lifted_source = False
        self.prepare_query: nn.Module | None = None
        self.is_query_state = False
        self.is_query_source = False
        self.is_query_destination = False


Builder = Callable[[ConvCall], DenseConv]

#: Aggregations that the engine computes, whatever their number of neighbours.
REDUCTIONS: dict[type, Reduce] = {aggr.MeanAggregation: "mean", aggr.SumAggregation: "sum"}
REDUCTIONS[aggr.MaxAggregation] = "max"


def linear(weight: Any, bias: Any = None) -> nn.Linear:
    """A torch Linear with the given weight [out, in] and bias [out]."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().contiguous(), requires_grad=False)
    return layer


def as_linear(module: Any) -> nn.Linear:
    """A torch Linear with the weights of a PyG one."""
    return linear(module.weight, module.bias)
