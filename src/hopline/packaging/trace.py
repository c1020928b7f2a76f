"""A model as a graph of values: torch.fx, with convs and every module without convs as one value.

Each value gets the rows it belongs to (its *domain*: a node type, an edge type, or none) and its level:
the number of convs on its longest path. Independent of stages and ONNX. A change in place, such as
`F.relu_(h)`, works on a copy, and code that reads the changed value afterwards reads the copy: a graph of
values is ordered only by which value reads which.
"""

from __future__ import annotations

import inspect
import operator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.proxy import TraceError
from torch_geometric.nn import Aggregation, HeteroConv, MessagePassing

from hopline.errors import NotServable, NotSplittable, PackagingError
from hopline.packaging import edges as lists
from hopline.packaging.arguments import Binding
from hopline.packaging.dense.aggregate import OPENED
from hopline.packaging.dense.attend import BUILDERS
from hopline.packaging.forwards import FORWARDS
from hopline.packaging.learned import Rows
from hopline.packaging.memberships import group_by_members
from hopline.packaging.passing import grouped_as_values, passed_as_values
from hopline.packaging.proxy import (
    CHANGED,
    PLACE,
    VALUE,
    RunningTracer,
    as_their_values,
    depends_on_values,
    same_tensor,
    value_of,
)
from hopline.packaging.reference import of_target, shared_copy
from hopline.packaging.seed_time import for_one_seed
from hopline.packaging.several import Heads, Several
from hopline.packaging.user_source import user_line

_REDUCTIONS = frozenset(
    {torch.sum, torch.mean, torch.max, torch.min, torch.amax, torch.amin, torch.prod, torch.median,
     "sum", "mean", "max", "min", "amax", "amin"}
)  # fmt: skip

#: What is made without values, which code fills afterwards.
_ZEROS = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like, "new_empty": "new_zeros"}
#: Functions that make another number of each other number.
_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.truediv})
#: Nodes and edges of graphs that Python's decisions are compared on.
_OTHER_NUMBERS = ((3, 4), (11, 700), (300, 40), (5000, 30), (10**5, 2 * 10**6), (10**7, 10**9))


def without_changes(module: fx.GraphModule) -> None:
    """Rewrite a traced graph so that no value changes after it was computed.

    Raises:
        NotSplittable: a part of a tensor is changed through a view of it, or a module changes its
            argument and returns something else.
    """
    graph = module.graph
    newest: dict[fx.Node, fx.Node] = {}

    latest = lambda node: newest.get(node, node)  # noqa: E731
    for node in list(graph.nodes):
        node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), latest)
        node.target = _ZEROS.get(node.target, node.target)
        changed: list[fx.Node] = node.meta.get(CHANGED) or []
        if not changed:
            continue
        target = next((n for n in changed if latest(n) in node.all_input_nodes), None)
        if target is None or not all(same_tensor(value_of(n), value_of(target)) for n in changed):
            raise NotSplittable(
                f"{describe(module, node)} changes a part of a tensor in place, which other code sees"
            )
        if node.target is operator.setitem:
            node.target = set_item
        elif same_tensor(value_of(node), value_of(target)):
            with graph.inserting_before(node):
                copied = graph.call_function(torch.clone, (latest(target),))
            copied.meta[VALUE] = value_of(target)
            node.replace_input_with(latest(target), copied)
        else:
            raise NotSplittable(
                f"{describe(module, node)} changes its argument in place and returns something else"
            )
        for n in changed:
            newest[n] = node
        newest[target] = node
    graph.lint()


def set_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """A copy of a tensor after `copy[index] = value`."""
    if isinstance(index, Tensor) and index.dtype == torch.bool and index.shape == tensor.shape:
        filling = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=tensor.dtype)
        if filling.dim() == 0:
            return torch.where(index, filling.to(tensor.dtype), tensor)
    copied = tensor.clone()
    copied[index] = value
    return copied


@dataclass(slots=True)
class Traced:
    """The traced model.

    Attributes:
        module: the fx graph module; its one input is the mapping of slots.
        outputs: target node type -> the value that the model answers for it.
        domains: value -> whose rows it has; absent for values that depend on no row.
        levels: value -> number of convs on its longest path.
        values: value -> what it was on the check graph.
        relations: edge types, in the order of an `edge_type` argument's numbers.
        refusal: for decisions by a number of nodes or edges, if nothing else refuses the model.
    """

    module: fx.GraphModule
    outputs: dict[str, fx.Node]
    domains: dict[fx.Node, lists.Domain] = field(default_factory=dict)
    levels: dict[fx.Node, int] = field(default_factory=dict)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    relations: tuple[str, ...] = ()
    refusal: PackagingError | None = None

    @property
    def convs(self) -> list[fx.Node]:
        """The conv calls that the output depends on, in the order of execution."""
        of, nodes = self.module, self.module.graph.nodes
        return [node for node in nodes if lists.is_conv(of, node) or lists.is_aggregation(of, node)]


def conv_arguments(module: fx.GraphModule, node: fx.Node) -> dict[str, Any]:
    """The arguments of a conv call by name, None ones left out."""
    given = lists.arguments_of(node, module.get_submodule(str(node.target)).forward)
    return {name: value for name, value in given.items() if value is not None}


def describe(module: fx.GraphModule, node: fx.Node) -> str:
    """Description of a value, and the line of the user's source that computes it."""
    if node.op == "call_module":
        what = f"{node.target} ({type(module.get_submodule(str(node.target))).__name__})"
    elif node.op == "call_method":
        what = f".{node.target}(...)"
    else:
        what = str(getattr(node.target, "__name__", node.target))
    inside = ""
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        if node.op != "call_module" and issubclass(kind, MessagePassing):
            inside = f" in {path} ({kind.__name__})"
    place = node.meta.get(PLACE)
    return f"{what}{inside} at {place}" if place else what + inside


class Closed(NotSplittable):
    """A part of a model that is one value cannot be expressed; the code in it might be.

    Attributes:
        parts: names of such parts, for `trace`.
    """

    def __init__(self, message: str, parts: frozenset[str]) -> None:
        super().__init__(message)
        self.parts = parts


def norm_in(stack: dict[str, tuple[str, type]] | None) -> str:
    """The name, for `trace`, of the calls of `gcn_norm` in the innermost module."""
    return f"gcn_norm in {list(stack.values())[-1][0] if stack else 'forward'}"


class _Root(nn.Module):
    def __init__(self, model: nn.Module, binding: Binding) -> None:
        super().__init__()
        self.model = model
        self.binding = binding

    def forward(self, slots: Any) -> Any:
        """Call the model on a mapping of slots."""
        return self.binding.call(self.model, slots)


class _Tracer(RunningTracer):
    """A tracer whose leaves are convs with a dense form, and modules without convs.

    Inside, leaves may be any Python.

    Args:
        opened: convs with a dense form whose code is traced.
    """

    def __init__(self, slots: dict[str, Tensor], opened: frozenset[str]) -> None:
        super().__init__(slots)
        self.opened = opened

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """A conv, or a module without one (dict arguments are handled in `call_module`)."""
        if isinstance(m, MessagePassing):
            return type(m) in BUILDERS and module_qualified_name not in self.opened
        if self.frozen is not None and self.frozen.opens(module_qualified_name.removeprefix("model.")):
            return False
        if isinstance(m, Aggregation):
            return type(m) not in OPENED
        of = self.root.model
        if type(m) is nn.Sequential or isinstance(m, Rows | Several | Heads) or m is of:
            return False
        if isinstance(of, Several) and m is of.module:
            return False
        return not any(isinstance(part, MessagePassing) for part in m.modules())

    def trace_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Trace through modules that take dicts: their entries have rows of different types."""
        if isinstance(m, HeteroConv) and m.aggr in ("max", "min"):
            # torch.max over a dimension returns a pair, which PyG unpacks only if it is not a proxy.
            m.aggr = f"a{m.aggr}"
        flow = getattr(m, "flow", lists.FLOWS[0])
        own = type(m) in FORWARDS and "forward" not in vars(m) and flow == lists.FLOWS[0]
        if own:
            forward = partial(FORWARDS[type(m)], m)
        given = (*args, *kwargs.values())
        if any(isinstance(value, dict) for value in given):
            return forward(*args, **kwargs)
        nodes = [value.node for value in given if isinstance(value, fx.Proxy)]
        by_hand = any(lists.edges_of(node) is not None for node in nodes)
        if not type(m).__module__.startswith("torch_geometric."):  # a readout of the model's own
            by_hand = by_hand or any(str(lists.slot_of(node)).startswith("batch:") for node in nodes)
        if not isinstance(m, MessagePassing) and (own or by_hand):
            return forward(*args, **kwargs)
        if isinstance(m, MessagePassing):
            kwargs = self._with_weights(m, args, kwargs)
            if not self.is_leaf_module(m, self.path_of_module(m)):
                with passed_as_values(m):
                    return super().trace_module(m, forward, args, kwargs)
        return super().trace_module(m, forward, args, kwargs)

    def _with_weights(self, conv: MessagePassing, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a conv; a conv over an `adj_t` gets the edge weights that are its values."""
        signature = inspect.signature(conv.forward)
        for value in signature.bind_partial(*args, **kwargs).arguments.values():
            slot = isinstance(value, fx.Proxy) and lists.slot_of(value.node)
            weights = str(slot).replace("adj_t:", "edge_weight:")
            if weights == slot or weights not in self.slots:
                continue
            if "edge_weight" not in signature.parameters:
                raise NotSplittable(
                    f"{type(conv).__name__} reads an adj_t with edge weights but takes no edge_weight"
                )
            given = self.proxy(value.node.args[0]), weights
            weight = self.create_proxy("call_function", operator.getitem, given, {})
            return {"edge_weight": weight, **kwargs}
        return kwargs


def trace(
    model: nn.Module, binding: Binding, targets: tuple[str, ...], slots: dict[str, Tensor],
    opened: frozenset[str] = frozenset(),
) -> Traced:  # fmt: skip
    """Trace a model in eval mode by running it on the check graph.

    Args:
        targets: the node types whose rows the answers have.
        slots: of the check graph; not changed.
        opened: parts whose code is traced although they could be one value, as `Closed` names them.

    Raises:
        NotSplittable: its Python code depends on tensor values, it changes parts of tensors in place, or
            its output is not one tensor of the target type.
    """
    root = _Root(shared_copy(model), binding)
    tracer = _Tracer({name: value.clone() for name, value in slots.items()}, opened)
    tracer.frozen = binding.frozen
    try:
        opens_norm = lambda: norm_in(tracer.module_stack) in opened  # noqa: E731
        values = grouped_as_values(root.model, tracer.create_proxy, opens_norm)
        with torch.no_grad(), as_their_values(), values:
            graph = tracer.trace(root)
    except PackagingError:
        raise
    except Exception as error:  # tracing runs any user code, which may raise any error
        why, where = str(error), user_line(error)
        if not isinstance(error, TraceError):
            why = f"{type(error).__name__}: {error}{f' (at {where})' if where else ''}"
        raise NotSplittable(f"{type(model).__name__}.forward cannot be traced: {why}") from error
    module = fx.GraphModule(root, graph)
    refusal = _refusal(module, tracer)
    without_changes(module)
    group_by_members(module, binding.members, slots)
    for_one_seed(module)
    lists.add_loops(graph)
    lists.name_ends(graph, binding.relations)
    lists.turn_edges(module, binding.relations)
    lists.map_ends(module)
    _stack_by_column(module)
    outputs = _outputs(module, targets)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    for node in graph.nodes:
        node.meta.pop(VALUE, None)
        node.meta.pop(CHANGED, None)
    module.recompile()
    return Traced(module, outputs, relations=binding.relations, refusal=refusal)


def _refusal(module: fx.GraphModule, tracer: RunningTracer) -> PackagingError | None:
    """The refusal of a model for which other numbers of nodes and edges decide otherwise.

    A number made of sizes decides if it is the same in some graphs, such as `x.size(0) // 50_000`.
    """
    nodes, reads = module.graph.nodes, (getattr, operator.getitem)
    made = [n for n in nodes if n.op == "call_function" and type(value_of(n)) in (bool, int, float)]
    made = [n for n in made if n.target not in reads and not depends_on_values(n)]
    asked = [*tracer.decisions, *((n, f"{describe(module, n)} is {value_of(n)}", None) for n in made)]
    wanted, same = {node for node, *_ in asked}, list[list[bool | None]]([] for _ in asked)
    for node in reversed(nodes):
        wanted.update(node.all_input_nodes if node in wanted else ())
    for numbers in _OTHER_NUMBERS if asked else ():
        env = _on_other_numbers(module, tracer.slots, numbers, wanted)
        for (node, _, of), found in zip(asked, same, strict=True):
            found.append(None)
            with suppress(KeyError, RuntimeError, TypeError):  # an unknown size
                found[-1] = bool((of or float)(env[node]) == (of or float)(value_of(node)))
    for (node, what, of), found in zip(asked, same, strict=True):
        is_known = None not in found
        is_free = not any(found) if is_known else node.target in _ARITHMETIC or not node.users
        if all(found) or (of is None and is_free):
            continue
        return (NotServable if is_known else NotSplittable)(
            f"forward decides by a number of nodes or edges: {what}, and another one in a later graph. "
            "Leave it out, or decide in __init__. zeros(x.size(0), 8) decides nothing, and len(x) does"
        )
    return None


def _on_other_numbers(
    module: fx.GraphModule, slots: dict[str, Tensor], numbers: tuple[int, int], wanted: set[fx.Node]
) -> dict[fx.Node, Any]:
    """Values, without their content, for so many nodes and edges of the first type."""
    types = list(dict.fromkeys(name.partition(":")[2] for name in slots))
    unknown = ShapeEnv()  # sizes that depend on content, as of x[mask]
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=unknown, static_shapes=True), torch.no_grad():
        others = {}
        for name, value in slots.items():
            role, _, key = name.partition(":")
            shape, by = list(value.shape), role not in ("features", "batch", "seed_time")
            place, count = role in ("edge_index", "adj_t"), numbers[by] * (types.index(key) + 1)
            shape[place] = count + (count == shape[place])
            others[name] = torch.empty(shape, dtype=value.dtype)
        run = fx.Interpreter(module, garbage_collect_values=False)
        for node in (node for node in module.graph.nodes if node in wanted):
            with suppress(Exception):
                run.env[node] = others if node.op == "placeholder" else run.run_node(node)
    return run.env


def _outputs(module: fx.GraphModule, targets: tuple[str, ...]) -> dict[str, fx.Node]:
    """Make the target types' tensors the only outputs."""
    node = next(node for node in module.graph.nodes if node.op == "output")
    result: Any = node.args[0]
    if isinstance(result, fx.Node) and isinstance(result.target, type) and issubclass(result.target, tuple):
        result = result.args  # a named tuple
    found: dict[str, fx.Node] = {}
    for target in targets:
        value = of_target(result, target)
        if not isinstance(value, fx.Node):
            raise NotSplittable(
                f"the model returns {type(value).__name__}, not one tensor (or one for each type)"
            )
        found[target] = value
    node.args = (tuple(found.values()),)
    return found


def _stack_by_column(module: fx.GraphModule) -> None:
    """Rewrite stack(dim=0) followed by reductions over dim 0 to use dim 1.

    The usual way to add up relations or layers; over dim 1 rows stay rows.
    """
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is not torch.stack:
            continue
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if dim != 0 or not all(_reduces_first(user, node) for user in node.users):
            continue
        node.args, node.kwargs = (node.args[0],), {"dim": 1}
        for user in list(node.users):
            others = {k: v for k, v in user.kwargs.items() if k != "dim"}
            user.args, user.kwargs = (node,), {"dim": 1, **others}


def _reduces_first(user: fx.Node, node: fx.Node) -> bool:
    is_reduction = user.target in _REDUCTIONS and user.args[0] is node and len(user.args) <= 2
    if not is_reduction or user.kwargs.get("keepdim"):  # later code counts dimensions
        return False
    dim: Any = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim")
    return bool(dim == 0)
