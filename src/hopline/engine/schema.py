"""Whether a model fits a graph."""

from __future__ import annotations

import msgspec

from hopline.artifact import ModelSpec
from hopline.errors import SchemaMismatch
from hopline.graph import Graph, GraphSchema
from hopline.graph.live.view import LiveView


def check_schema(spec: ModelSpec, graph: Graph | LiveView) -> None:
    """Check that a model fits a graph.

    Raises:
        SchemaMismatch: each difference named.
    """
    expected = msgspec.convert(spec.graph_schema, GraphSchema)
    differences = expected.differences(graph.schema)
    if differences:
        listed = "; ".join(differences)
        raise SchemaMismatch(
            f"model {spec.name}/{spec.version} does not fit graph {graph.version}: {listed}", differences
        )
