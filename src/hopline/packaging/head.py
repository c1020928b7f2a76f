"""The code after the last state: which value the last level of the state cache holds, and the head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch_geometric.nn import MLP
from torch_geometric.nn import Linear as PyGLinear

from hopline.artifact import Task
from hopline.errors import PackagingError
from hopline.graph import GraphSchema
from hopline.packaging.several import Several
from hopline.packaging.trace import Traced

_SIGMOIDS = {torch.sigmoid, F.sigmoid, "sigmoid", nn.Sigmoid}
_SOFTMAXES = {torch.softmax, F.softmax, "softmax", nn.Softmax}
_VIEWS = {
    torch.squeeze, torch.unsqueeze, torch.flatten, torch.reshape, torch.clone,
    "squeeze", "unsqueeze", "flatten", "reshape", "view", "contiguous", "clone", nn.Flatten, nn.Identity,
}  # fmt: skip


def logits_below(traced: Traced, output: fx.Node, task: Task) -> fx.Node | None:
    """The input of the model's last activation if it is visible; else None.

    Views of the activation's result are followed; they change only the shape, which answers do not keep.
    """
    node = output
    while _kind(traced, node) in _VIEWS and node.all_input_nodes:
        node = node.all_input_nodes[0]
    activations = _SOFTMAXES if task == "multiclass" else _SIGMOIDS
    if _kind(traced, node) not in activations:
        return None
    below = node.all_input_nodes[0]
    width = traced.values[output].numel()
    return below if traced.values[below].numel() == width else None


def embedding_of(traced: Traced, output: fx.Node, *, several: bool = False) -> fx.Node:
    """The value before the last Linear or MLP after the last conv, or the output if there is no such layer.

    The output "embedding" answers it, and the last state holds it; the code after it becomes the head.

    Args:
        several: the output has the columns of several outputs; the value is one that all of them read.
    """
    order = {node: at for at, node in enumerate(traced.module.graph.nodes)}
    level, left = traced.levels[output], {output: False}  # value -> a Linear reads it
    while True:
        node = max(left, key=order.__getitem__)
        value = traced.values[node]
        if len(left) == 1 and left[node] and isinstance(value, Tensor) and value.dim() == 2:
            return node
        is_read = (several and left.pop(node)) or _is_linear(_kind(traced, node))
        below = [each for each in node.all_input_nodes if not several or each in traced.domains]
        is_other = any(traced.levels.get(each) != level for each in below)
        if not below or is_other or (not several and len(below) > 1):
            return output
        left = (left if several else {}) | {each: is_read or left.get(each, False) for each in below}


def linear_after(traced: Traced, state: fx.Node, output: fx.Node) -> str:
    """The path in the model of the layer that reads the embedding; "" where that is not a module."""
    if state is output:
        return ""
    for user in state.users:
        if user.op == "call_module" and _is_linear(_kind(traced, user)):
            return str(user.target).removeprefix("model").removeprefix(".")
    return ""


def _is_linear(kind: object) -> bool:
    return kind is F.linear or (isinstance(kind, type) and issubclass(kind, nn.Linear | PyGLinear | MLP))


def _kind(traced: Traced, node: fx.Node) -> object:
    if node.op == "call_module":
        return type(traced.module.get_submodule(str(node.target)))
    return node.target


def trailing_module(traced: Traced, state: fx.Node, output: fx.Node) -> nn.Module | None:
    """The code from the last state `h` [n, d] to logits [n, c]; None where they are the same."""
    if state is output:
        return None
    graph = fx.Graph()
    env = {state: graph.placeholder("h")}

    def emit(node: fx.Node) -> fx.Node:
        if node not in env:
            env[node] = graph.node_copy(node, emit)
        return env[node]

    result = emit(output)
    if traced.values[output].dim() == 1:
        result = graph.call_method("unsqueeze", (result, 1))
    elif traced.values[output].dim() > 2:
        result = graph.call_method("flatten", (result, 1))
    if traced.values[output].dtype != torch.float32:
        result = graph.call_method("float", (result,))
    graph.output(result)
    return fx.GraphModule(traced.module, graph).eval()


class Columns(nn.Module):
    """Wraps a user's head whose answer may be [n] or [n, a, b], so that it is always [n, c].

    Args:
        head: over one node's state, over the states of a pair, or over these and the edge's row.
        then: follows it.
    """

    def __init__(self, head: nn.Module, then: nn.Module | None = None) -> None:
        super().__init__()
        self.head, self.then = head, then
        self.eval()

    def forward(self, h: Tensor, h_dst: Tensor | None = None, edge_attr: Tensor | None = None) -> Tensor:
        """float32 [n, c]."""
        out = self.head(*[each for each in (h, h_dst, edge_attr) if each is not None])
        columns = (out.unsqueeze(1) if out.dim() == 1 else out.flatten(1)).float()
        return columns if self.then is None else self.then(columns)


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """The head before export.

    Attributes:
        kind: as in `hopline.artifact.Head`.
        module: None where the last state (or the dot product) is the answer.
        widths: columns of its inputs, `h` or `h_src`, `h_dst` and maybe `edge_attr`.
        output_dim: columns of the logits.
    """

    kind: Literal["node", "link"]
    module: nn.Module | None
    widths: tuple[int, ...]
    output_dim: int


def check_task(task: Task, output_dim: int, classes: tuple[str, ...]) -> None:
    """Compare the number of output columns with the task.

    Raises: PackagingError: the message says which task would fit.
    """
    if task == "binary" and output_dim != 1:
        hint = "; with 2 columns (one for each class) use task='multiclass'" if output_dim == 2 else ""
        raise PackagingError(f"task 'binary' needs 1 output column, the model has {output_dim}{hint}")
    if task == "multiclass" and output_dim < 2:
        raise PackagingError(
            f"task 'multiclass' needs at least 2 output columns, the model has {output_dim}; use "
            "task='binary' for one logit"
        )
    expected = 2 if task == "binary" else output_dim
    if classes and len(classes) not in (output_dim, expected):
        raise PackagingError(f"{len(classes)} class names for {output_dim} output columns")


def check_shape(task: Task, shape: Sequence[int], on_fewer: Sequence[int]) -> None:
    """Check that the columns of a row have one meaning each, and that a softmax over them is one.

    Args:
        shape: of the answers of the user's module or head.
        on_fewer: the same on a graph with fewer nodes.
    Raises: PackagingError: a column for each node, or several dimensions of classes.
    """
    if list(shape[1:]) != list(on_fewer[1:]):
        raise PackagingError(
            f"the model answers {list(on_fewer)} on a graph and {list(shape)} on one with more nodes: a "
            "column for each node, as a @ b.T does. Answer the states of the nodes; head='dot', or a "
            "module of (h_src, h_dst), scores the pairs that a request names"
        )
    if task == "multiclass" and sum(size > 1 for size in shape[1:]) > 1:
        raise PackagingError(
            f"the model answers [n, {', '.join(map(str, shape[1:]))}], and task 'multiclass' would be one "
            f"softmax over all {math.prod(shape[1:])} columns: package a module that answers [n, "
            "classes] for each of its tasks, or one that ends in softmax(-1), under task 'regression'"
        )


def is_link(head: object) -> bool:
    """True if a head scores pairs: "dot", or a module of two or three arguments."""
    return head == "dot" or num_inputs(head) > 1


def num_inputs(head: object) -> int:
    """The number of arguments of a user's head: h, or h_src and h_dst, or these and the row of an edge."""
    if not isinstance(head, nn.Module):
        return 0
    count = len(_required(head))
    if count not in (1, 2, 3):
        raise PackagingError(
            f"{type(head).__name__}.forward has {count} arguments; a head has h, or h_src and h_dst, or "
            "these and edge_attr"
        )
    return count


def edge_type_of(
    head: object, targets: Sequence[str], schema: GraphSchema, edge_type: str | tuple[str, str, str] | None
) -> str:
    """Key of the edge type whose rows a head reads; "" for a head that reads none.

    Raises: PackagingError: none or several join the targets, or the type has no attributes.
    """
    given = "__".join(edge_type) if isinstance(edge_type, tuple) else edge_type
    if num_inputs(head) < 3:
        if given:
            raise PackagingError("edge_type: for a head of three arguments, (h_src, h_dst, edge_attr)")
        return ""
    ends = targets[0], targets[-1]
    joined = [key for key, each in schema.own_edge_types.items() if (each.src, each.dst) == ends]
    if given not in joined and (given or len(joined) != 1):
        raise PackagingError(
            f"edge_type: {given!r} is none of the types from {ends[0]!r} to {ends[1]!r}, which a head of "
            f"three arguments scores: {', '.join(joined) or 'there are none'}"
        )
    key = given or joined[0]
    if not schema.edge_types[key].attr_dim:
        raise PackagingError(
            f"the head's third argument is the row of an edge, and {key!r} has no attributes: build the "
            f"graph with edge_attr, or with columns and preprocess={{{key!r}: fitted transformer}}"
        )
    return key


def head_call(head: object, targets: Sequence[str], edge_type: str) -> str:
    """Call of a user's head, in words: by position, whatever its arguments are named."""
    if not isinstance(head, nn.Module):
        return ""
    names = _required(head)
    states = [f"source {targets[0]}", f"destination {targets[-1]}"] if is_link(head) else ["state"]
    states += [f"row of {edge_type}"] if edge_type else []
    pairs = ", ".join(f"{name}={state}" for name, state in zip(names, states, strict=True))
    return f"; the head as forward({pairs})"


def _required(head: nn.Module) -> list[str]:
    """Names of the arguments of a head that have no default."""
    head = head.module if isinstance(head, Several) else head
    parameters = inspect.signature(head.forward).parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [p.name for p in by_position if p.default is p.empty]
