"""After a pre-flight a live graph's first changes call nothing that has to be compiled or loaded."""

import json
import subprocess
import sys

import pytest

PLAY = """
import gc, json, sys
from pathlib import Path
import numpy as np
from numba.core.dispatcher import Dispatcher
from hopline.graph import Graph
from hopline.graph.live.preflight import preflight
from tests.graph.live.drawn import Oracle
from tests.graph.live.keepers import Kept, base_graph, numbered

def loaded():
    found = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {f"{each.py_func.__qualname__}{sig}" for each in found for sig in each.signatures}

kind, folder = sys.argv[1], Path(sys.argv[2])
oracle = Oracle(np.random.default_rng(0))
graph = base_graph() if kind == "homogeneous" else oracle.graph()
graph.save(folder / "graph")
kept = Kept(folder / "live", Graph.open(folder / "graph"))
kept.snapshot()  # as a start that recovers does
preflight(graph.schema, num_levels=2, reads_degrees=False)
before = loaded()
for at in range(0, 30, 10):
    kept.keeper.apply([numbered(at, at + 10) if kind == "homogeneous" else oracle.batch(20)])
    kept.snapshot()
print(json.dumps(sorted(loaded() - before)))
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous"])
def test_nothing_is_compiled_after_a_preflight(kind, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PLAY, kind, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
