"""Call of a model on a graph: the data that each argument of its forward receives.

The traced model has one input, a mapping of *slots*: "features:<node type>", "edge_index:<edge type>",
"edge_attr:<edge type>", "edge_weight:<edge type>", "edge_time:<edge type>", "seed_time:<node type>", and
"edge_index:*", "edge_type:*" where one argument holds the edges of all relations (RGCN).
"adj_t:<edge type>" is the edge index too, read as a sparse matrix, whose values are the edge weights.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, getsource, signature, unwrap
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_torch_csr_tensor

from hopline.artifact import LOOPS, REPEATED
from hopline.errors import PackagingError
from hopline.graph import ColumnGroup, Graph, csc
from hopline.graph.node_times import BITS, OFFSET
from hopline.graph.schema import reverse_key
from hopline.packaging.advice import MATRIX, TYPED, lost
from hopline.packaging.check_graph import CheckGraph, Kinds
from hopline.packaging.frozen import Frozen
from hopline.packaging.learned import place
from hopline.packaging.memberships import batch_of
from hopline.packaging.relations import split_key
from hopline.packaging.settings import Role
from hopline.packaging.several import Several

#: Python parses a whole file for the source of a class.
_source: Any = lru_cache(1000)(getsource)


def by_position(parameters: Mapping[str, Parameter], roles: Mapping[str, Role]) -> int:
    """Number of arguments to give by position: those before the first left out or keyword-only one."""
    first = takewhile(
        lambda name: name in roles and parameters[name].kind != Parameter.KEYWORD_ONLY, parameters
    )
    return len(list(first))


def parameters_of(module: nn.Module, given: Iterable[str]) -> tuple[dict[str, Parameter], tuple[str, ...]]:
    """The arguments of forward, PyG's usual ones for *args; and "*args", "**kwargs" where it reads them.

    Args:
        given: names by the user; others than those of forward are passed in **kwargs, or last in *args.
    """
    every = signature(module.forward).parameters.values()
    unnamed = {each.kind: each for each in every if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    parameters = {each.name: each for each in every if each.kind not in unnamed}
    described = None if parameters else getattr(module, "signature", None)  # of PyG's Sequential
    if not parameters:
        names = getattr(described, "param_names", ("x", "edge_index"))
        parameters = {name: Parameter(name, Parameter.POSITIONAL_ONLY) for name in names}
    if described is not None or not unnamed:
        return parameters, ()
    kind = Parameter.KEYWORD_ONLY if Parameter.VAR_KEYWORD in unnamed else Parameter.POSITIONAL_ONLY
    more = {name: Parameter(name, kind, default=None) for name in given if name not in parameters}
    read = tuple(str(each).partition(":")[0] for each in unnamed.values() if _reads(module, each.name))
    return {**parameters, **more}, read


def mentions(module: nn.Module, word: str) -> bool:
    """True if the source of a module's class (of PyG's, its name) has a word; False without a source."""
    if type(module).__module__.startswith(("torch.", "torch_geometric.")) and word != "adj_t":
        return word in type(module).__name__
    try:
        return word in _source(type(module))
    except (OSError, TypeError):
        return False


def _reads(module: nn.Module, name: str) -> bool:
    """True unless the code of forward shows that it does not read an argument."""
    code = getattr(unwrap(module.forward), "__code__", None)
    if code is None or name in code.co_cellvars or {"locals", "vars", "eval", "exec"} & {*code.co_names}:
        return True
    return any(each.argval == name and "STORE" not in each.opname for each in dis.get_instructions(code))


@dataclass(frozen=True, slots=True)
class Binding:
    """Call of a model.

    Attributes:
        roles: argument name -> what it receives, in the order of the signature.
        hetero: arguments are dicts by type.
        node_types: all node types of the schema.
        relations: edge types, in the order of an `edge_type` argument's numbers.
        attributed, weighted, timed: edge types that have attributes, weights, times.
        positional: how many first arguments are given by position; hooks of the model get no others.
        reads_adjacency: the model reads `data.adj_t`.
        flat: arguments that take a single edge attribute as [E] instead of [E, 1].
        called: the call in words, for the user.
        left_out: node type, edge type key or "" -> names in the user's data that the graph does not have.
        groups: node type -> the tensors of which its feature columns are; none for a type of one tensor.
        columns: argument with the role "columns" -> the name of its group.
        tables: path of a learned table in the module -> the node type of its rows.
        reversed: edge types of which the graph has the reverse lists too.
        members: node type -> key of the edges to their graphs, of a model that reads `batch`.
        frozen: statistics of all rows that are constants; None for none.
        seeds: node type of the rows of `seed_time`; "" for a model that has no such argument.
        seed_time: the time of the question.
    """

    roles: dict[str, Role]
    hetero: bool
    node_types: tuple[str, ...]
    relations: tuple[str, ...]
    attributed: tuple[str, ...]
    weighted: tuple[str, ...]
    positional: int = 0
    reads_adjacency: bool = False
    flat: frozenset[str] = frozenset()
    called: str = ""
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[ColumnGroup]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    reversed: tuple[str, ...] = ()
    members: Mapping[str, str] = field(default_factory=dict)
    frozen: Frozen | None = None
    timed: tuple[str, ...] = ()
    seeds: str = ""
    seed_time: int = 0

    @property
    def relational(self) -> bool:
        """One argument holds the edges of all relations."""
        return "edge_type" in self.roles.values() and not self.hetero

    @property
    def reads_sparse(self) -> bool:
        """The model reads edges as a sparse matrix."""
        given = self.roles.values()
        return "adj_t" in given or (self.reads_adjacency and "data" in given)

    @property
    def matrix_hint(self) -> str:
        """Advice if forward fails since it multiplies by an adjacency; "" if it receives none."""
        names = [
            name for name, role in self.roles.items()
            if role == "adj_t" or (role == "edge_index" and name.lower().startswith("adj"))
        ]  # fmt: skip
        if not names:
            return ""
        return (
            f"; a server reads edges as a list: if forward multiplies by {names[0]} itself (adj @ x, "
            f"torch.spmm), {MATRIX}, with the values of the matrix as edge weights of the graph"
        )

    def call(self, module: nn.Module, slots: Any, *, sparse: bool = False) -> Any:
        """Call the model on a mapping of slots (tensors or fx proxies).

        Args:
            sparse: pass `adj_t` as the sparse tensor that `ToSparseTensor` builds; else as the edge index.
        """
        owner = module.module if isinstance(module, Several) else module
        for path, node_type in self.tables.items():
            place(owner, path, self._tensors(slots, node_type)[path])
        values = {name: self._value(name, role, slots, sparse) for name, role in self.roles.items()}
        first = [values.pop(name) for name in list(values)[: self.positional]]
        with nullcontext() if self.frozen is None else self.frozen.over(module):
            return module(*first, **values)

    def _value(self, name: str, role: Role, slots: Any, sparse: bool) -> Any:
        if role == "data":
            return self._data(slots, sparse)
        if role == "seed_time":
            return slots[f"seed_time:{self.seeds}"]
        if role in ("features", "columns", "batch"):
            group = self.columns.get(name, "x")
            rows = {
                key: each[group] for key in self.node_types if group in (each := self._tensors(slots, key))
            }
            if role == "batch":
                rows = {key: self._batch(slots, key) for key in self.node_types}
            return rows if self.hetero else rows[self.node_types[0]]
        keys = {
            "edge_index": self.relations, "adj_t": self.relations, "edge_attr": self.attributed,
            "edge_weight": self.weighted, "edge_type": (), "edge_time": self.timed,
        }[role]  # fmt: skip

        def of(key: str) -> Any:
            if role == "adj_t":
                return self._adjacency(slots, key, sparse)
            value = slots[f"{role}:{key}"]
            return value.view(-1) if name in self.flat else value

        if self.hetero:
            return {split_key(key): of(key) for key in keys}
        return of("*" if self.relational else self.relations[0])

    def _tensors(self, slots: Any, node_type: str) -> dict[str, Any]:
        """The tensors of a type's nodes by their names, as they were before they became one matrix."""
        rows, found, start = slots[f"features:{node_type}"], {}, 0
        for group in self.groups.get(node_type, ()):
            end = start + group.num_columns
            part = rows[:, start:end] if group.width else rows[:, start]
            if group.dtype == "time":
                high, middle, low = (rows[:, at].long() for at in range(start, end))
                part = (high * 2**BITS + middle) * 2**BITS + low - OFFSET
            elif group.dtype != "float32":
                part = part.to(getattr(torch, group.dtype))
            found[group.name], start = part, end
        return found or {"x": rows}

    def _batch(self, slots: Any, node_type: str) -> Any:
        x = slots[f"{'batch' if node_type in self.members else 'features'}:{node_type}"]
        return x if node_type in self.members else x.new_zeros(x.size(0), dtype=torch.int64)

    def _adjacency(self, slots: Any, key: str, sparse: bool) -> Any:
        if not sparse:
            return slots[f"adj_t:{key}"]
        edge_index = slots[f"edge_index:{key}"]
        src, _, dst = split_key(key) if key != "*" else (self.node_types[0], "", self.node_types[0])
        weight = slots.get(f"edge_weight:{key}")
        size = (len(slots[f"features:{dst}"]), len(slots[f"features:{src}"]))
        return to_torch_csr_tensor(edge_index.flip(0), weight, size=size)

    def _data(self, slots: Any, sparse: bool) -> Any:
        """A `Data` or `HeteroData` as PyG's loaders pass it."""
        if self.hetero:
            graph = HeteroData()
            for node_type in self.node_types:
                for name, rows in self._tensors(slots, node_type).items():
                    graph[node_type][name] = rows
                if node_type in self.members or self.seeds:
                    graph[node_type].batch = self._batch(slots, node_type)
                if node_type == self.seeds:
                    graph[node_type].seed_time = slots[f"seed_time:{node_type}"]
                if node_type in self.tables.values():  # loaders number the nodes
                    count = slots[f"features:{node_type}"].size(0)
                    graph[node_type].node_id = graph[node_type].n_id = torch.arange(count)
                _guard(graph[node_type], self.left_out, node_type)
            for key in self.relations:
                self._fill(graph[split_key(key)], slots, key, sparse)
                _guard(graph[split_key(key)], self.left_out, key)
            _guard(graph._global_store, self.left_out, "")
            return graph
        of = self.node_types[0]
        single = Data(**self._tensors(slots, of))
        if of in self.members or self.seeds:  # elsewhere PyG has none
            single.batch = self._batch(slots, of)
        if self.seeds:
            single.seed_time = slots[f"seed_time:{of}"]
        self._fill(single, slots, self.relations[0], sparse)
        _guard(single._store, self.left_out, *self.left_out)
        return single

    def _fill(self, store: Any, slots: Any, key: str, sparse: bool) -> None:
        store.edge_index = slots[f"edge_index:{key}"]
        if self.reads_adjacency:
            store.adj_t = self._adjacency(slots, key, sparse)
        if key in self.attributed:
            store.edge_attr = slots[f"edge_attr:{key}"]
        if key in self.weighted:
            store.edge_weight = slots[f"edge_weight:{key}"]

    def slots(self, graph: CheckGraph) -> dict[str, Tensor]:
        """The tensors of a graph, one for each slot."""
        found = {f"features:{name}": torch.from_numpy(rows.copy()) for name, rows in graph.features.items()}
        for key, edges in graph.edges.items():
            ends = edges.edge_index
            given = {
                "edge_index": ends, "adj_t": ends, "edge_attr": edges.attr, "edge_weight": edges.weight,
                "edge_time": edges.time,
            }  # fmt: skip
            own = {role: torch.from_numpy(each.copy()) for role, each in given.items() if each is not None}
            found |= {f"{role}:{key}": each for role, each in own.items()}
            if key in self.reversed:
                own |= {role: own[role].flip(0) for role in ("edge_index", "adj_t")}
                found |= {f"{role}:{reverse_key(key)}": each.clone() for role, each in own.items()}
        if self.seeds:
            # that of the first seed, as `_batch` says; a model that reads others is refused
            times = np.full(max(1, graph.num_nodes(self.seeds)), self.seed_time + 977)
            times[0] = self.seed_time
            found[f"seed_time:{self.seeds}"] = torch.from_numpy(times)
        for name, key in self.members.items():
            found[f"batch:{name}"] = torch.from_numpy(batch_of(graph, key))
        if self.relational:
            edge_lists = [graph.edges[key] for key in self.relations]
            found["edge_index:*"] = torch.from_numpy(np.concatenate([e.edge_index for e in edge_lists], 1))
            found["adj_t:*"] = found["edge_index:*"].clone()
            numbers = np.repeat(np.arange(len(edge_lists)), [len(e.indices) for e in edge_lists])
            found["edge_type:*"] = torch.from_numpy(numbers)
            of = {"edge_attr": self.attributed, "edge_weight": self.weighted, "edge_time": self.timed}
            for role, keys in of.items():
                if keys == self.relations:
                    found[f"{role}:*"] = torch.cat([found[f"{role}:{key}"] for key in keys])
        return found


def _contains(data: Data, key: str) -> bool:
    """As `Data.__contains__`; of guarded columns, as their store answers, which may refuse it."""
    return key in (data._store if isinstance(data._store._mapping, _Guarded) else data.keys())


# a class of our own would be another one for `type(data) is Data`
Data.__contains__ = _contains


class _Guarded(dict[str, Any]):
    """Columns of a store of PyG that refuse to read those that the graph does not have."""

    left_out: Mapping[str, str] = {}

    def __missing__(self, key: str) -> Any:
        if key in self.left_out:
            raise PackagingError(f"forward reads data.{key}, but {self.left_out[key]}")
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self[key] if key in self or key in self.left_out else default


def _guard(store: Any, left_out: Mapping[str, tuple[str, ...]], *keys: str) -> None:
    """Make a store of PyG refuse to read columns that the graph does not have.

    PyG answers None for some of them, so that a model would take another branch.

    Args:
        left_out: as in `Binding`. keys: whose columns the store holds.
    """
    store._mapping = _Guarded(store._mapping)
    store._mapping.left_out = {name: lost(name, key) for key in keys for name in left_out.get(key, ())}
    store._mapping.left_out["edge_type"] = TYPED


def unlike_matrix(binding: Binding, graph: Graph) -> Kinds:
    """The kinds of edges that a graph lacks, and that a sparse matrix treats differently from a list."""
    found = {}
    for key in binding.relations if binding.reads_sparse else ():
        edges, repeated = graph.edges[key], graph.edges[key].has_repeated_edges
        if repeated is None:  # saved before this was stored
            repeated = csc.repeated_edge(np.asarray(edges.indptr[:]), np.asarray(edges.indices[:]))[0] >= 0
        lacks = {REPEATED: not repeated, LOOPS: edges.src == edges.dst and not edges.has_self_loops}
        found[key] = tuple(kind for kind, is_absent in lacks.items() if is_absent)
    return {key: kinds for key, kinds in found.items() if kinds}
