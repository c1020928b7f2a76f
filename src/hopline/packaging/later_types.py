"""Edge types that the graph of packaging lacks, or may lose, and on which a module's answers depend.

A module may name more edge types than the graph has: `HeteroConv` skips those that the graph lacks. It is
then compared without them, and a later graph that has them would be answered as if it had not.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from torch import nn

from hopline.artifact import ANY_TYPE, ModelSpec
from hopline.errors import PackagingError
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.probe import Probe, beside
from hopline.packaging.reference import Pairs, Reference, Rows
from hopline.packaging.relations import next_numbered, split_key

#: Relation of the edge type that no module can know.
_INVENTED = "an edge type that no model knows"
#: Edges of a type that the graph lacks, for each node.
_EDGES_PER_NODE = 2


def with_edge_types(
    spec: ModelSpec, reference: Reference, probe: Probe, pairs: Pairs | None, rows: Rows
) -> tuple[ModelSpec, list[str]]:
    """Record what else a later graph must not have, or must have, and notes for the user.

    Args:
        rows: the module's answers on the probe.
    """
    without = types_not_compared(reference, probe, pairs, rows)
    notes = [
        "the model reads every edge type of a graph: a later graph with further ones is refused"
        if key == ANY_TYPE
        else f"the model reads edge type {key}, which the graph lacks: a later graph that has it is refused"
        for key in without
    ]
    nonempty = types_not_empty(reference, probe, pairs)
    notes += [
        f"without any edge of {key}, the model takes another branch: such a graph is refused"
        for key in nonempty
    ]
    without = tuple(dict.fromkeys((*spec.types_without, *without)))
    nonempty = tuple(dict.fromkeys((*spec.types_nonempty, *nonempty)))
    return msgspec.structs.replace(spec, types_without=without, types_nonempty=nonempty), notes


def types_not_compared(
    reference: Reference, probe: Probe, pairs: Pairs | None, rows: Rows
) -> tuple[str, ...]:
    """Keys of edge types that a later graph must not have; `ANY_TYPE`: none that is new.

    Args:
        rows: the module's answers on the probe.
    """
    binding, graph = reference.binding, probe.check

    def reads(key: str, on_failure: bool) -> bool:
        """True if answers change with edges of a type that the graph lacks."""
        try:
            after = _with_type(reference, key).answers(_with_edges(graph, key), pairs)
        except PackagingError:
            return on_failure
        return bool(reference.differ(rows, after).any())

    if binding.relational:
        following = next_numbered(binding.relations)
        is_new = following not in ("", *graph.edges)
        return (following,) if is_new and reads(following, False) else ()
    if not binding.hetero:
        return ()
    named = _asked(reference, graph) | set(_named(reference.module))
    known, keys = graph.features.keys(), sorted(named - graph.edges.keys())
    found = [key for key in keys if not {*split_key(key)[::2]} <= known or reads(key, True)]
    node_type = reference.targets[0]
    if reads(f"{node_type}__{_INVENTED}__{node_type}", False):
        found.append(ANY_TYPE)
    return tuple(found)


def types_not_empty(reference: Reference, probe: Probe, pairs: Pairs | None) -> tuple[str, ...]:
    """Keys of edge types of which a later graph must have edges.

    A module that branches on whether there are any answers differently without them, also for nodes that
    have none. The graph without them is compared with itself next to a graph that has them.
    """
    graph, found = probe.check, []
    for key, part in graph.edges.items():
        without = CheckGraph(graph.features, graph.edges | {key: part.taken(np.zeros(0, np.int64))})
        if not len(part.indices):
            continue
        try:
            alone = reference.answers(without, pairs)
            together = reference.answers(beside(without, graph), pairs)
        except PackagingError:  # it answers no such graph
            continue
        if reference.differ(alone, together[: len(alone)]).any():
            found.append(key)
    return tuple(found)


def _with_type(reference: Reference, key: str) -> Reference:
    """The reference on graphs of `_with_edges`."""
    other, binding = copy.copy(reference), reference.binding
    full: dict[str, Any] = {}
    for name in ("relations", "attributed", "weighted"):
        if getattr(binding, name) == binding.relations:
            full[name] = (*binding.relations, key)
    other.binding = dataclasses.replace(binding, **full)
    return other


def _with_edges(graph: CheckGraph, key: str) -> CheckGraph:
    """A graph with drawn edges of one more type, which have the columns that all other types have."""
    src, _, dst = split_key(key)
    rng = np.random.default_rng(5)
    num_src, num_dst = graph.num_nodes(src), graph.num_nodes(dst)
    others = list(graph.edges.values())
    like = next((each for each in others if len(each.indices)), others[0])
    attr = None if any(each.attr is None for each in others) else like.attr
    weight = None if any(each.weight is None for each in others) else like.weight
    like = dataclasses.replace(like, src=src, dst=dst, attr=attr, weight=weight)
    count = _EDGES_PER_NODE * num_dst
    into = np.repeat(np.arange(num_dst), _EDGES_PER_NODE)
    edges = like.taken(like.drawn(count, rng), rng.integers(0, max(1, num_src), count), into, num_dst)
    return CheckGraph(graph.features, graph.edges | {key: edges})


class _Asked(dict[Any, Any]):
    """A dictionary that records keys of edge types which it lacks."""

    def __init__(self, content: dict[Any, Any], missed: set[str]) -> None:
        super().__init__(content)
        self._missed = missed

    def _ask(self, key: Any) -> None:
        if not dict.__contains__(self, key):
            self._missed.update(_keys_in(key, 0))

    def __contains__(self, key: object) -> bool:
        self._ask(key)
        return super().__contains__(key)

    def __getitem__(self, key: Any) -> Any:
        self._ask(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """As of a dict."""
        self._ask(key)
        return super().get(key, default)


def _asked(reference: Reference, graph: CheckGraph) -> set[str]:
    """Edge types for which the module looks in the dictionaries that it and its parts receive."""
    missed: set[str] = set()

    def recording(value: Any) -> Any:
        return _Asked(value, missed) if type(value) is dict else value

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(recording, args)), {name: recording(value) for name, value in kwargs.items()}

    def prepare(module: nn.Module) -> None:
        for part in module.modules():
            part.register_forward_pre_hook(hook, with_kwargs=True)

    reference.states(graph, prepare)
    return missed


def _named(module: nn.Module) -> Iterator[str]:
    """Edge types that a module holds as an attribute, or as the name of a part."""
    for name, part in module.named_modules():
        yield from _keys_in(name.split("."), 1)
        for attribute, value in vars(part).items():
            if not attribute.startswith("_") or attribute in ("_parameters", "_buffers"):
                yield from _keys_in(value, 3)


def _keys_in(value: Any, depth: int) -> Iterator[str]:
    """Keys of edge types in a value: tuples of three names, and names in the forms of PyG."""
    if isinstance(value, str):
        inner = value.strip("<>").replace("___", "__")
        yield from _checked(inner.split("__"))
    elif isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        yield from _checked(value)
    elif depth and isinstance(value, dict | list | tuple | set | frozenset):
        for each in (*value, *(value.values() if isinstance(value, dict) else ())):
            yield from _keys_in(each, depth - 1)


def _checked(names: Sequence[str]) -> Iterator[str]:
    key = "__".join(names)
    if len(names) == 3 and all(names) and key.count("__") == 2:
        yield key
