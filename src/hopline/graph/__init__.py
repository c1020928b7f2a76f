"""The graph: an immutable, memory-mapped snapshot, and how it is built."""

from hopline.graph.files import EdgeFile, NodeFile
from hopline.graph.ids import IdIndex
from hopline.graph.parts import Adjacency, Nodes
from hopline.graph.schema import EdgeTypeSchema, GraphSchema, NodeTypeSchema, edge_key
from hopline.graph.snapshot import Graph
from hopline.graph.tables import EdgeTable, NodeTable

__all__ = [
    "Adjacency",
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
