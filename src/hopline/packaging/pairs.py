"""Splits a module that scores pairs, `forward(x, edge_index, edge_label_index)`, into encoder and head.

Code that reads the pairs is traced; other modules are unchanged. The states that pairs choose rows of,
`z[edge_label_index[0]]`, are the answer of the encoder, and the code behind them is the head.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, fx, nn

from hopline.errors import PackagingError
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.probe import Probe
from hopline.packaging.reference import Reference, Rows, eval_copy
from hopline.packaging.repeatable import check_repeatable

#: Arguments of forward: the pairs, int64 [2, n], and the rows of edges that are scored.
PAIRS, ROWS = "edge_label_index", "edge_label_attr"
_HEAD = """
class Head(torch.nn.Module):
    def forward(self, h_src, h_dst):  # and edge_attr, the rows of edges
        return (h_src * h_dst).sum(-1)

hopline.package(encoder, graph, ..., head=Head(), target=(source type, destination type))"""
_CHOICES = (operator.getitem, torch.index_select, "index_select")


def scores_pairs(module: nn.Module) -> bool:
    """True if forward needs the pairs that it scores."""
    return PAIRS in _required(module)


def _required(module: nn.Module) -> list[str]:
    parameters = inspect.signature(module.forward).parameters.values()
    return [each.name for each in parameters if each.default is each.empty or each.name == ROWS]


class _Call(nn.Module):
    """Calls a module with arguments by name; those with a default are left out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.names = model, _required(model)

    def forward(self, given: Any) -> Any:
        """The module's answer."""
        return self.model(**{name: given[name] for name in self.names})


class _Tracer(fx.Tracer):
    """Enters the modules that get pairs; any other is one value.

    Attributes:
        ends: the pairs, and what is taken out of them.
        behind: values that depend on pairs or on their rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: set[fx.Node] = set()
        self.behind: set[fx.Node] = set()

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None
    ) -> fx.Node:
        """As of fx; notes what the value depends on."""
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        is_taken = target in (operator.getitem, torch.unbind, "unbind")
        if is_taken and (args[1:] == (PAIRS,) or args[0] in self.ends):
            self.ends.add(node)
        if args[1:] in ((PAIRS,), (ROWS,)) or self.behind.intersection(node.all_input_nodes):
            self.behind.add(node)
        return node

    def create_arg(self, a: Any) -> Any:
        """As of fx; a NumPy scalar is a number of Python's, whose text is code."""
        return super().create_arg(a.item() if isinstance(a, np.generic) else a)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """A value, or its code if it gets pairs."""
        given: list[Any] = []
        fx.node.map_aggregate((args, kwargs), given.append)
        if any(isinstance(each, fx.Proxy) and each.node in self.ends for each in given):
            return forward(*args, **kwargs)
        return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


def split(module: nn.Module, target: Any, embeddings: Any) -> tuple[nn.Module, nn.Module]:
    """The encoder and the head, in eval mode.

    Args:
        target, embeddings: of `package`.

    Raises: PackagingError: the code cannot be separated; the message shows what to write.
    """
    if embeddings:
        _refuse(module, "embeddings= names tables of an encoder")
    module = eval_copy(module)
    root, tracer = _Call(module).eval(), _Tracer()
    try:
        nodes = [*tracer.trace(root).nodes]
    except Exception as error:  # user code on values of a trace
        _refuse(module, f"{type(error).__name__}: {error}")
    states: dict[int, fx.Node] = {}
    head, encoder, answer = fx.Graph(), fx.Graph(), nodes[-1].args[0]
    inputs = [
        head.placeholder(name) for name in ("h_src", "h_dst", "edge_attr")[: 2 + (ROWS in root.names)]
    ]
    of_head, of_encoder = dict[fx.Node, fx.Node](), dict[fx.Node, fx.Node]()
    named = {name: encoder.placeholder(name) for name in root.names if name not in (PAIRS, ROWS)}
    for node in nodes[1:-1]:
        if isinstance(node.target, str) and node.op in ("call_module", "get_attr"):
            node.target = node.target.removeprefix("model.")
        if node.op == "get_attr":
            of_head[node] = head.node_copy(node)
        if node.args[:1] == (nodes[0],):  # an argument of forward
            name = str(node.args[1])
            of_encoder |= {node: named[name]} if name in named else {}
            of_head |= {node: inputs[2]} if name == ROWS else {}
        elif node not in tracer.behind:
            of_encoder[node] = encoder.node_copy(node, of_encoder.__getitem__)
        elif (side := _side(node, tracer.ends)) is not None:
            state = node.args[0]
            if not isinstance(state, fx.Node) or states.setdefault(side, state) is not state:
                _refuse(module, f"it reads two states of the {('source', 'destination')[side]}")
            of_head[node] = inputs[side]
        elif node not in tracer.ends:
            if unknown := [each for each in node.all_input_nodes if each not in of_head]:
                _refuse(module, f"{node.name} reads {unknown[0].name}, which is not a row of a pair")
            of_head[node] = head.node_copy(node, of_head.__getitem__)
    if sorted(states) != [0, 1] or answer not in of_head:
        _refuse(module, f"its answer does not read rows of states, z[{PAIRS}[0]] and z[{PAIRS}[1]]")
    ends = [of_encoder[states[side]] for side in (0, 1)]
    types = (target,) if isinstance(target, str) else tuple(target or ())
    if ends[0] is not ends[1] and len({*types}) != 2:
        _refuse(module, "it reads states of two kinds: target=(source type, destination type) names them")
    encoder.output(ends[0] if ends[0] is ends[1] else dict(zip(types, ends, strict=True)))
    head.output(of_head[answer])
    name = type(module).__name__
    found = fx.GraphModule(module, encoder, name), fx.GraphModule(module, head, f"{name}Head")
    for each in found:
        each.graph.eliminate_dead_code()
        each.recompile()
    return found[0].eval(), found[1].eval()


def _side(node: fx.Node, ends: set[fx.Node]) -> int | None:
    """0 or 1 if a value is the rows of a state that sources or destinations choose."""
    last = node.args[-1] if node.args else None
    if node.target not in _CHOICES or node.args[0] in ends or last not in ends:
        return None
    of = last.args[1] if isinstance(last, fx.Node) and last.target is operator.getitem else None
    return {0: 0, 1: 1, -2: 0, -1: 1}.get(of) if isinstance(of, int) else None


def _refuse(module: nn.Module, why: str) -> NoReturn:
    raise PackagingError(
        f"{type(module).__name__}.forward scores pairs, and the code that reads {PAIRS} cannot be "
        f"separated from the rest: {why}. Write it as a head, and pass the encoder, which answers "
        f"states:\n{_HEAD}"
    )


class _Asked(nn.Module):
    """Calls a module that scores pairs with the arguments of its encoder, and with pairs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.given = module, dict[str, Tensor]()

    def forward(self, *args: Any, **named: Any) -> Any:
        """The module's answer."""
        names = [name for name in _required(self.module) if name not in self.given]
        return self.module(**dict(zip(names, args, strict=False)), **named, **self.given)


class _Whole(Reference):
    """A module that scores pairs itself, run unchanged."""

    pairs: Any

    def outputs(self, graph: CheckGraph, pairs: Any = None) -> Tensor:
        """As of `Reference`: its answers for pairs."""
        if pairs is None:
            nodes = np.arange(min(map(graph.num_nodes, self.targets)))
            pairs = nodes, nodes, *(np.resize(each, (len(nodes), each.shape[1])) for each in self.pairs[2:])
        sources, targets, *rows = (torch.from_numpy(each.copy()) for each in pairs)
        asked: Any = self.module
        own = {ROWS: rows[0].to(self._dtype)} if rows else {}
        asked.given = {PAIRS: torch.stack([sources, targets])} | own
        return self.states(graph)[0]


def check_whole(module: nn.Module, reference: Reference, probe: Probe, pairs: Any, rows: Rows) -> None:
    """Compare a module with its encoder and head, and watch it as `check_repeatable` watches these.

    Args:
        reference: of the encoder and the head, which answer `rows` for `pairs` of the probe.

    Raises: PackagingError: it answers otherwise, or something that the trace took as a constant.
    """
    whole = _Whole(_Asked(module), reference.binding, reference.targets, None, True)
    whole.pairs = pairs
    if whole.differ(rows, whole.answers(probe.check, pairs)).any():
        _refuse(module, "separated, it answers otherwise")
    check_repeatable(whole, probe, pairs, rows)
