"""Dense forms of the convolutions that can be stages, one file for each family."""

from __future__ import annotations

from torch_geometric import nn as pyg

from hopline.packaging.dense import gat, gatv2, gcn, gin, gine, graph, rgcn, sage, transformer
from hopline.packaging.dense.base import Builder, ConvCall, DenseConv, Need

#: Exact classes only: a subclass may have another message function.
BUILDERS: dict[type, Builder] = {
    pyg.SAGEConv: sage.build,
    pyg.GCNConv: gcn.build,
    pyg.GATConv: gat.build,
    pyg.GATv2Conv: gatv2.build,
    pyg.GINConv: gin.build,
    pyg.GINEConv: gine.build,
    pyg.GraphConv: graph.build,
    pyg.TransformerConv: transformer.build,
    pyg.RGCNConv: rgcn.build,
    pyg.FastRGCNConv: rgcn.build,
}


def build(call: ConvCall) -> DenseConv:
    """The dense form of a conv call.

    Raises:
        NotSplittable: the class or one of its options has none.
    """
    builder = BUILDERS.get(type(call.conv))
    if builder is None:
        names = ", ".join(sorted(cls.__name__ for cls in BUILDERS))
        raise call.refusal(f"its message code is unknown here; known are exactly {names}")
    if getattr(call.conv, "flow", "source_to_target") != "source_to_target":
        raise call.refusal("its flow is target_to_source; reverse the graph's edges instead")
    return builder(call)


__all__ = ["BUILDERS", "ConvCall", "DenseConv", "Need", "build"]
