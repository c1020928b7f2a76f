"""What comes after the last state: which value the table's last level holds, and the code behind it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch_geometric.nn import MLP
from torch_geometric.nn import Linear as PyGLinear

from hopline.errors import PackagingError
from hopline.packaging.export import export
from hopline.packaging.trace import Traced

Task = Literal["multiclass", "binary", "multilabel", "regression", "embedding"]

_SIGMOIDS = {torch.sigmoid, F.sigmoid, "sigmoid", nn.Sigmoid}
_SOFTMAXES = {torch.softmax, F.softmax, "softmax", nn.Softmax}


def strip_activation(traced: Traced, output: fx.Node, task: Task) -> tuple[fx.Node, str]:
    """Skip a sigmoid or softmax at the very end: the server applies the task's own to the logits.

    Returns: the logits' value and a note for the user, "" where nothing was skipped.
    """
    kind = _kind(traced, output)
    activations = {"binary": _SIGMOIDS, "multilabel": _SIGMOIDS, "multiclass": _SOFTMAXES}.get(task, set())
    if kind not in activations:
        return output, ""
    name = "sigmoid" if activations is _SIGMOIDS else "softmax"
    return output.all_input_nodes[0], f"the model's last {name} is left to the server (task {task!r})"


def embedding_of(traced: Traced, output: fx.Node) -> fx.Node:
    """The value before the last Linear or MLP after the last conv, or the output where there is none.

    It is what "embedding" answers, and what the last state holds; the rest becomes the head.
    """
    level = traced.levels[output]
    node = output
    while traced.levels[node] == level and len(node.all_input_nodes) == 1:
        below = node.all_input_nodes[0]
        if traced.levels[below] != level:
            break
        if _is_linear(_kind(traced, node)) and traced.values[below].dim() == 2:
            return below
        node = below
    return output


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
    graph.output(result)
    return fx.GraphModule(traced.module, graph).eval()


class Columns(nn.Module):
    """A head over one node's state whose answer may be [n]: always [n, c]."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.eval()

    def forward(self, h: Tensor) -> Tensor:
        """float32 [n, c]."""
        out = self.head(h)
        return out.unsqueeze(1) if out.dim() == 1 else out


class LinkColumns(Columns):
    """The same over the states of a pair."""

    def forward(self, h_src: Tensor, h_dst: Tensor) -> Tensor:  # type: ignore[override]
        """float32 [n, c]."""
        out = self.head(h_src, h_dst)
        return out.unsqueeze(1) if out.dim() == 1 else out


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """The head before export.

    Attributes:
        kind: as in `hopline.artifact.Head`.
        module: None where the last state (or the dot product) is the answer.
        names: its inputs, `h` or `h_src` and `h_dst`.
        widths: their columns.
        output_dim: columns of the logits.
    """

    kind: Literal["node", "link"]
    module: nn.Module | None
    names: tuple[str, ...]
    widths: tuple[int, ...]
    output_dim: int

    def write(self, path: Path) -> None:
        """Write the ONNX file, output `logits`."""
        if self.module is None:
            return
        rows = torch.export.Dim("n", min=1)
        examples = [torch.zeros(7, width) for width in self.widths]
        export(self.module, examples, [{0: rows}] * len(examples), self.names, "logits", path)


def run_head(head: nn.Module, widths: tuple[int, ...]) -> int:
    """Columns that a user's head answers.

    Raises:
        PackagingError: it fails on rows of the given widths, or answers something else than rows.
    """
    try:
        rows = [torch.linspace(-1, 1, 3 * width).reshape(3, width) for width in widths]
        with torch.no_grad():
            out = head(*rows)
            alone = head(*(row[1:2] for row in rows))
    except Exception as error:  # user code
        shapes = " and ".join(f"[n, {width}]" for width in widths)
        raise PackagingError(f"the head fails on {shapes}: {type(error).__name__}: {error}") from error
    if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[0] != 3:
        shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise PackagingError(f"the head must answer one row for each input row; for 3 rows it gave {shape}")
    if alone.shape != out[1:2].shape or not torch.allclose(alone, out[1:2], atol=1e-3, rtol=1e-3):
        raise PackagingError("the head mixes rows: a row's answer depends on which other rows come with it")
    return int(out.shape[1])


def check_task(task: Task, output_dim: int, classes: tuple[str, ...]) -> None:
    """Compare the number of output columns with the task.

    Raises:
        PackagingError: says which task would fit.
    """
    if task == "binary" and output_dim != 1:
        hint = "; with 2 columns (one for each class) use task='multiclass'" if output_dim == 2 else ""
        raise PackagingError(f"task 'binary' needs 1 output column, the model has {output_dim}{hint}")
    if task == "multiclass" and output_dim < 2:
        raise PackagingError(
            f"task 'multiclass' needs at least 2 output columns, the model has {output_dim}; "
            "use task='binary' for one logit"
        )
    expected = 2 if task == "binary" else output_dim
    if classes and len(classes) not in (output_dim, expected):
        raise PackagingError(f"{len(classes)} class names for {output_dim} output columns")
