"""The graph: an immutable, memory-mapped snapshot, and how it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopline.graph.files import EdgeFile, NodeFile
    from hopline.graph.ids import IdIndex
    from hopline.graph.parts import Adjacency, Nodes
    from hopline.graph.schema import ColumnGroup, EdgeTypeSchema, GraphSchema, NodeTypeSchema, edge_key
    from hopline.graph.snapshot import Graph
    from hopline.graph.tables import EdgeTable, NodeTable

__all__ = [
    "Adjacency",
    "ColumnGroup",
    "EdgeFile",
    "EdgeTable",
    "EdgeTypeSchema",
    "Graph",
    "GraphSchema",
    "IdIndex",
    "NodeFile",
    "NodeTable",
    "NodeTypeSchema",
    "Nodes",
    "edge_key",
]

# Imported on first use: code that only reads a schema or a digest loads neither kernels nor the builder.
_LAZY = {
    "Adjacency": "hopline.graph.parts",
    "ColumnGroup": "hopline.graph.schema",
    "EdgeFile": "hopline.graph.files",
    "EdgeTable": "hopline.graph.tables",
    "EdgeTypeSchema": "hopline.graph.schema",
    "Graph": "hopline.graph.snapshot",
    "GraphSchema": "hopline.graph.schema",
    "IdIndex": "hopline.graph.ids",
    "NodeFile": "hopline.graph.files",
    "NodeTable": "hopline.graph.tables",
    "NodeTypeSchema": "hopline.graph.schema",
    "Nodes": "hopline.graph.parts",
    "edge_key": "hopline.graph.schema",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        found = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'hopline.graph' has no attribute {name!r}")
