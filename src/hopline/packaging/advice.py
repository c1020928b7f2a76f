"""Advice for what a forward may not read or decide, in words of the remedy."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping

import torch
from torch import Tensor, nn

OUT_EDGES = (
    "edges that leave a node, such as for out-degrees ({}): build the graph with both directions, "
    "Graph.from_pyg(data, both_directions=True) or `hopline graph build --both-directions`"
)
ONE_ROW = (
    "the model answers one row for a graph: build the graph from all graphs, with "
    "Graph.from_pyg([data, …]) or --graph-column, and pass batch to the model's readout"
)
FREEZE = (
    "pass freeze=True: statistics of all nodes or edges are then computed once, over the graph of "
    "packaging, and a later graph is answered with those of that graph"
)
FROZEN = (
    "with freeze=True, calls of mean, sum, amax, var, norm and the like over all rows are constants, and a "
    "number of rows is not: write x.mean(0), not x.sum(0) / len(x)"
)
HOW_RUN = (
    "if forward asks how it runs (type(x) is Tensor, is_compiling(), try), write isinstance(x, Tensor)"
)
DIFFERS = (
    "known causes are the order of equal values (topk, sort, argmax), numbers that float32 hardly tells "
    f"apart, and a head that mixes the rows of a call (softmax(0), z - z.mean()); {HOW_RUN}. Please report "
    "another one"
)
NUMBER = (
    "a model without features has a table with a row for each node: declare it, "
    "embeddings={'emb': node type}"
)
DERIVATIVE = (
    "a package computes no gradients: write the derivative as an expression, such as 3 * x**2, or train a "
    "layer that answers it"
)
SUMS = (
    "; count edges by torch_geometric.utils.degree(edge_index[{0}], x.size(0)), and sum rows by "
    "scatter(rows, edge_index[{0}], dim_size=x.size(0)), with reduce='mean' or 'max' for these; in place "
    "of include_self=True combine both, torch.maximum(x, scatter(...))"
)
SHARES = (
    "; where a softmax over the edges that leave a node is read by the edges that enter one, write e = "
    "logits.exp() and e / scatter(e, edge_index[0], 0, x.size(0))[edge_index[0]] in its place"
)
LEFT_OUT = (
    "edges cannot be left out in forward, as by edge_index[:, keep]: for self-loops write "
    "remove_self_loops(edge_index)[0]; give others the weight 0, conv(x, edge_index, "
    "edge_weight=keep.float()), or build the graph without them"
)
REORDERED = (
    "edges are not listed in another order in forward, as by edge_index[:, order]: leave an order out, as "
    f"sums, means, maxima and attention are the same in any; and {LEFT_OUT}"
)
FIXED = "torch.take_along_dim(x, index, 1) makes the number of rows a constant: write x.gather(1, index)"
WITH_LOOPS = (
    "; if these are attributes of self-loops, write edge_index, edge_attr = add_self_loops(edge_index, "
    "edge_attr, fill_value=1.0, num_nodes=x.size(0))"
)
ONE_NUMBER = (
    "makes a number of all nodes and edges, and a server sees a part of the graph: keep the number of the "
    "training graph as a buffer, or take the degree of each node, degree(edge_index[1], x.size(0))"
)
TWO_PARTS = f"; take the column first: x[:, 0][edge_index[i]], not x[edge_index[i], 0]; {LEFT_OUT}"
BACK_TO_NODES = (
    "; a graph's row cannot go back to its nodes, as in x - global_mean_pool(x, batch)[batch]: compute "
    "with rows of nodes before the readout, and with rows of graphs after it"
)
MATRIX = "write torch_geometric.nn.SimpleConv(aggr='sum')(x, edge_index, edge_weight)"
UNLIKE_LIST = (
    "its answers over an adj_t are not those over the same edges as a list. A sparse matrix merges "
    "repeated edges; GCNConv and others add their own self-loops to those of a matrix; and all layers "
    "multiply by its values, also SAGEConv, which accepts no weights with a list. Build the graph without "
    "repeated edges, self-loops and such weights, and train on it; or train with edge_index"
)
DRAWS = (
    "in eval mode forward draws random numbers ({}), whether the answers compared show them or not. For "
    "dropout write F.dropout(x, p, training=self.training) or nn.Dropout; else draw while self.training "
    "only, or in __init__ for a buffer; of a DeepGraphInfomax pass the encoder. A server must answer the "
    "same question the same way"
)
NARROW = "a server computes in float32: leave out torch.autocast, x.half() and x.bfloat16() in forward"
#: Words of a refusal to split -> the remedy, where the code that refuses knows none.
_REMEDIES = {
    "aten.median'": "write x.sort(1).values[:, (x.size(1) - 1) // 2]",
    "kthvalue": "write x.sort(1).values[:, k - 1]",
    "signbit": "for copysign write torch.where(sign < 0, -x.abs(), x.abs())",
    "decomposed_layers": "build the layer without it, with the same weights",
    "Could not find an implementation": NARROW,
    "QuantileAggregation": "a quantile over neighbours has no form: use median, mean, max or attention",
    "sparse_": f"a server reads edges as a list, and builds no sparse matrix of them: {MATRIX}",
    "outside of a message-passing layer": "bring rows of edges to nodes by torch_geometric.utils.scatter("
    "rows, edge_index[i], dim_size=x.size(0)), with reduce='mean' or 'max' for these, and rows of nodes to "
    "edges by x[edge_index[i]]; in place of include_self=True write torch.maximum(x, scatter(...))",
    "int() of a tensor's numbers": "leave out sizes: degree(batch), global_add_pool(x, batch)",
    "__array_struct__": "use torch in place of NumPy",
    "not installed as a submodule": "forward runs a module outside of the model: make it an "
    "attribute, and change forward in a subclass",
    "the model fails on the graph at": HOW_RUN,
    "_cdist_forward": "torch.cdist has no form in ONNX: write (a[:, None] - b).norm(dim=-1)",
    "No ONNX function": "write it with sums, products, torch.where, sort or gather, or make a column "
    "of it before the graph is built",
}
TYPED = (
    "edge types as numbers are an argument: package a module whose forward(x, edge_index, edge_type) calls "
    "this one with Data(x=x, edge_index=edge_index, edge_type=edge_type)"
)
_ALL_ROWS = (
    "a server answers for the nodes that requests name, without the bookkeeping of a loader: give it a "
    "default, or pass a module whose forward(x, edge_index) answers a row for each node"
)
_LAYERS = (
    "it holds edges for each layer, as loaders make them: pass a module whose forward(x, edge_index) calls "
    "the same layers on edge_index, self.convs[i](x, edge_index)"
)
_KEPT = "coordinates are a further tensor of nodes: Graph.from_pyg(data, columns=['pos']) keeps them"
_TRIPLES = (
    "a model of triples scores pairs of nodes, not nodes. An encoder with convolutions and head=, a module "
    "of (h_src, h_dst) for one relation, score pairs. Embeddings alone are served, with task='embedding' "
    "and fanouts=[], by a module whose forward(x, edge_index) answers x, and x=model.node_emb.weight"
)
#: Arguments that belong to training, to loaders or to pairs, and the alternative.
INSTEAD = {
    "edge_label_index": "requests name the pairs: pass the encoder as the module and the decoder as "
    "head=, a module of (h_src, h_dst) or 'dot', with target=(source type, destination type). A module of "
    "(h_src, h_dst, edge_attr) also reads each edge's own columns (edge_label_attr)",
    "y": "labels are not known when a node is scored: pass a module whose forward does not need them",
    "n_id": "give each node its number as a feature column, and read x[:, 0].long()",
    **dict.fromkeys(("root_n_id", "batch_size", "num_sampled_nodes"), _ALL_ROWS),
    **dict.fromkeys(("num_sampled_nodes_per_hop", "num_sampled_nodes_dict"), _ALL_ROWS),
    **dict.fromkeys(("adjs", "blocks", "mfgs"), _LAYERS),
    **dict.fromkeys(("pos", "coord", "coords"), _KEPT),
    "hyperedge_index": "a graph has edges between two nodes: make hyperedges a node type of a HeteroData",
    "num_nodes": "the number of nodes is that of a neighbourhood: write x.size(0) in forward",
    **dict.fromkeys(("head_index", "rel_type", "tail_index"), _TRIPLES),
}
#: Names by which the times of edges are read from PyG's data.
TIMES = ("edge_time", "time")
_OF_EDGES = (
    "times order edges and cut them (as_of); a model that reads them has a required argument edge_time, or "
    "arguments={'edge_time': 'edge_time'}"
)


def is_label(name: str) -> bool:
    """True for columns of training, which no model reads to answer."""
    return name in ("y", "edge_label") or name.endswith("mask")


def lost(name: str, owner: str) -> str:
    """Why a graph does not have a column, and the remedy, in words.

    Args:
        owner: node type or edge type key, "" for data of neither.
    """
    if not owner:
        return (
            f"the graph does not have data.{name}, which Graph.from_pyg left out: a graph has nodes, edges "
            "and a matrix of columns for each type. Other edges are a further edge type, in a HeteroData; "
            "a constant belongs into the module, as a buffer"
        )
    if "__" in owner and name in TIMES:
        return _OF_EDGES
    whose, into = ("edges", "data.edge_attr") if "__" in owner else ("nodes", "data.x")
    text = f"the graph does not have the data.{name} of its {whose}, which Graph.from_pyg left out: "
    if is_label(name):
        return text + "labels and masks of the split are not known when a node is scored"
    if whose == "nodes":
        keep = "node_time='time'" if name == "time" else f"columns=[{name!r}]"
        return text + f"keep it, Graph.from_pyg(data, {keep})"
    return text + (
        f"a graph has one matrix for {whose}. Append it, {into} = torch.cat([{into}, data.{name}], 1), and "
        "pass a module whose forward takes its columns apart"
    )


def remedy(refusal: str) -> str:
    """The remedy for a refusal to split, to append to it; "" if none is known."""
    return next((f"; {each}" for words, each in _REMEDIES.items() if words in refusal), "")


def instead_of(lines: str) -> str:
    """The remedy for lines of a forward that decide by numbers of all nodes or edges."""
    if re.search(r"\bunique\w*\(", lines):
        return (
            "keep the sorted values of the training graph as a buffer, and count those that are less, "
            "(values < x[:, None]).sum(1): torch.unique numbers the values of all nodes, and a server "
            "computes few nodes at a time"
        )
    if re.search(r"\bto_?undirected\b", lines, re.IGNORECASE):
        return "build the graph with undirected=True, and remove the call"
    if re.search(r"\b(while|break)\b", lines):
        return (
            "write a fixed number of steps, for _ in range(4), with a fanout for each hop that they read: "
            "a loop until values settle takes as many as the nodes that are computed together need"
        )
    return (
        "decide for each row (torch.where), write loops with a fixed number of steps, give sizes "
        "(num_nodes, dim_size), and decide what depends on a parameter in __init__. If a mean, sum or "
        f"extreme decides, {FREEZE}"
    )


def hint(error: Exception, module: nn.Module, slots: Mapping[str, Tensor]) -> str:
    """Advice if a model fails because of a dtype, a code or node numbers; "" for other failures."""
    text = str(error)
    if isinstance(error, IndexError) and (table := _short_table(error, module, slots)):
        return (
            f"; {table}: correct the column, clamp what forward counts, or train an entry for unknown codes"
        )
    if isinstance(error, AttributeError) and any(f"'{name}'" in text for name in ("node_id", "n_id")):
        return (
            "; a table with a row for each node is declared, embeddings={'emb': node type}, and forward "
            "reads it whole, self.emb.weight"
        )
    for part in module.modules():
        if taken := [
            name for name in part._modules if isinstance(getattr(type(part), name, None), property)
        ]:
            return f"; {type(part).__name__}.{taken[0]} is a property of PyG: give the layer another name"
    if "does not require grad" in text:
        return f"; {DERIVATIVE}"
    if isinstance(error, AttributeError) and "'HeteroData' has no attribute" in text:
        return f"; data with several types is a HeteroData, read as data['user'].x, and {TYPED}"
    if "Long" in text and "Float" in text:
        return "; features are float32: look codes up by x[:, 0].long()"
    if "dtype" in text and any(name in text.lower() for name in ("double", "half", "bfloat16")):
        weights: dict[torch.dtype, str] = {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point():
                weights.setdefault(tensor.dtype, name)
        if len(weights) > 1:
            shown = " and ".join(f"{name} is {str(dtype)[6:]}" for dtype, name in weights.items())
            return (
                f"; the model's weights have several dtypes, {shown}: a server computes in one, so call "
                "model.float() before packaging, and remove conversions such as x.double() from forward"
            )
        return (
            "; models are served in float32: write x.to(self.lin.weight.dtype), not x.double(), x.half() "
            "or x.bfloat16()"
        )
    return ""


def _short_table(error: Exception, module: nn.Module, slots: Mapping[str, Tensor]) -> str:
    """The embedding for which a code was too large, in words; "" if the error is of no embedding."""
    names = {id(part): name for name, part in module.named_modules()}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        table, codes = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(table, nn.Embedding) and isinstance(codes, Tensor) and codes.numel():
            name, most = names.get(id(table)) or "an embedding", table.num_embeddings - 1
            columns = [
                f"column {at} of the {slot.replace(':', ' of ')}"
                for slot, rows in slots.items() if slot.startswith(("features", "edge_attr"))
                for at in range(rows.size(1)) if torch.equal(rows[:, at].to(codes.dtype), codes.flatten())
            ]  # fmt: skip
            of = columns[0] if columns else "what forward computes, such as a degree"
            given = f"got codes {codes.min()} to {codes.max()} of {of}"
            return f"{name} has entries for 0 to {most}, and {given}"
    return ""
