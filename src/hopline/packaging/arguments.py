"""Which argument of a model's forward receives what of the graph.

The traced model has one input, a mapping of *slots*: "features:<node type>", "edge_index:<edge type>",
"edge_attr:<edge type>", "edge_weight:<edge type>", and "edge_index:*", "edge_type:*" where one argument
holds the edges of all relations (RGCN).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, MessagePassing

from hopline.errors import PackagingError
from hopline.packaging.check_graph import CheckGraph

if TYPE_CHECKING:
    from hopline.graph import GraphSchema

Role = Literal["features", "edge_index", "edge_attr", "edge_weight", "edge_type"]

_NAMES: dict[str, Role] = {
    "x": "features",
    "h": "features",
    "feat": "features",
    "feats": "features",
    "features": "features",
    "node_features": "features",
    "in_feat": "features",
    "inputs": "features",
    "edge_index": "edge_index",
    "edges": "edge_index",
    "adj": "edge_index",
    "adj_t": "edge_index",
    "edge_attr": "edge_attr",
    "edge_attrs": "edge_attr",
    "edge_feat": "edge_attr",
    "edge_features": "edge_attr",
    "edge_weight": "edge_weight",
    "edge_weights": "edge_weight",
    "edge_type": "edge_type",
    "edge_types": "edge_type",
}
#: Plural edge_types would be the relation of each edge; x_dict and the like lose their ending first.
_ENDING = "_dict"


def split_key(key: str) -> tuple[str, str, str]:
    """The (source, relation, destination) of an edge type key."""
    src, relation, dst = key.split("__")
    return src, relation, dst


@dataclass(frozen=True, slots=True)
class Binding:
    """How a model is called.

    Attributes:
        roles: argument name -> what it receives.
        hetero: arguments are dicts by type.
        node_types: all node types of the schema.
        relations: edge types, in the order of an `edge_type` argument's numbers.
        attributed, weighted: edge types that have attributes, weights.
    """

    roles: dict[str, Role]
    hetero: bool
    node_types: tuple[str, ...]
    relations: tuple[str, ...]
    attributed: tuple[str, ...]
    weighted: tuple[str, ...]

    @property
    def relational(self) -> bool:
        """One argument holds the edges of all relations."""
        return "edge_type" in self.roles.values() and not self.hetero

    def arguments(self, slots: Any) -> dict[str, Any]:
        """Keyword arguments for forward, from a mapping of slots (tensors or fx proxies)."""
        return {name: self._value(role, slots) for name, role in self.roles.items()}

    def _value(self, role: Role, slots: Any) -> Any:
        if role == "features":
            if not self.hetero:
                return slots[f"features:{self.node_types[0]}"]
            return {name: slots[f"features:{name}"] for name in self.node_types}
        keys = {
            "edge_index": self.relations,
            "edge_attr": self.attributed,
            "edge_weight": self.weighted,
            "edge_type": (),
        }[role]
        if self.hetero:
            return {split_key(key): slots[f"{role}:{key}"] for key in keys}
        return slots[f"{role}:{'*' if self.relational else self.relations[0]}"]

    def slots(self, graph: CheckGraph) -> dict[str, Tensor]:
        """The tensors of a graph, one for each slot."""
        found = {f"features:{name}": torch.from_numpy(rows.copy()) for name, rows in graph.features.items()}
        for key, edges in graph.edges.items():
            found[f"edge_index:{key}"] = torch.from_numpy(edges.edge_index)
            if edges.attr is not None:
                found[f"edge_attr:{key}"] = torch.from_numpy(edges.attr.copy())
            if edges.weight is not None:
                found[f"edge_weight:{key}"] = torch.from_numpy(edges.weight.copy())
        if self.relational:
            edge_lists = [graph.edges[key] for key in self.relations]
            found["edge_index:*"] = torch.from_numpy(np.concatenate([e.edge_index for e in edge_lists], 1))
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

    Args:
        arguments: argument name -> what it receives, for names that are not the usual ones; None
            leaves an optional argument out.
        relations: edge type keys in the order of an `edge_type` argument's numbers.

    Raises:
        PackagingError: a required argument that nothing is known about, or data the graph lacks.
    """
    given = dict(arguments or {})
    edge_keys = tuple(relations or sorted(schema.edge_types, key=_natural))
    for key in edge_keys:
        if key not in schema.edge_types:
            raise PackagingError(
                f"relation {key!r} is not an edge type; there are {list(schema.edge_types)}"
            )
    attributed = tuple(key for key in edge_keys if schema.edge_types[key].attr_dim > 0)
    weighted = tuple(key for key in edge_keys if schema.edge_types[key].has_weight)
    parameters = inspect.signature(module.forward).parameters
    for name in given:
        if name not in parameters:
            raise PackagingError(
                f"{type(module).__name__}.forward has no argument {name!r}; it has {list(parameters)}"
            )
    roles: dict[str, Role] = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optional = parameter.default is not parameter.empty
        role = given[name] if name in given else _NAMES.get(name.removesuffix(_ENDING))
        if role is None:
            if not optional:
                raise PackagingError(
                    f"{type(module).__name__}.forward needs {name!r}, and it is not known what that is; "
                    f"pass arguments={{{name!r}: 'features' | 'edge_index' | 'edge_attr' | 'edge_weight'}}"
                )
            continue
        missing = _missing(role, attributed, weighted)
        if missing and not optional:
            raise PackagingError(f"{type(module).__name__}.forward needs {name!r}, but {missing}")
        if missing or (optional and name not in given and not _reads(module, role)):
            continue
        roles[name] = role
    for role in ("features", "edge_index"):
        if role not in roles.values():
            raise PackagingError(
                f"no argument of {type(module).__name__}.forward receives the {role}; "
                f"its arguments are {list(parameters)}: name it with arguments={{...: {role!r}}}"
            )
    hetero = _is_hetero(roles, schema, parameters)
    binding = Binding(roles, hetero, tuple(schema.node_types), edge_keys, attributed, weighted)
    if not hetero and not binding.relational and len(edge_keys) != 1:
        raise PackagingError(
            f"{type(module).__name__}.forward takes one edge_index without edge types, but the graph has "
            f"{len(edge_keys)}: {list(edge_keys)}; name the one to use with relations=[...]"
        )
    return binding


def _natural(key: str) -> list[tuple[int, str]]:
    """Sort r2 before r10: relation numbers are positions in this order."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", key)]


def _missing(role: Role, attributed: tuple[str, ...], weighted: tuple[str, ...]) -> str:
    if role == "edge_attr" and not attributed:
        return "the graph has no edge attributes"
    if role == "edge_weight" and not weighted:
        return "the graph has no edge weights"
    return ""


def _reads(module: nn.Module, role: Role) -> bool:
    """Whether an optional edge argument is worth passing: some conv was built to read it."""
    if role not in ("edge_attr", "edge_weight"):
        return True
    for part in module.modules():
        if not isinstance(part, MessagePassing):
            continue
        accepts = role in inspect.signature(part.forward).parameters
        if role == "edge_weight" and accepts:
            return True
        if accepts and (isinstance(part, GINEConv) or getattr(part, "edge_dim", 0) is not None):
            return True
    return False


def _is_hetero(
    roles: Mapping[str, Role], schema: GraphSchema, parameters: Mapping[str, inspect.Parameter]
) -> bool:
    if len(schema.node_types) > 1:
        return True
    for name in roles:
        annotation = str(parameters[name].annotation).lower()
        if name.endswith(_ENDING) or annotation.startswith(("typing.dict", "dict", "<class 'dict")):
            return True
    return False
