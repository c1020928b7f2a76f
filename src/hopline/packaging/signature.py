"""Decides what each argument of a model's forward receives.

No check can detect an argument that is bound wrongly, for the module is called with it too. So little is
guessed: a required argument by a usual name of its role, or since it is the only one that can receive the
features or the edges; an optional one only if nothing else receives these. Two arguments that would receive
one role are refused, and so is an optional argument whose data the graph has. `Binding.called` shows the
call to the user.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch_geometric.nn import GINEConv, MessagePassing
from torch_geometric.nn.models.basic_gnn import BasicGNN

from hopline.errors import PackagingError
from hopline.packaging.advice import INSTEAD, NUMBER, TIMES, is_label, lost
from hopline.packaging.arguments import Binding, by_position, mentions, parameters_of
from hopline.packaging.memberships import without_graphs
from hopline.packaging.relations import in_order, numbered
from hopline.packaging.settings import ENDING, NAMED_ROLES, Role, role_of

if TYPE_CHECKING:
    from hopline.graph import ColumnGroup, GraphSchema

#: Roles of which one argument receives one: a `Data` holds features and edges.
_FEATURES: frozenset[Role] = frozenset({"features", "data"})
_EDGES: frozenset[Role] = frozenset({"edge_index", "adj_t", "data"})
_ONE_OF: tuple[frozenset[Role], ...] = (
    _FEATURES, _EDGES, frozenset({"edge_attr"}), frozenset({"edge_weight"}), frozenset({"edge_type"}),
)  # fmt: skip
_EDGE_DATA: dict[Role, str] = {
    "edge_attr": "edge attributes", "edge_weight": "edge weights", "edge_type": "several edge types",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a forward, and the data of a graph for them.

    Attributes:
        shown: "Net.forward", for messages.
        parameters: without *args and **kwargs, with the user's names for what these receive.
        unnamed: "*args", "**kwargs", where forward reads them.
        given: the user's roles.
        attributed, weighted, timed: edge types that have attributes, weights, times.
        columns: argument -> tensor of nodes, by the user's choice.
        left_out, tables: as in `Binding`.
    """

    shown: str
    module: nn.Module
    parameters: Mapping[str, inspect.Parameter]
    unnamed: tuple[str, ...]
    given: Mapping[str, Role | None]
    schema: GraphSchema
    attributed: tuple[str, ...]
    weighted: tuple[str, ...]
    timed: tuple[str, ...]
    left_out: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, str]
    tables: Mapping[str, str]

    @property
    def required(self) -> list[str]:
        return [name for name, each in self.parameters.items() if each.default is each.empty]

    @property
    def optional(self) -> list[str]:
        return [name for name, each in self.parameters.items() if each.default is not each.empty]

    @property
    def groups(self) -> dict[str, ColumnGroup]:
        """Tensors of nodes other than x, by name."""
        every = (group for each in self.schema.node_types.values() for group in each.groups)
        return {group.name: group for group in every if group.name != "x"}

    @property
    def has_x(self) -> bool:
        """True if a node type has a tensor x, or one matrix for all columns."""
        every = [each.groups for each in self.schema.node_types.values()]
        return any(not groups or groups[0].name == "x" for groups in every)

    def role_of(self, name: str) -> Role | None:
        """The role of an argument by its name."""
        return "columns" if name.removesuffix(ENDING) in self.groups else role_of(name)

    def column(self, name: str) -> str:
        """The tensor of nodes that an argument with the role "columns" receives."""
        return self.columns.get(name, name.removesuffix(ENDING))

    def has(self, role: Role) -> bool:
        """True if the graph has the data of a role."""
        if role == "edge_type":
            return len(self.schema.edge_types) > 1 and len(self.schema.node_types) == 1
        has = {"edge_attr": self.attributed, "edge_weight": self.weighted, "edge_time": self.timed}
        return bool(has.get(role, True))

    def unknown(self) -> list[str]:
        """Required arguments whose names are no usual ones."""
        return [name for name in self.required if name not in self.given and self.role_of(name) is None]

    def missing(self) -> list[Role]:
        """Features and edges, if no argument receives them by its name or by the user's choice."""
        named = {self.given[name] if name in self.given else self.role_of(name) for name in self.parameters}
        found: list[Role] = [] if self.tables or (_FEATURES | {"columns"}) & named else ["features"]
        return found if _EDGES & named else [*found, "edge_index"]

    def lost(self, name: str) -> str:
        """Why the graph does not have the user's data of this name, in words; "" if there was none."""
        name = name.removesuffix(ENDING)
        if role_of(name) == "batch":  # it is 0 for all nodes of a neighbourhood
            return ""
        return next((lost(name, key) for key, names in self.left_out.items() if name in names), "")


def bind(
    module: nn.Module, schema: GraphSchema, *, arguments: Mapping[str, Role | None] | None = None,
    relations: tuple[str, ...] | None = None, left_out: Mapping[str, tuple[str, ...]] | None = None,
    tables: Mapping[str, str] | None = None,
) -> Binding:  # fmt: skip
    """Decide what each argument of `module.forward` receives.

    Args:
        arguments: argument name -> what it receives, for names that are not the usual ones; None
            leaves an optional argument out.
        relations: edge type keys in the order of an `edge_type` argument's numbers.
        left_out, tables: as in `Binding`; features are not needed by a module with tables.

    Raises:
        PackagingError: an argument that is unknown or ambiguous, or data that the graph lacks; the message
            shows the call to write.
    """
    reverses = {edge.reverse_of for edge in schema.edge_types.values()}
    schema, members = without_graphs(schema, module)
    edge_keys = tuple(relations or in_order(schema.edge_types, module))
    if unknown := [key for key in edge_keys if key not in schema.edge_types]:
        known = list(schema.edge_types)
        raise PackagingError(f"relation {unknown[0]!r} is not an edge type; the edge types are {known}")
    _check_forward(module)
    given, columns = _columns(arguments or {}, schema)
    parameters, unnamed = parameters_of(module, given)
    timed = [key for key in edge_keys if schema.edge_types[key].has_time]
    left_out = {**(left_out or {}), **{key: (*(left_out or {}).get(key, ()), *TIMES) for key in timed}}
    weighted = tuple(key for key in edge_keys if schema.edge_types[key].has_weight)
    call = _Call(
        f"{type(module).__name__}.forward", module, parameters, unnamed, given, schema,
        tuple(key for key in edge_keys if schema.edge_types[key].attr_dim > 0),
        weighted, tuple(timed), left_out, columns, dict(tables or {}),
    )  # fmt: skip
    _check_given(call)
    bound = {name: role for name, role in call.given.items() if role is not None}
    named = [name for name in call.required if call.role_of(name) not in ("columns", "edge_time")]
    absent = [name for name in named if name not in bound and call.lost(name)]
    if absent:
        raise PackagingError(f"{call.shown} needs {absent[0]!r}, but {call.lost(absent[0])}")
    for name in call.required:
        bound[name] = bound.get(name) or _required(call, name)
    _check_twice(call, bound)
    bound |= _optional(call, bound)
    free = [] if isinstance(module, BasicGNN) or not members else call.optional  # BasicGNN: of its norms
    bound |= {name: "batch" for name in free if name not in given and role_of(name) == "batch"}
    roles = {name: bound[name] for name in parameters if name in bound}
    flat = frozenset(
        name for name, role in roles.items() if role == "edge_attr" and role_of(name) == "edge_weight"
    )
    _check_received(call, roles, flat)
    hetero = _is_hetero(call, roles)
    _check_unnamed(call, roles, hetero)
    by_keyword = list(roles)[by_position(parameters, roles) :]
    if late := [name for name in by_keyword if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY]:
        raise PackagingError(
            f"{call.shown} can receive {late[0]!r} only by position, behind arguments that keep their "
            "default: pass a module whose forward names it"
        )
    binding = Binding(
        roles, hetero, tuple(schema.node_types), edge_keys, call.attributed, call.weighted,
        by_position(parameters, roles), mentions(module, "adj_t"), flat, _shown(call, roles, flat),
        call.left_out, {name: each.groups for name, each in schema.node_types.items()},
        {name: call.column(name) for name in roles if roles[name] == "columns"}, call.tables,
        tuple(key for key in edge_keys if key in reverses),
        members if {"batch", "data"} & {*roles.values()} else {}, timed=call.timed,
    )  # fmt: skip
    if binding.relational and relations is None and not numbered(edge_keys):
        raise PackagingError(
            f"{call.shown} needs edge_type, a number for each edge, and the names of the graph's edge "
            "types do not contain all numbers from 0: pass relations=[...] (--relation, repeated), all of "
            f"{', '.join(edge_keys)} in the order of the numbers that the model was trained with"
        )
    if not hetero and not binding.relational and len(edge_keys) != 1 and _EDGES & {*roles.values()}:
        raise PackagingError(
            f"{call.shown} has one edge_index without edge types, but the graph has {len(edge_keys)}: "
            f"{list(edge_keys)}; name the one to use with relations=[...]"
        )
    return binding


def _columns(
    arguments: Mapping[str, Any], schema: GraphSchema
) -> tuple[dict[str, Role | None], dict[str, str]]:
    """The user's roles, and the tensors of nodes that arguments are to receive."""
    names = {group.name for each in schema.node_types.values() for group in each.groups} - {*NAMED_ROLES}
    columns = {name: value for name, value in arguments.items() if value in names}
    return {**arguments, **dict.fromkeys(columns, "columns")}, columns


def _check_unnamed(call: _Call, roles: Mapping[str, Role], hetero: bool) -> None:
    """Ask about data of the graph that no argument receives, if forward may read them unnamed."""
    received = {*roles.values()}
    if not call.unnamed or "data" in received:
        return
    named = {name.removesuffix(ENDING) for name in call.given} | {call.column(name) for name in roles}
    # an adj_t holds the weights
    answered = received | {role_of(name) for name in named} | {"edge_type" if hetero else None}
    answered.add("edge_weight" if "adj_t" in received else None)
    found: dict[str, str | None] = {
        role: role for role in _EDGE_DATA
        if call.has(role) and role not in answered and _built_for(call.module, role) is not False
    }  # fmt: skip
    found |= {name: name for name in call.groups if name not in named}
    for names in call.left_out.values():
        lacking = [name for name in names if name not in named and not is_label(name)]
        found |= dict.fromkeys(name for name in lacking if name != "time" or "edge_time" not in names)
    parts = [*call.module.modules()]
    if all(type(part).__module__.partition(".")[0] in ("torch", "torch_geometric") for part in parts):
        # what PyG's modules get unnamed they pass on, by name
        taken = {name for part in parts[1:] for name in inspect.signature(part.forward).parameters}
        found = {name: value for name, value in found.items() if name in taken}
    if not found:
        return
    every = inspect.signature(call.module.forward).parameters
    ending = ENDING if any(name.endswith(ENDING) for name in every) else ""
    given = {name + ending: value for name, value in found.items() if value}
    without = dict.fromkeys(name + ending for name in found)
    why = "".join(f". {name}: {call.lost(name)}" for name, value in found.items() if not value)
    raise PackagingError(
        f"{call.shown}({', '.join(call.unnamed)}) may read {', '.join(without)}, which no named argument "
        f"receives: was the model trained with them? If it was, pass arguments={given}; if not, "
        f"arguments={without}{why}"
    )


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


def _check_given(call: _Call) -> None:
    for name, role in call.given.items():
        if name not in call.parameters:
            raise PackagingError(
                f"{call.shown} has no argument {name!r}; its arguments are {list(call.parameters)}"
            )
        if role is None and name in call.required:
            raise PackagingError(f"{call.shown} needs {name!r}, which arguments={{...}} leaves out")
        if role is not None and role not in NAMED_ROLES and name not in call.columns:
            raise PackagingError(
                f"arguments[{name!r}] is {role!r}; an argument receives one of "
                f"{', '.join((*NAMED_ROLES, *call.groups))}, or None to leave it out"
            )
        if role in ("edge_attr", "edge_weight") and not call.has(role):
            raise PackagingError(
                f"arguments[{name!r}] is {role!r}, but the graph has no {_EDGE_DATA[role]}"
            )


def _required(call: _Call, name: str) -> Role:
    """The role of a required argument by its name."""
    role = call.role_of(name)
    unknown, missing = call.unknown(), call.missing()
    if role is None and len(unknown) == len(missing) == 1 and name not in INSTEAD:
        return missing[0]
    if role is None:
        raise PackagingError(_unknown(call, name, unknown, missing))
    if role == "features" and not call.has_x:
        raise PackagingError(
            f"{call.shown} needs {name!r}, and the graph has no x: its tensors of nodes are "
            f"{', '.join(call.groups)}. Name the one that it receives, arguments={{{name!r}: ...}}"
        )
    if role in ("edge_attr", "edge_weight", "edge_time") and not call.has(role):
        what = _EDGE_DATA.get(role, "edge times")
        raise PackagingError(f"{call.shown} needs {name!r}, but the graph has no {what}")
    return role


def _check_twice(call: _Call, bound: Mapping[str, Role]) -> None:
    """Refuse two arguments of one role, unless the user named them all."""
    for family in _ONE_OF:
        names = [name for name in call.parameters if bound.get(name) in family]
        if len(names) > 1 and not set(names) <= call.given.keys():
            what = "features" if family is _FEATURES else "edges" if family is _EDGES else min(family)
            whole = [name for name in names if bound[name] == "data"]
            advice = "Give the others a default, or pass a module that calls this one"
            if family is _FEATURES:
                advice = "Another tensor is kept by its name, Graph.from_pyg(data, columns=[name])"
            for each in whole[:1]:
                advice = f"If {each!r} is the edges alone, pass arguments={{{each!r}: 'edge_index'}}"
            shown = ", ".join(f"{name!r}: {bound[name]!r}" for name in names)
            raise PackagingError(
                f"{' and '.join(map(repr, names))} of {call.shown} would both receive the {what}, by their "
                f"names. {advice}. Only if this is what the model means, pass arguments={{{shown}}}"
            )


def _optional(call: _Call, bound: Mapping[str, Role]) -> dict[str, Role]:
    """Roles of optional arguments that the user did not name; the others keep their default."""
    found: dict[str, Role] = {}
    free = [name for name in call.optional if name not in call.given]
    for family in (_FEATURES, _EDGES):
        if not family & set(bound.values()):
            found |= {name: role for name in free if (role := role_of(name)) in family}
    _check_twice(call, {**bound, **found})
    for name in free:
        role = call.role_of(name)
        if role == "columns":
            found[name] = role
        if name not in found and call.lost(name):
            raise PackagingError(
                f"{name!r} of {call.shown} is optional, and {call.lost(name)}. If the model was "
                f"trained without it, pass arguments={{{name!r}: None}}"
            )
        is_timed = call.timed or any(each.has_time for each in call.schema.node_types.values())
        if role == "seed_time" and is_timed:
            raise PackagingError(
                f"{name!r} of {call.shown} is optional, and the graph has times. If the model was trained "
                f"with it, pass arguments={{{name!r}: 'seed_time'}}; if not, arguments={{{name!r}: None}}"
            )
        if role in _EDGE_DATA and role not in bound.values() and _is_meant(call, name, role):
            found[name] = role
    return found


def _is_meant(call: _Call, name: str, role: Role) -> bool:
    """True if a model was built to read the edge data of an optional argument.

    Raises: PackagingError: nothing shows whether it was trained with data that the graph has; both calls.
    """
    built = _built_for(call.module, role)
    if built is not None:
        return built and call.has(role)
    source = role
    single = all(call.schema.edge_types[key].attr_dim == 1 for key in call.attributed)
    if role == "edge_weight" and not call.weighted and single:
        # T.GDC leaves its weights in edge_attr
        source = "edge_attr" if _built_for(call.module, "edge_attr") is not True else role
    if call.has(source):
        raise PackagingError(
            f"the graph has {_EDGE_DATA[source]}, and {name!r} of {call.shown} is optional: was the model "
            f"trained with them? If it was, pass arguments={{{name!r}: {source!r}}}; if not, "
            f"arguments={{{name!r}: None}}"
        )
    return False


def _built_for(module: nn.Module, role: Role) -> bool | None:
    """True if the model was built to read this edge data, False if not, None if unknown."""
    if isinstance(module, BasicGNN) and role != "edge_type":
        supports = module.supports_edge_weight if role == "edge_weight" else module.supports_edge_attr
        if not supports:
            return False
    if role != "edge_attr":
        return None
    convs = [part for part in module.modules() if isinstance(part, MessagePassing)]
    accepting = [conv for conv in convs if role in inspect.signature(conv.forward).parameters]
    if any(isinstance(part, GINEConv) or getattr(part, "edge_dim", None) is not None for part in accepting):
        return True
    # only a layer that has an option for them, and has it off, is known not to read them
    built_without = all(hasattr(part, "edge_dim") for part in accepting)
    return False if isinstance(module, BasicGNN) and built_without else None


def _check_received(call: _Call, roles: Mapping[str, Role], flat: Iterable[str]) -> None:
    """Check that some arguments receive the features and the edges, and that a weight is one number."""
    received = set(roles.values())
    has_conv = any(isinstance(each, MessagePassing) for each in call.module.modules())
    for family, role in ((_FEATURES, "features"), (_EDGES, "edge_index")):
        if family & received or (role == "features" and ("columns" in received or call.tables)):
            continue
        if role == "edge_index" and not (has_conv or "batch" in received):
            continue
        text = f"no argument of {call.shown} receives the {role}; its arguments are {list(call.parameters)}"
        if "batch" in received:
            name = next(name for name in roles if roles[name] == "batch")
            text += f". If {name!r} is a Data or HeteroData, pass arguments={{{name!r}: 'data'}}"
        else:
            text += f": name it with arguments={{...: {role!r}}}"
        raise PackagingError(text + (f". Else {NUMBER}" if role == "features" else ""))
    for name in flat:
        wide = [key for key in call.attributed if call.schema.edge_types[key].attr_dim != 1]
        if wide:
            raise PackagingError(
                f"arguments[{name!r}] is 'edge_attr', but {wide[0]!r} has "
                f"{call.schema.edge_types[wide[0]].attr_dim} attributes for each edge; a weight is one"
            )


def _unknown(call: _Call, name: str, unknown: list[str], missing: list[Role]) -> str:
    """Advice for a required argument of an unknown name."""
    instead = INSTEAD.get(name)
    if instead:
        return f"{call.shown} needs {name!r}: {instead}"
    text = f"{call.shown} needs {name!r}, and nothing of the graph has this name. "
    if len(missing) == 2:
        first = next(each for each in call.required if each in unknown or role_of(each) == "batch")
        text += f"If {first!r} is a Data or HeteroData, pass arguments={{{first!r}: 'data'}}. "
    if 0 < len(unknown) == len(missing) and not set(unknown) & INSTEAD.keys():
        pairs = ", ".join(f"{each!r}: {role!r}" for each, role in zip(unknown, missing, strict=False))
        text += f"If they are in PyG's order, pass arguments={{{pairs}}}. "
    known = ", ".join((*(role for role in NAMED_ROLES if role != "data"), *call.groups))
    return text + (
        f"arguments={{{name!r}: ...}} names what it receives, one of {known}. A further tensor of nodes is "
        f"kept by Graph.from_pyg(data, columns=[{name!r}]); any other value needs a default, or a module "
        "that passes it"
    )


def _shown(call: _Call, roles: Mapping[str, Role], flat: Iterable[str]) -> str:
    """The call, as "called as forward(x=features[17], edge_index=edge_index, h=default)"."""
    nodes, edges = call.schema.node_types, call.schema.edge_types
    of_nodes = {key: each.x_dim for key, each in nodes.items() if each.x_dim or not each.groups}
    of_edges = {key: edges[key].attr_dim for key in call.attributed}

    def width(by_type: Mapping[str, int]) -> str:
        if len(by_type) == 1:
            return f"[{next(iter(by_type.values()))}]"
        return "{" + ", ".join(f"{key}[{dim}]" for key, dim in by_type.items()) + "}"

    def value(name: str) -> str:
        role = roles.get(name)
        if role == "columns":
            return call.column(name)
        if role == "features":
            return f"features{width(of_nodes)}"
        if role == "edge_attr":
            return "edge_attr as weight" if name in flat else f"edge_attr{width(of_edges)}"
        if role == "data":
            has = [f"x{width(of_nodes)}"] if call.has_x else []
            has += [*call.groups, "edge_index"]
            has += [f"edge_attr{width(of_edges)}"] if call.attributed else []
            has += ["edge_weight"] if call.weighted else []
            return f"{'Hetero' if _is_hetero(call, roles) else ''}Data({', '.join(has)})"
        return "zeros" if role == "batch" else role or "default"

    unnamed = {name for name, each in call.parameters.items() if each.kind is each.POSITIONAL_ONLY}
    shown = [value(name) if name in unnamed else f"{name}={value(name)}" for name in call.parameters]
    every = inspect.signature(call.module.forward).parameters
    if not roles.keys() - every.keys():
        shown += [f"{each}=none".partition(":")[0] for each in every.values() if "*" in str(each)]
    text = f"called as forward({', '.join(shown)})"
    guessed = [
        name for name in roles
        if name not in call.given and name.lower().removesuffix(ENDING) not in (roles[name], "x")
        and roles[name] != "columns"
    ]  # fmt: skip
    if guessed:
        one = len(guessed) == 1
        text += (
            f", of which {' and '.join(guessed)} {'is a guess' if one else 'are guesses'}: "
            "arguments={...} names what they receive"
        )
    idle = [
        name for name in call.optional
        if name not in {*roles, *call.given} and (role := role_of(name)) in _EDGE_DATA and call.has(role)
    ]  # fmt: skip
    if idle:
        text += f"; the graph has {', '.join(idle)} too, which the model's layers do not read"
    return text


def _is_hetero(call: _Call, roles: Mapping[str, Role]) -> bool:
    of, dicts = next(iter(call.schema.node_types)), ("typing.dict", "dict", "<class 'dict")
    if len(call.schema.node_types) > 1 or ("data" in roles.values() and len(call.schema.edge_types) > 1):
        return True
    for name, role in roles.items():
        hint = str(call.parameters[name].annotation).lower()
        forms = (f"{name}[{of!r}]", f'{name}["{of}"]', f"{name}.x_dict")  # a HeteroData of one type
        is_read = "heterodata" in hint or any(mentions(call.module, form) for form in forms)
        if name.endswith(ENDING) or hint.startswith(dicts) or (role == "data" and is_read):
            return True
    return False
