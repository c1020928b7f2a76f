"""The gate: what a server would answer from the written artifact must equal the user's module's answer.

The artifact is loaded by the engine and called through the code that answers requests, after
post-processing. A sample of nodes is requested: each alone, all in one request, and in a batch of requests;
with full neighbourhoods at the packaged depth; and at the packaged fanouts, for nodes whose neighbourhoods
they hold whole. This is done with an empty and with a filled state cache, and for copies of some nodes that
the request itself describes. The module runs on the whole graph. They must agree within 1e-4 + 1e-4
|expected| in every element. Tracing, stages, export, engine and post-processing are all on one side of the
comparison, and none of them on the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopline.artifact import ModelSpec, NamedOutput
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan, load_model
from hopline.engine.tasks import outputs_of
from hopline.errors import NotSplittable, ParityError
from hopline.graph import Graph
from hopline.memory.arena import Arena
from hopline.packaging.probe import Probe, Unseen
from hopline.packaging.reference import Rows
from hopline.types import AnyArray, IdArray, ScoredEdge, ScoreRequest, ScoreResult

#: Absolute tolerance, and relative for values above 1.
TOLERANCE = 1e-4
#: Real nodes that are requested.
_SEEDS = 512
#: Of these, how many are requested alone.
_ALONE = 96
#: A served answer may be this many times as far off as the module's own float32 rounding.
_ROUNDING = 4.0
#: But at most this share of it: a module that is so far off in float32 differs for another reason.
_MOST_ROUNDING = 0.01
#: A state cache that holds all rows of a probe; only the part in use is allocated.
_CACHE_BYTES = 1 << 40
#: Neighbours of a node that a request describes: no limit.
_MOST_NEIGHBOURS = 1 << 31
#: Labels are compared where the best answer leads by more than this.
_MARGIN = 10 * TOLERANCE


@dataclass(slots=True)
class Answered:
    """The module's answers on a probe for the requested nodes.

    Attributes:
        probe: the graph.
        sides: what is requested, as `sides_of` returns it.
        rows: float64 [n, c]: the module's own answers, in this order.
        outputs, are_probabilities: its outputs, and whether each ends in its task's activation.
        embedding: float64 [n, d], if the module exposes it.
        rounding, embedding_rounding: float64 [n, outputs] and [n, 1], the module's float32 rounding errors.
        unseen: the nodes are not in the graph: requests describe them.
        clock, as_of: latest time of the graph, and the requests' time, if the model reads times.
    """

    probe: Probe
    sides: tuple[AnyArray, ...]
    rows: Rows
    outputs: tuple[NamedOutput, ...]
    are_probabilities: tuple[bool, ...]
    embedding: Rows | None = None
    rounding: NDArray[np.float64] | None = None
    embedding_rounding: NDArray[np.float64] | None = None
    unseen: Unseen | None = None
    clock: int = 0
    as_of: int | None = None

    @property
    def places(self) -> tuple[IdArray, ...]:
        """Rows of the probe whose neighbourhoods are read, by side."""
        return self.sides[:2] if self.unseen is None else (self.unseen.of,)

    def expected(self) -> dict[str, AnyArray]:
        """Output name -> what must be served, by the module's rows and the definition of the task."""
        found: dict[str, AnyArray] = {}
        for each, is_probability in zip(self.outputs, self.are_probabilities, strict=True):
            prefix = each.name and f"{each.name}_"
            rows = torch.from_numpy(self.rows[:, slice(*each.columns)])
            if each.task == "embedding":
                found[prefix + "embedding"] = rows.numpy()
                continue
            if not is_probability:
                found[prefix + "logits"] = rows.numpy()
            if each.task != "regression":
                if not is_probability:
                    rows = torch.softmax(rows, 1) if each.task == "multiclass" else torch.sigmoid(rows)
                found[prefix + "probabilities"] = rows.numpy()
                found[prefix + "label"] = _labels(each.task, rows)
        if self.embedding is not None:
            found.setdefault("embedding", self.embedding)
        return found

    def imprecise(self) -> list[str]:
        """Notes if float32 moves the module's own answers or embedding by more than the tolerance."""
        measured = [("embeddings", self.embedding, self.embedding_rounding)]
        for at, each in enumerate(self.outputs):
            error = None if self.rounding is None else self.rounding[:, [at]]
            of = each.name and f" of {each.name!r}"
            measured.append((f"answers{of}", self.rows[:, slice(*each.columns)], error))
        notes = []
        for what, rows, rounding in measured:
            if rows is None or rounding is None:
                continue
            size = np.nan_to_num(np.abs(rows), posinf=0.0).max(axis=1, initial=0.0)
            over = rounding[:, 0] > TOLERANCE * (1.0 + size)
            if not over.any():
                continue
            worst = int(np.where(over, rounding[:, 0], 0.0).argmax())
            notes.append(
                f"the model's own {what} in float32 are up to {rounding[worst, 0]:.2g} from those in "
                f"float64 (of {size[worst]:.3g}), for {over.sum()} of {len(over)} rows above "
                f"{TOLERANCE:g}. They depend on the order of sums, and served {what} can be as far from "
                "the module's. The cause is large values of small spread, such as a standard deviation of "
                "raw amounts (standardise the features), or torch.autocast (stages compute in float32)"
            )
        return notes


def judge(
    folder: Path, spec: ModelSpec, answered: Answered, others: Sequence[Answered] = ()
) -> dict[str, float]:
    """Compare an artifact with the module.

    Args:
        others: nodes that requests describe, and other times.

    Returns: output name -> largest absolute difference.

    Raises:
        ParityError: an answer differs, or the artifact fails where the module answers.
        NotSplittable: the engine cannot load it.
    """
    offers = outputs_of(spec)
    names = tuple(name for name in answered.expected() if name in offers)
    all_neighbours = {key: (-1,) * len(values) for key, values in spec.fanouts.items()}
    full = msgspec.structs.replace(spec, fanouts=all_neighbours, max_degree=None, windows={})
    served_as = [full]
    if not spec.windows and (spec.fanouts != full.fanouts or spec.max_degree is not None):
        # Bounded fanouts use other code of the engine than unbounded ones.
        served_as.append(spec)
    figures: dict[str, float] = {}
    for served_spec in served_as:
        for is_cached in (False, True):
            model = _loaded(folder, served_spec, answered.probe.graph, is_cached)
            model.clock = answered.clock
            answerer = Answerer(model, names, _MOST_NEIGHBOURS)
            for of in (answered, *others):
                judged = np.ones(len(of.places[0]), np.bool_)
                if served_spec is not full:
                    judged = _unsampled(spec, of)
                calls = _Calls(answerer, spec, names, of, judged)
                if of.unseen is not None:
                    calls.unseen()
                elif is_cached:
                    calls.twice()
                else:
                    calls.each_way()
                for name, difference in calls.figures.items():
                    figures[name] = max(figures.get(name, 0.0), difference)
    return figures


def _loaded(folder: Path, spec: ModelSpec, graph: Graph, is_cached: bool) -> Model:
    """The artifact as a server loads it, with or without a state cache that holds all rows.

    Raises: NotSplittable: the engine cannot load it.
    """
    schema = spec.graph_schema
    node_types: Any = schema["node_types"]
    # the graph of the probe does not list of which tensors its columns are
    one_matrix = {name: {**node, "groups": []} for name, node in node_types.items()}
    spec = msgspec.structs.replace(spec, graph_schema={**schema, "node_types": one_matrix})
    try:
        if not is_cached:
            return load_model(folder, spec, graph)
        plan = StateCachePlan(spec, graph, _CACHE_BYTES)
        return load_model(folder, spec, graph, plan.build(Arena(plan.num_bytes)))
    except Exception as error:  # any error of the runtime would stop a server
        raise NotSplittable(f"the engine cannot load it: {error}".splitlines()[0]) from error


class _Calls:
    """Requests of one loaded model, each compared with the module.

    Attributes:
        figures: output name -> largest absolute difference.
    """

    def __init__(
        self, answerer: Answerer, spec: ModelSpec, names: tuple[str, ...], answered: Answered,
        judged: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        self._answerer, self._spec, self._names = answerer, spec, names
        self._answered, self._judged, self._expected = answered, judged, answered.expected()
        #: Name -> the outputs whose columns it reads.
        self._places = dict.fromkeys(names, slice(None))
        for at, each in enumerate(answered.outputs if spec.task == "several" else ()):
            of = [name for name in names if name.rpartition("_")[0] == each.name]
            self._places |= dict.fromkeys(of, slice(at, at + 1))
        self._requested = np.flatnonzero(judged)
        self.figures: dict[str, float] = {}

    def each_way(self) -> None:
        """Some alone; all in one request and in a batch of requests."""
        alone = self._spread(_ALONE)
        for at in alone:
            self._compare("alone", [np.array([at])])
        if not len(alone):
            return
        together = self._requested
        self._compare("in one request", [together], self._names)
        # Some are requested twice, in one request and in two.
        again = np.concatenate([together[::-1], together[:5], together[:2]])
        requests = [part for part in np.split(again, [1, 3, len(again) // 2]) if len(part)]
        self._compare("in a batch of requests", requests)
        self._compare("in a batch of requests", requests, self._names)

    def twice(self) -> None:
        """With an empty state cache, and with one that holds what was computed before."""
        alone = self._spread(_ALONE // 8)
        for how in ("while the state cache fills", "from the state cache"):
            for at in alone:
                self._compare(f"alone, {how}", [np.array([at])])
            if len(alone):
                self._compare(f"in one request, {how}", [self._requested])
                self._compare(
                    f"in a batch of requests, {how}", np.array_split(self._requested, 3), self._names
                )

    def unseen(self) -> None:
        """As nodes that are not in the graph: each alone, or, if they refer to each other, together."""
        is_linked = self._answered.unseen is not None and self._answered.unseen.linked
        for part in [np.arange(len(self._judged))] if is_linked else self._requested[:, None]:
            self._compare("described by the request", [part], self._names)

    def _spread(self, most: int) -> IdArray:
        count = len(self._requested)
        return self._requested[np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))]

    def _compare(self, how: str, parts: Sequence[IdArray], outputs: tuple[str, ...] = ()) -> None:
        """Send one batch of requests and compare.

        Args:
            how: kind of request, for messages. parts: places of each request. outputs: that it names.
        """
        parts = [part for part in parts if len(part)]
        for part, served in zip(parts, self._ask(how, parts, outputs), strict=True):
            right = self._judged[part]
            for name in self._names:
                found = self._compared(name, how, part[right], served[name][right])
                self.figures[name] = max(self.figures.get(name, 0.0), found)

    def _ask(
        self, how: str, parts: list[IdArray], outputs: tuple[str, ...]
    ) -> Iterator[Mapping[str, AnyArray]]:
        requests = []
        for part in parts:
            sides = [side[part].tolist() for side in self._answered.sides]  # as decoded from JSON
            named: dict[str, Any] = {"nodes": sides[0]}
            if self._answered.unseen is not None:
                named = {"inline": [self._answered.unseen.nodes[at] for at in part]}
            elif self._spec.head.edge_type:
                named = {
                    "edges": tuple(ScoredEdge(a, b, None, row) for a, b, row in zip(*sides, strict=True))
                }
            elif self._spec.head.kind == "link":
                named = {"pairs": (sides[0], sides[1])}
            named["as_of"] = self._answered.as_of
            requests.append(ScoreRequest(self._spec.name, outputs=outputs, **named))
        try:
            outcomes = self._answerer.answer(requests)
        except Exception as error:  # any error of the runtime would reach a request
            raise ParityError(
                f"the served model fails for {self._named(parts[0][0])} {how}, where the module answers: "
                f"{type(error).__name__}: {error}".splitlines()[0]
            ) from error
        for part, outcome in zip(parts, outcomes, strict=True):
            if not isinstance(outcome, ScoreResult):
                raise ParityError(f"the served model refuses {self._named(part[0])} {how}: {outcome}")
            yield outcome.outputs

    def _compared(self, name: str, how: str, part: IdArray, served: AnyArray) -> float:
        actual = np.asarray(served, np.float64).reshape(len(part), -1)
        wanted = np.asarray(self._expected[name][part], np.float64).reshape(len(part), -1)
        if actual.shape != wanted.shape:
            raise ParityError(
                f"the served {name} have {actual.shape[1]} columns, the module's have {wanted.shape[1]}"
            )
        answered = self._answered
        is_inner = name == "embedding" and answered.embedding is not None
        rounding = answered.embedding_rounding if is_inner else answered.rounding
        size = np.where(np.isfinite(wanted), np.abs(wanted), 0.0).max(axis=1, initial=1.0)
        slack = np.zeros(len(part))
        if rounding is not None:
            slack = _ROUNDING * rounding[part][:, self._places[name]].max(axis=1)
        slack = np.minimum(slack, _MOST_ROUNDING * size)[:, None]
        if name.rpartition("_")[2] == "label":
            close = np.isnan(wanted) | (slack > TOLERANCE)  # too close to compare
            wanted = np.where(close, actual, wanted)
        largest, place = _difference(actual, wanted, slack)
        if place is not None:
            raise ParityError(
                f"served {name} of {self._named(part[place[0]])} {how} differ from the module's: "
                f"{actual[place]:.6g} instead of {wanted[place]:.6g} in column {place[1]} (allowed "
                f"{TOLERANCE:g} and {TOLERANCE:g} of it)"
            )
        return largest

    def _named(self, at: int) -> str:
        answered, node_type = self._answered, self._spec.head.node_type
        nodes = [int(side[at]) for side in answered.places]
        which = f"node {nodes[0]}" if len(nodes) == 1 else f"the pair of node {nodes[0]} and {nodes[1]}"
        if answered.unseen is not None:
            which = f"a copy of {which}"
        is_real = nodes[0] < answered.probe.real.num_nodes(node_type)
        return which + ("" if is_real else " (one of those drawn for the check)")


def _difference(actual: AnyArray, expected: AnyArray, slack: AnyArray) -> tuple[float, Any]:
    """The largest absolute difference of two arrays [n, c], and where they agree least.

    Args:
        slack: that is allowed beyond the tolerance, [n, 1].

    Returns: the difference; the row and column of one that is beyond the tolerance, or None.
    """
    with np.errstate(invalid="ignore"):
        found = np.abs(actual.astype(np.float64) - expected)
    found[(actual == expected) | (np.isnan(actual) & np.isnan(expected))] = 0.0
    allowed = TOLERANCE * np.where(np.isfinite(expected), np.abs(expected), 0.0) + slack
    excess = np.where(np.isnan(found), np.inf, found) - allowed
    is_far = excess.size and excess.max() > TOLERANCE
    place = np.unravel_index(int(excess.argmax()), excess.shape) if is_far else None
    return float(found.max(initial=0.0)), place


def _unsampled(spec: ModelSpec, answered: Answered) -> NDArray[np.bool_]:
    """Nodes or pairs that see all neighbours at the packaged fanouts, so that nothing is drawn."""
    check = answered.probe.check
    seen = {name: np.ones(len(rows), np.bool_) for name, rows in check.features.items()}
    for hop in reversed(range(max(map(len, spec.fanouts.values())))):
        below, seen = seen, {name: rows.copy() for name, rows in seen.items()}
        for key, fanouts in spec.fanouts.items():
            edges = answered.probe.graph.edges[key]
            destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
            bounds = [each for each in (fanouts[hop], spec.max_degree) if each is not None and each >= 0]
            if bounds:
                seen[edges.dst] &= np.diff(edges.indptr) <= min(bounds)
            seen[edges.dst][destinations[~below[edges.src][edges.indices]]] = False
    types = (spec.head.node_type, spec.head.dst_node_type or spec.head.node_type)
    sees = [seen[name][side] for name, side in zip(types, answered.places, strict=False)]
    return np.logical_and.reduce(sees)


def _labels(task: str, probabilities: Tensor) -> AnyArray:
    """Labels as float64, NaN where two answers are too close for a float32 model to distinguish.

    Rows of NaN have the label -1.
    """
    unknown = probabilities.isnan()
    if task == "multiclass":
        best = probabilities.topk(min(2, probabilities.shape[1]), dim=1)
        close = (best.values[:, 0] - best.values[:, -1]) < _MARGIN
        found = np.where(close.numpy(), np.nan, best.indices[:, 0].double().numpy())
        return np.where(unknown.any(dim=1).numpy(), -1.0, found)
    close = (probabilities - 0.5).abs() < _MARGIN
    found = np.where(close.numpy(), np.nan, (probabilities >= 0.5).double().numpy())
    return np.where(unknown.numpy(), -1.0, found)


def sides_of(
    probe: Probe, targets: Sequence[str], is_link: bool, *, edge_type: str = "", real: bool = True
) -> tuple[AnyArray, ...]:
    """Nodes, or pairs of nodes, that are requested, int64 [n] each; without the real ones only strangers.

    Of an edge type, its edges with their rows, float32 [n, d_e]; half of them with other destinations.
    """
    most = _SEEDS if real else 0
    if not is_link:
        return (probe.seeds(targets[0], most),)
    rng = np.random.default_rng(0)
    if edge_type:
        edges, num_real = probe.check.edges[edge_type], len(probe.real.edges[edge_type].indices)
        assert edges.attr is not None
        chosen = np.concatenate([rng.permutation(num_real)[:most], np.arange(num_real, len(edges.indices))])
        src, dst = edges.edge_index[:, chosen]
        dst[::2] = rng.permutation(dst[::2])
        return src, dst, edges.attr[chosen]
    both = [probe.seeds(name, most) for name in (targets[0], targets[-1])]
    count = max(map(len, both))
    return tuple(
        np.concatenate([rng.permutation(side), rng.choice(side, count - len(side))]) for side in both
    )
