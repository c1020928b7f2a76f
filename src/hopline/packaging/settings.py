"""Sampling of a packaged model: fanouts and the choice of neighbours, checked against the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from hopline.errors import PackagingError

if TYPE_CHECKING:
    from hopline.graph import GraphSchema

#: What an argument of a model's forward receives; see `arguments.py`.
Role = Literal["features", "edge_index", "edge_attr", "edge_weight", "edge_type", "adj_t", "batch", "data"]
Sampling = Literal["uniform", "recent", "weighted"]
#: Where attention is computed: by a kernel of the engine, or by the program of the GPU.
Device = Literal["cpu", "cuda"]
#: One list for every edge type, or edge type (key or triple) -> its own list.
Fanouts = Sequence[int] | Mapping[str, Sequence[int]] | Mapping[tuple[str, str, str], Sequence[int]]


def resolve_fanouts(
    fanouts: Fanouts, num_layers: int, edge_types: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """Assign fanouts to each edge type that the model reads.

    Args:
        fanouts: seed-outward, one number for each layer; -1 means all neighbours.
        edge_types: keys of the edge types that some layer reads.

    Raises:
        PackagingError: a wrong number of fanouts, an edge type without fanouts, or a value below -1.
    """
    keys = sorted(edge_types)
    if isinstance(fanouts, Mapping):
        given = {"__".join(key) if isinstance(key, tuple) else key: tuple(v) for key, v in fanouts.items()}
        for key in keys:
            if key not in given:
                raise PackagingError(
                    f"no fanouts for edge type {key!r}; fanouts were given for {sorted(given)}"
                )
        found = {key: given[key] for key in keys}
    else:
        found = {key: tuple(fanouts) for key in keys}
    for key, values in found.items():
        if len(values) != num_layers:
            raise PackagingError(
                f"{len(values)} fanouts for {key!r} ({list(values)}) but the model has {num_layers} "
                "message-passing layers: give one number for each layer, seed-outward (the first is how "
                "many in-neighbours of a requested node are sampled, the next how many of each of those)"
            )
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < -1:
                raise PackagingError(f"fanout {value!r} of {key!r}: must be an integer >= 0, or -1 for all")
    return found


def num_hops(fanouts: Fanouts) -> int:
    """Hops that fanouts are given for: the longest list of them."""
    if isinstance(fanouts, Mapping):
        return max((len(values) for values in fanouts.values()), default=0)
    return len(fanouts)


def check_sampling(sampling: Sampling, max_degree: int | None, schema: GraphSchema) -> None:
    """Check that the graph has the data that the sampling needs.

    Raises:
        PackagingError: `recent` without edge times, `weighted` without weights, a bad `max_degree`.
    """
    if sampling not in ("uniform", "recent", "weighted"):
        raise PackagingError(f"sampling must be uniform, recent or weighted; got {sampling!r}")
    if sampling == "recent" and not any(edge.has_time for edge in schema.edge_types.values()):
        raise PackagingError("sampling 'recent' needs edge times, which no edge type of the graph has")
    if sampling == "weighted" and not any(edge.has_weight for edge in schema.edge_types.values()):
        raise PackagingError("sampling 'weighted' needs edge weights, which no edge type of the graph has")
    if max_degree is not None and max_degree < 1:
        raise PackagingError(f"max_degree must be at least 1; got {max_degree}")


def check_signs(sampling: Sampling, schema: GraphSchema, edge_types: Iterable[str]) -> None:
    """Check that edges that are sampled by weight have no weights below 0.

    Args:
        edge_types: keys of the edge types that the model reads.

    Raises:
        PackagingError: naming each edge type with such weights.
    """
    signed = schema.signed(edge_types) if sampling == "weighted" else []
    if signed:
        raise PackagingError(f"{'; '.join(signed)} (sampling 'uniform' accepts any)")
