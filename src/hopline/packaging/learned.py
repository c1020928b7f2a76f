"""Learned rows of nodes: takes them out of a module, so that they are columns of the graph.

A table has a row for each node of a type: `nn.Embedding(num_nodes, d)` or a parameter [num_nodes, d]. The
module reads it whole (`self.emb.weight`) or by the nodes' numbers. In its place the module gets the rows of
the nodes that it is called with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hopline.artifact import Later, check_choice
from hopline.errors import PackagingError
from hopline.graph import Graph
from hopline.types import FloatArray

#: Node type -> path of a table in the module -> float32 [N, d].
Tables = dict[str, dict[str, FloatArray]]
#: For nodes that have no row: a text, or path of each table -> a text or a row.
LaterNodes = Later | Mapping[str, Later | Sequence[float] | NDArray[Any] | Tensor]
_TEXTS = ", ".join(get_args(Later))


class Rows(nn.Module):
    """In place of an `nn.Embedding` over nodes: the rows of those that the module is called with.

    Attributes:
        weight: [n, d].
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.weight: Any = None

    @property
    def num_embeddings(self) -> Any:
        """Number of rows."""
        return self.weight.size(0)

    def forward(self, numbers: Any) -> Any:
        """All rows: `numbers` are those of all nodes in order, as `torch.arange(n)`.

        Raises: PackagingError: they are others. Only a run on tensors shows it, which is before each trace.
        """
        is_known = type(numbers) is Tensor and not torch.compiler.is_exporting()
        if is_known and not torch.equal(numbers, torch.arange(len(self.weight))):
            raise PackagingError(
                "a table of embeddings={...} is read by something else than the numbers of all nodes. If "
                "it has a row for each code of a category, leave it out of embeddings"
            )
        return self.weight


def take_out(module: nn.Module, embeddings: Mapping[str, str], graph: Graph) -> Tables:
    """Make a module read rows which it is given; returns its tables.

    Args:
        module: is changed.
        embeddings: path of a table in the module -> the node type of its rows.

    Raises:
        PackagingError: there is no such table, or it has not a row for each node; names those that have.
    """
    found: Tables = {}
    for path, node_type in embeddings.items():
        if node_type not in graph.nodes:
            raise PackagingError(
                f"embeddings[{path!r}] is {node_type!r}; the node types are {', '.join(graph.nodes)}"
            )
        owner, _, leaf = path.rpartition(".")
        try:
            part = getattr(module.get_submodule(owner), leaf)
        except AttributeError:
            part = None
        table = part.weight if isinstance(part, nn.Embedding) else part
        num_nodes = graph.nodes[node_type].num_nodes
        if not isinstance(table, Tensor) or table.dim() != 2 or len(table) != num_nodes:
            others = [name for name, each in module.named_parameters() if each.shape[:-1] == (num_nodes,)]
            listed = ", ".join(name.removesuffix(".weight") for name in others) or "none"
            what = "no table" if not isinstance(table, Tensor) else f"{list(table.shape)}"
            raise PackagingError(
                f"embeddings[{path!r}] is {what}; a table has a row for each of the {num_nodes} nodes of "
                f"type {node_type!r}. Of the module these have: {listed}"
            )
        if isinstance(part, nn.Embedding) and part.max_norm is not None:
            raise PackagingError(
                f"embeddings[{path!r}] has max_norm, which changes its rows when they are read"
            )
        found.setdefault(node_type, {})[path] = np.ascontiguousarray(table.detach().float().numpy())
        # in each place of an embedding; a parameter is taken out of its places
        rows = Rows(part.embedding_dim) if isinstance(part, nn.Embedding) else None
        for holder in module.modules():
            for name, each in [*holder._modules.items(), *holder._parameters.items()]:
                if each is part:
                    delattr(holder, name)
                    setattr(holder, name, rows)
    return found


def later_rows(tables: Tables, later: LaterNodes) -> dict[str, FloatArray | None]:
    """The rows of nodes that have none, by node type; None where such nodes are refused.

    Raises: PackagingError: `later` does not give each table a text or a row of its width.
    """
    paths = [path for each in tables.values() for path in each]
    if isinstance(later, str):
        check_choice("later_nodes", later, get_args(Later))
        later = dict.fromkeys(paths, later)
    keys = later if isinstance(later, Mapping) else ()
    wrong = [f"{key!r} is no table" for key in keys if key not in paths]
    wrong += [f"{path!r} is missing" for path in paths if path not in keys]
    if not isinstance(later, Mapping) or wrong:
        raise PackagingError(
            f"later_nodes is {_TEXTS}, or a mapping that has one of these or a row for each table of "
            f"embeddings={{...}} ({', '.join(paths) or 'none'}); "
            + (wrong[0] if isinstance(later, Mapping) else f"got {type(later).__name__}")
        )
    found: dict[str, FloatArray | None] = {}
    for name, each in tables.items():
        parts = [_later_row(path, later[path], rows) for path, rows in each.items()]
        given = [part for part in parts if part is not None]
        if given and len(given) < len(parts):
            raise PackagingError(
                f"later_nodes: 'refuse' is for all tables of node type {name!r}: {', '.join(each)}"
            )
        found[name] = np.concatenate(given) if given else None
    return found


def _later_row(path: str, given: Any, rows: FloatArray) -> FloatArray | None:
    """The row of a table for nodes that have none, a copy; None to refuse them."""
    if isinstance(given, str) and given in get_args(Later):
        mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        return {"refuse": None, "zero": np.zeros_like(mean), "mean-row": mean}[given]
    try:
        row = np.asarray(given.tolist() if isinstance(given, Tensor) else given)
    except (TypeError, ValueError, RuntimeError):  # nested, or made of tensors
        row = np.empty(0)
    is_row = row.dtype.kind in "fiu" and row.shape == rows.shape[1:]
    if is_row and (np.abs(row) <= np.finfo(np.float32).max).all():
        return row.astype(np.float32)
    raise PackagingError(
        f"later_nodes[{path!r}]: {_TEXTS}, or {rows.shape[1]} finite numbers; got {given!r:.90}"
    )


def place(module: nn.Module, path: str, rows: Any) -> None:
    """Give a module the rows of one of its tables.

    Args:
        rows: [n, d], a tensor or an fx proxy.
    """
    owner, _, leaf = path.rpartition(".")
    holder = module.get_submodule(owner)
    part = getattr(holder, leaf)
    if isinstance(part, Rows):
        part.weight = rows
    else:
        setattr(holder, leaf, rows)
