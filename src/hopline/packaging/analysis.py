"""Owner and level of each value of a traced model: whose rows it has, and how many hops they read.

The model runs value by value on the check graph. A value is refused if its rows are not one for each row of
its domain, or if it combines rows of different domains other than at the ends of edges. Shapes alone do not
distinguish `x - x.mean(0)` from `x - 1`; values do: the model also runs on another graph that has the same
nodes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch_geometric.utils import softmax

from hopline.errors import NotSplittable
from hopline.graph.schema import GRAPH_TYPE, reverse_key
from hopline.packaging import advice
from hopline.packaging import edges as lists
from hopline.packaging.arguments import Binding
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.locality import renumbered
from hopline.packaging.reference import as_rows, described, differ
from hopline.packaging.seed_time import is_seed_time
from hopline.packaging.trace import Closed, Traced, conv_arguments, describe

#: Slots that hold an edge index.
EDGES = ("edge_index:", "adj_t:")
#: Methods that make rows of one number, as many as an argument says; the tensor only has their type.
_FILLED = frozenset({"new_ones", "new_zeros", "new_full"})
_NOT_FIRST = "its rows are not the first dimension: transpose, or read outputs, not the state, of an LSTM"
_OTHER_ROWS = "it mixes rows, or leaves some out: compute all rows, and choose with torch.where"


def analyse(traced: Traced, binding: Binding, slots: dict[str, Tensor]) -> None:
    """Run the traced model on the check graph and set the domain and level of each value.

    Raises:
        NotSplittable: a value mixes rows, naming it and its source line; an output does not have the rows
            of its node type; the model itself fails on the check graph.
    """
    _Analysis(traced, binding, slots).run(slots)
    for node_type, output in traced.outputs.items():
        value = traced.values.get(output)
        if not isinstance(value, Tensor):
            raise NotSplittable(f"the model returns {type(value).__name__}, not one tensor")
        domain = traced.domains.get(output)
        if domain != lists.Domain("node", node_type):
            raise NotSplittable(f"the model's answer has rows of {domain}, not of node type {node_type!r}")


def check_rows(traced: Traced, binding: Binding, slots: dict[str, Tensor], graph: CheckGraph) -> None:
    """Run the traced model on a larger graph with its nodes in another order; rows of a node must agree.

    Where they do not, both run once more in float64: a row at a threshold, such as that of PyG's `std`, is
    on either side of it by rounding.

    Args:
        slots: of the check graph.
        graph: its first nodes are those of the check graph, with the same neighbourhoods.

    Raises: NotSplittable: naming the first value that mixes rows, and its source line.
    """
    rng = np.random.default_rng(0)
    order = {name: rng.permutation(len(rows)) for name, rows in graph.features.items()}
    place = {name: torch.from_numpy(np.argsort(rows)) for name, rows in order.items()}
    others = binding.slots(renumbered(graph, order))

    def mixed(one: Mapping[fx.Node, Any], other: Mapping[fx.Node, Any]) -> fx.Node | None:
        for node, domain in traced.domains.items():
            a, b = one[node], other[node]
            if domain.kind != "node" or not _is_float(a) or not _is_float(b):
                continue
            rows = place[domain.type]
            if len(b) == len(rows) and differ(as_rows(a), as_rows(b[rows[: len(a)]])).any():
                return node
        return None

    node = mixed(traced.values, _values(traced, others))
    if node is None:
        return
    traced.module.double()
    try:
        exact = [_values(traced, {key: _wide(x) for key, x in each.items()}) for each in (slots, others)]
        if mixed(*exact) is None:
            return
    except NotSplittable:  # not every module runs in float64
        pass
    finally:
        traced.module.float()
    raise NotSplittable(
        f"{describe(traced.module, node)} mixes rows: a node's value depends on which other nodes are "
        "computed with it"
    )


def _values(traced: Traced, slots: dict[str, Tensor]) -> dict[fx.Node, Any]:
    """All values on other slots. Raises: NotSplittable: the model fails on them."""
    run = fx.Interpreter(traced.module, garbage_collect_values=False)
    run.extra_traceback = False
    try:
        with torch.no_grad():
            run.run(slots)
    except Exception as error:  # code of the model
        failed = next(node for node in traced.module.graph.nodes if node not in run.env)
        raise NotSplittable(
            f"{describe(traced.module, failed)} works only on all nodes together: {error}"
        ) from error
    return run.env


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0


class _Analysis(fx.Interpreter):
    def __init__(self, traced: Traced, binding: Binding, slots: dict[str, Tensor]) -> None:
        super().__init__(traced.module, garbage_collect_values=False)
        self.extra_traceback = False  # else it is appended to every message
        self.traced = traced
        self.binding = binding
        self.slots = slots
        self.given = described(slots)
        self.num_rows = {
            _domain_of(name): rows.shape[1] if name.startswith(EDGES) else len(rows)
            for name, rows in slots.items()
            if not is_seed_time(name)
        }

    def run_node(self, n: fx.Node) -> Any:
        """Compute a value, then check and record its domain."""
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        traced = self.traced
        domain = self._domain(n)
        slot = lists.slot_of(n)
        try:
            value = super().run_node(n)
        except KeyError:
            what = advice.OUT_EDGES if "__rev_" in str(slot) else "{}, which the graph does not have"
            raise NotSplittable(f"the model reads {what.format(slot)}") from None
        except Exception as error:  # user code
            raise NotSplittable(
                f"the model fails on the graph at {describe(traced.module, n)}: {type(error).__name__}: "
                f"{error}; the graph gives {self.given}{advice.hint(error, traced.module, self.slots)}"
            ) from error
        level = max((traced.levels.get(arg, 0) for arg in n.all_input_nodes), default=0)
        if n.target is lists.neighbour_rows:
            level += 1
        elif domain is not None and domain.kind == "node" and lists.is_aggregation(traced.module, n):
            level = max(level, 1)
        elif lists.is_conv(traced.module, n):
            level += 1
            if not isinstance(value, Tensor):
                raise self._closed(n, "returns more than the nodes' new rows")
        of, dim = lists.size_of(n) or (None, None)
        if isinstance(value, int) and of is not None and dim and dim > 0 and lists.edges_of(of) is None:
            domain, level = None, 0  # the width of rows, which is the same for every graph
        traced.levels[n] = level
        traced.values[n] = value
        if domain is not None:
            traced.domains[n] = domain
            self._check_rows(n, value, domain)
        return value

    def _domain(self, n: fx.Node) -> lists.Domain | None:
        slot = lists.slot_of(n)
        if slot is not None:
            return None if is_seed_time(slot) else _domain_of(slot)
        if lists.is_conv(self.traced.module, n):
            return self._conv_domain(n)
        if n.target in (lists.neighbour_rows, lists.own_rows):
            return self._end_domain(n)
        if n.target in lists.LOOPS:
            return self._loops_domain(n)
        if n.target is softmax or lists.is_aggregation(self.traced.module, n):
            return self._grouped_domain(n)
        if (edges := lists.edges_of(n)) is not None:
            return edges
        listed = [self.traced.domains.get(part) for part in lists.listed_by(n, 0)]
        if listed and (edges := lists.joined(listed)) is not None:
            return edges
        inputs = n.all_input_nodes
        if n.op == "call_method" and n.target in _FILLED:
            inputs = [each for each in inputs if each is not n.args[0]]
        found = {self.traced.domains[arg] for arg in inputs if arg in self.traced.domains}
        if len(found) > 1:
            if not any(isinstance(self.traced.values[each], Tensor) for each in inputs):
                raise self._refusal(n, advice.ONE_NUMBER)
            names = " and ".join(sorted(map(str, found)))
            way_out = (
                advice.BACK_TO_NODES if lists.Domain("node", GRAPH_TYPE) in found else self._way_out(n)
            )
            types = {each.type for each in found}
            if any(reverse_key(key) in types for key in types if key.count("__") == 2):
                way_out = advice.SHARES
            raise self._refusal(n, f"combines rows of {names}{way_out}")
        return next(iter(found), None)

    def _way_out(self, n: fx.Node) -> str:
        """The remedy for code that reads or sums rows by an end of edges; for other code, words for it."""
        if n.target is operator.getitem and isinstance(n.args[1], tuple) and lists.end_of(n.args[1][0]):
            return advice.TWO_PARTS
        if n.target is torch.cat:
            return advice.WITH_LOOPS
        name = getattr(n.target, "__name__", str(n.target))
        is_sum = re.match("bincount|scatter|index_(add|put|reduce)", name)
        for index in n.all_input_nodes if is_sum else ():
            while index.op == "call_method" and index.all_input_nodes:  # a view of it
                index = index.all_input_nodes[0]
            if end := lists.end_of(index):
                known = [key in self.binding.relations for key in (end[0].type, reverse_key(end[0].type))]
                return advice.SUMS.format(1 - end[1] if known == [False, True] else end[1])
        return " outside of a message-passing layer"

    def _refusal(self, n: fx.Node, reason: str) -> NotSplittable:
        return NotSplittable(f"{describe(self.traced.module, n)} {reason}")

    def _closed(self, conv: fx.Node, reason: str) -> Closed:
        return Closed(f"{describe(self.traced.module, conv)} {reason}", frozenset([str(conv.target)]))

    def _ends(self, n: fx.Node, edges: lists.Domain) -> tuple[str, str]:
        """The node types of the sources of edges, as a text, and of their destinations."""
        ends = [key.split("__") for key in edges.keys(self.binding.relations)]
        if len({end[2] for end in ends}) > 1:
            raise self._refusal(n, f"lists edges that lead to several node types: {edges.type}")
        return " and ".join(dict.fromkeys(end[0] for end in ends)), ends[0][2]

    def _end_domain(self, n: fx.Node) -> lists.Domain:
        """Of rows of nodes as rows of edges."""
        rows, edge_index = n.args
        edges = lists.edges_of(edge_index)
        if edges is None:
            raise self._refusal(n, "reads edges that are not those of the model's edge_index argument")
        end = self._ends(n, edges)[n.target is lists.own_rows]
        if not isinstance(rows, fx.Node) or self.traced.domains.get(rows) != lists.Domain("node", end):
            raise self._refusal(
                n, f"reads rows by the numbers of nodes that are not rows of node type {end!r}"
            )
        return edges

    def _loops_domain(self, n: fx.Node) -> lists.Domain:
        """Of another list of edges and what belongs to them."""
        edges, given = lists.edges_after(n), lists.arguments_of(n)
        if edges is None:
            raise self._refusal(n, "changes edges that are not those of the model's edge_index argument")
        if given.get("flow", lists.FLOWS[0]) != lists.FLOWS[0]:
            raise self._refusal(
                n, "normalises by edges that leave a node, in sums over those that enter it"
            )
        before = lists.edges_of(given["edge_index"])
        source, destination = self._ends(n, edges)
        if edges != before and source != destination:
            raise self._refusal(n, "reads or adds self-loops of edges between two lists of nodes")
        for name in ("edge_attr", "edge_weight"):
            rows = given.get(name)
            if rows is not None and self.traced.domains.get(rows) != before:
                raise self._refusal(n, f"gets an {name} that is not one row for each edge")
        if edges.adds_loops and edges != before:
            self._check_number(n, given.get("num_nodes"), lists.Domain("node", destination))
        return edges

    def _check_number(self, n: fx.Node, number: Any, nodes: lists.Domain) -> None:
        """Check that self-loops are added to all nodes, whatever edges they have."""
        if isinstance(number, fx.Node):
            known = self.traced.domains.get(number) == nodes
            number = self.traced.values[number] if known else None
        if number != self._num_rows(nodes):
            raise self._refusal(
                n, "adds self-loops to some nodes only: give it the number of all, num_nodes=x.size(0)"
            )

    def _num_rows(self, domain: lists.Domain) -> int:
        if domain not in self.num_rows:
            keys = domain.keys(self.binding.relations)
            self.num_rows[domain] = sum(self.num_rows[lists.Domain("edge", key)] for key in keys)
        return self.num_rows[domain]

    def _grouped_domain(self, n: fx.Node) -> lists.Domain:
        """Of values made of groups of rows: the groups must be the in-edges of each node."""
        found = lists.grouping(self.traced.module, n)
        edges = found.edges
        if edges is None:
            raise self._refusal(
                n,
                "mixes rows: it groups by another index than edge_index[1] (of each relation, if several)",
            )
        rows = found.rows
        if rows is not None:
            value = self.traced.values.get(rows)
            if self.traced.domains.get(rows) != edges or not isinstance(value, Tensor):
                raise self._refusal(n, "groups what is not one row for each of these edges")
            if found.dim % value.dim() != 0 or not found.is_plain:
                raise self._refusal(n, "groups another dimension than that of the edges")
            if value.dtype != torch.float32:
                raise self._refusal(n, f"groups rows of {value.dtype}, not of float32")
        return edges if n.target is softmax else lists.Domain("node", self._ends(n, edges)[1])

    def _conv_domain(self, n: fx.Node) -> lists.Domain:
        edges = conv_arguments(self.traced.module, n).get("edge_index")
        slot = lists.slot_of(edges) if isinstance(edges, fx.Node) else None
        if slot is None or not slot.startswith(EDGES):
            raise self._closed(n, "does not read the model's unchanged edge_index argument")
        key = slot.split(":", 1)[1]
        return lists.Domain("node", self.binding.node_types[0] if key == "*" else key.split("__")[2])

    def _check_rows(self, n: fx.Node, value: Any, domain: lists.Domain) -> None:
        if n.target in lists.LOOPS and isinstance(value, tuple):
            self.num_rows[domain] = value[0].shape[1]
        if not isinstance(value, Tensor) or lists.edges_of(n) is not None:
            return
        rows = self._num_rows(domain)
        if value.dim() == 0 or value.shape[0] != rows:
            made = describe(self.traced.module, n)
            why = _NOT_FIRST if rows in value.shape[1:] else _OTHER_ROWS
            if domain.kind == "edge" and value.shape[:1] == (2,):
                why = advice.REORDERED if value.shape[1:] == (rows,) else advice.LEFT_OUT
            raise NotSplittable(
                f"{made} has shape {list(value.shape)} on a graph with {rows} rows of {domain}: {why}"
                + (f"; {advice.instead_of(made)}" if "unique" in made else "")
            )


def _domain_of(slot: str) -> lists.Domain:
    role, _, name = slot.partition(":")
    return lists.Domain("node" if role in ("features", "batch") else "edge", name)
