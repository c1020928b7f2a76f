"""Where a graph's pages lie changes nothing about the graph."""

import numpy as np

from hopline.graph import Graph
from hopline.graph.residency import in_huge_pages, prefault
from tests.graphs import power_law_graph


def opened(tmp_path) -> Graph:
    return power_law_graph(20_000, 600_000, 32, weights=True).save(tmp_path / "graph")


def test_huge_pages_hold_the_same_graph(tmp_path):
    graph = opened(tmp_path)
    copy = in_huge_pages(graph)
    assert copy is not graph
    assert copy.version == graph.version
    assert copy.schema == graph.schema
    assert (np.asarray(copy.nodes["node"].features) == graph.nodes["node"].features).all()
    assert (copy.edges["node__to__node"].indices == graph.edges["node__to__node"].indices).all()
    assert not copy.nodes["node"].features.flags.writeable


def test_a_graph_too_large_for_memory_stays_mapped(tmp_path):
    graph = opened(tmp_path)
    assert in_huge_pages(graph, max_share=0.0) is graph
    assert prefault(graph, max_share=0.0) == 0


def test_prefault_maps_every_page_of_what_requests_read(tmp_path):
    graph = opened(tmp_path)
    edges = graph.edges["node__to__node"]
    read = graph.nodes["node"].features.nbytes + edges.indptr.nbytes + edges.indices.nbytes
    assert prefault(graph) == read
