"""Contents of a `pipeline.toml`, in the right types; `check.py` checks their meaning.

    [inputs]
    nodes = true
    [inputs.columns]
    amount = "FP32"
    [[step]]
    id = "gnn"
    kind = "model"
    model = "risk"
    nodes = "input.nodes"
    [outputs]
    score = "gnn.probabilities"

docs/guides/pipelines.md has every key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from hopline.errors import PipelineInvalid
from hopline.toml import TOMLDecodeError, parse_toml

FILE_NAME = "pipeline.toml"
MAX_STEPS = 64
#: Names that mean something else in expressions or in requests.
RESERVED_STEPS = frozenset({"input", "attributes"})
RESERVED_COLUMNS = frozenset(
    {"nodes", "pairs", "columns", "node_ids", "src_ids", "dst_ids", "features", "neighbors"}
    | {"neighbor_counts", "as_of"}
)

AttributeKind: TypeAlias = Literal["string", "number", "integer", "boolean"]
Constant: TypeAlias = bool | int | float | str


class ColumnInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that requests bring.

    Attributes:
        type: Open Inference Protocol name, BYTES for texts.
        default: of every row where a request leaves the column out; None makes it required.
    """

    type: str
    default: Constant | None = None


class AttributeInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An attribute that rules read; the same with `default`."""

    type: AttributeKind
    default: Constant | None = None


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs of a request.

    Attributes:
        nodes, pairs: True if the step names nodes (and inline nodes) or pairs.
        columns, attributes: name -> what it is; a string is short for its type.
    """

    nodes: bool = False
    pairs: bool = False
    columns: dict[str, str | ColumnInput] = {}
    attributes: dict[str, AttributeKind | AttributeInput] = {}


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first rule whose `when` holds decides."""

    when: str
    then: Constant


class StepSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all steps."""

    id: str


class ModelStepSpec(StepSpec, frozen=True, tag="model"):
    """Asks a model.

    Attributes:
        model, version: of the repository; None is what serves under the name.
        nodes: "input.nodes", or an expression that gives ids.
        pairs: "input.pairs", or two expressions that give ids.
        columns: column of the model -> expression; "*" -> "input.columns" or "<transform>.columns", or
            several of them; "emb_*" -> a value [n, d] whose columns are emb_0, emb_1, …
        outputs: that other steps may read; empty allows all.
        fill: what an unknown node's outputs are, labelled "filled:<id>"; None makes its row missing.
        timeout_ms: longest that this step may take, within the request's own deadline.
    """

    model: str
    version: str | None = None
    nodes: str = ""
    pairs: str | tuple[str, str] = ""
    columns: dict[str, str | list[str]] = {}
    outputs: tuple[str, ...] = ()
    fill: float | None = None
    timeout_ms: float | None = None


class GenerateStepSpec(ModelStepSpec, frozen=True, tag="generate", kw_only=True):
    """Has a generative model write a text for each row.

    Attributes:
        prompt, system: templates, see `template.py`; `system` is left out where it is empty.
        max_tokens, temperature, seed, stop: as in requests.
        fallback: the text where the model has none in time, labelled "filled:<id>"; None fails.
    """

    prompt: str
    system: str = ""
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    fallback: str | None = None


class RouteStepSpec(StepSpec, frozen=True, tag="route"):
    """Runs one of several steps; `then` and `default` are their ids."""

    default: str
    rules: list[Rule]


class RulesStepSpec(StepSpec, frozen=True, tag="rules"):
    """Decides each row; `then` and `default` are texts, numbers or truth values, all of one kind."""

    default: Constant
    rules: list[Rule]
    output: str = "decision"


class EnsembleStepSpec(StepSpec, frozen=True, tag="ensemble"):
    """Combines one output of several steps that run together.

    Attributes:
        members: their ids.
        output: of theirs; the result has its name.
        combine: how.
        weights: side by side with members, for "weighted".
        require: how many must answer.
    """

    members: tuple[str, ...]
    output: str
    combine: Literal["mean", "weighted", "max", "median", "vote"] = "mean"
    weights: tuple[float, ...] = ()
    require: Literal["all", "any"] | int = "all"


class TransformStepSpec(StepSpec, frozen=True, tag="transform"):
    """Computes columns: name -> expression."""

    columns: dict[str, str]


AnyStep: TypeAlias = (
    ModelStepSpec | GenerateStepSpec | RouteStepSpec | RulesStepSpec | EnsembleStepSpec | TransformStepSpec
)


class PipelineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file.

    Attributes:
        inputs: what requests bring.
        step: in any order.
        outputs: name -> expression.
        default_outputs: answered to requests that name none; empty means all.
        description: for people.
        name, version: of the folder.
    """

    inputs: Inputs
    step: list[AnyStep]
    outputs: dict[str, str]
    default_outputs: tuple[str, ...] = ()
    description: str = ""
    name: str = ""
    version: str = ""

    @property
    def models(self) -> tuple[tuple[str, str | None], ...]:
        """(model, version) of every model step: what must be served before this can be."""
        return tuple(
            dict.fromkeys(
                (step.model, step.version) for step in self.step if isinstance(step, ModelStepSpec)
            )
        )


def read_pipeline(path: Path) -> PipelineSpec:
    """Read `<repository>/<name>/<version>/pipeline.toml`, or the folder that it is in.

    Raises:
        PipelineInvalid: absent, not TOML, an unknown key or a value of a wrong type, named by its place.
    """
    file = path / FILE_NAME if path.is_dir() else path
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineInvalid(f"{file}: cannot be read: {error}") from None
    folder = file.absolute().parent
    return parse_pipeline(text, folder.parent.name, folder.name, str(file))


def parse_pipeline(text: str, name: str, version: str, source: str = FILE_NAME) -> PipelineSpec:
    """The same for a text; `source` is named in errors."""
    try:
        tree = parse_toml(text)
    except TOMLDecodeError as error:
        raise PipelineInvalid(f"{source}: not valid TOML: {error}") from None
    for key in ("name", "version"):
        if key in tree:
            raise PipelineInvalid(f"{source}: {key} is the folder's name; leave it out of the file")
    try:
        spec = msgspec.convert(tree, PipelineSpec)
    except msgspec.ValidationError as error:
        raise PipelineInvalid(f"{source}: {_placed(str(error), tree)}") from None
    return msgspec.structs.replace(spec, name=name, version=version)


def _placed(text: str, tree: dict[str, Any]) -> str:
    """msgspec's message with the step's id in place of its number."""
    found = re.search(r" - at `\$(.*)`$", text)
    if found is None:
        return text
    path, what = found[1].removeprefix("."), text[: found.start()]
    number = re.match(r"step\[(\d+)\]\.?(.*)", path)
    if number is None:
        return f"{path}: {what}"
    steps = tree["step"]
    step = steps[int(number[1])]
    name = step.get("id", f"number {int(number[1]) + 1}") if isinstance(step, dict) else number[1]
    return f"step {name!r}{', ' + number[2] if number[2] else ''}: {what}"
