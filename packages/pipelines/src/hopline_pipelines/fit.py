"""Checks that a model accepts a step's inputs: ids, pairs, and every column by name, type and shape."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hopline.config.setting import did_you_mean
from hopline.errors import PipelineInvalid
from hopline.types import ModelInfo, TensorInfo
from hopline_pipelines.compile import Expression
from hopline_pipelines.model_step import Feed, Question
from hopline_pipelines.order import all_columns
from hopline_pipelines.scope import Scope
from hopline_pipelines.spec import ModelStepSpec
from hopline_pipelines.values import ValueType, kind_of, shape_in_words, type_of

#: Inputs of a model that are not columns.
_NO_COLUMNS = frozenset(
    {"node_ids", "src_ids", "dst_ids", "features", "neighbors", "neighbor_counts", "as_of"}
)
_NAMED = 8


@dataclass(frozen=True, slots=True)
class ModelFit:
    """A step and a model that go together.

    Attributes:
        question: request to the model.
        outputs: what the step has.
        columns: of the model.
        from_input: feeds that `*` took from the request.
    """

    question: Question
    outputs: dict[str, ValueType]
    columns: dict[str, TensorInfo]
    from_input: tuple[Feed, ...]


def fit(spec: ModelStepSpec, info: ModelInfo, scope: Scope) -> ModelFit:
    """Hold a step against a model's interface.

    Raises:
        PipelineInvalid: what is missing, too much, or of another type or shape.
    """
    columns = {
        tensor.name: tensor
        for tensor in info.inputs
        if info.kind in ("tabular", "generative", "pipeline") and tensor.name not in _NO_COLUMNS
    }
    named = {tensor.name for tensor in info.inputs}
    takes_nodes = info.kind == "node" or (info.kind == "pipeline" and "node_ids" in named)
    takes_pairs = "src_ids" in named
    _check_given(spec, info, "nodes", bool(spec.nodes), takes_nodes)
    _check_given(spec, info, "pairs", bool(spec.pairs), takes_pairs)
    if spec.columns and not columns:
        raise PipelineInvalid(f"columns: model {spec.model!r} takes {_takes(info)}, no columns")
    feeds, from_input = _feeds(spec, columns, scope)
    outputs = {tensor.name: type_of(tensor) for tensor in info.outputs}
    for name in spec.outputs:
        if name not in outputs:
            raise PipelineInvalid(
                f"outputs: model {spec.model!r} has no {name!r}{did_you_mean(name, outputs)}; "
                f"it has {', '.join(outputs)}"
            )
    if spec.outputs:
        outputs = {name: outputs[name] for name in spec.outputs}
    if spec.fill is not None:
        if not (takes_nodes or takes_pairs):
            raise PipelineInvalid(f"fill: model {spec.model!r} takes no nodes that could be unknown")
        outputs = {name: kind for name, kind in outputs.items() if kind.datatype.startswith("FP")}
    if spec.timeout_ms is not None and not spec.timeout_ms > 0:
        raise PipelineInvalid(f"timeout_ms: {spec.timeout_ms} is not above 0")
    question = Question(
        _nodes(spec, info, scope),
        _pairs(spec, info, scope),
        feeds,
        spec.fill,
        None if spec.timeout_ms is None else spec.timeout_ms / 1e3,
        "as_of" in named,
        info.kind == "pipeline",
    )
    return ModelFit(question, outputs, columns, from_input)


def _check_given(spec: ModelStepSpec, info: ModelInfo, what: str, given: bool, taken: bool) -> None:
    if taken and not given:
        raise PipelineInvalid(f'{what}: model {spec.model!r} needs them, such as {what} = "input.{what}"')
    if given and not taken:
        raise PipelineInvalid(f"{what}: model {spec.model!r} takes {_takes(info)}, no {what}")


def _takes(info: ModelInfo) -> str:
    kinds = {"node": "nodes", "link": "pairs", "tabular": "columns", "generative": "prompts"}
    return kinds.get(info.kind, "other inputs")


def _nodes(spec: ModelStepSpec, info: ModelInfo, scope: Scope) -> bool | Expression:
    if not spec.nodes:
        return False
    if spec.nodes == "input.nodes":
        if not scope.reader.takes_nodes:
            raise PipelineInvalid("nodes: input.nodes is not declared; set nodes = true below [inputs]")
        return True
    return _ids(spec.nodes, "nodes", info, scope)


def _pairs(spec: ModelStepSpec, info: ModelInfo, scope: Scope) -> bool | tuple[Expression, Expression]:
    if not spec.pairs:
        return False
    if isinstance(spec.pairs, tuple):
        return _ids(spec.pairs[0], "pairs", info, scope), _ids(spec.pairs[1], "pairs", info, scope)
    if spec.pairs != "input.pairs":
        raise PipelineInvalid(f'pairs: "input.pairs" or two expressions, not {spec.pairs!r}')
    if not scope.reader.takes_pairs:
        raise PipelineInvalid("pairs: input.pairs is not declared; set pairs = true below [inputs]")
    return True


def _ids(text: str, where: str, info: ModelInfo, scope: Scope) -> Expression:
    found = scope.expression(text, where)
    wanted = "text" if info.id_kind == "string" else "number"
    is_id = found.type.kind == wanted and not found.type.dims and not found.type.datatype.startswith("FP")
    if not is_id:
        ids = "texts" if wanted == "text" else "integers"
        raise PipelineInvalid(f"{where}: {text!r} is {found.type}; ids of {info.name!r} are {ids} [n]")
    return found


def _feeds(
    spec: ModelStepSpec, columns: dict[str, TensorInfo], scope: Scope
) -> tuple[tuple[Feed, ...], tuple[Feed, ...]]:
    """(source of every column, columns that `*` took from the request)."""
    found: dict[str, Feed] = {}
    for name, source in spec.columns.items():
        if name == "*":
            continue
        if not isinstance(source, str):
            raise PipelineInvalid(f"columns.{name}: one expression is needed, not a list")
        expression = scope.expression(source, f"columns.{name}")
        parts: list[tuple[str, int | None]] = [(name, None)]
        if "*" in name:
            parts = list(_spread(name, source, expression.type))
        elif expression.type.dims:
            raise PipelineInvalid(
                f"columns.{name}: {source!r} is {expression.type}, a column is [n]; "
                f'take one with [number], or all with "{name}_*"'
            )
        for column, part in parts:
            _add(found, _feed(column, part, source, expression, columns, spec.model), spec.model)
    from_input = []
    for owner in all_columns(spec):
        for name in _columns_of(owner, scope):
            if name in columns and name not in found:
                text = f"{owner}[{name!r}]"
                feed = _feed(name, None, text, scope.expression(text), columns, spec.model)
                found[name] = feed
                if owner == "input":
                    from_input.append(feed)
    lacking = [name for name, tensor in columns.items() if name not in found and not tensor.optional]
    if lacking:
        shown = ", ".join(map(repr, lacking[:_NAMED])) + (", …" if len(lacking) > _NAMED else "")
        raise PipelineInvalid(f"columns: model {spec.model!r} needs {shown}, which nothing feeds")
    return tuple(found.values()), tuple(from_input)


def _spread(pattern: str, source: str, kind: ValueType) -> list[tuple[str, int | None]]:
    if not re.fullmatch(r"[^*]*\*[^*]*", pattern):
        raise PipelineInvalid(f"columns: {pattern!r} has more than one *")
    if len(kind.dims) != 1 or kind.dims[0] < 0:
        raise PipelineInvalid(
            f"columns.{pattern}: {source!r} is {kind}; a value [n, d] is spread, and d must be known"
        )
    return [(pattern.replace("*", str(part)), part) for part in range(kind.dims[0])]


def _add(found: dict[str, Feed], feed: Feed, model: str) -> None:
    if feed.name in found:
        raise PipelineInvalid(f"columns: {feed.name!r} of model {model!r} is fed twice")
    found[feed.name] = feed


def _feed(
    name: str,
    part: int | None,
    text: str,
    source: Expression,
    columns: dict[str, TensorInfo],
    model: str,
) -> Feed:
    tensor = columns.get(name)
    if tensor is None:
        hint = did_you_mean(name, columns) or f"; it has {', '.join(list(columns)[:_NAMED])}"
        raise PipelineInvalid(f"columns.{name}: model {model!r} has no such column{hint}")
    if tensor.shape not in ((-1,), (-1, 1)):
        shape = shape_in_words(tuple(tensor.shape[1:]))
        raise PipelineInvalid(f"columns.{name}: model {model!r} wants {shape}, which no column is")
    kind_of(tensor.datatype)
    if not source.type.fits(tensor.datatype):
        raise PipelineInvalid(
            f"columns.{name}: {text!r} is {source.type}, model {model!r} wants {tensor.datatype}"
        )
    return Feed(name, source, part, tensor.datatype)


def _columns_of(owner: str, scope: Scope) -> list[str]:
    """Meaning of `owner.columns`."""
    if owner == "input":
        return list(scope.reader.columns)
    step = scope.steps[owner]
    if step.kind != "transform":
        raise PipelineInvalid(f'columns."*": step {owner!r} is no transform; name its outputs one by one')
    return [name for name, kind in step.outputs.items() if not kind.dims]
