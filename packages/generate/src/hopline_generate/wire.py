"""Messages between workers and the process of a generative model."""

from __future__ import annotations

import msgspec

from hopline.process.wire import PackedError, Refusal, Wire
from hopline_generate.engine import EngineInfo, Finish
from hopline_generate.request import Prompt

#: A prompt is part of a body, and those are bounded by `server.max_body_bytes`.
WIRE = Wire(4, 256 * 2**20)


class Hello(msgspec.Struct, tag="hello"):
    """The first message of a worker."""

    protocol: int


class Begin(msgspec.Struct, tag="begin"):
    """Generate a text.

    Attributes:
        number: as the worker calls it from now on.
        left_s: seconds to its deadline.
    """

    number: int
    prompt: Prompt
    lane: int
    left_s: float


class Cancel(msgspec.Struct, tag="cancel"):
    """Its caller does not wait for it any more; nothing more is sent about it."""

    number: int


class Bye(msgspec.Struct, tag="bye"):
    """The worker needs the process no more; if no other one does, it ends."""


class Welcome(msgspec.Struct, tag="welcome"):
    """The answer to `Hello`."""

    engine: EngineInfo


class Part(msgspec.Struct, array_like=True):
    """One text's part of a step; the first part is empty, and comes when the text starts.

    Attributes:
        text: new text; may be empty, as while a character is incomplete.
        num_tokens: that it came from.
        logprobs: of these tokens, where they were asked for.
        finish: set in its last part.
        prompt_tokens, cached_tokens: of its prompt, and those that an earlier prompt began with.
        error: in place of a finish, as from `process.wire.pack_error`.
    """

    number: int
    text: str
    num_tokens: int
    logprobs: tuple[float, ...] = ()
    finish: Finish = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: PackedError | None = None


class Parts(msgspec.Struct, tag="parts"):
    """Results of one step for the texts of one worker."""

    parts: list[Part]


class Stats(msgspec.Struct, tag="stats"):
    """The state of the process, sent once a second.

    Attributes:
        num_running, num_queued: texts.
        queued_tokens, oldest_s: of those that wait.
        used_blocks: reserved KV blocks of `num_blocks`.
        usage: share of the KV blocks in use, as the engine says.
        tokens: produced and read in prompts, in total.
        steps, step_s: number and total seconds.
        cpu_s: processor seconds of the process.
    """

    num_running: int = 0
    num_queued: int = 0
    queued_tokens: int = 0
    oldest_s: float = 0.0
    used_blocks: int = 0
    num_blocks: int = 0
    usage: float = 0.0
    tokens: int = 0
    steps: int = 0
    step_s: float = 0.0
    cpu_s: float = 0.0


to_process = msgspec.msgpack.Decoder(Hello | Begin | Cancel | Bye)
to_worker = msgspec.msgpack.Decoder(Welcome | Parts | Stats | Refusal)


def token_logprobs(part: Part) -> list[tuple[str, float]]:
    """Text and log probability of each token of a part; the first one has the text."""
    texts = (part.text, *[""] * (len(part.logprobs) - 1))
    return list(zip(texts, part.logprobs, strict=True))
