"""Short names for what an answer hangs on, besides its version: artifact, preprocessing, feature schema.

Version names can be used again and folders changed; these hashes cannot. Sixteen hexadecimal digits of
SHA-256 each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hopline.artifact import ModelSpec, Spec, hash_of, hash_of_fields


def graph_model_hashes(spec: ModelSpec) -> dict[str, str]:
    """The three hashes of a graph model, as properties of its `ModelInfo`.

    artifact_hash: all files, and what model.json says of them: the files of a model that takes the mean
    of its neighbours may equal those of one that takes the maximum. preprocessing_hash: what stands
    between the graph and the first layer, which is how neighbours are sampled and the level-0 stages.
    feature_schema_hash: names, order and widths of node features and edge attributes.
    """
    first = spec.levels[0] if spec.levels else {}
    stages = {
        name: [msgspec.to_builtins(stage), spec.files.get(stage.file or "", "")]
        for name, stage in first.items()
    }
    lists = {key: list(fanouts) for key, fanouts in spec.fanouts.items()}
    drawn = {"fanouts": lists, "sampling": spec.sampling, "max_degree": spec.max_degree, "salt": spec.salt}
    encoders = sorted(each.hash for each in spec.encoders.values())
    return {
        "artifact_hash": content_hash(spec),
        "preprocessing_hash": hash_of([drawn, stages, *encoders]),
        "feature_schema_hash": hash_of(_features(spec.graph_schema)),
    }


def content_hash(spec: Spec) -> str:
    """The hash of all that decides what a version answers."""
    return hash_of_fields(msgspec.to_builtins(spec))


def _features(schema: Mapping[str, Any]) -> Any:
    nodes, edges = schema.get("node_types", {}), schema.get("edge_types", {})
    return {
        "nodes": {
            name: [node.get("feature_dim"), *_names(node, "feature")] for name, node in nodes.items()
        },
        "edges": {
            key: [edge.get("attr_dim", 0), *_names(edge, "attr"), edge.get("has_weight", False)]
            for key, edge in edges.items()
        },
    }


def _names(each: Mapping[str, Any], kind: str) -> Any:
    return list(each.get(f"{kind}_names", ())), *each.get("columns", ())
