"""Writes a stage as an fx graph over its inputs: rows of nodes, and rows of their edges.

What a stage needs of its neighbours is an input that a dense form declares (`dense/`), or code of the model
over rows of edges [e, …]. These are all edges of its nodes and no others, so that what groups edges by
their destinations reads the number of the node of each edge (`dense/groups.py`).
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, fx
from torch_geometric.utils import add_remaining_self_loops, softmax

from hopline.artifact import StageInput
from hopline.errors import NotSplittable
from hopline.packaging import edges as lists
from hopline.packaging.dense import groups
from hopline.packaging.lower import LoweredConv
from hopline.packaging.regions import Region, attributes_before
from hopline.packaging.seed_time import is_time
from hopline.packaging.trace import Traced, describe

#: (level, node type) of a stage.
Place = tuple[int, str]


@dataclass(slots=True)
class State:
    """Values of one state, in column order, and the node's own values that the stage reads from below."""

    values: list[fx.Node] = field(default_factory=list)
    own: list[fx.Node] = field(default_factory=list)


class Layout:
    """The values of each state, and the forms of the aggregations of a traced model."""

    def __init__(self, traced: Traced, convs: dict[fx.Node, LoweredConv | Region]) -> None:
        self.traced, self.convs = traced, convs
        self.states: dict[Place, State] = {}

    def convs_of(self, place: Place) -> dict[fx.Node, LoweredConv | Region]:
        """The aggregations and convs that the stage at `place` computes."""
        found: dict[fx.Node, LoweredConv | Region] = {}
        seen: set[fx.Node] = set()

        def visit(node: fx.Node) -> None:
            if node in seen or self.traced.levels.get(node, 0) < place[0]:
                return
            seen.add(node)
            if node in self.convs:
                found[node] = self.convs[node]
            for value in self.convs[node].own if node in self.convs else node.all_input_nodes:
                visit(value)

        for value in self.states[place].values:
            visit(value)
        return found

    def queries(self, place: Place) -> list[fx.Node]:
        """Query rows that the stage at `place` computes, in column order."""
        convs = self.convs_of(place).values()
        every = [conv.query for conv in convs if conv.query is not None and not conv.is_query_state]
        return list(dict.fromkeys(every))

    def query_columns(self, place: Place, conv: LoweredConv) -> tuple[int, int] | None:
        """Columns of a conv's query row, in the state below or in the stage's query rows."""
        if conv.query is None:
            return None
        if conv.is_query_state:
            return self.columns((place[0] - 1, place[1]), conv.query)
        queries = self.queries(place)
        start = sum(self.width(value) for value in queries[: queries.index(conv.query)])
        return start, start + self.width(conv.query)

    def width(self, node: fx.Node) -> int:
        """Columns of a value."""
        return math.prod(self.traced.values[node].shape[1:])

    def columns(self, place: Place, node: fx.Node) -> tuple[int, int]:
        """Columns of a value in the state at `place`."""
        values = self.states[place].values
        start = sum(self.width(value) for value in values[: values.index(node)])
        return start, start + self.width(node)

    def total(self, place: Place) -> int:
        """Columns of the state at `place`."""
        return sum(map(self.width, self.states[place].values))


class StageCode:
    """One stage as an fx graph.

    Args:
        layout: the states below it.
        own: the values that it may read from the node's own state below.
    """

    def __init__(self, layout: Layout, place: Place, own: list[fx.Node]) -> None:
        self.layout = layout
        self.traced = layout.traced
        self.place = place
        self.own = own
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.inputs: dict[StageInput, fx.Node] = {}
        self.last: fx.Node | None = None
        self.edge_code = EdgeCode(self)

    def build(self, values: list[fx.Node]) -> tuple[fx.GraphModule, tuple[StageInput, ...]]:
        """The module and its inputs."""
        self._load_own()
        rows = [self.flat(value, self.emit(value)) for value in values]
        self.graph.output(
            rows[0] if len(rows) == 1 else self.graph.call_function(torch.cat, (rows,), {"dim": -1})
        )
        self.graph.lint()
        return fx.GraphModule(self.traced.module, self.graph).eval(), tuple(self.inputs)

    def feed(self, kind: str, name: str = "", **fields: Any) -> fx.Node:
        """The placeholder of an input, shared by all uses of the same input."""
        for item, node in self.inputs.items():
            if item.kind == kind and all(getattr(item, key) == value for key, value in fields.items()):
                return node
        number = sum(item.kind == kind for item in self.inputs)
        name = f"{'own' if kind == 'self' else kind}_{number}"
        item = StageInput(name=name, kind=kind, **fields)  # type: ignore[arg-type]
        # Placeholders stay together at the front of the graph.
        first = next(iter(self.graph.nodes), None)
        with self.graph.inserting_after(self.last) if self.last else self.graph.inserting_before(first):
            node = self.graph.placeholder(name)
        self.last = node
        self.inputs[item] = node
        return node

    def _load_own(self) -> None:
        """One input for each run of adjacent columns of the own state, cut into its values."""
        below = (self.place[0] - 1, self.place[1])
        runs: list[list[fx.Node]] = []
        for node in self.own:
            if runs and self.layout.columns(below, runs[-1][-1])[1] == self.layout.columns(below, node)[0]:
                runs[-1].append(node)
            else:
                runs.append([node])
        for run in runs:
            start = self.layout.columns(below, run[0])[0]
            stop = self.layout.columns(below, run[-1])[1]
            rows = self.feed("self", columns=self.span(below, start, stop))
            for node in run:
                a, b = self.layout.columns(below, node)
                part = self.graph.call_method("narrow", (rows, 1, a - start, b - a)) if run[1:] else rows
                self.env[node] = self.shaped(node, part)

    def span(self, place: Place, start: int, stop: int) -> tuple[int, int] | None:
        """Columns [start, stop) of a state; None for all of them."""
        return None if (start, stop) == (0, self.layout.total(place)) else (start, stop)

    def flat(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """A value as columns float32 [n, width]."""
        rank = self.traced.values[node].dim()
        if is_time(node, self.traced.values):
            raise NotSplittable(
                f"{describe(self.traced.module, node)} is a time of 64 bits that neighbours read: make it "
                "float32 before the layer, such as (seed_time[batch] - time) / 86400"
            )
        if self.traced.values[node].dtype != torch.float32:
            new = self.graph.call_method("float", (new,))
        if rank == 2:
            return new
        return self.graph.call_method("unsqueeze" if rank == 1 else "flatten", (new, 1))

    def shaped(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """Columns [n, width] as the value's own shape and dtype."""
        value = self.traced.values[node]
        if value.dtype != torch.float32:
            new = self.graph.call_method("to", (new, value.dtype))
        if value.dim() == 2:
            return new
        if value.dim() == 1:
            return self.graph.call_method("squeeze", (new, 1))
        return self.graph.call_method("unflatten", (new, 1, tuple(value.shape[1:])))

    def emit(self, node: fx.Node) -> fx.Node:
        """The value in this stage's graph."""
        if node in self.env:
            return self.env[node]
        slot = lists.slot_of(node)
        if node in self.layout.convs and self.traced.levels[node] == self.place[0]:
            conv = self.layout.convs[node]
            if isinstance(conv, Region):
                new = self.edge_code.aggregated(node, conv)
            else:
                needed = tuple(self._need(conv, need) for need in conv.dense.needs)
                new = self.graph.call_module(conv.path, needed)
        elif slot is not None:
            if not slot.startswith(("features:", "seed_time:")):
                raise NotSplittable(
                    f"the model uses {slot} outside of a message-passing layer: no row-wise stage reads it"
                )
            new = self.feed(slot.partition(":")[0])
        else:
            new = self.copied(node, self.emit)
        self.env[node] = new
        return new

    def copied(self, node: fx.Node, emit: Any) -> fx.Node:
        """The same operation in this stage's graph; numbers that are equal for all graphs are constants."""

        def argument(each: fx.Node) -> Any:
            value = self.traced.values.get(each)
            return value if isinstance(value, int) and each not in self.traced.domains else emit(each)

        return self.graph.node_copy(node, argument)

    def _need(self, conv: LoweredConv, need: StageInput) -> fx.Node:
        if need.kind == "self":
            return self.emit(conv.destination)
        fields = msgspec.structs.asdict(need)
        if need.kind in ("reduce", "attend"):
            below = (self.place[0] - 1, self.traced.domains[conv.source].type)
            fields["columns"] = self.span(below, *self.layout.columns(below, conv.source))
        if need.attention is not None:
            query = self.layout.query_columns(self.place, conv)
            fields["attention"] = msgspec.structs.replace(need.attention, query=query)
        return self.feed(**fields)


class EdgeCode:
    """Rows of edges of one stage.

    A call is filled up with edges of no node, which repeat the last edge. Where there is none, they have
    the attributes of some edge: zeros may be no code of a table.
    """

    def __init__(self, stage: StageCode) -> None:
        self.stage = stage
        self.traced = stage.traced
        self.graph = stage.graph
        self._env: dict[fx.Node, fx.Node] = {}
        self._ends: dict[lists.Domain, tuple[fx.Node, fx.Node]] = {}

    def aggregated(self, node: fx.Node, region: Region) -> fx.Node:
        """An aggregation over the edges of each node, as rows of nodes in the value's own shape."""
        ends, value = self.ends(region.edges), self.traced.values[node]
        if region.messages is None:
            found = self.graph.call_function(groups.count, (*ends, value.dtype))
        else:
            rows = self.graph.call_function(groups.flat, (self.rows(region.messages),))
            parts = self.graph.call_module(region.path, (rows, *ends))
            inner = tuple(self.traced.values[region.messages].shape[1:])
            found = self.graph.call_function(groups.side_by_side, (parts, inner))
        # the last rows are copies of one that a node has
        return self.graph.call_function(operator.getitem, (found, ends[1]))

    def ends(self, edges: lists.Domain) -> tuple[fx.Node, fx.Node]:
        """`owner` and `nodes` of `dense/groups.py`; with edges more for added self-loops."""
        if edges not in self._ends:
            owner, nodes = self._feed("owners", edges), self.stage.feed("nodes")
            if edges.loops in ("with", "without"):
                is_self = self._feed("is_self", edges)
                owner = self.graph.call_function(groups.without, (owner, is_self, nodes))
            if edges.adds_loops:
                owner = self.graph.call_function(groups.with_own, (owner, nodes))
            self._ends[edges] = owner, nodes
        return self._ends[edges]

    def rows(self, node: fx.Node) -> fx.Node:
        """A value of edges, as rows [e, …]."""
        if node not in self._env:
            self._env[node] = self._rows(node)
        return self._env[node]

    def _rows(self, node: fx.Node) -> fx.Node:
        edges, slot = self.traced.domains.get(node), lists.slot_of(node)
        if edges is None or edges.kind == "node":
            return self.stage.emit(node)
        if slot is not None:
            return self._slot(node, slot, edges)
        if node.target is lists.neighbour_rows:
            return self._neighbours(node.args[0], edges)  # type: ignore[arg-type]
        if node.target is lists.own_rows:
            own = self.stage.emit(node.args[0])  # type: ignore[arg-type]
            return self.graph.call_function(operator.getitem, (own, self.ends(edges)[0]))
        if node.target is softmax:
            logits = self.rows(lists.grouping(self.traced.module, node).rows)
            return self.graph.call_function(groups.softmax_of_edges, (logits, *self.ends(edges)))
        if lists.is_number_of_edges(node):
            return self.graph.call_method("numel", (self.ends(edges)[0],))
        if (call := lists.loops_of(node)) is not None:
            return self._attributes_after(call, edges)
        if parts := [part for part in lists.listed_by(node, 0) if self.traced.domains[part] != edges]:
            return self._joined([self.rows(part) for part in parts])
        if lists.edges_of(node) is not None or lists.end_of(node) is not None:
            raise NotSplittable(
                f"{describe(self.traced.module, node)} is read as numbers, not as ends of edges"
            )
        return self.stage.copied(node, self.rows)

    def _feed(self, kind: str, edges: lists.Domain) -> fx.Node:
        keys = edges.keys(self.traced.relations)
        return self._joined([self.stage.feed(kind, edge_type=key) for key in keys])

    def _joined(self, rows: list[fx.Node]) -> fx.Node:
        """Rows of edges of several types as one list."""
        return rows[0] if len(rows) == 1 else self.graph.call_function(torch.cat, (rows,))

    def _slot(self, node: fx.Node, slot: str, edges: lists.Domain) -> fx.Node:
        kind = slot.split(":", 1)[0]
        if kind in ("edge_weight", "edge_attr", "edge_time"):
            rows = self._feed(kind, edges)
        elif slot == "edge_type:*":
            owners = [self.stage.feed("owners", edge_type=key) for key in self.traced.relations]
            return self._joined(
                [self.graph.call_function(torch.full_like, (each, at)) for at, each in enumerate(owners)]
            )
        else:
            raise NotSplittable(
                f"{describe(self.traced.module, node)} reads {slot}, which is not a row of each edge"
            )
        if kind == "edge_attr":
            ends = self._feed("owners", edges), self.stage.feed("nodes")
            row = self._a_row(self.traced.values[node])
            rows = self.graph.call_function(groups.filled, (rows, *ends, row))
        return rows

    def _neighbours(self, value: fx.Node, edges: lists.Domain) -> fx.Node:
        """Rows of the neighbours [e, …]."""
        below = (self.stage.place[0] - 1, self.traced.domains[value].type)
        columns = self.stage.span(below, *self.stage.layout.columns(below, value))
        keys = edges.keys(self.traced.relations)
        found = [self.stage.feed("sources", edge_type=key, columns=columns) for key in keys]
        if edges.adds_loops:
            found.append(self.stage.flat(value, self.stage.emit(value)))
        return self.stage.shaped(value, self._joined(found))

    def _attributes_after(self, call: fx.Node, edges: lists.Domain) -> fx.Node:
        """Attributes of edges [e, …] after self-loops were removed or added."""
        attributes, before, fill = attributes_before(self.traced, call)
        rows = self.rows(attributes)
        if not edges.adds_loops or before == edges:
            return rows
        # a self-loop that this one replaces gives its attributes to the new one
        loops = self._feed("is_self", edges) if call.target is add_remaining_self_loops else None
        return self.graph.call_function(groups.with_loops, (rows, *self.ends(before), fill, loops))

    def _a_row(self, rows: Tensor) -> fx.Node:
        """The first of rows, as columns float32 [d]; zeros if there are none."""
        module = self.traced.module
        name = f"a_row_{sum(name.startswith('a_row_') for name, _ in module.named_buffers())}"
        row = rows[0] if len(rows) else rows.new_zeros(rows.shape[1:])
        module.register_buffer(name, row.reshape(-1).float().clone())
        return self.graph.get_attr(name)
