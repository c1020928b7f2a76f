"""What the model saw of a request is in the log: rows and degrees of the graph, and what names them."""

import numpy as np

from hopline.answering import sources as wiring
from hopline.features.base import FeatureGroup
from hopline.features.memory import MemoryStore
from hopline.graph import Graph
from hopline.types import InlineNode, ScoreRequest
from hopline_drift.log_reader import LogReader
from tests.records.conftest import logging_service


async def test_tensors_are_the_graphs_own_rows_and_degrees(config, places):
    settings = config(**{"prediction_log.tensors_share": 1.0, "prediction_log.inputs": "none"})
    features = np.random.default_rng(0).standard_normal(6)
    async with logging_service(settings) as service:
        nodes = ["n5", "gone", "n3"]
        inline = [InlineNode(features, {"": ["n1"]})]
        await service.score(ScoreRequest("plain", nodes=nodes, inline=inline, on_missing="null"))
        await service.score(ScoreRequest("plain", nodes=[f"n{i % 120}" for i in range(500)]))
    first, second = sorted(
        LogReader(settings.prediction_log.path), key=lambda entry: len(entry.inputs.nodes)
    )
    graph = Graph.open(places / "graph")
    rows, adjacency = graph.nodes["node"].features, graph.edges["node__to__node"]
    seen = first.tensors["nodes.node.features"]
    assert (seen[[0, 2]] == rows[[5, 3]]).all()
    assert np.isnan(seen[1]).all()
    degrees = np.diff(adjacency.indptr)
    assert first.tensors["nodes.node__to__node.degree"].tolist() == [degrees[5], -1, degrees[3]]
    assert (first.tensors["inline.features"] == features.astype(np.float32)).all()
    assert second.tensors["nodes.node.features"].shape == (64, 6)
    assert first.missing == (1,)


async def test_hashes_distinguish_artifacts_and_not_schemas(config):
    settings = config()
    async with logging_service(settings) as service:
        await service.load("plain", "2", serve=False)
        for version in ("1", "2"):
            await service.score(ScoreRequest("plain", nodes=["n1"], version=version))
    one, two = LogReader(settings.prediction_log.path)
    assert one.artifact_hash != two.artifact_hash
    assert one.preprocessing_hash == two.preprocessing_hash
    assert one.feature_schema_hash == two.feature_schema_hash
    assert one.graph_version == two.graph_version
    assert all(
        len(name) == 16 for name in (one.artifact_hash, one.preprocessing_hash, one.feature_schema_hash)
    )


async def test_rows_of_a_feature_store_are_shown_as_they_were_read(config, places, monkeypatch):
    inner = MemoryStore()
    group = FeatureGroup("node", 6)
    await inner.create(group)
    stored = np.arange(720, dtype=np.float32).reshape(120, 6)  # not what the graph has
    await inner.write(group, [f"n{i}" for i in range(120)], stored)
    monkeypatch.setattr(wiring, "open_store", lambda url, setting: inner)
    settings = config(
        **{
            "features.store": "memory:",
            "features.memory_bytes": 2**22,
            "prediction_log.tensors_share": 1.0,
        }
    )
    async with logging_service(settings) as service:
        await service.score(ScoreRequest("plain", nodes=["n5", "n3"]))
    (entry,) = LogReader(settings.prediction_log.path)
    assert (entry.tensors["nodes.node.features"] == stored[[5, 3]]).all()
