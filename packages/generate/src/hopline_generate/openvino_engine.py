"""OpenVINO GenAI: continuous batching, a paged KV cache, prefix caching, GGUF files and OpenVINO folders.

This file alone imports `openvino_genai`. A GGUF file is read and converted when it is loaded; an OpenVINO
folder (`openvino_model.xml` and its tokenizers) is mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopline.errors import ArtifactError, BadRequest, RequestTooLarge
from hopline_generate.engine import EngineInfo, EngineSettings, Finish, Produced
from hopline_generate.request import Sampling

#: A message that a chat template must show.
_SAID = "What is a graph?"
#: What its reader of templates writes before the reason.
_TEMPLATE_ERROR = "Minja's error: "
#: The largest float32 below 1: it refuses 1.
_MOST_MIN_P = 1 - 2**-24
#: Tokens of a KV block, by device: the engine does not tell.
_BLOCK_TOKENS = {"CPU": 32, "GPU": 16}


class OpenVinoEngine:
    """See the module.

    Args:
        model: a .gguf file, or a folder.
        settings: what it may use.

    Raises: ArtifactError: the engine does not load the model.
    """

    def __init__(self, model: Path, settings: EngineSettings) -> None:
        import openvino_genai

        self._genai: Any = openvino_genai
        block_tokens = _BLOCK_TOKENS.get(settings.device, 32)
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.num_kv_blocks = max(1, settings.kv_tokens // block_tokens)
        scheduling.max_num_seqs = settings.max_running
        scheduling.max_num_batched_tokens = settings.batch_tokens
        scheduling.enable_prefix_caching = settings.prefix_caching
        properties = {"INFERENCE_NUM_THREADS": settings.threads} if settings.threads else {}
        try:
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(model), scheduling, settings.device, properties
            )
            self._tokenizer = self._pipeline.get_tokenizer()
            if settings.chat_template:
                self._tokenizer.set_chat_template(settings.chat_template)
                check_template(self.render)
            longest = max(map(len, self._tokenizer.get_vocab()), default=0)
        except RuntimeError as error:  # its only kind of error
            raise ArtifactError(f"{model}: openvino-genai does not load it: {first_line(error)}") from None
        self.info = EngineInfo(
            "openvino",
            openvino_genai.__version__,
            settings.context_tokens or scheduling.num_kv_blocks * block_tokens,
            block_tokens,
            scheduling.num_kv_blocks,
            longest,
        )
        self._longest = self._longest_text()
        self._handles: dict[int, Any] = {}
        self._reasons: dict[Any, Finish] = {
            openvino_genai.GenerationFinishReason.NONE: "",
            openvino_genai.GenerationFinishReason.STOP: "stop",
            openvino_genai.GenerationFinishReason.LENGTH: "length",
        }

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """As `Engine.render`."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True
            )
            return text
        except RuntimeError as error:
            raise BadRequest(
                f"messages: the model's chat template does not take them: {first_line(error)}"
            ) from None

    def encode(self, text: str, *, is_rendered: bool) -> list[int]:
        """As `Engine.encode`."""
        found = self._tokenizer.encode(text, add_special_tokens=not is_rendered).input_ids
        tokens: list[int] = found.data[0].tolist()
        if self._longest and len(tokens) >= self._longest:
            raise RequestTooLarge(
                f"the prompt has at least {len(tokens)} tokens; "
                f"the model's context is {self.info.context_tokens}"
            )
        return tokens

    def _longest_text(self) -> int:
        """Tokens at which the tokenizer cuts a text without an error; 0 if that is beyond the context."""
        text = " ".join(map(str, range(self.info.context_tokens + 1)))  # each number is a token at least
        num_tokens: int = self._tokenizer.encode(text, add_special_tokens=False).input_ids.get_size()
        return num_tokens if num_tokens <= self.info.context_tokens else 0

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """As `Engine.decode`."""
        texts: list[str] = self._tokenizer.decode([list(tokens) for tokens in batch])
        return texts

    def add(self, number: int, tokens: Sequence[int], sampling: Sampling) -> None:
        """As `Engine.add`."""
        import numpy as np
        from openvino import Tensor

        ids = Tensor(np.asarray([tokens], np.int64))
        try:
            self._handles[number] = self._pipeline.add_request(number, ids, self._config(sampling))
        except RuntimeError as error:  # its only kind of error
            raise BadRequest(f"the engine does not take these parameters: {first_line(error)}") from None

    def _config(self, sampling: Sampling) -> Any:
        config = self._pipeline.get_config()
        config.max_new_tokens = sampling.max_tokens
        config.ignore_eos = sampling.ignore_eos
        config.logprobs = int(sampling.logprobs)
        config.presence_penalty = sampling.presence_penalty
        config.frequency_penalty = sampling.frequency_penalty
        config.repetition_penalty = sampling.repetition_penalty
        config.do_sample = sampling.is_drawn
        if config.do_sample:
            config.temperature = sampling.temperature
            config.top_p = sampling.top_p
            config.min_p = min(sampling.min_p, _MOST_MIN_P)
            if sampling.top_k:
                config.top_k = sampling.top_k
            config.rng_seed = sampling.seed % 2**63
        return config

    def cancel(self, number: int) -> None:
        """As `Engine.cancel`."""
        handle = self._handles.pop(number, None)
        if handle is not None:
            handle.cancel()

    def step(self) -> list[Produced]:
        """As `Engine.step`."""
        self._pipeline.step()
        ignored = self._genai.GenerationStatus.IGNORED
        produced = []
        for number, handle in list(self._handles.items()):
            tokens: list[int] = []
            logprobs: list[float] = []
            finish: Finish = ""
            while handle.can_read():
                for output in handle.read().values():
                    tokens += output.generated_ids
                    logprobs += output.generated_log_probs
                    finish = self._reasons[output.finish_reason] or finish
            if not finish and handle.get_status() == ignored:
                del self._handles[number]
                produced.append(Produced(number, tokens, logprobs, "", "the KV cache has no room for it"))
            elif tokens or finish:
                if finish:
                    del self._handles[number]
                produced.append(Produced(number, tokens, logprobs, finish))
        return produced

    def usage(self) -> float:
        """As `Engine.usage`."""
        return float(self._pipeline.get_metrics().cache_usage) / 100


def check_template(render: Callable[[Sequence[Mapping[str, str]]], str]) -> None:
    """Check that a chat template can be used.

    Args:
        render: as `Engine.render`.

    Raises: ArtifactError: it does not parse, fails, or leaves out what the user says.
    """
    try:
        text = render([{"role": "user", "content": _SAID}])
    except BadRequest as error:
        raise ArtifactError(f"the chat template cannot be used: {error}") from None
    if _SAID not in text:
        raise ArtifactError("the chat template cannot be used: it leaves out the content of messages")


def first_line(error: BaseException) -> str:
    """The reason in an error of OpenVINO: its first lines are places in its own sources, and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if line.startswith(_TEMPLATE_ERROR):
            return line.removeprefix(_TEMPLATE_ERROR)[:300]
    said = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return (said or lines or ["no reason given"])[0][:300]
