"""Cuts a traced model into stages: which values each state holds, and each stage as an fx module.

Level by level from the output down. A stage computes its values from convs of its level, from the
node's own state one level below, and from its raw features (which are available at every level, so that
level-0 values are computed again rather than carried).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, fx

from hopline.artifact import StageInput
from hopline.errors import NotSplittable
from hopline.packaging.edges import linear_of, slot_of
from hopline.packaging.lower import LoweredConv
from hopline.packaging.regions import Region
from hopline.packaging.stage_code import Layout, Place, StageCode, State
from hopline.packaging.trace import Traced, describe

#: Operations that cost less than a wider state, which each neighbour's row would have.
_CHEAP = frozenset(("add", "sub", "mul", "div", "truediv", "neg", "getitem", "linear"))


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
        rules: for each of the layers that it computes, how its neighbours are read.
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
    rules: tuple[str, ...] = ()


class Splitter(Layout):
    """Cuts one traced and lowered model.

    Attributes:
        num_layers: levels above 0.
    """

    def __init__(
        self, traced: Traced, convs: dict[fx.Node, LoweredConv | Region], finals: dict[str, fx.Node]
    ) -> None:
        """Create a splitter.

        Args:
            finals: node type -> the value that its last state holds.
        """
        super().__init__(traced, convs)
        self.num_layers = max(traced.levels[node] for node in finals.values())
        for node_type, node in finals.items():
            self._state(self.num_layers, node_type).values.append(node)
        for level in range(self.num_layers, 0, -1):
            self._collect(level)

    def stages(self) -> list[StagePlan]:
        """All stages, lowest level first."""
        return [self._build(place) for place in sorted(self.states)]

    def _state(self, level: int, node_type: str) -> State:
        return self.states.setdefault((level, node_type), State())

    def _collect(self, level: int) -> None:
        """Collect what the states one level below must hold for the stages of `level`."""
        places = sorted(place for place in self.states if place[0] == level)
        counted: list[str] = []
        for place in places:
            for conv in self.convs_of(place).values():
                for source in conv.sources:
                    _add(self._state(level - 1, self.traced.domains[source].type).values, source)
                if isinstance(conv, Region) and not conv.sources:
                    counted += [key.split("__")[0] for key in conv.edges.keys(self.traced.relations)]
                if conv.query is not None and conv.is_query_state:
                    _add(self._state(level - 1, place[1]).values, conv.query)
        for place in places:
            for value in self.states[place].values:
                self._require(place, value, set())
        for node_type in counted:  # neighbours of which nothing is read have a state too
            state = self._state(level - 1, node_type)
            if not state.values:
                state.values.append(self._features(node_type))

    def _features(self, node_type: str) -> fx.Node:
        nodes = self.traced.module.graph.nodes
        found = next((node for node in nodes if slot_of(node) == f"features:{node_type}"), None)
        if found is None:
            raise NotSplittable(f"only the number of in-edges from node type {node_type!r} is read")
        return found

    def _require(self, place: Place, node: fx.Node, seen: set[fx.Node]) -> None:
        """Make `node` computable in the stage at `place`, from below where it must be."""
        if node in seen or node not in self.traced.domains:
            return
        seen.add(node)
        level, node_type = place
        if node in self.convs and self.traced.levels[node] == level:
            for value in self.convs[node].own:
                self._require(place, value, seen)
        elif self._is_loaded(place, node):
            below = self._state(level - 1, node_type)
            _add(below.values, node)
            _add(self.states[place].own, node)
        elif slot_of(node) is None:
            for arg in node.all_input_nodes:
                self._require(place, arg, seen)

    def _is_loaded(self, place: Place, node: fx.Node) -> bool:
        """True if the stage reads this value from the node's own state below."""
        level, node_type = place
        node_level = self.traced.levels[node]
        if level == 0 or node_level == level or not isinstance(self.traced.values[node], Tensor):
            return False
        below = self.states.get((level - 1, node_type), State()).values
        return node in below or (node_level > 0 and not self._is_cheap(node, below))

    def _is_cheap(self, node: fx.Node, values: list[fx.Node]) -> bool:
        """True if the values of a state are enough to compute this one, by cheap operations or a Linear."""
        rows = [each for each in node.all_input_nodes if each in self.traced.domains]
        name, of = getattr(node.target, "__name__", node.target), self.traced.module
        return (
            node not in self.convs
            and (name in _CHEAP or linear_of(of, node))
            and bool(rows)
            and all(each in values or self._is_cheap(each, values) for each in rows)
        )

    def _build(self, place: Place) -> StagePlan:
        state = self.states[place]
        plan = StagePlan(*place, values=state.values, state_dim=sum(map(self.width, state.values)))
        plan.rules = tuple(
            f"{conv.rule}: {describe(self.traced.module, node).partition(' at ')[0].replace('model.', '')}"
            for node, conv in self.convs_of(place).items()
        )
        slots = [slot_of(value) for value in state.values]
        if place[0] == 0 < self.num_layers and slots == [f"features:{place[1]}"]:
            return plan
        queries = self.queries(place)
        if queries:
            plan.query, plan.query_inputs = _built(self, place, queries)
            plan.query_dim = sum(map(self.width, queries))
        plan.module, plan.inputs = _built(self, place, plan.values)
        return plan


def _built(
    splitter: Splitter, place: Place, values: list[fx.Node]
) -> tuple[fx.GraphModule, tuple[StageInput, ...]]:
    """The module that computes `values` at `place`, and its inputs."""
    own = sorted(splitter.states[place].own, key=partial(splitter.columns, (place[0] - 1, place[1])))
    first = StageCode(splitter, place, own)
    built = first.build(values)
    used = [node for node in own if first.env[node].users]
    # query rows and the rest of a stage read different parts of the own state
    return built if len(used) == len(own) else StageCode(splitter, place, used).build(values)


def _add(values: list[fx.Node], node: fx.Node) -> None:
    if node not in values:
        values.append(node)
