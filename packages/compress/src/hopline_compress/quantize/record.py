"""Records the inputs of a model's stages while it answers for real nodes: the rows for calibration.

The engine itself plans, samples and gathers; a tap before each runtime copies the inputs. So rows of a
stage that appear only in the neighbourhoods of requests (sums over the lists of hubs, rows of edges) are
recorded as they will be served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np

from hopline.engine.execute import execute
from hopline.engine.model import Model
from hopline.engine.plan import make_plan
from hopline.errors import BadRequest
from hopline.runtimes.onnx import EdgeStage, RowStage
from hopline.types import AnyArray, FloatArray, IdArray

#: One call of a runtime: input name -> array.
Feeds = dict[str, AnyArray]

#: Rows and calls that are recorded of each stage.
MAX_ROWS, MAX_CALLS = 4096, 256
#: Seeds of one pass; small, so that the recorded rows come from many neighbourhoods.
_SEEDS = 64


class _Tap:
    """Replaces a runtime, and copies its inputs."""

    def __init__(
        self, behind: RowStage | EdgeStage, names: list[str], keep: Callable[[Feeds], None]
    ) -> None:
        self._behind = behind
        self._names = names
        self._keep = keep
        self.inputs: list[FloatArray] = behind.inputs if isinstance(behind, RowStage) else []

    def run(self, given: int | Feeds) -> FloatArray:
        """Run as the runtime does: for a number of rows, or for feeds."""
        if isinstance(given, int):
            self._keep({name: rows[:given] for name, rows in zip(self._names, self.inputs, strict=True)})
            return cast(RowStage, self._behind).run(given)
        self._keep(given)
        return cast(EdgeStage, self._behind).run(given)


class _Kept:
    """Calls of one stage."""

    def __init__(self, room: int, rng: np.random.Generator) -> None:
        self.calls: list[Feeds] = []
        self._room = room
        self._left = MAX_ROWS
        self._rng = rng

    def rows(self, feeds: Feeds) -> None:
        """Keep some rows of a call: random ones, and those with the largest values."""
        count = next(iter(feeds.values())).shape[0]
        chosen = np.arange(count)
        if count > self._room:
            reach = np.zeros(count, np.float32)
            for rows in feeds.values():
                np.maximum(reach, np.abs(rows.reshape(count, -1)).max(axis=1), out=reach)
            drawn = self._rng.choice(count, self._room - 1, replace=False)
            chosen = np.unique(np.append(drawn, int(reach.argmax())))
        if self._left >= chosen.shape[0]:
            self._left -= chosen.shape[0]
            self.calls.append({name: rows[chosen].copy() for name, rows in feeds.items()})

    def edges(self, feeds: Feeds) -> None:
        """Keep a whole call: its arrays belong together."""
        if len(self.calls) < MAX_CALLS and self._left > 0:
            self._left -= max(1, next(iter(feeds.values())).shape[0])
            self.calls.append({name: values.copy() for name, values in feeds.items()})


def record(
    model: Model, seeds: dict[str, IdArray], advance: Callable[[int, int], None], *, seed: int = 0
) -> dict[str, list[Feeds]]:
    """Compute final states of nodes, and copy the inputs of each stage and of the head.

    Args:
        model: without state caches; the taps stay in it, so that it must not be used for anything else.
        seeds: node type -> distinct ids, in the order in which they are computed.
        advance: called with (seeds done, seeds in all).
        seed: of the random choice of rows.

    Returns: file name ("<level>.<node type>", "head") -> calls; a stage that no seed reached has none.

    Raises: BadRequest: an input of a stage is not a finite number.
    """
    rng = np.random.default_rng(seed)
    total = sum(ids.shape[0] for ids in seeds.values())
    passes = max(1, -(-total // _SEEDS))
    kept: dict[str, _Kept] = {}
    for number, levels in enumerate(model.levels):
        for node_type, level in levels.items():
            if level.runner is None:
                continue
            own = kept[f"{number}.{node_type}"] = _Kept(max(2, MAX_ROWS // passes), rng)
            runner, stage = level.runner, level.stage
            if runner.row_stage is not None:
                names = ["x"] if stage.packed else [entry.name for entry in stage.inputs]
                runner.row_stage = cast(RowStage, _Tap(runner.row_stage, names, own.rows))
            elif runner.edge_stage is not None:
                runner.edge_stage = cast(EdgeStage, _Tap(runner.edge_stage, [], own.edges))
            if runner.query_stage is not None:
                queries = kept[f"{number}.{node_type}.query"] = _Kept(max(2, MAX_ROWS // passes), rng)
                names = [entry.name for entry in stage.query_inputs]
                runner.query_stage = cast(RowStage, _Tap(runner.query_stage, names, queries.rows))
    head = model.spec.head
    at_head = _Kept(MAX_ROWS, rng)
    done = 0
    for wanted in _passes(seeds):
        states = execute(make_plan(model.levels, model.spec.num_layers, wanted), model.features, keep=False)
        if head.file is not None:
            at_head.rows(_head_feeds(model, states, rng))
        done += sum(ids.shape[0] for ids in wanted.values())
        advance(done, total)
    calls = {name: own.calls for name, own in kept.items()}
    if head.file is not None:
        calls["head"] = at_head.calls
    _check_finite(calls)
    return calls


def _passes(seeds: dict[str, IdArray]) -> Iterable[dict[str, IdArray]]:
    most = max(ids.shape[0] for ids in seeds.values())
    for a in range(0, most, _SEEDS):
        yield {name: ids[a : a + _SEEDS] for name, ids in seeds.items() if ids[a : a + _SEEDS].shape[0]}


def _head_feeds(model: Model, states: dict[str, FloatArray], rng: np.random.Generator) -> Feeds:
    head = model.spec.head
    own = states[head.node_type]
    if head.kind == "node":
        return {"h": own}
    other = states.get(head.dst_node_type or head.node_type, own)
    return {"h_src": own, "h_dst": other[rng.integers(0, other.shape[0], own.shape[0])]}


def _check_finite(calls: dict[str, list[Feeds]]) -> None:
    for name, found in calls.items():
        for feeds in found:
            for entry, values in feeds.items():
                if values.dtype.kind == "f" and not np.isfinite(values).all():
                    raise BadRequest(
                        f"calibration data: input {entry!r} of {name} has values that are not finite "
                        "(NaN or infinite); clean the graph's features, or calibrate on nodes without them"
                    )
