"""One seed of one graph: teacher, students and plain MLP on test nodes that none of them learned from.

The teacher's row is one GraphSAGE trained on labels. `glnn` is the published recipe: an MLP over a node's
unchanged features, taught by that teacher. `prod`, `tran` and `ind` are of the student that ships, with
the settings of `hopline distill`: rows of the observed graph's diffusion in addition to the features, and
better soft labels, the mean of the answers of that teacher and four of other seeds. Both learn from all
observed nodes, which of the test nodes takes features, edges and soft labels, and no label.

What it may see of a held-out node: its features, and rows and degrees of the observed nodes that it has
edges to, read when it is asked about. Edges between two held-out nodes are not used. The teacher's answers
for held-out nodes use the whole graph.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.distill_phases.splits import Data, Observed, Split, draw, observe
from benchmarks.distill_phases.teacher import Neighborhoods, probabilities, train_teacher
from hopline.types import FloatArray, IdArray
from hopline_compress.distill.propagate import by_destination, directions
from hopline_compress.distill.run import structure_features
from hopline_compress.distill.settings import Settings
from hopline_compress.distill.train import train_student

TEACHERS = 5
SHIPPED = Settings()
PURE = Settings(
    structure=False, width=0, batch=512, epochs=150, patience=40, label_weight=0.0, weight_decay=5e-4
)
NAMES = ("prod", "tran", "ind", "teacher", "mlp", "glnn")


def measure(data: Data, seed: int, names: tuple[str, ...] = NAMES) -> dict[str, float]:
    """Accuracy in % by names; `mlp` and `glnn` are trained if they are among them."""
    split = draw(data, seed)
    observed = observe(data, split)
    teacher, soft = _teachers(data, observed, split, seed)
    everyone = np.arange(len(observed.x))
    found = {"teacher": teacher}

    pure = dataclasses.replace(PURE, seed=seed)
    for name, target, rows in (
        ("mlp", _one_hot(observed, data.num_classes), observed.train),
        ("glnn", soft[0], everyone),
    ):
        if name not in names:
            continue
        student = train_student(observed.x, target, observed.labels, rows, observed.valid, pure)
        answers = student.probabilities(observed.x), student.probabilities(data.x[split.ind])
        found[name] = _accuracy(data, split, observed, *answers)[0]

    shipped = dataclasses.replace(SHIPPED, seed=seed)
    found["prod"], found["tran"], found["ind"] = ship(data, split, observed, soft.mean(0), shipped)
    return found


def ship(
    data: Data, split: Split, observed: Observed, soft: FloatArray, settings: Settings
) -> tuple[float, float, float]:
    """Accuracy in % of a student with structure: prod, tran, ind."""
    everyone = np.arange(len(observed.x))
    rows = structure_features(observed.edge_index, observed.x, settings)
    student = train_student(
        observed.x, soft, observed.labels, everyone, observed.valid, settings, structure=rows
    )
    held_out = arrivals(data, split, observed, rows, settings)
    return _accuracy(
        data,
        split,
        observed,
        student.probabilities(np.concatenate([observed.x, rows], 1)),
        student.probabilities(np.concatenate([data.x[split.ind], held_out], 1)),
    )


def arrivals(
    data: Data, split: Split, observed: Observed, rows: FloatArray, settings: Settings
) -> FloatArray:
    """Structure features of the held-out nodes, from their edges to observed ones; float32 [n, S]."""
    indptr, indices = _edges_in(data.edge_index, split.ind, observed.nodes, len(data.y))
    base = data.x[split.ind] @ directions(observed.x, settings.width)
    degrees = np.bincount(observed.edge_index[1], minlength=len(observed.x))
    return new_rows(base, indptr, rows[indices], degrees[indices], settings)


def new_rows(
    base: FloatArray,
    indptr: IdArray,
    neighbor_rows: FloatArray,
    neighbor_degrees: IdArray,
    settings: Settings,
) -> FloatArray:
    """Rows of nodes that were added after the others were computed.

    Equal to a full computation if no node is downstream of the new nodes (they have in-edges only);
    else the answer of the graph before they were added.

    Args:
        base: float32 [n, S], reduced features of the new nodes.
        indptr: int64 [n + 1]: the in-neighbours of node i are neighbor_rows[indptr[i]:indptr[i + 1]].
        neighbor_rows: float32 [m, S], stored rows.
        neighbor_degrees: int64 [m], the number of in-neighbours of each.

    Returns: float32 [n, S].
    """
    counts = np.diff(indptr)
    weights = 1 / np.sqrt(np.maximum(neighbor_degrees, 1) * np.repeat(counts, counts))
    sums = np.zeros(base.shape, np.float32)
    np.add.at(
        sums,
        np.repeat(np.arange(len(base)), counts),
        neighbor_rows * weights[:, None].astype(np.float32),
    )
    near = np.float32(settings.restart) * base + np.float32(1 - settings.restart) * sums
    return np.where(counts[:, None] > 0, near, base).astype(np.float32)


def _edges_in(
    edge_index: IdArray, nodes: IdArray, sources: IdArray, num_nodes: int
) -> tuple[IdArray, IdArray]:
    """Edges from `sources` into `nodes`, numbered by their places there."""
    place, number = np.full(num_nodes, -1, np.int64), np.full(num_nodes, -1, np.int64)
    place[nodes], number[sources] = np.arange(len(nodes)), np.arange(len(sources))
    found = np.stack([number[edge_index[0]], place[edge_index[1]]])
    return by_destination(found[:, (found >= 0).all(0)], len(nodes))


def _teachers(data: Data, observed: Observed, split: Split, seed: int) -> tuple[float, FloatArray]:
    """Accuracy of the teacher, and float32 [TEACHERS, n, C]."""
    near = Neighborhoods.of(observed.edge_index, observed.x)
    modules = [train_teacher(observed, near, data.num_classes, seed + 1000 * k) for k in range(TEACHERS)]
    soft = np.stack([probabilities(each, near) for each in modules])
    whole = probabilities(modules[0], Neighborhoods.of(data.edge_index, data.x))
    return _accuracy(data, split, observed, soft[0], whole[split.ind])[0], soft


def _one_hot(observed: Observed, num_classes: int) -> FloatArray:
    found = np.zeros((len(observed.x), num_classes), np.float32)
    found[observed.train, observed.labels[observed.train]] = 1
    return found


def _accuracy(
    data: Data, split: Split, observed: Observed, seen: FloatArray, held_out: FloatArray
) -> tuple[float, float, float]:
    """prod, tran and ind in %, of answers for all observed nodes and for the held-out ones."""
    tran = 100 * float((seen[observed.tran].argmax(1) == data.y[split.tran]).mean())
    ind = 100 * float((held_out.argmax(1) == data.y[split.ind]).mean())
    return 0.8 * tran + 0.2 * ind, tran, ind
