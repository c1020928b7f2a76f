from pathlib import Path

import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.graph import Graph
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.rows import RowComputer
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline.jobs.batch.states import MemoryRows
from hopline.types import ScoreRequest
from tests.engine import zoo


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """The zoo, its graphs saved."""
    built = zoo.build(tmp_path_factory.mktemp("batch-models"))
    saved = {}
    for case in built.values():
        key = id(case.graph)
        if key not in saved:
            saved[key] = case.graph.save(tmp_path_factory.mktemp("batch-graph") / "graph")
        case.graph = saved[key]
    return built


def computed(folder, spec, graph, at, ids, below, raw=None, compact_edges=0) -> np.ndarray:
    """States of ids at (level, node type), computed from rows of the level below by node type."""
    bases = {}
    for name, rows in below.items():
        bases[name] = MemoryRows(*rows.shape)
        bases[name].write(np.arange(len(rows)), np.asarray(rows, np.float32))
    own = {} if raw is None else {"raw": raw}
    computer = RowComputer(folder, spec, graph, *at, bases, **own, compact_edges=compact_edges)
    level, node_type = at
    out = np.empty((len(ids), spec.levels[level][node_type].state_dim), np.float32)
    computer.compute(ids, out)
    return out


class Scored:
    """A table of `.npy` files, and the report of the run that wrote it."""

    def __init__(self, folder: Path, report) -> None:
        self.folder = folder
        self.report = report

    def __getitem__(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy")


def score(
    folder: Path, graph: Graph, out: Path, *, part="", advance=None, engine=None, **options
) -> Scored:
    """Run a batch into `out`; its work folder is `<out>.run`."""
    work = out.with_name(out.name + ".run")
    kwargs = {} if advance is None else {"advance": advance}
    run = BatchRun(folder, graph.path, work, BatchOptions(**options), engine=engine, **kwargs)
    report = run.run(lambda: NpyFolder(out))
    return Scored(out / part if part else out, report)


def online(folder: Path, graph: Graph, outputs=("logits", "embedding"), rows=None) -> dict[str, np.ndarray]:
    """What the server answers for all nodes, or some rows."""
    spec = read_spec(folder)
    model = load_model(folder, spec, graph)
    ids = graph.nodes[spec.head.node_type].ids
    rows = np.arange(len(ids)) if rows is None else np.asarray(rows)
    external = ids.external(rows)
    nodes = external if isinstance(external, list) else external.tolist()
    (result,) = Answerer(model, outputs, 1000).answer([ScoreRequest("m", nodes=nodes, outputs=outputs)])
    if isinstance(result, Exception):
        raise result
    return result.outputs
