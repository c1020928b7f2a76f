"""A compressed graph in plain arrays, as an oracle of reads of packed ones."""

import dataclasses

import numpy as np

from hopline.graph import Graph, csc


def decompress(part):
    """Plain arrays; weights stay rounded."""
    if isinstance(part.indices, np.ndarray):
        return part
    indptr = np.asarray(part.indptr, np.int64)
    weight = None if part.weight is None else np.asarray(part.weight)
    arrays = {"indptr": indptr, "indices": np.asarray(part.indices), "weight": weight}
    arrays["cumweight"] = None if weight is None else csc.running_weights(indptr, weight)
    for array in arrays.values():
        if array is not None:
            array.flags.writeable = False
    return dataclasses.replace(part, **arrays)


def decompressed(graph):
    edges = {key: decompress(part) for key, part in graph.edges.items()}
    return Graph(graph.schema, graph.nodes, edges, left_out=graph.left_out)
