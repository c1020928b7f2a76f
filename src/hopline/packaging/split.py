"""Cuts a traced model into stages: which values each state holds, and each stage as an fx module.

Level by level from the output down. A stage computes its values from convs of its level, from the
node's own state one level below, and from its raw features (which are available at every level, so that
level-0 values are computed again rather than carried).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, fx

from hopline.artifact import StageInput
from hopline.errors import NotSplittable
from hopline.packaging.dense import ConvInput
from hopline.packaging.lower import LoweredConv
from hopline.packaging.trace import Traced, describe, slot_of

Place = tuple[int, str]


@dataclass(slots=True)
class StagePlan:
    """One stage before export.

    Attributes:
        level, node_type: where it belongs.
        values: what its state holds, in column order.
        state_dim: columns of the state.
        module: computes the state from the inputs; None where the state is the raw feature row.
        inputs: in the order of the module's arguments.
        query: computes the query rows of attention, [n, query_dim], from `query_inputs`; None for none.
    """

    level: int
    node_type: str
    values: list[fx.Node]
    state_dim: int
    module: fx.GraphModule | None = None
    inputs: tuple[StageInput, ...] = ()
    query: fx.GraphModule | None = None
    query_dim: int = 0
    query_inputs: tuple[StageInput, ...] = ()


@dataclass(slots=True)
class _State:
    """Values of one state, in column order, and the node's own values that the stage reads from below."""

    values: list[fx.Node] = field(default_factory=list)
    own: list[fx.Node] = field(default_factory=list)


class Splitter:
    """Cuts one traced and lowered model.

    Attributes:
        num_layers: levels above 0.
    """

    def __init__(
        self, traced: Traced, convs: dict[fx.Node, LoweredConv], finals: dict[str, fx.Node]
    ) -> None:
        """Create a splitter.

        Args:
            finals: node type -> the value that its last state holds.
        """
        self.traced = traced
        self.convs = convs
        self.num_layers = max(traced.levels[node] for node in finals.values())
        self._states: dict[Place, _State] = {}
        for node_type, node in finals.items():
            self._state(self.num_layers, node_type).values.append(node)
        for level in range(self.num_layers, 0, -1):
            self._collect(level)

    def stages(self) -> list[StagePlan]:
        """All stages, lowest level first."""
        return [self._build(place) for place in sorted(self._states)]

    def _state(self, level: int, node_type: str) -> _State:
        return self._states.setdefault((level, node_type), _State())

    def _collect(self, level: int) -> None:
        """Collect what the states one level below must hold for the stages of `level`."""
        places = sorted(place for place in self._states if place[0] == level)
        for place in places:
            for conv in self._convs_of(place):
                for need in conv.dense.needs:
                    if need.kind in ("sources", "reduce", "attend"):
                        source_type = self.traced.domains[conv.source].type
                        _add(self._state(level - 1, source_type).values, conv.source)
                    if need.kind == "attend" and conv.query is not None and conv.dense.is_query_state:
                        _add(self._state(level - 1, place[1]).values, conv.query)
        for place in places:
            for value in self._states[place].values:
                self._require(place, value, set())

    def _convs_of(self, place: Place) -> list[LoweredConv]:
        found: list[LoweredConv] = []
        seen: set[fx.Node] = set()

        def visit(node: fx.Node) -> None:
            if node in seen or self.traced.levels.get(node, 0) < place[0]:
                return
            seen.add(node)
            if node in self.convs:
                found.append(self.convs[node])
                return
            for arg in node.all_input_nodes:
                visit(arg)

        for value in self._states[place].values:
            visit(value)
        return found

    def _require(self, place: Place, node: fx.Node, seen: set[fx.Node]) -> None:
        """Make `node` computable in the stage at `place`, from below where it must be."""
        if node in seen or node not in self.traced.domains:
            return
        seen.add(node)
        level, node_type = place
        if node in self.convs and self.traced.levels[node] == level:
            conv = self.convs[node]
            for need in conv.dense.needs:
                if need.kind == "self":
                    self._require(place, _value(conv, need), seen)
                elif need.kind == "attend" and conv.query is not None and not conv.dense.is_query_state:
                    for arg in conv.query.all_input_nodes:
                        self._require(place, arg, seen)
        elif self._is_loaded(place, node):
            below = self._state(level - 1, node_type)
            _add(below.values, node)
            _add(self._states[place].own, node)
        elif slot_of(node) is None:
            for arg in node.all_input_nodes:
                self._require(place, arg, seen)

    def _is_loaded(self, place: Place, node: fx.Node) -> bool:
        """True if the stage reads this value from the node's own state below."""
        level, node_type = place
        node_level = self.traced.levels[node]
        if level == 0 or node_level == level or not isinstance(self.traced.values[node], Tensor):
            return False
        below = self._states.get((level - 1, node_type))
        return node_level > 0 or (below is not None and node in below.values)

    def _build(self, place: Place) -> StagePlan:
        state = self._states[place]
        plan = StagePlan(*place, values=state.values, state_dim=sum(map(self._width, state.values)))
        if place[0] == 0 < self.num_layers and [slot_of(value) for value in state.values] == [
            f"features:{place[1]}"
        ]:
            return plan
        queries = self.queries(place)
        if queries:
            plan.query, plan.query_inputs = _built(self, place, queries)
            plan.query_dim = sum(map(self._width, queries))
        plan.module, plan.inputs = _built(self, place, plan.values)
        return plan

    def queries(self, place: Place) -> list[fx.Node]:
        """Query rows that the stage at `place` computes, in column order."""
        found: list[fx.Node] = []
        for conv in self._convs_of(place):
            if conv.query is not None and not conv.dense.is_query_state:
                _add(found, conv.query)
        return found

    def query_columns(self, place: Place, conv: LoweredConv) -> tuple[int, int] | None:
        """Columns of a conv's query row, in the state below or in the stage's query rows."""
        if conv.query is None:
            return None
        if conv.dense.is_query_state:
            return self.columns((place[0] - 1, place[1]), conv.query)
        queries = self.queries(place)
        start = sum(self._width(value) for value in queries[: queries.index(conv.query)])
        return start, start + self._width(conv.query)

    def _width(self, node: fx.Node) -> int:
        return math.prod(self.traced.values[node].shape[1:])

    def columns(self, place: Place, node: fx.Node) -> tuple[int, int]:
        """Columns of a value in the state at `place`."""
        values = self._states[place].values
        start = sum(self._width(value) for value in values[: values.index(node)])
        return start, start + self._width(node)

    def total(self, place: Place) -> int:
        """Columns of the state at `place`."""
        return sum(map(self._width, self._states[place].values))

    def own_values(self, place: Place) -> list[fx.Node]:
        """Own values that the stage at `place` reads from below, in column order."""
        below = (place[0] - 1, place[1])
        return sorted(self._states[place].own, key=lambda node: self.columns(below, node))


def _built(
    splitter: Splitter, place: Place, values: list[fx.Node]
) -> tuple[fx.GraphModule, tuple[StageInput, ...]]:
    """The module that computes `values` at `place`, and its inputs."""
    own = splitter.own_values(place)
    first = _Builder(splitter, place, own)
    built = first.build(values)
    used = [node for node in own if first.env[node].users]
    # query rows and the rest of a stage read different parts of the own state
    return built if len(used) == len(own) else _Builder(splitter, place, used).build(values)


class _Builder:
    """Writes one stage as an fx graph.

    Args:
        own: the values that it may read from the node's own state below.
    """

    def __init__(self, splitter: Splitter, place: Place, own: list[fx.Node]) -> None:
        self.splitter = splitter
        self.traced = splitter.traced
        self.place = place
        self.own = own
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.inputs: dict[StageInput, fx.Node] = {}
        self.last: fx.Node | None = None

    def build(self, values: list[fx.Node]) -> tuple[fx.GraphModule, tuple[StageInput, ...]]:
        """The module and its inputs."""
        self._load_own()
        rows = [self._flat(value, self._emit(value)) for value in values]
        self.graph.output(
            rows[0] if len(rows) == 1 else self.graph.call_function(torch.cat, (rows,), {"dim": -1})
        )
        self.graph.lint()
        return fx.GraphModule(self.traced.module, self.graph).eval(), tuple(self.inputs)

    def _input(self, kind: str, **fields: Any) -> fx.Node:
        """The placeholder of an input, shared by all uses of the same input."""
        for item, node in self.inputs.items():
            if item.kind == kind and all(getattr(item, key) == value for key, value in fields.items()):
                return node
        number = sum(item.kind == kind for item in self.inputs)
        name = f"{'own' if kind == 'self' else kind}_{number}"
        item = StageInput(name=name, kind=kind, **fields)  # type: ignore[arg-type]
        # Placeholders stay together at the front of the graph.
        if self.last is None:
            with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
                node = self.graph.placeholder(name)
        else:
            with self.graph.inserting_after(self.last):
                node = self.graph.placeholder(name)
        self.last = node
        self.inputs[item] = node
        return node

    def _load_own(self) -> None:
        """One input for each run of adjacent columns of the own state, cut into its values."""
        below = (self.place[0] - 1, self.place[1])
        runs: list[list[fx.Node]] = []
        for node in self.own:
            if (
                runs
                and self.splitter.columns(below, runs[-1][-1])[1] == self.splitter.columns(below, node)[0]
            ):
                runs[-1].append(node)
            else:
                runs.append([node])
        loaded: list[tuple[fx.Node, fx.Node, tuple[int, int] | None]] = []
        for run in runs:
            start = self.splitter.columns(below, run[0])[0]
            stop = self.splitter.columns(below, run[-1])[1]
            rows = self._input("self", columns=self._range(below, start, stop))
            for node in run:
                a, b = self.splitter.columns(below, node)
                loaded.append((node, rows, None if len(run) == 1 else (a - start, b - start)))
        for node, rows, part in loaded:
            value = rows
            if part is not None:
                value = self.graph.call_method("narrow", (rows, 1, part[0], part[1] - part[0]))
            self.env[node] = self._shaped(node, value)

    def _range(self, place: Place, start: int, stop: int) -> tuple[int, int] | None:
        return None if (start, stop) == (0, self.splitter.total(place)) else (start, stop)

    def _flat(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """A value as columns float32 [n, width]."""
        rank = self.traced.values[node].dim()
        if self.traced.values[node].dtype != torch.float32:
            new = self.graph.call_method("float", (new,))
        if rank == 2:
            return new
        return self.graph.call_method("unsqueeze" if rank == 1 else "flatten", (new, 1))

    def _shaped(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """Columns [n, width] as the value's own shape and dtype."""
        value = self.traced.values[node]
        if value.dtype != torch.float32:
            new = self.graph.call_method("to", (new, value.dtype))
        if value.dim() == 2:
            return new
        if value.dim() == 1:
            return self.graph.call_method("squeeze", (new, 1))
        return self.graph.call_method("unflatten", (new, 1, tuple(value.shape[1:])))

    def _emit(self, node: fx.Node) -> fx.Node:
        """The value in this stage's graph."""
        if node in self.env:
            return self.env[node]
        slot = slot_of(node)
        if node in self.splitter.convs and self.traced.levels[node] == self.place[0]:
            new = self._conv(self.splitter.convs[node])
        elif slot is not None:
            if not slot.startswith("features:"):
                raise NotSplittable(
                    f"the model uses {slot} outside of a message-passing layer: no row-wise stage reads it"
                )
            new = self._input("features")
        else:
            new = self.graph.node_copy(node, self._emit)
        self.env[node] = new
        return new

    def _conv(self, conv: LoweredConv) -> fx.Node:
        arguments = [self._need(conv, need) for need in conv.dense.needs]
        return self.graph.call_module(conv.path, tuple(arguments))

    def _need(self, conv: LoweredConv, need: ConvInput) -> fx.Node:
        if need.kind == "self":
            return self._emit(_value(conv, need))
        fields: dict[str, Any] = {"edge_type": need.edge_type}
        if need.kind in ("sources", "reduce", "attend"):
            below = (self.place[0] - 1, self.traced.domains[conv.source].type)
            fields["columns"] = self._range(below, *self.splitter.columns(below, conv.source))
        if need.kind == "reduce":
            fields |= {"reduce": need.reduce, "weighted": need.weighted}
        if need.attention is not None:
            query = self.splitter.query_columns(self.place, conv)
            fields["attention"] = msgspec.structs.replace(need.attention, query=query)
        node = self._input(need.kind, **fields)
        if need.kind == "edge_attr" and conv.edge_attr is not None:
            return self._edge_code(conv.edge_attr, node, need.edge_type)
        return node

    def _edge_code(self, value: fx.Node, attributes: fx.Node, edge_type: str) -> fx.Node:
        """Edge-level code of the model over a block [n, K, d_e], as rows [n K, d_e].

        The code may fail for rows unlike those of edges, such as zeros for codes that begin at 1. So it
        reads the attributes of an edge where the block has none.
        """
        rank = self.traced.values[value].dim()
        if slot_of(value) is not None and rank == 2:
            return attributes
        env: dict[fx.Node, fx.Node] = {}
        mask = self.graph.call_method("unsqueeze", (self._input("mask", edge_type=edge_type), 2))

        def emit(node: fx.Node) -> fx.Node:
            if node not in env:
                slot = slot_of(node)
                if slot is None:
                    env[node] = self.graph.node_copy(node, emit)
                elif slot.startswith("edge_attr:"):
                    block = self.graph.call_function(
                        torch.where, (mask, attributes, self._an_edge(self.traced.values[node]))
                    )
                    env[node] = self.graph.call_method("flatten", (block, 0, 1))
                else:
                    raise NotSplittable(
                        f"{describe(self.traced.module, value)} computes edge attributes from {slot}"
                    )
            return env[node]

        new = emit(value)
        if rank == 1:
            new = self.graph.call_method("unsqueeze", (new, 1))
        like = (
            self.graph.call_method("size", (attributes, 0)),
            self.graph.call_method("size", (attributes, 1)),
        )
        return self.graph.call_method("unflatten", (new, 0, like))

    def _an_edge(self, rows: Tensor) -> fx.Node:
        """The first of rows [E, d_e] of edges; zeros if there are none."""
        module = self.traced.module
        name = f"an_edge_{sum(name.startswith('an_edge_') for name, _ in module.named_buffers())}"
        module.register_buffer(name, rows[0].clone() if len(rows) else rows.new_zeros(rows.shape[1]))
        return self.graph.get_attr(name)


def _value(conv: LoweredConv, need: ConvInput) -> fx.Node:
    value = conv.source if need.value == "source" else conv.destination
    if value is None:
        raise AssertionError("a dense conv needs own rows that its call does not pass")
    return value


def _add(values: list[fx.Node], node: fx.Node) -> None:
    if node not in values:
        values.append(node)
