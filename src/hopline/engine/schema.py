"""Checks that a model fits a graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from hopline.artifact import ANY_TYPE, LOOPS, NEGATIVE, REPEATED, ModelSpec
from hopline.engine.declared import check_declared
from hopline.engine.embeddings import AnyGraph, widened, with_tables
from hopline.engine.encoders import encoded, with_features
from hopline.errors import ArtifactError, SchemaMismatch
from hopline.graph import Graph, GraphSchema
from hopline.graph.live.view import LiveView


def fitted(folder: Path, spec: ModelSpec, graph: AnyGraph) -> AnyGraph:
    """The graph as a model reads it: with the features that its preprocessing makes, and its learned rows.

    Raises: SchemaMismatch, ArtifactError: as `check_schema`, `encoded` and `with_tables`.
    """
    check_schema(spec, graph)
    return with_tables(folder, spec, encoded(folder, spec, graph))


def check_schema(spec: ModelSpec, graph: Graph | LiveView) -> None:
    """Check that a model fits a graph, also that it has no edges on whose absence the answers rely.

    Raises:
        SchemaMismatch: each difference named.
        ArtifactError: the model's own schema cannot be read, or its declarations contradict it.
    """
    try:
        expected = msgspec.convert(spec.graph_schema, GraphSchema)
    except msgspec.ValidationError as error:
        raise ArtifactError(
            f"model {spec.name}/{spec.version}: graph_schema in model.json cannot be read: {error}"
        ) from None
    tables = {name: learned.tables for name, learned in spec.embeddings.items()}
    for name in tables.keys() - expected.node_types.keys():
        raise ArtifactError(f"model {spec.name}/{spec.version}: learned rows of {name!r}, not a node type")
    check_declared(spec, widened(with_features(expected, spec.encoders), tables))
    differences = expected.differences(graph.schema) + _edge_types(spec, expected, graph)
    if spec.sampling == "weighted":
        differences += graph.schema.signed(spec.fanouts)
    if differences:
        listed = "; ".join(differences)
        raise SchemaMismatch(
            f"model {spec.name}/{spec.version} does not fit graph {graph.version}: {listed}", differences
        )
    _check_edges(spec, graph)


def _check_edges(spec: ModelSpec, graph: Graph | LiveView) -> None:
    """Check that a graph has no edges of the kinds on whose absence a model's answers rely.

    Raises:
        SchemaMismatch: it has such edges, or is live and can get them.
        ArtifactError: a kind is not known: earlier releases served some models without one-way edges.
    """
    for key, absent in spec.edges_without.items():
        if unknown := sorted({*absent} - {REPEATED, LOOPS, NEGATIVE}):
            raise ArtifactError(
                f"model {spec.name}/{spec.version} relies on {key} having no {' and no '.join(unknown)}, "
                "and this Hopline does not check that: package it again"
            )
        found = _found(graph, key, absent) if key in graph.edges else ""
        if not found:
            continue
        message = (
            f"model {spec.name}/{spec.version} was packaged on a graph whose {key} has no "
            f"{' and no '.join(absent)}, and its answers rely on that; {found}. {remedy(absent)}"
        )
        raise SchemaMismatch(message, [message])


def remedy(absent: Collection[str]) -> str:
    """The way to serve edges of the absent kinds, as a sentence without its full stop."""
    ways = []
    if REPEATED in absent or LOOPS in absent:
        ways.append(
            "A sparse matrix (adj_t), for example, treats such edges differently from a list: package the "
            "model on a graph that has them, or with edge_index in forward"
        )
    if NEGATIVE in absent:
        ways.append(
            "The model reads weights of the whole graph (as ChebConv their maximum): keep them >= 0"
        )
    return ". ".join(ways)


def _edge_types(spec: ModelSpec, known: GraphSchema, graph: Graph | LiveView) -> list[str]:
    """Edge types of a graph that were not, or may not stay, as they were when the model was compared."""
    any_type = ANY_TYPE in spec.types_without
    is_live = isinstance(graph, LiveView)
    return [
        f"the model reads edge type {key!r}, which the graph of packaging lacked: package it again"
        for key in graph.schema.edge_types
        if key in spec.types_without or (any_type and key not in known.edge_types)
    ] + [
        f"edge type {key!r} {'can lose its last edge' if is_live else 'has no edges'}, and the model takes "
        "another branch without any"
        for key in spec.types_nonempty
        if key in graph.edges and (is_live or graph.edges[key].num_edges == 0)
    ]


def _found(graph: Graph | LiveView, key: str, absent: Sequence[str]) -> str:
    """The absent kinds of edges that a graph has, in words; "" for none."""
    if NEGATIVE in absent and graph.schema.edge_types[key].signed_weight:
        return "weights of this graph may be negative"
    others = [kind for kind in absent if kind != NEGATIVE]  # which a live graph refuses
    if isinstance(graph, LiveView):
        return f"a live graph can get {' and '.join(others)}" if others else ""
    edges = graph.edges[key]
    if LOOPS in absent and edges.has_self_loops:
        return f"this graph has {LOOPS}"
    if REPEATED in absent and edges.has_repeated_edges is not False:
        unknown = f"whether this graph has {REPEATED} was not stored when it was saved: build it again"
        return unknown if edges.has_repeated_edges is None else f"this graph has {REPEATED}"
    return ""
