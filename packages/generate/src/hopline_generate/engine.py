"""The interface of an engine, and the list of engines.

An engine runs many texts together and gives each its next token in every step. It knows token ids, not
callers, queues or stop strings. All methods are called on one thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from hopline.errors import ArtifactError, RequestTooLarge
from hopline_generate.request import Prompt, Sampling

#: Characters of the prompts of one request, a prompt as often as it has texts: every text is sent to the
#: process, or to the upstream, with its own copy. The largest contexts, 1 M tokens, have about 4 M.
MOST_PROMPT_CHARS = 1 << 24
#: Why generation ended: "stop", "length", or what an upstream says; "" while it continues.
Finish: TypeAlias = str


class EngineSettings(msgspec.Struct, frozen=True):
    """Resources that an engine may use.

    Attributes:
        device: "CPU" or "GPU".
        threads: of one step; 0 takes all.
        kv_tokens: tokens of all running texts together that the KV cache has room for.
        max_running: texts that run together.
        batch_tokens: tokens of one step.
        prefix_caching: keep the KV blocks of ended texts for prompts that begin alike.
        context_tokens: of the model, as its version says.
        chat_template: replaces that of the model; "" keeps it.
    """

    device: str = "CPU"
    threads: int = 0
    kv_tokens: int = 16_384
    max_running: int = 32
    batch_tokens: int = 512
    prefix_caching: bool = False
    context_tokens: int = 0
    chat_template: str = ""


class EngineInfo(msgspec.Struct, frozen=True):
    """An engine's description.

    Attributes:
        context_tokens: prompt and answer together, at most.
        block_tokens: of one KV block.
        num_blocks: KV blocks there are.
        longest_token_bytes: no token represents more bytes of text; 0 if unknown.
    """

    name: str
    version: str
    context_tokens: int
    block_tokens: int
    num_blocks: int
    longest_token_bytes: int = 0

    def check_size(self, prompts: Sequence[Prompt]) -> None:
        """Check the prompts of a request before any is copied or read.

        Raises: RequestTooLarge: one cannot fit the context, or all together are too large.
        """
        total = 0
        for prompt in prompts:
            size = len(prompt.text) + len(prompt.messages)
            total += size
            # Each token represents so many bytes at most.
            if self.longest_token_bytes and size > self.longest_token_bytes * self.context_tokens:
                raise RequestTooLarge(
                    f"the prompt has {size} characters, more than {self.context_tokens} tokens, "
                    "which is the model's context",
                    prompt.param,
                )
        if total > MOST_PROMPT_CHARS:
            raise RequestTooLarge(
                f"the prompts of all {len(prompts)} texts have {total} characters together; at most "
                f"{MOST_PROMPT_CHARS} are allowed: send fewer texts in a request",
                prompts[0].param,
            )


class Produced(NamedTuple):
    """New tokens of one text, from one step.

    Attributes:
        logprobs: of each token; empty where they were not asked for.
        failed: the engine gave the text up, as where its memory did not suffice.
    """

    number: int
    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish: Finish
    failed: str = ""


class Engine(Protocol):
    """See the module."""

    info: EngineInfo

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt of a conversation, by the model's chat template.

        Raises: BadRequest: the model has none, or it does not take these messages.
        """
        ...

    def encode(self, text: str, *, is_rendered: bool) -> list[int]:
        """Tokens of a text; one that a template rendered has its special tokens already."""
        ...

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Texts of tokens; bytes that are not valid UTF-8 become U+FFFD."""
        ...

    def add(self, number: int, tokens: Sequence[int], sampling: Sampling) -> None:
        """Include a text in the steps from the next one on.

        Raises: BadRequest: the engine does not take its parameters; texts that run are not affected.
        """
        ...

    def cancel(self, number: int) -> None:
        """End a text and free its blocks within the next step; nothing more is produced for it."""
        ...

    def step(self) -> list[Produced]:
        """Compute the next tokens of all texts that run; blocks."""
        ...

    def usage(self) -> float:
        """Share of the KV blocks that the last step used, 0 to 1."""
        ...


#: Engine -> "module:class" of what loads a version's folder.
ENGINES: Mapping[str, str] = {
    "openvino": "hopline_generate.openvino_engine:OpenVinoEngine",
    "naive": "hopline_generate.naive_engine:NaiveEngine",
}


def load_engine(name: str, model: Path, settings: EngineSettings) -> Engine:
    """Load a model.

    Args:
        name: of `ENGINES`.
        model: its file or folder.

    Raises:
        ArtifactError: the engine is unknown, not installed, or does not load it.
    """
    if name not in ENGINES:
        raise ArtifactError(f"engine {name!r} is unknown; there are {', '.join(ENGINES)}")
    module, _, attribute = ENGINES[name].partition(":")
    load: Callable[[Path, EngineSettings], Engine] = getattr(importlib.import_module(module), attribute)
    try:
        return load(model, settings)
    except ImportError as error:
        raise ArtifactError(
            f"engine {name!r} needs a package that is not installed ({error}): "
            "pip install 'hopline[generate]'"
        ) from None
