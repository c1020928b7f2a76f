"""One stage or head as an ONNX file: dynamic rows, weights inside, one named output."""

from __future__ import annotations

import io
import logging
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import copy
from functools import cache, wraps
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnxscript import opset18, rewriter
from onnxscript.rewriter import pattern
from torch import Tensor, fx, nn
from torch.fx import config as fx_config

from hopline.artifact import StageInput
from hopline.errors import NotServable, NotSplittable
from hopline.packaging.settled import refuse_codes, replace, settle
from hopline.packaging.user_source import user_line

#: Read by ONNX Runtime 1.14 and later; what torch.onnx writes without conversion.
OPSET = 18

#: Its exporter has the tables that are kept.
_KNOWN_TORCH = "2.13."

#: Of the example inputs; different and above 1, so that the exporter takes neither for a constant.
_ROWS, _EDGES = 7, 11
_op: Any = opset18
_ATEN = torch.ops.aten
#: Kinds of inputs that Gemms read.
_ROW_MATRICES = frozenset({"self", "features", "reduce"})
_Matrix = NDArray[np.float32]
#: Of a number of rows and a constant: the same for few rows, and another one for many.
_DECISIONS = frozenset({operator.floordiv, operator.mod, torch.sym_max, torch.sym_min, torch.sym_ite})


def export_stage(
    module: nn.Module, inputs: Sequence[StageInput], widths: Sequence[int], path: Path
) -> bool:
    """Write a stage, output `h`.

    Args:
        widths: columns of each input, 0 if its kind defines the whole shape.

    Returns: True if the file has one input for all of them.

    Raises: NotSplittable: an operation has no ONNX form.
    """
    made = [_example(item, width) for item, width in zip(inputs, widths, strict=True)]
    examples, shapes = [example for example, _ in made], [shape for _, shape in made]
    return export(module, examples, shapes, [item.name for item in inputs], "h", path, inputs)


def _example(item: StageInput, width: int) -> tuple[Tensor, dict[int, Any]]:
    size, rows = _ROWS, torch.export.Dim("n", min=1)
    if item.kind == "seed_time":
        return torch.zeros(1, dtype=torch.int64), {}
    if item.kind in ("sources", "owners", "edge_attr", "edge_weight", "is_self", "edge_time"):
        size, rows = _EDGES, torch.export.Dim(f"e_{abs(hash(item.edge_type)) % 10**6}", min=1)
    dtypes = {**dict.fromkeys(("owners", "nodes", "edge_time"), torch.int64), "is_self": torch.bool}
    if item.kind in ("degree", "count", "edge_weight", *dtypes):
        return torch.ones(size, dtype=dtypes.get(item.kind, torch.float32)), {0: rows}
    return torch.zeros(size, width), {0: rows}


def export(
    module: nn.Module, examples: Sequence[Tensor], shapes: Sequence[dict[int, Any]], names: Sequence[str],
    output: str, path: Path, stage: Sequence[StageInput] = (),
) -> bool:  # fmt: skip
    """Write a module that takes tensors and returns one tensor.

    Args:
        stage: the inputs of a stage, which may become one.

    Returns: True if they did.

    Raises:
        NotSplittable: the exporter refuses an operation, with the reason. Its own failures pass through:
            a broken installation must not look like a refusal of the model.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _keep_tables()
    _match_exactly()
    try:
        with quiet(), torch.no_grad():
            program: Any = torch.onnx.export(
                module, tuple(examples), input_names=list(names), output_names=[output],
                dynamic_shapes=tuple(shapes), opset_version=OPSET, dynamo=True, verbose=False,
                custom_translation_table=_FORMS,
            )  # fmt: skip
            exported = program.exported_program
            ranges = exported.range_constraints.values()
            is_decided = any(each.lower > 2 or each.upper < 2**40 for each in ranges)
            steps = [node.args for node in exported.graph.nodes if node.target in _DECISIONS]
            if is_decided or any(not isinstance(arg, fx.Node) for args in steps for arg in args):
                raise NotServable(f"{path.name}: a module of the model decides by the number of its rows")
            _keep_constants(program.model.graph)
            refuse_codes(program.model)
            settle(program.model)
            _add_biases(program.model.graph)
            packed = _pack(program.model.graph, stage)
            _anonymous(program.model)
            program.save(str(path), external_data=False)
            return packed
    except torch.onnx.errors.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        why = f"{type(cause).__name__}: {' '.join(lines[:3])}"
        if "DataDependent" in why:
            why = (
                f"a condition on a number that it reads from a tensor, as .item() does ({user_line(cause)})"
                ": keep a Python number from __init__ on, or write torch.where"
            )
        raise NotSplittable(f"{path.name} cannot be written as ONNX: {why}") from error


def _add_biases(graph: ir.Graph) -> None:
    """Make a constant that is added to a Gemm its bias: one operator less."""
    for add in [node for node in graph if node.op_type == "Add"]:
        pairs: Any = (add.inputs, add.inputs[::-1])
        for value, other in pairs:
            gemm, bias = value.producer(), ir.convenience.get_const_tensor(other)
            is_gemm = gemm is not None and gemm.op_type == "Gemm" and len(gemm.inputs) == 2
            if is_gemm and len(value.uses()) == 1 and bias is not None and len(bias.shape) == 1:
                tape = ir.tape.Tape()
                replace(add, tape, tape.op("Gemm", [*gemm.inputs, other], dict(gemm.attributes)))
                graph.remove(gemm, safe=True)
                break


def _pack(graph: ir.Graph, inputs: Sequence[StageInput]) -> bool:
    """Give a stage's graph one input where its inputs only meet in a sum of Gemms; False elsewhere.

    sum_k x_k W_k becomes [x_1 | x_2 | …] [W_1; W_2; …]. A call of ONNX Runtime costs about 2 µs for each
    operator, most of a single request; one Gemm also does the same flops in fewer passes (log/).
    """
    if len(inputs) < 2 or any(entry.kind not in _ROW_MATRICES for entry in inputs):
        return False
    found = []
    old: list[ir.Node] = []
    for value in graph.inputs:
        users = [node for node, _ in value.uses()]
        linear = _linear(users[0], value) if len(users) == 1 else None
        if linear is None:
            return False
        found.append(linear)
        old.append(users[0])
    blocks = [weight for weight, _ in found]
    biases = [bias for _, bias in found if bias is not None]
    terms = {node.outputs[0] for node in old}
    while len(terms) > 1:
        # A node that adds two terms which nothing else reads.
        once = {term for term in terms if len(term.uses()) == 1}
        adds = [user for term in once for user, _ in term.uses() if user.op_type == "Add"]
        add = next((each for each in adds if once.issuperset(each.inputs) and len(each.inputs) == 2), None)
        if add is None:
            return False
        old.append(add)
        terms = terms - set(add.inputs) | {add.outputs[0]}
    if len({block.shape[1] for block in blocks}) != 1:
        return False
    bias = np.asarray(np.sum(biases, axis=0, dtype=np.float32)) if biases else None
    _replace(graph, old, np.concatenate(blocks), bias)
    return True


def _linear(node: ir.Node, data: ir.Value) -> tuple[_Matrix, _Matrix | None] | None:
    """(weight [in, out], bias [out] or None) of a Gemm or MatMul of `data` by a constant."""
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[0] is not data:
        return None
    constants = (ir.convenience.get_const_tensor(value) for value in node.inputs[1:] if value is not None)
    weight, *rest = (None if each is None else each.numpy() for each in constants)
    given = node.attributes
    is_scaled = given.get_float("alpha", 1.0) != 1.0 or given.get_float("beta", 1.0) != 1.0
    if weight is None or weight.ndim != 2 or is_scaled or given.get_int("transA", 0) != 0:
        return None
    weight = weight.T if given.get_int("transB", 0) else weight
    if not rest:
        return weight, None
    return None if rest[0] is None or rest[0].shape != (weight.shape[1],) else (weight, rest[0])


def _replace(graph: ir.Graph, old: list[ir.Node], weight: _Matrix, bias: _Matrix | None) -> None:
    """Put one Gemm into the place of the last of the old nodes, whose result is the sum."""
    shape = ir.Shape(["n", weight.shape[0]])
    x = ir.Value(name="x", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
    graph.inputs[:] = [x]
    # transB with [out, in] is the layout that ONNX Runtime packs once, when it loads the model
    arrays = {"packed.weight": np.ascontiguousarray(weight.T), "packed.bias": bias}
    operands = [x]
    for name, array in arrays.items():
        if array is not None:
            operands.append(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
            graph.register_initializer(operands[-1])
    tape = ir.tape.Tape()
    replace(old[-1], tape, tape.op("Gemm", operands, {"transB": 1}, name="packed"))
    for node in reversed(old[:-1]):
        graph.remove(node, safe=True)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]


@cache
def _match_exactly() -> None:
    """Make the exporter take only 0 for 0 and 1 for 1: it left out `+ 1e-9` and `* 1.000009`."""
    rules: Any = rewriter._DEFAULT_REWRITE_RULES
    values = [value for rule in rules for node in rule._target_pattern for value in node.inputs]
    constants = [value for value in values if isinstance(value, pattern.Constant)]
    assert constants, "torch's exporter has no rule with a constant: look for what it takes for equal"
    for value in constants:
        value._rel_tol = value._abs_tol = 0.0


@cache
def _keep_tables() -> None:
    """Make torch's exporter, of the known version, keep the ONNX forms of operators.

    It makes them again for each file, which is most of its time; each caller gets a copy. A program whose
    operators all have a form is not traced again to decompose it: two thirds of the time that is left. Nor
    is one run again for conversions if each operator reads tensors of one dtype.
    """
    if not torch.__version__.startswith(_KNOWN_TORCH):
        return
    from torch.onnx._internal.exporter import _fx_passes, _registration
    from torch.onnx._internal.fx.passes import type_promotion

    passes, registry = cast(Any, _fx_passes), cast(Any, _registration.ONNXRegistry)
    make, decompose = registry.from_torchlib, passes.decompose_with_registry
    forms, promote = cache(make), passes.insert_type_promotion_nodes
    promoted = {f"{each}" for each in type_promotion.TypePromotionTable()._rule_table}

    @wraps(make)
    def from_torchlib(*args: Any, **options: Any) -> Any:
        made = copy(forms(*args, **options))
        made.functions = {target: list(each) for target, each in made.functions.items()}
        return made

    registry.from_torchlib = staticmethod(from_torchlib)
    passes.decompose_with_registry = wraps(decompose)(
        lambda program, known: program if _has_forms(program, known) else decompose(program, known)
    )
    passes.insert_type_promotion_nodes = wraps(promote)(
        lambda module: promote(module) if _mixes_dtypes(module, promoted) else None
    )


def _mixes_dtypes(module: Any, promoted: set[str]) -> bool:
    """True unless each operator that converts reads tensors alone, of one dtype of fractions."""
    for node in (node for part in module.modules() for node in part.graph.nodes):
        if str(getattr(node.target, "overloadpacket", "")) in promoted:
            values = [each.meta.get("val") for each in node.all_input_nodes]
            dtypes = {value.dtype if isinstance(value, Tensor) else torch.int64 for value in values}
            if len(dtypes) != 1 or not dtypes.pop().is_floating_point or "dtype" in node.kwargs:
                return True
    return False


def _has_forms(program: Any, registry: Any) -> bool:
    """True if every operator of the program has an ONNX form, and none changes or lists tensors."""
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    schemas = [each._schema for each in targets if isinstance(each, torch._ops.OpOverload)]
    # the exporter drops assertions
    return not any(schema.is_mutable or str(schema).endswith("[]") for schema in schemas) and all(
        registry.is_registered(each) or str(each).startswith("aten._assert") for each in targets
    )


def _keep_constants(graph: Any) -> None:
    """Keep shapes of what is flattened twice: onnxscript gives both one name, and forgets the first."""
    values = dict.fromkeys(value for node in graph for value in node.inputs if value is not None)
    for number, value in enumerate(values):
        if value.const_value is not None and value.producer() is None and not value.is_initializer():
            value.name = f"{value.name}_{number}"
            graph.register_initializer(value)


def _anonymous(model: Any) -> None:
    """Drop the exporter's notes: stack traces with paths of this machine, several times the weights."""
    graph = model.graph
    outputs = [each for node in graph for each in node.outputs]
    for noted in (model, graph, *graph, *graph.inputs, *graph.initializers.values(), *outputs):
        noted.metadata_props.clear()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence messages of torch's exporters: about themselves, and graphs of code that they refuse.

    Its trace log formats every graph if the root logger has a handler: 20 times the export. It notes the
    stack for each node, which `_anonymous` would drop again.
    """
    below = ("onnx", "export", "__trace", "fx.experimental.symbolic_shapes", "utils._sympy.interp")
    loggers = [logging.getLogger(f"torch.{name}") for name in below]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        nowhere, notes_none = io.StringIO(), patch.object(fx_config, "do_not_emit_stack_traces", True)
        with notes_none, warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            # torch uses parts of itself that torch has deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            # Two inputs that share a dynamic size keep the first one's name for it.
            warnings.filterwarnings("ignore", message=".*The axis name.*", category=UserWarning)
            # nn.LSTM lists its own parameters a second time.
            warnings.filterwarnings("ignore", message=".*assigned during export.*", category=UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _to(x: Any, dtype: int, non_blocking: bool = False, copy: bool = False, memory_format: str = "") -> Any:
    """torch writes it for each conversion, also to the dtype that a tensor has."""
    return _op.Identity(x) if x.dtype == dtype else _op.Cast(x, to=dtype)


def _rsub(self: Any, other: Any, alpha: float = 1.0) -> Any:
    if isinstance(other, float) and not self.dtype.is_floating_point():
        self = _op.Cast(self, to=ir.DataType.FLOAT)
    other, self = _tensors(other, self)
    return _op.Sub(other, self if alpha == 1 else _op.Mul(self, _op.CastLike(alpha, self)))


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, trains: bool, momentum: float, eps: float, _: bool
) -> Any:
    if trains or mean is None:
        raise NotImplementedError("batch_norm by the rows of a batch, which differ between requests")
    weight, bias = (
        _op.Expand(_op.CastLike(neutral, var), _op.Shape(var)) if given is None else given
        for given, neutral in ((weight, 1.0), (bias, 0.0))
    )
    return _op.BatchNormalization(x, weight, bias, mean, var, epsilon=eps)


def _one_hot(self: Any, num_classes: int = -1) -> Any:
    """Rows of a unit matrix, so that a code beyond it is refused as in torch."""
    return _op.Gather(_op.Constant(value=ir.tensor(np.eye(num_classes, dtype=np.int64))), self)


def _scatter(self: Any, dim: int, index: Any, source: Any, reduce: str = "add", **options: Any) -> Any:
    """One row after another, in their order; a maximum forgets a NaN."""
    if dim % len(self.shape) or reduce not in ("add", "amax") or options:
        raise NotImplementedError("index_add and index_reduce along another dimension, or in another way")
    return _op.ScatterND(self, _op.Unsqueeze(index, [-1]), source, reduction=reduce[-3:])


def _clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    """`Clip` without a bound clips at the largest number, and makes a number of an infinity."""
    if min is not None:
        self = _op.Max(self, _op.CastLike(min, self))
    return self if max is None else _op.Min(self, _op.CastLike(max, self))


def _logaddexp(self: Any, other: Any, unit: float = 1.0) -> Any:
    """The larger one, and the logarithm of 1 + exp of the difference, which cannot overflow."""
    base, one = _op.CastLike(unit, self), _op.CastLike(1.0, self)
    less = _op.Exp(_op.Neg(_op.Mul(_op.Abs(_op.Sub(self, other)), base)))
    less = _op.Where(_op.Equal(self, other), one, less)  # also of two infinities
    return _op.Add(_op.Max(self, other), _op.Div(_op.Log(_op.Add(less, one)), base))


def _expm1(self: Any) -> Any:
    """Of numbers below 1 by their tanh: exp(x) - 1 has no true digit of a small one."""
    if self.dtype != ir.DataType.FLOAT:
        return _op.Sub(_op.Exp(self), _op.CastLike(1.0, self))
    bent, one = _op.Tanh(_op.Mul(self, _op.CastLike(0.5, self))), _op.CastLike(1.0, self)
    small = _op.Div(_op.Add(bent, bent), _op.Sub(one, bent))
    return _op.Where(_op.Less(self, one), small, _op.Sub(_op.Exp(self), one))


def _log1p(self: Any) -> Any:
    """Of sizes below 1/2 by the inverse of tanh: 1 + x forgets a small one."""
    one, half = _op.CastLike(1.0, self), _op.CastLike(0.5, self)
    large = _op.Log(_op.Add(self, one))
    if self.dtype != ir.DataType.FLOAT:
        return large
    small = _op.Atanh(_op.Div(self, _op.Add(self, _op.CastLike(2.0, self))))
    return _op.Where(_op.Less(_op.Abs(self), half), _op.Add(small, small), large)


def _refused(name: str, of: str) -> Callable[..., Any]:
    def refuse(self: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{name} has no ONNX form that holds for {of} values")

    return refuse


def _atan2(self: Any, other: Any) -> Any:
    """The angle of the point (other, self). The sign of a zero counts, which only its reciprocal shows."""
    zero, turn = _op.CastLike(0.0, self), _op.CastLike(math.pi, self)
    on_axis, on_pole = _op.Equal(self, zero), _op.Equal(other, zero)
    below = _op.Less(_op.Where(on_axis, _op.Reciprocal(self), self), zero)
    behind = _op.Less(_op.Where(on_pole, _op.Reciprocal(other), other), zero)
    angle = _op.Where(_op.And(on_axis, on_pole), self, _op.Atan(_op.Div(self, other)))
    return _op.Where(behind, _op.Add(angle, _op.Where(below, _op.Neg(turn), turn)), angle)


def _remainder(self: Any, other: Any) -> Any:
    """The exact remainder of C, moved to the sign of the divisor."""
    self, other = _tensors(self, other)
    left = _op.Mod(self, other, fmod=1)
    return _op.Where(_moves(left, other), _op.Add(left, other), left)


def _floor_divide(self: Any, other: Any) -> Any:
    """The quotient without its remainder, rounded to the integer that it nearly is."""
    self, other = _tensors(self, other)
    left = _op.Mod(self, other, fmod=1)
    whole = _op.Div(_op.Sub(self, left), other)
    whole = _op.Where(_moves(left, other), _op.Sub(whole, _op.CastLike(1.0, whole)), whole)
    if not self.dtype.is_floating_point():
        return whole
    return _op.Where(_op.Equal(other, _op.CastLike(0.0, other)), _op.Div(self, other), _op.Round(whole))


def _divide(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    self, other = _tensors(self, other)
    quotient = _op.Div(self, other)
    if rounding_mode is None or not self.dtype.is_floating_point():
        return quotient  # of integers it is truncated
    return _op.Mul(_op.Sign(quotient), _op.Floor(_op.Abs(quotient)))


def _softplus(self: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """The exporter leaves out the threshold, beyond which torch returns the number itself."""
    scaled = _op.Mul(self, _op.CastLike(beta, self))
    smooth = _op.Div(_op.Softplus(scaled), _op.CastLike(beta, self))
    return _op.Where(_op.Greater(scaled, _op.CastLike(threshold, self)), self, smooth)


def _tensors(first: Any, second: Any) -> tuple[Any, Any]:
    """Both operands with the dtype of the one that is a tensor."""
    if isinstance(first, int | float):
        kind = second.dtype
        first = _op.CastLike(first, second)
        first.dtype = kind
        return first, second
    return first, _op.CastLike(second, first)


def _moves(left: Any, other: Any) -> Any:
    """True where a remainder is not 0 and has another sign than the divisor."""
    zero = _op.CastLike(0.0, left)
    other_sign = _op.Xor(_op.Less(other, zero), _op.Less(left, zero))
    return _op.And(_op.Not(_op.Equal(left, zero)), other_sign)


#: ONNX forms that the exporter lacks, or that differ from torch at values that the
#: packaging graph may not have: clamped infinities, sums of exp of large numbers, remainders of large
#: numbers, angles of negative numbers, logarithms of sigmoids of small ones.
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    _ATEN.to.dtype: _to,
    _ATEN.batch_norm.default: _batch_norm,
    _ATEN.rsub.Scalar: _rsub,
    _ATEN.one_hot.default: _one_hot,
    _ATEN.index_add.default: _scatter,
    _ATEN.index_reduce.default: _scatter,
    _ATEN.clamp.default: _clamp,
    _ATEN.clamp_min.default: _clamp,
    _ATEN.clamp_max.default: lambda self, max: _clamp(self, None, max),
    _ATEN.logaddexp.default: _logaddexp,
    _ATEN.logaddexp2.default: lambda self, other: _logaddexp(self, other, math.log(2.0)),
    _ATEN.logcumsumexp.default: _refused("logcumsumexp", "large"),
    _ATEN.erfc.default: _refused("erfc", "small"),
    _ATEN.expm1.default: _expm1,
    _ATEN.log1p.default: _log1p,
    _ATEN.atan2.default: _atan2,
    _ATEN.softplus.default: _softplus,
    _ATEN.log_sigmoid.default: lambda self: _op.Neg(_op.Softplus(_op.Neg(self))),
    _ATEN.remainder.Tensor: _remainder,
    _ATEN.remainder.Scalar: _remainder,
    _ATEN.remainder.Scalar_Tensor: _remainder,
    _ATEN.floor_divide.default: _floor_divide,
    _ATEN.div.Tensor_mode: _divide,
}
