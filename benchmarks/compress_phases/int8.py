"""Phase `int8`: a packaged GraphSAGE against the same model quantised by `hopline quantize`.

What: two layers, 767 -> 256 -> 10, trained on "Amazon Computers" (13,752 nodes, 60 / 20 / 20 % split) with
sampled neighbours, packaged with fanouts [10, 10]; then quantised with its default settings, calibrated on
512 nodes without a look at labels.

    size_ratio                   bytes of the ONNX files (all stages), int8 over float32
    accuracy_drop                points on the test nodes, both by the engine; below 0: int8 is better
    latency_ratio                the ONNX files alone over 1,024 recorded rows of each stage (`_1`: one row)
    latency_ratio_end_to_end     a request of 1,024 nodes, through the engine without tables (`_1`: one)

Against: the float32 version, in ONNX Runtime as it is served (operators fused, one thread). Both sides in
turns in one process; medians of the thread's processor time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import hopline
from examples import amazon_computers
from examples.amazon_computers import FANOUTS, Products
from hopline import Graph
from hopline.artifact import read_spec
from hopline.types import FloatArray, IdArray
from hopline_compress.quantize.judge import answers
from hopline_compress.quantize.report import Latency, QuantizeReport
from hopline_compress.quantize.run import QuantizeOptions, quantize

_HIDDEN, _QUICK_HIDDEN = 256, 128
_EPOCHS, _QUICK_EPOCHS = 24, 12


class Sage(nn.Module):
    """Two mean layers; the first one's weights are nearly all of its size."""

    def __init__(self, num_features: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv(num_features, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.conv2 = SAGEConv(hidden, num_classes)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Float32 [n, d] and a sparse adjacency to float32 [n, c] logits."""
        h = self.dropout(torch.relu(self.norm(self.conv1(x, edge_index))))
        logits: Tensor = self.conv2(h, edge_index)
        return logits


def measure(quick: bool) -> dict[str, Any]:
    """Figures under `int8`; see the module."""
    torch.set_num_threads(1)
    products = amazon_computers.load(0)
    with tempfile.TemporaryDirectory(prefix="hopline-int8-") as name:
        folder = Path(name)
        graph = Graph.from_edges(products.edge_index, products.x).save(folder / "graph")
        model = _train(products, graph, quick=quick)
        packaged = hopline.package(
            model, graph, folder / "models", name="computers", fanouts=FANOUTS, task="multiclass"
        )
        report = quantize(packaged.path, graph, folder / "models", QuantizeOptions())
        logits = [
            answers(path, read_spec(path), graph, products.test)
            for path in (packaged.path, Path(report.path))
        ]
    return {"int8": _figures(report, logits, products.y[products.test], quick=quick)}


def _figures(
    report: QuantizeReport, logits: list[FloatArray], labels: IdArray, *, quick: bool
) -> dict[str, Any]:
    before, after = (float((each.argmax(1) == labels).mean()) for each in logits)
    alone = {each.rows: each for each in report.latency_model}
    whole = {each.rows: each for each in report.latency_request}
    return {
        "size_ratio": round(report.size_ratio, 4),
        "bytes": [report.bytes_before, report.bytes_after],
        "accuracy": [round(100 * before, 2), round(100 * after, 2)],
        "accuracy_drop": round(100 * (before - after), 3),
        "agreement": round(100 * float((logits[0].argmax(1) == logits[1].argmax(1)).mean()), 2),
        "drop_by_degree": {bucket.name: round(bucket.drop, 3) for bucket in report.figures.buckets},
        "latency_ratio": round(alone[1024].ratio, 3),
        "latency_ratio_1": round(alone[1].ratio, 3),
        "latency_us": _microseconds(alone),
        "latency_ratio_end_to_end": round(whole[1024].ratio, 3),
        "latency_ratio_end_to_end_1": round(whole[1].ratio, 3),
        "latency_us_end_to_end": _microseconds(whole),
        "layers": {layer.name: f"{layer.form} {layer.scheme}".strip() for layer in report.layers},
        "weight_bits": report.weight_bits,
        "vnni": report.vnni,
        "hidden": _QUICK_HIDDEN if quick else _HIDDEN,
        "quantize_s": round(report.seconds, 1),
    }


def _microseconds(latencies: Mapping[int, Latency]) -> dict[str, list[float]]:
    """Rows -> [float32, int8]."""
    return {str(rows): [round(each.before, 1), round(each.after, 1)] for rows, each in latencies.items()}


def _train(products: Products, graph: Graph, *, quick: bool) -> nn.Module:
    torch.manual_seed(0)
    hidden, epochs = (_QUICK_HIDDEN, _QUICK_EPOCHS) if quick else (_HIDDEN, _EPOCHS)
    x, y = torch.from_numpy(products.x), torch.from_numpy(products.y)
    rows = torch.from_numpy(products.train)
    model = Sage(x.shape[1], hidden, int(y.max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=5e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=epochs)
    for epoch in range(epochs):
        edges = amazon_computers.adjacency(graph, 5, epoch)
        loss = nn.functional.cross_entropy(model(x, edges)[rows], y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    return model.eval()
