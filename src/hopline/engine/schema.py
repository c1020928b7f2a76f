"""Whether a model fits a graph."""

from __future__ import annotations

import msgspec

from hopline.artifact import ModelSpec
from hopline.errors import ArtifactError, SchemaMismatch
from hopline.graph import Graph, GraphSchema
from hopline.graph.live.view import LiveView


def check_schema(spec: ModelSpec, graph: Graph | LiveView) -> None:
    """Check that a model fits a graph.

    Raises:
        SchemaMismatch: each difference named.
        ArtifactError: the model's own schema cannot be read.
    """
    try:
        expected = msgspec.convert(spec.graph_schema, GraphSchema)
    except msgspec.ValidationError as error:
        raise ArtifactError(
            f"model {spec.name}/{spec.version}: graph_schema in model.json cannot be read: {error}"
        ) from None
    differences = expected.differences(graph.schema)
    if spec.sampling == "weighted":
        differences += graph.schema.signed(spec.fanouts)
    if differences:
        listed = "; ".join(differences)
        raise SchemaMismatch(
            f"model {spec.name}/{spec.version} does not fit graph {graph.version}: {listed}", differences
        )
