"""A naive engine: the next character of a fixed text. The reference for schedulers and protocols.

Its tokens are the bytes of UTF-8, its answer repeats the prompt's last line, and its KV cache is a count.
The "model" is a JSON file, which says how long a step takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hopline.errors import ArtifactError
from hopline.types import UNREADABLE
from hopline_generate.engine import EngineInfo, EngineSettings, Finish, Produced
from hopline_generate.request import Sampling

_BLOCK_TOKENS = 32


class Naive(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file.

    Attributes:
        context_tokens: as `EngineInfo`.
        step_s: how long a step sleeps.
        answer: what it says; "" repeats the prompt's last line.
        fail_after: steps after which every step fails; 0 never.
    """

    context_tokens: int = 512
    step_s: float = 0.0
    answer: str = ""
    fail_after: int = 0


class _Running:
    def __init__(self, prompt: Sequence[int], answer: bytes, sampling: Sampling) -> None:
        self.prompt = prompt
        self.answer = answer
        self.sampling = sampling
        self.num_done = 0


class NaiveEngine:
    """See the module."""

    def __init__(self, model: Path, settings: EngineSettings) -> None:
        try:
            self._model = msgspec.json.decode(model.read_bytes(), type=Naive)
        except UNREADABLE as error:
            raise ArtifactError(f"{model}: not a model of the naive engine: {error}") from None
        num_blocks = max(1, settings.kv_tokens // _BLOCK_TOKENS)
        self.info = EngineInfo("naive", "1", self._model.context_tokens, _BLOCK_TOKENS, num_blocks, 1)
        self._running: dict[int, _Running] = {}
        self._num_steps = 0

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """As `Engine.render`."""
        return "\n".join(message["content"] for message in messages)

    def encode(self, text: str, *, is_rendered: bool) -> list[int]:
        """As `Engine.encode`."""
        return list(text.encode())

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """As `Engine.decode`."""
        return [bytes(tokens).decode("utf-8", "replace") for tokens in batch]

    def add(self, number: int, tokens: Sequence[int], sampling: Sampling) -> None:
        """As `Engine.add`."""
        answer = self._model.answer.encode() or bytes(tokens).rpartition(b"\n")[2]
        self._running[number] = _Running(tokens, answer, sampling)

    def cancel(self, number: int) -> None:
        """As `Engine.cancel`."""
        self._running.pop(number, None)

    def step(self) -> list[Produced]:
        """As `Engine.step`."""
        if self._model.step_s:
            time.sleep(self._model.step_s)
        self._num_steps += 1
        if self._model.fail_after and self._num_steps > self._model.fail_after:
            raise RuntimeError("the naive engine is configured to fail")
        produced = []
        for number, text in list(self._running.items()):
            token = text.answer[text.num_done % len(text.answer)]
            text.num_done += 1
            finish: Finish = ""
            if text.num_done >= len(text.answer) and not text.sampling.ignore_eos:
                finish = "stop"
            elif text.num_done >= text.sampling.max_tokens:
                finish = "length"
            if finish:
                del self._running[number]
            logprobs = (0.0,) if text.sampling.logprobs else ()
            produced.append(Produced(number, (token,), logprobs, finish))
        return produced

    def usage(self) -> float:
        """As `Engine.usage`."""
        blocks = sum(
            -(-(len(text.prompt) + text.num_done) // _BLOCK_TOKENS) for text in self._running.values()
        )
        return blocks / self.info.num_blocks
