"""Expected values of the graph model for each series, given its neighbours, its window and its call paths.

Inputs are deviations from the baseline in spreads, so one model fits every mesh with any columns:

    x  [n, 2 F]  deviations now (own load taken out), and 1 for measured ones; also the targets
    h  [n, F]    deviation of the window's mean from the baseline: the temporal term
    e  [e, 2 Fe] as x, for call paths;  g [e, Fe] as h

A service's own `x` is not an input of the service's embedding, so that its expected value does not just
repeat it. Some of it returns through its neighbours. This share is measured after training; a series with a
large share gets no expected value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import StateDamaged
from hopline_mesh.model.device import AnyEncoder, encoder_for
from hopline_mesh.model.encoder import Encoder, Reconstruction
from hopline_mesh.model.frames import Frame
from hopline_mesh.model.graph import MeshGraph
from hopline_mesh.model.partition import PartEncoder
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import Weights
from hopline_mesh.roster import SlotArray
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae import arrivals, rows
from hopline_mesh.tagae.pairs import Lineup
from hopline_mesh.tagae.series import SeriesTable
from hopline_mesh.tagae.sweep import Expected, Rows
from hopline_mesh.tagae.sweep_kernels import MAX_INPUT

if TYPE_CHECKING:
    from hopline_mesh.model.training import Progress

#: Minimum share of a series' variance in held-out time that the model must explain to be used for it.
_EXPLAINS = 0.1
#: Largest share of a service's own deviation that may return to it.
_RETURNS = 0.3
#: Threads that a pass over a whole mesh uses; parts are faster only with more.
_WHOLE_THREADS = 2
#: Number of passes after which parts are tried again.
_LOOK_AGAIN = 240


def shape_for(nodes: SeriesTable, edges: SeriesTable, **sizes: Any) -> ModelShape:
    """Return the shape of the model for these columns."""
    width, edge_width = nodes.modelled, edges.modelled
    return ModelShape(
        d_in=2 * width,
        d_temporal=width,
        d_edge=2 * edge_width,
        n_node_targets=width,
        n_edge_targets=edge_width,
        d_edge_temporal=edge_width,
        own_inputs=False,
        **({"hidden": 32, "heads": 2, "d_out": 16, "d_decoder": 32} | sizes),
    )


def usual_edge(shape: ModelShape) -> NDArray[np.float32]:
    """Return the inputs of most call paths, float32 [d_edge]: no deviations, all columns measured."""
    width = shape.d_edge // 2
    return np.concatenate([np.zeros(width, np.float32), np.ones(shape.d_edge - width, np.float32)])


#: Inputs of services, and of call paths.
Rooms = tuple[Rows, Rows]


class Expectation:
    """A model applied to two tables.

    Args:
        weights: for `shape_for` the tables' columns.
        threads: of the encoder; more than two help only for parts.
        device: "cpu" or "cuda"; see `encoder_for`.

    Attributes:
        encoder: of a whole mesh.
    """

    def __init__(self, weights: Weights, threads: int = 2, device: str = "cpu") -> None:
        self.weights = weights
        self._usual_edge = usual_edge(weights.shape)
        self.encoder: AnyEncoder = encoder_for(weights, device, threads, self._usual_edge)
        self.graph = MeshGraph()
        self._threads = threads
        self._is_on_cpu = device == "cpu"
        self._in_parts: PartEncoder | None = None
        self._whole_for = 0
        self._memory: dict[int, Rows] = {}
        self._rooms: Rooms | None = None
        self._paths: SlotArray | None = None
        self._nodes: SlotArray = np.zeros(0, np.int32)

    def rooms(self, num_nodes: int, num_edges: int, nodes: SeriesTable, edges: SeriesTable) -> Rooms:
        """Return the buffers for inputs of services and of call paths."""
        rooms = self._rooms
        if rooms is None or len(rooms[0][0]) != num_nodes or len(rooms[1][0]) != num_edges:
            rooms = self._rooms = self._room(0, nodes, num_nodes), self._room(1, edges, num_edges)
        return rooms

    def ready(
        self,
        snapshot: Snapshot,
        lineup: Lineup,
        young: int,
        nodes: SeriesTable,
        edges: SeriesTable,
        parts: SlotArray | None = None,
    ) -> NDArray[np.int64] | Expected:
        """Prepare the pass over the inputs in `rooms`, those of the present interval.

        Args:
            lineup: present services and call paths.
            young: number of services without a window.
            parts: int32 [n], the part of each service, for a large mesh. Parts are used if that is faster;
                halos are complete, so results are those of the whole mesh.

        Returns: the pass's plan, for `Sweep.judge`; or the expected values, if they are computed already.
        """
        paths = lineup.paths
        (x, h), (e, g) = self._follow(snapshot, lineup, nodes, edges)
        if young:
            if edges.load >= 0:
                amounts = snapshot.edge_features[:, edges.load]
            else:
                amounts = np.ones(len(paths), np.float32)
            arrivals.fill(self.graph, h, snapshot.nodes, nodes, amounts)
        found = None
        if parts is not None and self._is_on_cpu and self._threads > _WHOLE_THREADS:
            found = self._by_parts(parts, x, h, e, g)
        if found is None and isinstance(self.encoder, Encoder):
            return self.encoder.ready(self.graph, x, h, e, g)
        if found is None:
            found = self.encoder.reconstruct(self.graph, x, h, e, g)
        return found.nodes, found.edges

    def ahead(
        self,
        snapshot: Snapshot,
        lineup: Lineup,
        nodes: SeriesTable,
        edges: SeriesTable,
        parts: SlotArray | None,
    ) -> NDArray[np.int64] | None:
        """Prepare as `ready`, before the inputs exist; None if the sweep cannot run the pass."""
        if parts is not None or not isinstance(self.encoder, Encoder):
            return None
        (x, h), (e, g) = self._follow(snapshot, lineup, nodes, edges)
        return self.encoder.ready(self.graph, x, h, e, g)

    def _follow(self, snapshot: Snapshot, lineup: Lineup, nodes: SeriesTable, edges: SeriesTable) -> Rooms:
        """Update the graph to the interval; returns the buffers of its inputs."""
        if lineup.paths is not self._paths or lineup.nodes is not self._nodes:
            self.graph.at_slots(snapshot.nodes, snapshot.edge_src, snapshot.edge_dst, nodes.size)
            self._paths, self._nodes = lineup.paths, lineup.nodes
        return self.rooms(len(lineup.nodes), len(lineup.paths), nodes, edges)

    def _by_parts(
        self,
        parts: SlotArray,
        x: NDArray[np.float32],
        h: NDArray[np.float32],
        e: NDArray[np.float32],
        g: NDArray[np.float32],
    ) -> Reconstruction | None:
        """Run the pass in parts; None if halos are too large for that to be faster."""
        if self._whole_for:
            self._whole_for -= 1
            return None
        self._in_parts = self._in_parts or PartEncoder(self.weights, self._threads, self._usual_edge)
        found = self._in_parts.reconstruct(self.graph, parts, x, h, e, g)
        if self._in_parts.work * _WHOLE_THREADS > self._threads:
            self._whole_for = _LOOK_AGAIN
        return found

    def _room(self, part: int, table: SeriesTable, n: int) -> Rows:
        """Return reused buffers, because the first access to new memory is slow."""
        kept = self._memory.get(part)
        if kept is None or len(kept[0]) < n:
            kept = self._memory[part] = empty(table, n + n // 4)
        x, h = kept
        return x[:n], h[:n]


def empty(table: SeriesTable, n: int) -> Rows:
    """Allocate buffers for the inputs of n rows."""
    width = table.modelled
    return np.empty((n, 2 * width), np.float32), np.empty((n, width), np.float32)


def inputs(table: SeriesTable, slots: SlotArray, room: Rows | None = None) -> Rows:
    """Return present inputs [n, 2 F], and those of the window [n, F]."""
    x, h = room or empty(table, len(slots))
    rows.gather(table.slow, table.near, table.slope, table.load, slots, MAX_INPUT, x, h)
    return x, h


def targets(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the targets [n, F] of inputs [n, 2 F]: NaN = none."""
    width = x.shape[1] // 2
    return np.where(x[:, width:] > 0, x[:, :width], np.float32(np.nan))


def frame(snapshot: Snapshot, paths: SlotArray, nodes: SeriesTable, edges: SeriesTable) -> Frame:
    """Return the present interval as a frame for training."""
    graph = MeshGraph()
    graph.at_slots(snapshot.nodes, snapshot.edge_src, snapshot.edge_dst, nodes.size)
    x, h = inputs(nodes, snapshot.nodes)
    e, g = inputs(edges, paths)
    return Frame(x, h, graph.sources.copy(), graph.targets.copy(), e, g, targets(x), targets(e))


def learn(
    frames: Sequence[Frame],
    shape: ModelShape,
    *,
    start: Weights | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Weights:
    """Train a model, or continue a training. Needs torch; may run in another thread or process."""
    from hopline_mesh.model import training

    schedule = training.Schedule(steps=_STEPS, patience=5, denoise=0.0)
    if start is not None:
        return training.fine_tune(start, frames, seed=seed, progress=progress)
    return training.train(frames, shape, seed=seed, schedule=schedule, progress=progress)


#: Maximum steps of a training; it stops earlier if the validation loss no longer improves.
_STEPS = 600


def trust(
    expectation: Expectation,
    frames: Sequence[Frame],
    slots: Sequence[tuple[SlotArray, SlotArray]],
    nodes: SeriesTable,
    edges: SeriesTable,
    seed: int = 0,
) -> None:
    """Set `gain` of both tables: the weight of the model, by the variance it explains in held-out time.

    Args:
        frames: of time that the model was not trained on.
        slots: of the services and call paths of each frame.
    """
    rng = np.random.default_rng(seed)
    sums = [np.zeros((3, table.size, table.modelled)) for table in (nodes, edges)]
    returned = [np.zeros((2, table.modelled)) for table in (nodes, edges)]
    for item, where in zip(frames, slots, strict=True):
        graph = MeshGraph()
        graph.update(len(item.x), item.sources, item.targets)
        output = expectation.encoder.reconstruct(graph, item.x, item.h, item.e, item.g)
        plain = [output.nodes.copy(), output.edges.copy()]
        for part, (expected, targets) in enumerate(
            zip(plain, (item.node_targets, item.edge_targets), strict=True)
        ):
            known = np.isfinite(targets)
            y, p = np.where(known, targets, 0.0), np.where(known, expected, 0.0)
            sums[part][:, where[part]] += np.stack([y * p, p * p, y * y])  # slots are unique
        for part, values in enumerate((item.x, item.e)):
            width = values.shape[1] // 2
            if not len(values) or not width:
                continue
            row, column = int(rng.integers(len(values))), int(rng.integers(width))
            moved = values.copy()
            moved[row, column] += MAX_INPUT
            args = (moved, item.h, item.e) if part == 0 else (item.x, item.h, moved)
            output = expectation.encoder.reconstruct(graph, *args, item.g)
            now = (output.nodes, output.edges)[part][row, column]
            returned[part][0, column] += abs(float(now) - float(plain[part][row, column])) / MAX_INPUT
            returned[part][1, column] += 1
    for part, table in enumerate((nodes, edges)):
        yp, pp, yy = sums[part]
        slope = np.clip(yp / np.maximum(pp, 1e-6), 0.0, 1.0)
        explained = (2 * slope * yp - slope * slope * pp) / np.maximum(yy, 1e-6)
        back = returned[part][0] / np.maximum(returned[part][1], 1)
        usable = (explained > _EXPLAINS) & (back < _RETURNS)
        table.gain[: table.size, : table.modelled] = np.where(usable, slope, 0.0)


def restore(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Weights:
    """Restore weights from the state of `export`.

    Raises:
        StateDamaged: they do not match their shape.
    """
    try:
        shape = ModelShape.from_meta(dict(meta))
    except (TypeError, ValueError) as error:
        raise StateDamaged(f"the model's shape is of another version: {error}") from None
    return Weights(shape, arrays)
