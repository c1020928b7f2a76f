"""Tracing by running: each traced value knows its value on the check graph.

A plain torch.fx proxy has no type, size or attributes, so Python code that looks at them (isinstance,
hasattr, dtype, len, a branch on a size) takes another path than it takes for a tensor. Here it takes the
same path. What a branch on a size decided is noted; the gate checks whether it holds for other graphs.
Changes in place are noted with the values that they change; `trace.py` removes them.
"""

from __future__ import annotations

import builtins
import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute, TraceError
from torch_geometric.utils import scatter

from hopline.packaging.frozen import Frozen
from hopline.packaging.user_source import line_in_forward, user_line

#: Ends a refusal of code that branches on numbers of tensors.
BRANCH = "cannot be followed"

#: Keys of node.meta: what the value was, the earlier values that computing it changed in place, and the
#: line of the user's source.
VALUE, CHANGED, PLACE = "value", "changed", "place"
_UNKNOWN = object()
#: Properties and methods of a tensor that are the same for each graph of a schema.
_SAME = frozenset(
    {"dtype", "device", "layout", "is_sparse", "is_sparse_csr", "is_cuda", "is_quantized", "is_nested",
     "ndim", "requires_grad", "is_leaf", "names", "dim", "ndimension", "is_floating_point", "is_complex",
     "is_contiguous", "element_size"}
)  # fmt: skip
#: Attributes of a tensor's shape, not of its numbers.
_SIZES = frozenset({"size", "shape", "numel", "stride", "nelement", *_SAME})
#: Rows up to which a loop over a tensor is traced.
_MOST_STEPS = 16


class ValueProxy(fx.Proxy):
    """A traced value that answers type checks as its value would."""

    tracer: RunningTracer

    def __getattr__(self, name: str) -> Any:
        value = value_of(self.node)
        if value is not _UNKNOWN:
            if not hasattr(value, name):
                raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
            if isinstance(value, Tensor) and name in _SAME:
                return getattr(value, name)
        return _Attribute(self, name)

    def __len__(self) -> int:
        value = value_of(self.node)
        if not hasattr(value, "__len__"):
            raise TraceError(f"a tensor is made of a number of nodes or edges{_line()}; decide in __init__")
        return self._decided(len(value), "len", len)

    def __hash__(self) -> int:
        value = value_of(self.node)
        if type(value) not in (int, float):
            return id(self)
        self.tracer.decisions.append((self.node, f"a key is {value}{_line()}", hash))
        return hash(value)

    def _number(self, what: str, of: Any) -> Any:
        value = value_of(self.node)
        if isinstance(value, int | float) and not depends_on_values(self.node):
            return self._decided(value, what, of)
        if isinstance(value, int | float | Tensor) and self.tracer.is_constant(self.node):
            return value.item() if isinstance(value, Tensor) else value
        raise TraceError(f"{what}() of a tensor's numbers{_line()} {BRANCH}")

    def _decided(self, value: Any, what: str, of: Any) -> Any:
        if what != "len" or "len(" in _line():  # torch reads it too, of an index
            self.tracer.decisions.append((self.node, f"{what}() is {value}{_line()}", of))
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


for _of in (int, operator.index, float, round, math.ceil, math.floor, math.trunc):
    _name = _of.__name__
    _made = lambda self, *more, of=_of, what=_name: of(self._number(what, of), *more)  # noqa: E731
    setattr(ValueProxy, f"__{_name}__", _made)


def _in_place(function: Any) -> Any:
    def method(self: ValueProxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "iand", "ior", "ixor", "imatmul"):
    setattr(ValueProxy, f"__{_name}__", _in_place(getattr(operator, _name)))


class _Attribute(ValueProxy, Attribute):
    """An attribute that is not called yet; it becomes a node when it is read."""

    def __init__(self, root: fx.Proxy, attr: str) -> None:
        Attribute.__init__(self, root, attr)

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class RunningTracer(fx.Tracer):
    """A tracer that runs each node when the node is created.

    Attributes:
        slots: of the check graph.
        frozen: statistics that become constants.
        is_running: a node runs.
        decisions: values that a Python branch or number used, the outcome in words, and how it is made.
    """

    def __init__(self, slots: dict[str, Tensor]) -> None:
        super().__init__()
        self.frozen: Frozen | None = None
        self.decisions: list[tuple[fx.Node, str, Callable[[Any], Any]]] = []
        self.slots = slots
        self.is_running = False
        self._changed: set[fx.Node] = set()
        #: Memory -> the values in it.
        self._sharing: dict[int, list[fx.Node]] = {}

    def proxy(self, node: fx.Node) -> ValueProxy:
        """A `ValueProxy` of the node."""
        return ValueProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        """The node of a proxy, although the proxy claims to be a tensor; that of a tensor of the model."""
        if issubclass(type(a), fx.Proxy):
            return a.node
        made = super().create_arg(a.item() if isinstance(a, np.generic) else a)
        if isinstance(made, fx.Node) and isinstance(a, Tensor):
            # Python code reads the tensor without a trace: a traced change in place must not reach it.
            made.meta.setdefault(VALUE, a.clone())
        return made

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Create the node, with the line of the user's source that computes it."""
        node = super().create_node(*args, **kwargs)
        node.meta[PLACE] = line_in_forward(sys._getframe(1))
        return node

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any
    ) -> Any:
        """Create the node, run it, and note what it changed in place."""
        made = super().create_proxy(kind, target, args, kwargs, *more, **options)
        node = made.node
        before = [(n, versions(n.meta.get(VALUE))) for n in self._reached(node)]
        num_given = len(self.frozen.given) if self.frozen else 0
        node.meta[VALUE] = value = self._run(node)
        node.meta[CHANGED] = [n for n, was in before if was and versions(n.meta[VALUE]) != was]
        given = self.frozen.given[num_given:] if self.frozen else []
        # all that PyG's `scatter` computes are statistics, if any is
        parts = value if isinstance(value, tuple) else (value,)
        is_given = given and (target is scatter or any(part is given[-1] for part in parts))
        if is_given and not node.meta[CHANGED]:
            self.graph.erase_node(node)
            constants = [self.proxy(self.create_arg(part)) for part in parts]
            return type(value)(constants) if isinstance(value, tuple) else constants[0]
        self._changed.update(node.meta[CHANGED])
        for storage in storages(value):
            self._sharing.setdefault(storage, []).append(node)
        return made

    def _reached(self, node: fx.Node) -> list[fx.Node]:
        """Earlier values that running a node can change, in order: inputs and what shares their memory."""
        inputs = node.all_input_nodes
        memory = {storage for n in inputs for storage in storages(n.meta.get(VALUE))}
        if node.op == "call_module":
            part = self.root.get_submodule(str(node.target))
            memory |= storages([*part.state_dict(keep_vars=True).values()])
        return sorted({*inputs, *(n for storage in memory for n in self._sharing.get(storage, ()))})

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Create a node for a call, unless it is part of running one: torch.fx sees those calls too."""
        if self.is_running:
            return forward(*args, **kwargs)
        return self.trace_module(m, forward, args, kwargs)

    def trace_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """The traced result of a call of a module."""
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A parameter becomes a node where the user's code reads it."""
        if self.is_running:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _run(self, node: fx.Node) -> Any:
        self.is_running = True
        try:
            return self._value(node)
        finally:
            self.is_running = False

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.slots
        inputs = [value_of(n) for n in node.all_input_nodes]
        if any(value is _UNKNOWN for value in inputs):
            return _UNKNOWN
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
        try:
            if node.op == "get_attr":
                return operator.attrgetter(str(node.target))(self.root)
            if node.op == "call_module":
                return self.root.get_submodule(str(node.target))(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            if node.op == "call_function":
                return node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # user code; `analyse` runs it again and reports the error
            return _UNKNOWN
        return None

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Decide a branch on a type, a size or a parameter; a branch on values of rows cannot be traced."""
        value = value_of(obj.node)
        if (isinstance(value, bool | int | float) or value is None) and not depends_on_values(obj.node):
            self.decisions.append((obj.node, f"a condition is {bool(value)}{_line()}", bool))
            return bool(value)
        if isinstance(value, int | float | Tensor) and self.is_constant(obj.node):
            return bool(value)
        raise TraceError(f"a condition on a tensor's numbers{_line()} {BRANCH}")

    def is_constant(self, node: fx.Node) -> bool:
        """True if a value is computed from parameters and buffers alone, unchanged by this call."""
        seen, later = {node}, [node]
        while later:
            node = later.pop()
            inputs = node.all_input_nodes
            if node in self._changed or not (inputs or node.op == "get_attr"):
                return False
            later += [n for n in inputs if n not in seen]
            seen.update(inputs)
        return True

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Items of a tuple, or of a tensor that has few rows."""
        value = value_of(obj.node)
        if isinstance(value, tuple | list) or (
            isinstance(value, Tensor) and value.dim() > 0 and len(value) <= _MOST_STEPS
        ):
            items = range(len(value))
            return iter([self.create_proxy("call_function", operator.getitem, (obj, i), {}) for i in items])
        raise TraceError(
            f"a loop over rows{_line()} has another length for each request: compute all rows together, "
            "h * 2 in place of [row * 2 for row in h]"
        )


def _line() -> str:
    where = user_line()
    return f" at {where}" if where else ""


def value_of(node: fx.Node) -> Any:
    """The value of a node on the check graph; a marker if it is unknown."""
    return node.meta.get(VALUE, _UNKNOWN)


def depends_on_values(node: fx.Node) -> bool:
    """True if a number depends on the content of tensors, not only on their types and sizes."""
    if node.op == "call_method" and node.target in _SIZES:
        return False
    if node.op == "call_function" and node.target is getattr and node.args[1] in _SIZES:
        return False
    if isinstance(value_of(node), Tensor | dict):
        return True
    return any(map(depends_on_values, node.all_input_nodes))


def tensors(value: Any) -> list[Tensor]:
    """A tensor, or those in a tuple or list."""
    if isinstance(value, tuple | list):
        return [each for item in value for each in tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def versions(value: Any) -> list[int]:
    """The counters that show whether tensors were changed in place."""
    return [each._version for each in tensors(value) if not each.is_inference()]


def storages(value: Any) -> set[int]:
    """The memory of tensors, by address."""
    return {each.untyped_storage()._cdata for each in tensors(value) if each.layout == torch.strided}


def same_tensor(one: Any, other: Any) -> bool:
    """True if two values are one tensor, not a part of each other."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    return len({(each.data_ptr(), each.shape, each.stride()) for each in (one, other)}) == 1


@contextmanager
def as_their_values() -> Iterator[None]:
    """Make `isinstance` in traced code answer for the value behind a proxy.

    torch's own code and ours get the true answer: torch passes what looks like a tensor to C, which does
    not check again. (A proxy that named Tensor as its class crashed the process in `torch.pow(x, 2)`.)
    """
    true = builtins.isinstance

    def is_instance(value: Any, kind: Any) -> bool:
        if issubclass(type(value), ValueProxy):
            asking = sys._getframe(1)
            package = asking.f_globals.get("__name__", "").split(".")[0]
            if package not in ("torch", "hopline") or asking.f_code.co_name == "is_tensor":
                known = value_of(value.node)
                if known is not _UNKNOWN:
                    return true(known, kind)
        return true(value, kind)

    builtins.isinstance = is_instance
    try:
        yield
    finally:
        builtins.isinstance = true
