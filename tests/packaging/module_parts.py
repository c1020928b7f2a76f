"""What random modules are made of: lines of source over a value `h` [n, {w}] between convolutions.

Each part is a `Part`; `{w}` is the width of `h`, `{half}` half of it, `{n}` the number of the line. Parts
that end in another width say so. Knows nothing of packaging: which of these a module may have and still be
served is the gate's to say; the test only demands that the answer is right.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of `forward`, and of `__init__`.

    Attributes:
        init: assigns `self.p{n}`; "" where nothing is needed.
        quiet: what the lines are where randomness is off; None where they are the same.
        width: of `h` afterwards, an expression of w; "" leaves it.
        hops: that the lines look further than `h` itself.
        pure: False where the answer depends on earlier calls, on the clock or on the process.
    """

    lines: str
    init: str = ""
    quiet: str | None = None
    width: str = ""
    hops: int = 0
    pure: bool = True


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution's expression over {i} and {o}; `hops` is its nominal reach; `takes` names edge data."""

    make: str
    hops: int = 1
    takes: tuple[str, ...] = ()
    call: str = "{conv}(h, edge_index{edge_data})"
    #: Columns that it answers for {o}.
    gives: str = "o"


_SCALERS = "['identity', 'amplification', 'attenuation'], torch.tensor([1, 3, 6, 4, 2])"
_GIN = "nn.Sequential(nn.Linear({i}, {o}), nn.BatchNorm1d({o}), nn.ReLU(), nn.Linear({o}, {o}))"
#: Convolutions that have a dense form.
SPLIT_CONVS = {
    "SAGEConv": Conv("pyg.SAGEConv({i}, {o})"),
    "SAGEConv max": Conv("pyg.SAGEConv({i}, {o}, aggr='max')"),
    "SAGEConv sum normalize": Conv("pyg.SAGEConv({i}, {o}, aggr='sum', normalize=True)"),
    "SAGEConv project": Conv("pyg.SAGEConv({i}, {o}, project=True)"),
    "SAGEConv pair": Conv("pyg.SAGEConv({i}, {o})", call="{conv}((h, h), edge_index)"),
    "GCNConv": Conv("pyg.GCNConv({i}, {o})"),
    "GCNConv weight": Conv("pyg.GCNConv({i}, {o})", takes=("edge_weight",)),
    "GCNConv no loops": Conv("pyg.GCNConv({i}, {o}, add_self_loops=False)"),
    "GINConv": Conv(f"pyg.GINConv({_GIN}, train_eps=True)"),
    "GraphConv": Conv("pyg.GraphConv({i}, {o})"),
    "GraphConv max": Conv("pyg.GraphConv({i}, {o}, aggr='max')"),
    "GraphConv weight": Conv("pyg.GraphConv({i}, {o}, aggr='mean')", takes=("edge_weight",)),
    "GATConv": Conv("pyg.GATConv({i}, {o} // 2, heads=2)"),
    "GATConv mean": Conv("pyg.GATConv({i}, {o}, heads=2, concat=False, dropout=0.4)"),
    "GATv2Conv": Conv("pyg.GATv2Conv({i}, {o}, add_self_loops=False)"),
    "GATv2Conv attr": Conv("pyg.GATv2Conv({i}, {o}, edge_dim=3)", takes=("edge_attr",)),
    "TransformerConv": Conv("pyg.TransformerConv({i}, {o} // 2, heads=2, beta=True)"),
    "TransformerConv attr": Conv("pyg.TransformerConv({i}, {o}, edge_dim=3)", takes=("edge_attr",)),
    "GENConv": Conv("pyg.GENConv({i}, {o}, norm='layer')"),
    "SAGEConv std": Conv("pyg.SAGEConv({i}, {o}, aggr=['mean', 'std'])"),
    "SAGEConv softmax": Conv("pyg.SAGEConv({i}, {o}, aggr='softmax')"),
    "GENConv attr": Conv("pyg.GENConv({i}, {o}, edge_dim=3, msg_norm=True)", takes=("edge_attr",)),
    "PNAConv": Conv(f"pyg.PNAConv({{i}}, {{o}}, ['mean', 'min', 'max', 'std'], {_SCALERS})"),
    "PNAConv attr": Conv(
        f"pyg.PNAConv({{i}}, {{o}}, ['sum', 'var'], {_SCALERS}, edge_dim=3, pre_layers=2)",
        takes=("edge_attr",),
    ),
}
#: Convolutions and ways to call them that have none, or that do another thing than their class says.
OTHER_CONVS = {
    "TAGConv": Conv("pyg.TAGConv({i}, {o}, K=2)", hops=2),
    "SGConv": Conv("pyg.SGConv({i}, {o}, K=2)", hops=2),
    "SGConv cached": Conv("pyg.SGConv({i}, {o}, K=2, cached=True)", hops=2),
    "SSGConv": Conv("pyg.SSGConv({i}, {o}, 0.1, K=2)", hops=2),
    "APPNP": Conv("pyg.APPNP(2, 0.1)", hops=2, gives="i"),
    "ChebConv": Conv("pyg.ChebConv({i}, {o}, K=2)"),
    "ARMAConv": Conv("pyg.ARMAConv({i}, {o})"),
    "MixHopConv": Conv("pyg.MixHopConv({i}, {o} // 2, [0, 1])"),
    "SuperGATConv": Conv("pyg.SuperGATConv({i}, {o} // 2, heads=2)"),
    "FiLMConv": Conv("pyg.FiLMConv({i}, {o})"),
    "ResGatedGraphConv": Conv("pyg.ResGatedGraphConv({i}, {o})"),
    "LEConv": Conv("pyg.LEConv({i}, {o})"),
    "ClusterGCNConv": Conv("pyg.ClusterGCNConv({i}, {o})"),
    "EGConv": Conv("pyg.EGConv({i}, {o}, num_heads=2, num_bases=2)"),
    "FeaStConv": Conv("pyg.FeaStConv({i}, {o}, heads=2)"),
    "MFConv": Conv("pyg.MFConv({i}, {o})"),
    "GeneralConv": Conv("pyg.GeneralConv({i}, {o}, attention=True)"),
    "GatedGraphConv": Conv("pyg.GatedGraphConv({o}, 1)", gives="max(i, o)"),
    "SimpleConv": Conv("pyg.SimpleConv('mean')", gives="i"),
    "LGConv": Conv("pyg.LGConv()", gives="i"),
    "EdgeConv": Conv("pyg.EdgeConv(nn.Sequential(nn.Linear(2 * {i}, {o}), nn.ReLU()))"),
    "GCNConv improved": Conv("pyg.GCNConv({i}, {o}, improved=True)"),
    "GCNConv cached": Conv("pyg.GCNConv({i}, {o}, cached=True)"),
    "GCNConv normalize=False": Conv("pyg.GCNConv({i}, {o}, normalize=False)"),
    "GATConv residual": Conv("pyg.GATConv({i}, {o}, residual=True)"),
    "SAGEConv lstm": Conv(
        "pyg.SAGEConv({i}, {o}, aggr='lstm')",
        call="{conv}(h, edge_index[:, edge_index[1].argsort(stable=True)])",
    ),
    "SAGEConv out-edges": Conv("pyg.SAGEConv({i}, {o}, flow='target_to_source')"),
    "GCNConv out-edges": Conv("pyg.GCNConv({i}, {o}, flow='target_to_source')"),
    "GATConv out-edges": Conv("pyg.GATConv({i}, {o}, flow='target_to_source')"),
    "SAGEConv flip": Conv("pyg.SAGEConv({i}, {o})", call="{conv}(h, edge_index.flip(0))"),
    "SAGEConv both ways": Conv(
        "pyg.SAGEConv({i}, {o})", call="{conv}(h, torch.cat([edge_index, edge_index.flip(0)], 1))"
    ),
    "SAGEConv twice": Conv(
        "pyg.SAGEConv({i}, {i})", hops=2, gives="i", call="{conv}({conv}(h, edge_index).relu(), edge_index)"
    ),
    "SAGEConv added loops": Conv(
        "pyg.SAGEConv({i}, {o})", call="{conv}(h, add_self_loops(edge_index, num_nodes=h.size(0))[0])"
    ),
    "SAGEConv undirected": Conv("pyg.SAGEConv({i}, {o})", call="{conv}(h, to_undirected(edge_index))"),
    "SAGEConv every second edge": Conv("pyg.SAGEConv({i}, {o})", call="{conv}(h, edge_index[:, ::2])"),
    "SAGEConv first edges": Conv("pyg.SAGEConv({i}, {o})", call="{conv}(h, edge_index[:, :100])"),
    "SAGEConv no loops": Conv(
        "pyg.SAGEConv({i}, {o})", call="{conv}(h, edge_index[:, edge_index[0] != edge_index[1]])"
    ),
    "SAGEConv up": Conv(
        "pyg.SAGEConv({i}, {o})", call="{conv}(h, edge_index[:, edge_index[0] < edge_index[1]])"
    ),
    "SAGEConv dropped edges in training": Conv(
        "pyg.SAGEConv({i}, {o})", call="{conv}(h, dropout_edge(edge_index, 0.5, training=self.training)[0])"
    ),
    "GraphConv own degrees": Conv(
        "pyg.GraphConv({i}, {o})",
        call="{conv}(h, edge_index, 1 / degree(edge_index[1], h.size(0)).clamp(1)[edge_index[1]])",
    ),
    "GraphConv out-degrees": Conv(
        "pyg.GraphConv({i}, {o})",
        call="{conv}(h, edge_index, 1 / degree(edge_index[0], h.size(0)).clamp(1)[edge_index[0]])",
    ),
    "GCNConv gcn_norm": Conv(
        "pyg.GCNConv({i}, {o}, normalize=False)",
        call="{conv}(h, *gcn_norm(edge_index, None, h.size(0), dtype=h.dtype))",
    ),
    "GCNConv weight squared": Conv(
        "pyg.GCNConv({i}, {o})", takes=("edge_weight",), call="{conv}(h, edge_index, edge_weight ** 2)"
    ),
    "GCNConv weight over its sum": Conv(
        "pyg.GCNConv({i}, {o}, normalize=False)",
        takes=("edge_weight",),
        call="{conv}(h, edge_index, edge_weight / edge_weight.sum())",
    ),
    "GATv2Conv attr scaled": Conv(
        "pyg.GATv2Conv({i}, {o}, edge_dim=3)",
        takes=("edge_attr",),
        call="{conv}(h, edge_index, edge_attr / edge_attr.std(0))",
    ),
    "GATv2Conv attr doubled": Conv(
        "pyg.GATv2Conv({i}, {o}, edge_dim=3)",
        takes=("edge_attr",),
        call="{conv}(h, edge_index, 2 * edge_attr)",
    ),
    "subclass of SAGEConv": Conv("Differences({i}, {o})"),
    "own MessagePassing": Conv("Gated({i}, {o})"),
    "scatter": Conv(
        "nn.Linear({i}, {o})",
        call="{conv}(scatter(h[edge_index[0]], edge_index[1], 0, h.size(0), reduce='mean') + h)",
    ),
    "index_add": Conv(
        "nn.Linear({i}, {o})",
        call="{conv}(torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]]) + h)",
    ),
    "pyg.Sequential": Conv(
        "pyg.Sequential('x, edge_index', "
        "[(pyg.SAGEConv({i}, {o}), 'x, edge_index -> x'), nn.ReLU(inplace=True)])"
    ),
    "hook": Conv("hooked(pyg.SAGEConv({i}, {o}))"),
    "weight norm": Conv("normed(pyg.SAGEConv({i}, {o}))"),
}

ACTIVATIONS = {
    "relu": Part("h = h.relu()"),
    "F.relu": Part("h = F.relu(h)"),
    "F.elu": Part("h = F.elu(h)"),
    "tanh": Part("h = torch.tanh(h)"),
    "nn.ReLU": Part("h = self.p{n}(h)", "nn.ReLU()"),
    "nn.ReLU inplace": Part("h = self.p{n}(h)", "nn.ReLU(inplace=True)"),
    "nn.PReLU": Part("h = self.p{n}(h)", "nn.PReLU()"),
    "leaky_relu": Part("h = F.leaky_relu(h, 0.2)"),
    "F.relu inplace": Part("h = F.relu(h, inplace=True)"),
}
NORMS = {
    "BatchNorm1d": Part("h = self.p{n}(h)", "nn.BatchNorm1d({w})"),
    "LayerNorm": Part("h = self.p{n}(h)", "nn.LayerNorm({w})"),
    "pyg.BatchNorm": Part("h = self.p{n}(h)", "pyg.BatchNorm({w})"),
    "pyg.LayerNorm node": Part("h = self.p{n}(h)", "pyg.LayerNorm({w}, mode='node')"),
}
DROPOUTS = {
    "F.dropout training": Part("h = F.dropout(h, 0.5, training=self.training)"),
    "nn.Dropout": Part("h = self.p{n}(h)", "nn.Dropout(0.5)"),
}

_IN_PLACE = {
    "F.relu_": "F.relu_(h)",
    "h.relu_": "h.relu_()",
    "torch.relu_": "torch.relu_(h)",
    "clamp_": "h.clamp_(min=0)",
    "masked assignment": "h[h < 0] = 0",
    "masked_fill_": "h.masked_fill_(h < 0, 0.1)",
    "F.relu inplace statement": "F.relu(h, inplace=True)",
    "F.leaky_relu_": "F.leaky_relu_(h, 0.3)",
    "F.elu inplace statement": "F.elu(h, inplace=True)",
    "mul_": "h.mul_(0.5)",
    "+=": "h += 0.5 * h.tanh()",
    "/=": "h /= 3.0",
    "column assignment": "h[:, 0] = 0.5 * h[:, 1]",
    "column +=": "h[:, 1] += 1.0",
    "slice relu_": "h[:, :{half}].relu_()",
    "transposed add_": "h.t().add_(0.3)",
    "view mul_": "h.view(-1, 2, {half}).mul_(1.5)",
    "data clamp_": "h.data.clamp_(min=0)",
    "chunk relu_": "a, b = h.chunk(2, 1)\na.relu_()\nb.mul_(2)",
    "unbind": "for part in h.unbind(1)[:2]:\n    part.tanh_()",
    "alias then in place": "kept = h\nh = F.relu(h, inplace=True)\nh = h - 0.5 * kept",
    "alias before F.relu_": "kept = h\nF.relu_(h)\nh = kept * 2",
    "view before F.relu_": "kept = h.view(-1, {w})\nF.relu_(h)\nh = h + kept",
    "clone then in place": "kept = h.clone()\nF.relu_(h)\nh = h - 0.5 * kept",
    "detach then in place": "kept = h.detach()\nh.relu_()\nh = h + kept",
    "in place on a copy": "other = h.clone()\nother.relu_()\nh = h + other",
    "in place on a result": "other = h + 1\nother.clamp_(min=0)\nh = h - other",
    "list append": "states = [h]\nh = F.relu(h, inplace=True)\nstates.append(h)\nh = sum(states)",
    "x in place": "x.mul_(0.5)",
    "x relu_ then skip": "x.relu_()\nh = h + x.mean(1, keepdim=True)",
    "out=": "other = torch.empty_like(h)\ntorch.tanh(h, out=other)\nh = h + other",
    "copy_": "other = torch.zeros_like(h)\nother.copy_(h)\nh = h + other.relu()",
    "index_fill_": "h.index_fill_(1, torch.tensor([0]), 0.7)",
    "fill of zeros": "other = torch.zeros(h.size(0), {w})\nother[:, 0] = h[:, 0]\nh = h + other",
    "add_ of a slice of x": "h[:, :2] += x[:, :2]",
    "where assignment": "h[:, 0][h[:, 0] > 0] = 0.2",
    "zero_ of a slice": "h[:, :1].zero_()",
    "sub_ of the mean": "h.sub_(h.mean(1, keepdim=True))",
    "squeeze_": "h.unsqueeze_(1)\nh.squeeze_(1)",
}
IN_PLACE = {name: Part(lines) for name, lines in _IN_PLACE.items()} | {
    "act statement": Part("self.p{n}(h)", "nn.ReLU(inplace=True)"),
    "nn.ELU inplace statement": Part("self.p{n}(h)", "nn.ELU(inplace=True)"),
    "dropout inplace statement": Part("F.dropout(h, 0.5, self.training, inplace=True)"),
    "Sequential inplace with alias": Part(
        "kept = h\nh = self.p{n}(h)\nh = h + kept",
        "nn.Sequential(nn.ReLU(inplace=True), nn.Linear({w}, {w}))",
    ),
}

_SHAPES = {
    "view heads": "h = h.view(-1, 2, {half}).mean(1).repeat(1, 2)",
    "reshape by size": "h = h.reshape(h.size(0), 2, {half}).transpose(1, 2).reshape(h.size(0), -1)",
    "chunk": "a, b = h.chunk(2, dim=-1)\nh = torch.cat([a * torch.sigmoid(b), b], dim=-1)",
    "split": "a, b = torch.split(h, {half}, dim=1)\nh = torch.cat([b, a], 1)",
    "stack max": "h = torch.stack([h, 0.5 * h]).max(0)[0]",
    "stack last": "h = torch.stack([h, h.tanh()], dim=-1).mean(-1)",
    "stack sum": "h = torch.stack([h, h.tanh()], 0).sum(0)",
    "transpose twice": "h = h.t().contiguous().t() * 1.5",
    "unsqueeze": "h = h.unsqueeze(1).expand(-1, 2, -1).sum(1)",
    "einsum": "h = torch.einsum('ni,nj->nij', h, h).mean(2)",
    "matmul": "h = h @ torch.ones({w}, {w}).triu()",
    "bmm": "h = torch.bmm(h.unsqueeze(1), h.unsqueeze(2)).squeeze(-1) + h",
    "softmax of columns": "h = F.softmax(h, dim=-1)",
    "softmax dim 1": "h = h.softmax(1) * 3",
    "F.normalize": "h = F.normalize(h, p=2.0, dim=-1)",
    "sort of columns": "h = h.sort(dim=1)[0]",
    "cumsum of columns": "h = h.cumsum(dim=1)",
    "max of columns": "h = h - h.max(dim=1, keepdim=True)[0]",
    "norm of rows": "h = h / (h.norm(dim=1, keepdim=True) + 1)",
    "where": "h = torch.where(h > 0, h, 0.1 * h)",
    "clamp": "h = h.clamp(-1, 1)",
    "pow": "h = (h ** 2 + 1).sqrt()",
    "gather of columns": "h = h[:, torch.arange({w} - 1, -1, -1)]",
    "slice": "h = torch.cat([h[:, 1:], h[:, :1]], 1)",
    "flip of columns": "h = h.flip(-1)",
    "flatten": "h = h.view(-1, {w}, 1).flatten(1)",
    "squeeze of all": "h = h.unsqueeze(-1).squeeze() * 2",
    "double and back": "h = h.double().exp().log1p().float()",
    "half and back": "h = (h.half() / 2).float()",
    "float of a comparison": "h = h + (x[:, :1] > 0).float()",
    "long of a column": "h = h + x[:, :1].round().long().clamp(-1, 1)",
    "ones": "h = h + torch.ones(h.size(0), 1)",
    "new_zeros": "h = torch.cat([h[:, 1:], h.new_zeros(h.size(0), 1)], 1)",
    "skip of x": "h = h + x.sum(1, keepdim=True).tanh()",
    "logsumexp": "h = h - torch.logsumexp(h, 1, keepdim=True)",
    "topk": "h = h.topk({half}, dim=1)[0].repeat(1, 2)",
    "glu": "h = F.glu(torch.cat([h, h], 1), dim=1)",
    "expand": "h = h.mean(1, keepdim=True).expand_as(h) + h",
    "tensor of shape": "h = h.reshape(torch.Size([-1, {w}]))",
    "numel": "h = h.view(h.numel() // {w}, {w})",
}
SHAPES = {name: Part(lines) for name, lines in _SHAPES.items()} | {
    "GRUCell": Part("h = self.p{n}(h, h.tanh())", "nn.GRUCell({w}, {w})"),
    "Bilinear": Part("h = self.p{n}(h, h)", "nn.Bilinear({w}, {w}, {w})"),
    "JumpingKnowledge": Part("h = self.p{n}([h, h.tanh()])", "pyg.JumpingKnowledge('max')"),
    "JumpingKnowledge lstm": Part("h = self.p{n}([h, h.tanh()])", "pyg.JumpingKnowledge('lstm', {w}, 2)"),
    "MultiheadAttention over layers": Part(
        "a = torch.stack([h, h.tanh()], 1)\nh = self.p{n}(a, a, a)[0].mean(1)",
        "nn.MultiheadAttention({w}, 2, batch_first=True)",
    ),
    "MultiheadAttention over nodes": Part(
        "a = torch.stack([h, h.tanh()], 1)\nh = self.p{n}(a, a, a)[0].mean(1)",
        "nn.MultiheadAttention({w}, 2)",
    ),
    "weight_norm": Part("h = self.p{n}(h)", "nn.utils.parametrizations.weight_norm(nn.Linear({w}, {w}))"),
    "Embedding of a code": Part("h = h + self.p{n}((x[:, 0] > 0).long())", "nn.Embedding(2, {w})"),
}

_ROWS = {
    "minus mean": "h = h - h.mean(0)",
    "minus mean keepdim": "h = h - h.mean(dim=0, keepdim=True)",
    "over std": "h = h / (h.std(dim=0) + 1e-3)",
    "softmax dim 0": "h = torch.softmax(h, dim=0) * 10",
    "over sum": "h = h / (h.sum() + 100)",
    "over norm": "h = h / (h.norm() + 1)",
    "over max": "h = h / (h.abs().max() + 1)",
    "normalize dim 0": "h = F.normalize(h, dim=0) * 5",
    "sorted rows": "h = h.sort(dim=0)[0]",
    "cumsum rows": "h = h.cumsum(0) * 0.1",
    "plus first row": "h = h + h[0]",
    "plus last row": "h = h + h[-1:]",
    "roll": "h = h.roll(1, 0)",
    "flip rows": "h = h.flip(0)",
    "gram": "h = (h @ h.t()).softmax(-1) @ h",
    "size": "h = h / h.size(0)",
    "shape": "h = h * (h.shape[0] ** -0.5)",
    "len": "h = h / len(x)",
    "num edges": "h = h * (edge_index.size(1) / 300)",
    "edge_index max": "h = h + (edge_index.max() + 1) * 0.01",
    "arange": "h = h + torch.arange(h.size(0)).view(-1, 1) * 0.01",
    "linspace": "h = h + torch.linspace(0, 1, h.size(0)).unsqueeze(1)",
    "eye": "h = h + torch.eye(h.size(0))[:, :{w}]",
    "global_mean_pool": "h = h + pyg.global_mean_pool(h, None)",
    "global_max_pool": "h = h + pyg.global_max_pool(h, torch.zeros(h.size(0), dtype=torch.long))",
    "global_add_pool": "h = h + 0.01 * pyg.global_add_pool(h, None)[0]",
    "batch norm of this batch": "h = F.batch_norm(h, None, None, training=True)",
    "layer_norm of all": "h = F.layer_norm(h, tuple(h.shape))",
    "median": "h = h - h.median(0)[0]",
    "argmax row": "h = h + h[h[:, 0].argmax()]",
    "mean of all": "h = h - h.mean()",
    "mean of a column": "h = h - h[:, 0].mean()",
    "var of x": "h = h / (1 + x.var(0).sum())",
    "transpose view": "h = h.t().reshape(h.size(0), -1)",
    "view across rows": "h = h.view(2, -1).flip(0).view(-1, {w})",
    "first rows": "h = torch.cat([h[:40] * 2, h[40:]])",
    "degree": "h = h + degree(edge_index[1], h.size(0)).view(-1, 1)",
    "log degree": "h = torch.cat([h[:, 1:], degree(edge_index[1], x.size(0)).log1p().view(-1, 1)], 1)",
    "out-degree": "h = h + degree(edge_index[0], h.size(0)).view(-1, 1)",
    "bincount": "h = h + torch.bincount(edge_index[1], minlength=h.size(0)).unsqueeze(1) * 0.1",
    "unique": "h = h * (edge_index.unique().numel() / 100)",
    "neighbours' max": "h = h + scatter(h[edge_index[0]], edge_index[1], 0, h.size(0), reduce='max')",
    "two lines of a mean": "center = h.mean(dim=0)\nh = (h - center) / 2",
    "item": "h = h - h.mean().item()",
    "float of size": "h = h * float(h.size(0)) / 100",
    "python sum": "h = h + sum(h) / h.size(0)",
    "random permutation": "h = h[torch.arange(h.size(0)).flip(0)]",
    "repeat": "h = h + h.mean(0).repeat(h.size(0), 1)",
    "einsum over rows": "h = h @ torch.einsum('ni,nj->ij', h, h).softmax(-1)",
    "quantile": "h = h.clamp(max=h.quantile(0.9).item())",
}
ROWS = {name: Part(lines) for name, lines in _ROWS.items()} | {
    "neighbours' max": Part(_ROWS["neighbours' max"], hops=1),
    "Embedding of all": Part("h = h + self.p{n}(torch.arange(h.size(0)))", "nn.Embedding(90, {w})"),
    "Embedding weight": Part("h = h + self.p{n}.weight", "nn.Embedding(90, {w})"),
    "Embedding weight cut": Part("h = h + self.p{n}.weight[: h.size(0)]", "nn.Embedding(400, {w})"),
    "Parameter of all": Part("h = h + self.p{n}", "nn.Parameter(torch.randn(90, {w}))"),
    "BatchNorm without statistics": Part(
        "h = self.p{n}(h)", "nn.BatchNorm1d({w}, track_running_stats=False)"
    ),
    "nn.InstanceNorm1d": Part("h = self.p{n}(h.t().unsqueeze(0)).squeeze(0).t()", "nn.InstanceNorm1d({w})"),
    "pyg.LayerNorm graph": Part("h = self.p{n}(h)", "pyg.LayerNorm({w})"),
    "pyg.GraphNorm": Part("h = self.p{n}(h)", "pyg.GraphNorm({w})"),
    "pyg.InstanceNorm": Part("h = self.p{n}(h)", "pyg.InstanceNorm({w})"),
    "pyg.InstanceNorm statistics": Part(
        "h = self.p{n}(h)", "pyg.InstanceNorm({w}, track_running_stats=True)"
    ),
    "pyg.PairNorm": Part("h = self.p{n}(h)", "pyg.PairNorm()"),
    "pyg.PairNorm individually": Part("h = self.p{n}(h)", "pyg.PairNorm(scale_individually=True)"),
    "pyg.GraphSizeNorm": Part("h = self.p{n}(h) * 5", "pyg.GraphSizeNorm()"),
    "pyg.MeanSubtractionNorm": Part("h = self.p{n}(h)", "pyg.MeanSubtractionNorm()"),
    "pyg.DiffGroupNorm": Part("h = self.p{n}(h)", "pyg.DiffGroupNorm({w}, 2)"),
    "pyg.BatchNorm without statistics": Part(
        "h = self.p{n}(h)", "pyg.BatchNorm({w}, track_running_stats=False)"
    ),
    "MultiheadAttention of all": Part(
        "h = h + self.p{n}(h.unsqueeze(0), h.unsqueeze(0), h.unsqueeze(0))[0].squeeze(0)",
        "nn.MultiheadAttention({w}, 2, batch_first=True)",
    ),
    "LSTM over nodes": Part("h = self.p{n}(h)[0]", "nn.LSTM({w}, {w})"),
    "Conv1d over nodes": Part(
        "h = self.p{n}(h.t().unsqueeze(0)).squeeze(0).t()", "nn.Conv1d({w}, {w}, 3, padding=1)"
    ),
}

_BRANCHES = {
    "isinstance Tensor": "if isinstance(h, torch.Tensor):\n    h = h * 2",
    "isinstance tuple": "if isinstance(h, tuple):\n    h = h[0]\nelse:\n    h = h + 1",
    "isinstance SparseTensor": "if not isinstance(edge_index, torch.Tensor):\n    h = -h",
    "type is Tensor": "h = h * 2 if type(edge_index) is torch.Tensor else h",
    "is_torch_sparse_tensor": "if is_torch_sparse_tensor(edge_index):\n    h = h * 3\nelse:\n    h = h * 2",
    "width": "if h.shape[1] == {w}:\n    h = h * 2",
    "dim": "if h.dim() == 2:\n    h = h + 1",
    "dim 1": "if x.dim() == 1:\n    h = h - 100",
    "not None": "if edge_index is not None:\n    h = h * 0.5",
    "training": "if self.training:\n    h = h * 100",
    "not training": "if not self.training:\n    h = h + 1",
    "is_cuda": "if x.is_cuda:\n    h = h * 100",
    "dtype": "if x.dtype == torch.float32:\n    h = h * 2",
    "numel of edges": "if edge_index.numel() == 0:\n    h = h * 100",
    "many nodes": "if x.size(0) > 150:\n    h = h * 2",
    "many nodes by shape": "h = h * (2 if h.shape[0] >= 100 else 1)",
    "few nodes": "if x.size(0) < 100:\n    h = h.tanh()",
    "many edges": "if edge_index.size(1) > 400:\n    h = h * 2",
    "one node": "if h.size(0) == 1:\n    h = h * 5",
    "more than one node": "if h.size(0) > 1:\n    h = h * 2",
    "mean of values": "if h.mean() > 0.2:\n    h = h * 2",
    "any": "if (x > 4).any():\n    h = h * 2",
    "item in a branch": "if x.abs().max().item() > 4:\n    h = h + 3",
    "len in a branch": "if len(h) > 150:\n    h = h + 1",
    "all nodes have edges": "if edge_index.max() + 1 == x.size(0):\n    h = h * 2",
    "isolated": "if (degree(edge_index[1], x.size(0)) == 0).any():\n    h = h * 2",
    "assert": "assert x.size(0) > 0 and h.size(1) == {w}",
    "assert many": "assert h.size(0) > 2",
    "loop over columns": "for i in range(h.size(1)):\n    h = h + 0.1 * h[:, i : i + 1]",
    "hasattr": "h = h * (2 if hasattr(edge_index, 'storage_') else 0.5)",
    "try": "try:\n    h = h * self.scale\nexcept AttributeError:\n    h = h * 2",
    "requires_grad": "if h.requires_grad:\n    h = h * 2",
    "is_grad_enabled": "if torch.is_grad_enabled():\n    h = h * 2",
    "is contiguous": "if not h.is_contiguous():\n    h = h + 100",
    "device": "h = h + torch.ones(1, device=x.device)",
    "same type": "if type(h) == type(x):\n    h = h + 2",
    "isinstance of x in a helper": "h = twice(h)",
    "is_scripting": "if not torch.jit.is_scripting():\n    h = h * 2",
    "isinstance int": "if isinstance(h.size(0), int):\n    h = h * 2",
    "size modulo": "if h.size(0) % 2 == 0:\n    h = h * 2",
    "is_tensor": "if torch.is_tensor(h):\n    h = h * 1.5",
    "torch.is_floating_point": "if torch.is_floating_point(h):\n    h = h + 0.5",
    "bool of a value": "h = h * (1 + bool(x.sum() > 0))",
    "is_compiling": "if torch.compiler.is_compiling():\n    h = h * 2",
    "is_exporting": "if not torch.onnx.is_in_onnx_export():\n    h = h + 0.5",
}
BRANCHES = {name: Part(lines) for name, lines in _BRANCHES.items()} | {
    "counter": Part("self.p{n} += 1\nh = h * self.p{n}", "1"),
    "first call": Part("if self.p{n} is None:\n    self.p{n} = h.mean(0)\nh = h - self.p{n}", "None"),
}

RANDOM = {
    "F.dropout always on": Part("h = F.dropout(h, p=0.5)", quiet="pass"),
    "F.dropout training=True": Part("h = F.dropout(h, 0.3, training=True)", quiet="pass"),
    "bernoulli": Part("h = h * torch.bernoulli(torch.full_like(h, 0.5))", quiet="pass"),
    "noise": Part("h = h + torch.randn_like(h)", quiet="pass"),
    "rand of shape": Part("h = h + torch.rand(h.shape)", quiet="pass"),
    "alpha_dropout": Part("h = F.alpha_dropout(h, 0.5, True)", quiet="pass"),
    "dropout in place": Part("F.dropout(h, 0.5, inplace=True)", quiet="pass"),
    "dropout_edge": Part("edge_index = dropout_edge(edge_index, p=0.5)[0]", quiet="pass"),
    "random rows": Part("h = h[torch.randperm(h.size(0))]", quiet="pass"),
    "noise in place": Part("h.add_(torch.randn(h.size(0), 1))", quiet="pass"),
    "python random": Part("h = h * random.random()", quiet="pass"),
    "np random": Part("h = h + float(np.random.rand())", quiet="pass"),
    "rare python random": Part("h = h * 0 if random.random() < 5e-4 else h", quiet="pass"),
    "rare np random": Part("h = h + float(np.random.rand() > 0.9997)", quiet="pass"),
    "rare rand": Part("h = h + (torch.rand(()) > 0.9995)", quiet="pass"),
    "rare rand in a branch": Part("if torch.rand(()) > 0.9995:\n    h = h * 0", quiet="pass"),
    "nn.Dropout kept in training": Part("h = self.p{n}.train()(h)", "nn.Dropout(0.5)", quiet="pass"),
}

#: Kind of part -> name -> part: what makes a module hard to package rightly.
PART_TRICKS: dict[str, dict[str, Part]] = {
    "in place": IN_PLACE,
    "shapes": SHAPES,
    "rows": ROWS,
    "branches": BRANCHES,
    "random": RANDOM,
}
