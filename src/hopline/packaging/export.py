"""One stage or head as an ONNX file: dynamic rows, weights inside, one named output."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18
from torch import Tensor, nn

from hopline.artifact import StageInput
from hopline.errors import NotSplittable
from hopline.packaging.pack import add_biases, pack
from hopline.packaging.settled import refuse_codes, settle

#: Read by ONNX Runtime 1.14 and later; what torch.onnx writes without conversion.
OPSET = 18

#: Its exporter has the tables that are kept.
_KNOWN_TORCH = "2.13."

#: Rows, block width and source rows of the example inputs; all different and above 1, so that the
#: exporter takes none of them for a constant.
_ROWS, _WIDTH, _SOURCES = 7, 3, 11
_op: Any = opset18
_ATEN = torch.ops.aten


def export_stage(
    module: nn.Module, inputs: Sequence[StageInput], widths: Sequence[int], path: Path
) -> bool:
    """Write a stage, output `h`.

    Args:
        widths: columns of each input, 0 if its kind defines the whole shape.

    Returns: True if the file has one input for all of them.

    Raises: NotSplittable: an operation has no ONNX form.
    """
    examples, shapes = [], []
    for item, width in zip(inputs, widths, strict=True):
        example, shape = _example(item, width)
        examples.append(example)
        shapes.append(shape)
    return export(module, examples, shapes, [item.name for item in inputs], "h", path, inputs)


def _example(item: StageInput, width: int) -> tuple[Tensor, dict[int, Any]]:
    rows = torch.export.Dim("n", min=1)
    block = torch.export.Dim(f"k_{abs(hash(item.edge_type)) % 10**6}", min=1)
    if item.kind == "sources":
        return torch.zeros(_SOURCES, width), {0: torch.export.Dim(f"m_{item.name}", min=1)}
    if item.kind in ("degree", "count"):
        return torch.ones(_ROWS), {0: rows}
    if item.kind in ("positions", "mask", "is_self", "edge_weight"):
        dtypes = {"positions": torch.int64, "edge_weight": torch.float32}
        return torch.ones(_ROWS, _WIDTH, dtype=dtypes.get(item.kind, torch.bool)), {0: rows, 1: block}
    if item.kind == "edge_attr":
        return torch.ones(_ROWS, _WIDTH, width), {0: rows, 1: block}
    return torch.zeros(_ROWS, width), {0: rows}


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
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                module, tuple(examples), input_names=list(names), output_names=[output],
                dynamic_shapes=tuple(shapes), opset_version=OPSET, dynamo=True, verbose=False,
                custom_translation_table=_FORMS,
            )  # fmt: skip
            if program is None:
                raise AssertionError("torch.onnx.export(dynamo=True) returns a program")
            refuse_codes(program.model)
            settle(program.model)
            add_biases(program.model.graph)
            packed = pack(program.model.graph, stage)
            _anonymous(program.model)
            program.save(str(path), external_data=False)
            return packed
    except torch.onnx.errors.OnnxExporterError as error:
        raise NotSplittable(f"{path.name} cannot be written as ONNX: {_first_lines(error)}") from error


@cache
def _keep_tables() -> None:
    """Make torch's exporter keep what it makes again for each file, always the same: most of its time.

    These are the ONNX forms of operators, of which each caller gets a copy, and the operators that are
    composed of others, as long as no other is registered. A program whose operators all have a form is not
    traced again to decompose it: two thirds of the time that is left. All this is for the known version.
    """
    from torch.onnx._internal.exporter import _registration

    registry = getattr(_registration, "ONNXRegistry", None)
    if callable(make := getattr(registry, "from_torchlib", None)):
        forms = cache(make)

        @wraps(make)
        def from_torchlib(*args: Any, **options: Any) -> Any:
            made = copy(forms(*args, **options))
            made.functions = {target: list(each) for target, each in made.functions.items()}
            return made

        setattr(registry, "from_torchlib", staticmethod(from_torchlib))  # noqa: B010
    if not torch.__version__.startswith(_KNOWN_TORCH):
        return
    from torch.export import decomp_utils, exported_program
    from torch.onnx._internal.exporter import _fx_passes

    passes: Any = _fx_passes
    decompose = passes.decompose_with_registry

    @wraps(decompose)
    def decompose_once(program: Any, registry: Any) -> Any:
        return program if _has_forms(program, registry) else decompose(program, registry)

    utils: Any = decomp_utils
    program: Any = exported_program
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    find, compose = program._collect_all_valid_cia_ops, program._get_decomp_for_cia
    found, composed = lru_cache(1)(lambda *_: find()), cache(lambda op, _: compose(op))

    @wraps(find)
    def find_once() -> set[Any]:
        registered = torch._C._dispatch_get_registrations_for_dispatch_key(key.name)
        loaded = [(name, len(getattr(torch.ops, name)._dir)) for name in torch.ops._dir]
        return found(*registered, *loaded)

    @wraps(compose)
    def compose_once(op: Any) -> Any:
        return composed(op, op.py_kernels.get(key))

    program._collect_all_valid_cia_ops = utils._collect_all_valid_cia_ops = find_once
    utils._get_decomp_for_cia = compose_once
    passes.decompose_with_registry = decompose_once


def _has_forms(program: Any, registry: Any) -> bool:
    """True if every operator of the program has an ONNX form, and none changes or lists tensors."""
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    schemas = [each._schema for each in targets if isinstance(each, torch._ops.OpOverload)]
    # the exporter drops assertions
    return not any(schema.is_mutable or str(schema).endswith("[]") for schema in schemas) and all(
        registry.is_registered(each) or str(each).startswith("aten._assert") for each in targets
    )


def _anonymous(model: Any) -> None:
    """Drop the exporter's notes: stack traces with paths of this machine, several times the weights."""
    graph = model.graph
    outputs = [each for node in graph for each in node.outputs]
    for noted in (model, graph, *graph, *graph.inputs, *graph.initializers.values(), *outputs):
        noted.metadata_props.clear()


def _first_lines(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {' '.join(lines[:3])}"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence messages of torch's exporters about themselves (torchvision missing, their own deprecations).

    Its trace log formats every graph if the root logger has a handler: 20 times the export.
    """
    names = ("torch.onnx", "torch.export", "torch.__trace", "torch.fx.experimental.symbolic_shapes")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
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


def _one_hot(self: Any, num_classes: int = -1) -> Any:
    """Rows of a unit matrix, so that a code beyond it is refused as in torch."""
    return _op.Gather(_op.Constant(value=ir.tensor(np.eye(num_classes, dtype=np.int64))), self)


def _clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    """`Clip` without a bound clips at the largest number, and makes a number of an infinity."""
    if min is not None:
        self = _op.Max(self, _op.CastLike(min, self))
    return self if max is None else _op.Min(self, _op.CastLike(max, self))


def _clamp_max(self: Any, max: Any) -> Any:
    return _clamp(self, None, max)


def _logaddexp(self: Any, other: Any, unit: float = 1.0) -> Any:
    """The larger one, and the logarithm of 1 + exp of the difference, which cannot overflow."""
    base, one = _op.CastLike(unit, self), _op.CastLike(1.0, self)
    less = _op.Exp(_op.Neg(_op.Mul(_op.Abs(_op.Sub(self, other)), base)))
    less = _op.Where(_op.Equal(self, other), one, less)  # also of two infinities
    return _op.Add(_op.Max(self, other), _op.Div(_op.Log(_op.Add(less, one)), base))


def _logaddexp2(self: Any, other: Any) -> Any:
    return _logaddexp(self, other, math.log(2.0))


def _logcumsumexp(self: Any, dim: int) -> Any:
    raise NotImplementedError("logcumsumexp has no ONNX form that holds for large values")


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
#: numbers, angles of negative numbers.
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {_ATEN.one_hot.default: _one_hot}
_FORMS |= {
    _ATEN.clamp.default: _clamp,
    _ATEN.clamp_min.default: _clamp,
    _ATEN.clamp_max.default: _clamp_max,
}
_FORMS |= {_ATEN.logaddexp.default: _logaddexp, _ATEN.logaddexp2.default: _logaddexp2}
_FORMS |= {_ATEN.logcumsumexp.default: _logcumsumexp, _ATEN.atan2.default: _atan2}
_FORMS |= {_ATEN.remainder.Tensor: _remainder, _ATEN.remainder.Scalar: _remainder}
_FORMS |= {_ATEN.remainder.Scalar_Tensor: _remainder, _ATEN.softplus.default: _softplus}
_FORMS |= {_ATEN.floor_divide.default: _floor_divide, _ATEN.div.Tensor_mode: _divide}
