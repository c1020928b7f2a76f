"""Settings of packaging: roles of arguments and their usual names, fanouts, the choice of neighbours."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from hopline.errors import PackagingError
from hopline.graph.edge_times import UNITS

if TYPE_CHECKING:
    from hopline.graph import GraphSchema

#: What an argument of a model's forward receives; see `arguments.py`.
Role = Literal[
    "features", "columns", "edge_index", "edge_attr", "edge_weight", "edge_type", "edge_time", "adj_t",
    "batch", "seed_time", "data",
]  # fmt: skip
#: Roles as users name them: "columns" is written as the name of a tensor of nodes.
NAMED_ROLES = tuple(role for role in get_args(Role) if role != "columns")
#: Usual names of each role, without the ending of x_dict and the like, which is removed first. Plural
#: edge_types means the relation of each edge.
_USUAL: dict[Role, str] = {
    "features": "x h feat feats features node_features in_feat inputs node_feat node_feats node_feature "
    "node_attr",
    "edge_index": "edge_index edges adj edge_list ei",
    "edge_attr": "edge_attr edge_attrs edge_feat edge_features",
    "edge_weight": "edge_weight edge_weights", "edge_type": "edge_type edge_types",
    "adj_t": "adj_t", "batch": "batch", "data": "data graph g", "seed_time": "seed_time input_time",
    "edge_time": "edge_time edge_times",
}  # fmt: skip
_NAMES: dict[str, Role] = {name: role for role, names in _USUAL.items() for name in names.split()}
ENDING = "_dict"
Sampling = Literal["uniform", "recent", "weighted"]
#: Where attention is computed: by a kernel of the engine, or by the program of the GPU.
Device = Literal["cpu", "cuda"]
#: One list for every edge type, or edge type (key or triple) -> its own list.
Fanouts = Sequence[int] | Mapping[str, Sequence[int]] | Mapping[tuple[str, str, str], Sequence[int]]


#: Edge type -> a duration, or one for each layer.
Windows = Mapping[Any, str | int | Sequence[str | int | None]]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

#: Fanouts as `checked_fanouts` returns them: of every edge type, or by key.
CheckedFanouts = tuple[int, ...] | dict[str, tuple[int, ...]]


def role_of(name: str) -> Role | None:
    """The role of an argument of this name; None if the name is unknown."""
    return _NAMES.get(name.lower().removesuffix(ENDING))


def checked_fanouts(fanouts: Fanouts) -> CheckedFanouts:
    """The caller's fanouts, as tuples of Python's integers.

    Args:
        fanouts: a list or array of integers, or edge type -> list.

    Raises: PackagingError: anything else; naming the value.
    """
    if isinstance(fanouts, Mapping):
        return {
            "__".join(key) if isinstance(key, tuple) else key: _integers(values, f"fanouts of {key!r}")
            for key, values in fanouts.items()
        }
    return _integers(fanouts, "fanouts")


def _integers(values: object, what: str) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PackagingError(
            f"{what}: a list with one number for each layer, such as [10, 5]; got {values!r}"
        )
    return tuple(checked_integer(value, what, -1, "; -1 for all neighbours") for value in values)


def checked_integer(value: object, what: str, least: int | None = None, note: str = "") -> int:
    """An integer of Python or NumPy.

    Raises: PackagingError: anything else, or one below `least`; naming the argument (`what`) and the value.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise PackagingError(f"{what}: must be an integer{note}; got {value!r}") from None
    if least is not None and number < least:
        raise PackagingError(f"{what}: must be at least {least}{note}; got {value!r}")
    return number


def checked_names(values: object, what: str) -> tuple[str, ...]:
    """Distinct names.

    Raises: PackagingError: anything else; naming the argument (`what`) and what is wrong.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PackagingError(f"{what}: a list of names; got {values!r}")
    found = tuple(values)
    for k, name in enumerate(found):
        if not isinstance(name, str):
            raise PackagingError(f"{what}: a list of names; number {k + 1} is {name!r}")
        if name in found[:k]:
            raise PackagingError(f"{what}: {name!r} is there twice")
    return found


def resolve_fanouts(
    fanouts: CheckedFanouts, num_layers: int, edge_types: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """Assign fanouts to each edge type that the model reads.

    Args:
        fanouts: seed-outward, one number for each layer; -1 means all neighbours.
        edge_types: keys of the edge types that some layer reads.

    Raises: PackagingError: a wrong number of fanouts, or an edge type without fanouts.
    """
    keys = sorted(edge_types)
    if isinstance(fanouts, dict):
        for key in keys:
            if key not in fanouts:
                names = ", ".join(map(str, fanouts))
                raise PackagingError(f"no fanouts for edge type {key!r}; fanouts were given for {names}")
        found = {key: fanouts[key] for key in keys}
    else:
        found = dict.fromkeys(keys, fanouts)
    for key, values in found.items():
        if len(values) != num_layers:
            raise PackagingError(
                f"{len(values)} fanouts for {key!r} ({list(values)}) but the model has {num_layers} "
                "message-passing layers (a convolution of K steps counts K times): give one number for "
                "each, seed-outward (the first is how many in-neighbours of a requested node are sampled, "
                "the next how many of each of those)"
            )
    return found


def resolve_windows(
    windows: Windows, num_layers: int, edge_types: Iterable[str], schema: GraphSchema
) -> dict[str, tuple[int, ...]]:
    """Windows of each edge type, for each hop, in the unit of the graph's times; -1 for none.

    Raises: PackagingError: an edge type without times, another number than of layers, or no duration.
    """
    found = {}
    for named, given in windows.items():
        key = "__".join(named) if isinstance(named, tuple) else named
        if key not in edge_types or not schema.edge_types[key].has_time:
            raise PackagingError(f"windows: {key!r} is no edge type with times that the model reads")
        each = [given] * num_layers if isinstance(given, str | int) else list(given)
        if len(each) != num_layers:
            raise PackagingError(f"windows of {key!r}: {len(each)} for {num_layers} layers")
        found[key] = tuple(-1 if one is None else _duration(one, schema.time_unit) for one in each)
    return found


def _duration(text: str | int, unit: str) -> int:
    """A duration in the unit of a graph's times."""
    if isinstance(text, str):
        number, seconds = text[:-1], _SECONDS.get(text[-1:], 0)
        if not (number.isdecimal() and seconds and unit):
            raise PackagingError(
                f"windows: {text!r}: pass a number and one of {', '.join(_SECONDS)}, such as '30d', where "
                "the graph's times have a unit (time_unit=); else a number in that unit"
            )
        return int(number) * seconds * 1000 ** UNITS.index(unit)
    return checked_integer(text, "windows", 0)


def check_sampling(sampling: Sampling, schema: GraphSchema) -> None:
    """Check that the graph has the data that the sampling needs.

    Raises: PackagingError: `recent` without edge times, `weighted` without weights.
    """
    if sampling == "recent" and not any(edge.has_time for edge in schema.edge_types.values()):
        raise PackagingError("sampling 'recent' needs edge times, which no edge type of the graph has")
    if sampling == "weighted" and not any(edge.has_weight for edge in schema.edge_types.values()):
        raise PackagingError("sampling 'weighted' needs edge weights, which no edge type of the graph has")
