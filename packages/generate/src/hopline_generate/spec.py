"""A version of a generative model on disk: `<repository>/<model>/<version>/model.json`, kind "generative".

The model itself is a file or folder next to it. Where an upstream generates, there is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from hopline.artifact import FORMAT_VERSION, read_artifact
from hopline.types import ModelInfo, TensorInfo


class GenerativeSpec(msgspec.Struct, frozen=True):
    """The content of model.json.

    Attributes:
        name, version: as in the folder's path.
        engine: of `engine.ENGINES`, or "openai": a server that speaks OpenAI's protocol.
        model: the model's file or folder inside the version; "." is the folder itself.
        context_tokens: prompt and answer together; 0 if unknown.
        architecture, quantisation: as the file says; "" if it does not.
        parameters: weights of all tensors; 0 if unknown.
        chat_template: of the file, which the engine reads itself; "" if it has none.
        sets_template: True if `chat_template` is another one, which replaces that of the file.
        licence: its text or name; "" if there is none.
        url: of the upstream, up to and including /v1.
        upstream_model: as the upstream calls the model.
        api_key_env: environment variable with the upstream's key; "" sends none.
        files: path inside the version -> sha256.
        producer: library -> version of it that wrote this.
    """

    name: str
    version: str
    engine: str
    model: str = ""
    context_tokens: int = 0
    architecture: str = ""
    quantisation: str = ""
    parameters: int = 0
    chat_template: str = ""
    sets_template: bool = False
    licence: str = ""
    url: str = ""
    upstream_model: str = ""
    api_key_env: str = ""
    kind: Literal["generative"] = "generative"
    format: int = FORMAT_VERSION
    files: dict[str, str] = {}
    producer: dict[str, str] = {}

    def files_read(self, folder: Path) -> set[str]:
        """As `hopline.artifact.Spec.files_read`: engines open files themselves."""
        return set()


def read_generative(folder: Path) -> GenerativeSpec:
    """Read a version. Its files are compared by the repository that fetched it.

    Raises: ArtifactError: malformed, of another kind, or of a newer format.
    """
    return read_artifact(folder, GenerativeSpec, "generative", verify=False)


def _optional(datatype: str, names: str) -> list[TensorInfo]:
    return [TensorInfo(name, datatype, (-1,), True) for name in names.split()]


#: Outputs of a generative model: a row for each text.
OUTPUTS = (
    TensorInfo("text", "BYTES", (-1,)),
    TensorInfo("finish_reason", "BYTES", (-1,)),
    TensorInfo("prompt_tokens", "INT64", (-1,)),
    TensorInfo("completion_tokens", "INT64", (-1,)),
    TensorInfo("logprobs", "BYTES", (-1,)),
)
_INPUTS = (
    *_optional("BYTES", "prompt messages stop"),
    *_optional("INT64", "max_tokens seed top_k"),
    *_optional("FP64", "temperature top_p min_p presence_penalty frequency_penalty repetition_penalty"),
    *_optional("BOOL", "logprobs ignore_eos repeatable"),
)
DEFAULT_OUTPUTS = ("text", "finish_reason", "prompt_tokens", "completion_tokens")


def describe(
    spec: GenerativeSpec, versions: tuple[str, ...], version: str, state: str, reason: str, context: int
) -> ModelInfo:
    """Description of a version for transports."""
    return ModelInfo(
        name=spec.name,
        versions=versions,
        version=version,
        state=state,
        reason=reason,
        kind="generative",
        id_kind="none",
        inputs=_INPUTS,
        outputs=OUTPUTS,
        default_outputs=DEFAULT_OUTPUTS,
        graph_version="",
        properties={
            "engine": spec.engine,
            "context_tokens": context,
            "architecture": spec.architecture,
            "quantisation": spec.quantisation,
            "parameters": spec.parameters,
            "has_chat_template": bool(spec.chat_template),
            "licence": spec.licence.strip().partition("\n")[0][:80],
        },
    )
