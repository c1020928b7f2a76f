"""Decides which data of the graph each argument of a model's forward receives.

The traced model has one input, a mapping of *slots*: "features:<node type>", "edge_index:<edge type>",
"edge_attr:<edge type>", "edge_weight:<edge type>", and "edge_index:*", "edge_type:*" where one argument
holds the edges of all relations (RGCN). "adj_t:<edge type>" is the edge index too, read as a sparse matrix:
a convolution over it also reads the edge weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.utils import to_torch_csr_tensor

from hopline.errors import PackagingError
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.dense import NEEDS_EDGE_ATTR
from hopline.packaging.relations import natural, numbered, split_key
from hopline.packaging.settings import Role

if TYPE_CHECKING:
    from hopline.graph import GraphSchema

_NAMES: dict[str, Role] = {
    "x": "features",
    "h": "features",
    "feat": "features",
    "feats": "features",
    "features": "features",
    "node_features": "features",
    "in_feat": "features",
    "inputs": "features",
    "node_feat": "features",
    "node_feats": "features",
    "node_feature": "features",
    "node_attr": "features",
    "edge_index": "edge_index",
    "edges": "edge_index",
    "adj": "edge_index",
    "adj_t": "adj_t",
    "edge_attr": "edge_attr",
    "edge_attrs": "edge_attr",
    "edge_feat": "edge_attr",
    "edge_features": "edge_attr",
    "edge_weight": "edge_weight",
    "edge_weights": "edge_weight",
    "edge_type": "edge_type",
    "edge_types": "edge_type",
    "edge_list": "edge_index",
    "ei": "edge_index",
    "batch": "batch",
    "data": "data",
    "graph": "data",
    "g": "data",
}
#: Plural edge_types would mean the relation of each edge; the ending of x_dict and the like is removed
#: first.
_ENDING = "_dict"


@dataclass(frozen=True, slots=True)
class Binding:
    """How a model is called.

    Attributes:
        roles: argument name -> what it receives, in the order of the signature.
        hetero: arguments are dicts by type.
        node_types: all node types of the schema.
        relations: edge types, in the order of an `edge_type` argument's numbers.
        attributed, weighted: edge types that have attributes, weights.
        positional: arguments are given by position (`forward(*args)`).
        reads_adjacency: the model reads `data.adj_t`.
        flat: arguments that take a single edge attribute as [E] instead of [E, 1].
        notes: the choices that were made, for the user.
    """

    roles: dict[str, Role]
    hetero: bool
    node_types: tuple[str, ...]
    relations: tuple[str, ...]
    attributed: tuple[str, ...]
    weighted: tuple[str, ...]
    positional: bool = False
    reads_adjacency: bool = False
    flat: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def relational(self) -> bool:
        """One argument holds the edges of all relations."""
        return "edge_type" in self.roles.values() and not self.hetero

    @property
    def reads_sparse(self) -> bool:
        """The model reads edges as a sparse matrix."""
        given = self.roles.values()
        return "adj_t" in given or (self.reads_adjacency and "data" in given)

    def call(self, module: nn.Module, slots: Any, *, sparse: bool = False) -> Any:
        """Call the model on a mapping of slots (tensors or fx proxies).

        Args:
            sparse: pass `adj_t` as the sparse tensor that `ToSparseTensor` builds; else as the edge index.
        """
        values = {name: self._value(name, role, slots, sparse) for name, role in self.roles.items()}
        return module(*values.values()) if self.positional else module(**values)

    def _value(self, name: str, role: Role, slots: Any, sparse: bool) -> Any:
        if role == "data":
            return self._data(slots, sparse)
        if role in ("features", "batch"):
            rows = {node_type: slots[f"features:{node_type}"] for node_type in self.node_types}
            if role == "batch":
                rows = {key: x.new_zeros(x.size(0), dtype=torch.int64) for key, x in rows.items()}
            return rows if self.hetero else rows[self.node_types[0]]
        keys = {
            "edge_index": self.relations,
            "adj_t": self.relations,
            "edge_attr": self.attributed,
            "edge_weight": self.weighted,
            "edge_type": (),
        }[role]

        def of(key: str) -> Any:
            if role == "adj_t":
                return self._adjacency(slots, key, sparse)
            value = slots[f"{role}:{key}"]
            return value.view(-1) if name in self.flat else value

        if self.hetero:
            return {split_key(key): of(key) for key in keys}
        return of("*" if self.relational else self.relations[0])

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
                graph[node_type].x = slots[f"features:{node_type}"]
            for key in self.relations:
                self._fill(graph[split_key(key)], slots, key, sparse)
            return graph
        x = slots[f"features:{self.node_types[0]}"]
        single = Data(x=x, batch=x.new_zeros(x.size(0), dtype=torch.int64))
        self._fill(single, slots, self.relations[0], sparse)
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
            found[f"edge_index:{key}"] = torch.from_numpy(edges.edge_index)
            found[f"adj_t:{key}"] = torch.from_numpy(edges.edge_index)
            if edges.attr is not None:
                found[f"edge_attr:{key}"] = torch.from_numpy(edges.attr.copy())
            if edges.weight is not None:
                found[f"edge_weight:{key}"] = torch.from_numpy(edges.weight.copy())
        if self.relational:
            edge_lists = [graph.edges[key] for key in self.relations]
            found["edge_index:*"] = torch.from_numpy(np.concatenate([e.edge_index for e in edge_lists], 1))
            found["adj_t:*"] = found["edge_index:*"].clone()
            numbers = np.repeat(np.arange(len(edge_lists)), [len(e.indices) for e in edge_lists])
            found["edge_type:*"] = torch.from_numpy(numbers)
            for role, keys in (("edge_attr", self.attributed), ("edge_weight", self.weighted)):
                if keys == self.relations:
                    found[f"{role}:*"] = torch.cat([found[f"{role}:{key}"] for key in keys])
        return found


def bind(
    module: nn.Module,
    schema: GraphSchema,
    *,
    arguments: Mapping[str, Role | None] | None = None,
    relations: tuple[str, ...] | None = None,
) -> Binding:
    """Decide what each argument of `module.forward` receives.

    An argument with an unknown name gets its role from PyG's order, features first and edges second, if
    only these two are missing. An ambiguous argument is refused, and the message shows the call to write.

    Args:
        arguments: argument name -> what it receives, for names that are not the usual ones; None
            leaves an optional argument out.
        relations: edge type keys in the order of an `edge_type` argument's numbers.

    Raises:
        PackagingError: an argument that is unknown or ambiguous, or data that the graph lacks.
    """
    given = dict(arguments or {})
    edge_keys = tuple(relations or sorted(schema.edge_types, key=natural))
    for key in edge_keys:
        if key not in schema.edge_types:
            raise PackagingError(
                f"relation {key!r} is not an edge type; the edge types are {list(schema.edge_types)}"
            )
    attributed = tuple(key for key in edge_keys if schema.edge_types[key].attr_dim > 0)
    weighted = tuple(key for key in edge_keys if schema.edge_types[key].has_weight)
    _check_forward(module)
    called = f"{type(module).__name__}.forward"
    parameters = dict(inspect.signature(module.forward).parameters)
    positional = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
    if positional:  # forward(*args): PyG's order
        described = getattr(module, "signature", None)  # of torch_geometric.nn.Sequential
        names = getattr(described, "param_names", ("x", "edge_index"))
        parameters = {name: inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names}
    for name, role in given.items():
        if name not in parameters:
            raise PackagingError(f"{called} has no argument {name!r}; its arguments are {list(parameters)}")
        if role is not None and role not in get_args(Role):
            raise PackagingError(
                f"arguments[{name!r}] is {role!r}; an argument receives one of "
                f"{', '.join(get_args(Role))}, or None to leave it out"
            )
    notes: list[str] = []
    by_order = _by_order(parameters, given)
    if by_order:
        shown = ", ".join(f"{name} as {role}" for name, role in by_order.items())
        notes.append(f"{called} is called with {shown}, by PyG's order; name them with arguments={{...}}")
    roles: dict[str, Role] = {}
    flat: set[str] = set()
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optional = parameter.default is not parameter.empty
        role = given[name] if name in given else by_order.get(name) or role_of(name)
        if name in given and role is None:
            if not optional:
                raise PackagingError(f"{called} needs {name!r}, which arguments={{...}} leaves out")
            continue
        if role is None and not optional:
            raise PackagingError(_unknown(called, name))
        if role is None or (role == "batch" and optional and name not in given):
            continue
        if role == "data" and optional and name not in given:
            continue
        missing = _missing(role, attributed, weighted)
        if optional and name not in given:
            _refuse_ambiguous(module, schema, called, name, role, attributed, weighted)
        if missing and not optional:
            raise PackagingError(f"{called} needs {name!r}, but {missing}")
        if missing and name in given:
            raise PackagingError(f"arguments[{name!r}] is {role!r}, but {missing}")
        if missing or (optional and name not in given and not _reads(module, role)):
            continue
        roles[name] = role
        if role == "edge_attr" and role_of(name) == "edge_weight":
            wide = [key for key in attributed if schema.edge_types[key].attr_dim != 1]
            if wide:
                raise PackagingError(
                    f"arguments[{name!r}] is 'edge_attr', but {wide[0]!r} has "
                    f"{schema.edge_types[wide[0]].attr_dim} attributes for each edge; a weight is one"
                )
            flat.add(name)
    for role, also in (("features", "data"), ("edge_index", "adj_t")):
        if not {role, also, "data"} & set(roles.values()):
            raise PackagingError(
                f"no argument of {called} receives the {role}; its arguments are {list(parameters)}: name "
                "it "
                f"with arguments={{...: {role!r}}}." + (_NO_FEATURES if role == "features" else "")
            )
    by_name = [
        f"{name} as {role}"
        for name, role in roles.items()
        if name not in given and name not in by_order and _is_guess(name, role)
    ]
    edge_data: tuple[Role, Role] = ("edge_attr", "edge_weight")
    left = [name for name in parameters if name not in {*roles, *given} and role_of(name) in edge_data]
    if by_name:
        notes.append(f"{called} is called with {', '.join(by_name)}, by the names of its arguments")
    if left and (attributed or weighted):
        notes.append(f"{called} is called without {', '.join(left)}")
    hetero = _is_hetero(roles, schema, parameters)
    binding = Binding(
        roles, hetero, tuple(schema.node_types), edge_keys, attributed, weighted, positional,
        _mentions(module, "adj_t"), frozenset(flat), tuple(notes),
    )  # fmt: skip
    if binding.relational and relations is None and not numbered(edge_keys):
        raise PackagingError(
            f"{called} needs edge_type, a number for each edge, and the names of the graph's edge types do "
            "not contain all numbers from 0: pass relations=[...] (--relation, repeated), all of "
            f"{', '.join(edge_keys)} in the order of the numbers that the model was trained with"
        )
    if not hetero and not binding.relational and len(edge_keys) != 1:
        raise PackagingError(
            f"{called} has one edge_index without edge types, but the graph has {len(edge_keys)}: "
            f"{list(edge_keys)}; name the one to use with relations=[...]"
        )
    return binding


_NO_FEATURES = (
    " A model that identifies nodes by number alone reads the number as a feature column: give the graph "
    "x = torch.arange(num_nodes).view(-1, 1).float() and look up self.emb(x[:, 0].long()) in forward"
)
#: Arguments that belong to training or to pairs, and the alternative.
_INSTEAD = {
    "edge_label_index": "requests name the pairs: pass the encoder as the module and the decoder as "
    "head=, a module of (h_src, h_dst) or 'dot', with target=(source type, destination type)",
    "y": "labels are not known when a node is scored: pass a module whose forward does not need them",
    "n_id": "give each node its number as a feature column, and read x[:, 0].long()",
}


def role_of(name: str) -> Role | None:
    """The role of an argument of this name; None if the name is unknown."""
    return _NAMES.get(name.lower().removesuffix(_ENDING))


def _is_guess(name: str, role: str) -> bool:
    """Whether the name of an argument is known, but is not the usual one of its role."""
    name = name.removesuffix(_ENDING)
    return name not in (role, "x")


def _mentions(module: nn.Module, word: str) -> bool:
    """Whether the source of a module's class contains a word; False if no source is available."""
    try:
        return word in inspect.getsource(type(module))
    except (OSError, TypeError):
        return False


def _check_forward(module: nn.Module) -> None:
    if type(module).forward is not nn.Module.forward:
        return
    name = type(module).__name__
    if callable(getattr(module, "encode", None)):
        raise PackagingError(
            f"{name} has no forward, but encode: define class Served({name}): "
            f"forward = {name}.encode, and package a Served with the same weights; head='dot', or head=a "
            "module of (h_src, h_dst), scores pairs as decode does"
        )
    raise PackagingError(
        f"{name} has no forward: write forward(self, x, edge_index) that answers one row for each node"
    )


def _by_order(
    parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Role | None]
) -> dict[str, Role]:
    """Roles of the first two arguments if their names are unknown and no other argument has these roles."""
    named = {given[name] if name in given else role_of(name) for name in parameters}
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    found: dict[str, Role] = {}
    order: tuple[Role, Role] = ("features", "edge_index")
    for name, role in zip(required[:2], order, strict=False):
        if name not in given and role_of(name) is None and len(required) >= 2 and name not in _INSTEAD:
            if role in named or (role == "edge_index" and "adj_t" in named):
                return {}
            found[name] = role
    return found


def _unknown(called: str, name: str) -> str:
    known = ", ".join(role for role in get_args(Role) if role != "data")
    instead = _INSTEAD.get(name, "")
    if instead:
        return f"{called} needs {name!r}: {instead}"
    return (
        f"{called} needs {name!r}, which is unknown; name it with "
        f"arguments={{{name!r}: ...}}, one of {known}, or give it a default"
    )


def _missing(role: Role, attributed: tuple[str, ...], weighted: tuple[str, ...]) -> str:
    if role == "edge_attr" and not attributed:
        return "the graph has no edge attributes"
    if role == "edge_weight" and not weighted:
        return "the graph has no edge weights"
    return ""


def _refuse_ambiguous(
    module: nn.Module,
    schema: GraphSchema,
    called: str,
    name: str,
    role: Role,
    attributed: tuple[str, ...],
    weighted: tuple[str, ...],
) -> None:
    """Refuse to guess whether a model was trained with data that is optional for it.

    Raises:
        PackagingError: shows both calls.
    """
    if role not in ("edge_weight", "edge_attr") or _built_for(module, role) is False:
        return
    if role == "edge_attr" and _built_for(module, role):
        return
    has = {"edge_weight": weighted, "edge_attr": attributed}
    other: Role = "edge_attr" if role == "edge_weight" else "edge_weight"
    source: Role
    if has[role]:
        source = role
    elif has[other] and _built_for(module, other) is not True and role == "edge_weight":
        if any(schema.edge_types[key].attr_dim != 1 for key in attributed):
            return
        source = other
    else:
        return
    what = "edge weights" if source == "edge_weight" else "edge attributes"
    raise PackagingError(
        f"the graph has {what}, and {name!r} of {called} is optional: was the model trained "
        f"with them? If it was, pass arguments={{{name!r}: {source!r}}}; if not, arguments={{{name!r}: "
        "None}}"
    )


def _built_for(module: nn.Module, role: Role) -> bool | None:
    """Whether the model was built to read this edge data: True, False, or None if unknown."""
    if isinstance(module, BasicGNN):
        supports = module.supports_edge_weight if role == "edge_weight" else module.supports_edge_attr
        if not supports:
            return False
    accepting = [
        part
        for part in module.modules()
        if isinstance(part, MessagePassing) and role in inspect.signature(part.forward).parameters
    ]
    if role == "edge_weight":
        return None
    for part in accepting:
        if isinstance(part, NEEDS_EDGE_ATTR) or getattr(part, "edge_dim", None) is not None:
            return True
    # only a layer that has an option for them, and has it off, is known not to read them
    built_without = all(hasattr(part, "edge_dim") for part in accepting)
    return False if isinstance(module, BasicGNN) and built_without else None


def _reads(module: nn.Module, role: Role) -> bool:
    """Whether an optional argument that the graph can fill is passed without an explicit request."""
    if role == "edge_attr":
        return _built_for(module, role) is True
    return role != "edge_weight"


def _is_hetero(
    roles: Mapping[str, Role], schema: GraphSchema, parameters: Mapping[str, inspect.Parameter]
) -> bool:
    if len(schema.node_types) > 1:
        return True
    if "data" in roles.values() and len(schema.edge_types) > 1:
        return True
    for name in roles:
        annotation = str(parameters[name].annotation).lower()
        if name.endswith(_ENDING) or annotation.startswith(("typing.dict", "dict", "<class 'dict")):
            return True
    return False
