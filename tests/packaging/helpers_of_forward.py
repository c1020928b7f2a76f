"""Functions that models of tests call from another file, as people keep them."""

from torch_geometric.utils import degree, scatter
from torch_geometric.utils import softmax as normalised


def total(rows, edge_index, num_nodes):
    return scatter(rows, edge_index[1], 0, num_nodes, reduce="sum")


def attended(rows, scores, edge_index, num_nodes):
    weights = normalised(scores, edge_index[1], num_nodes=num_nodes)
    count = degree(edge_index[1], num_nodes).clamp(min=1).unsqueeze(-1)
    return total(rows * weights, edge_index, num_nodes) / count
