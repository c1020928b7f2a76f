"""Requests to a generative model, and the limits that can be checked before any work.

One row of columns is one text to generate, so that logs, replay, pipelines and the inference protocol treat
a prompt as they treat any other input.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hopline.errors import BadRequest, quoted
from hopline.types import UNREADABLE, ScoreRequest

#: Stop strings of one request, and characters of one of them.
MAX_STOPS, MAX_STOP_CHARS = 16, 256
#: Texts of one request.
MAX_ROWS = 32
#: Longest `max_tokens`; the context of the model is checked later.
MOST_TOKENS = 1 << 20
#: Below this temperature, engines that divide in float32 overflow, while the most probable token has a
#: probability of 1 as far as float32 can tell logits apart.
LEAST_TEMPERATURE = 1e-6
_ROLES = ("system", "user", "assistant", "developer", "tool")


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Rules for the choice of the next token, and for the end of a text.

    Attributes:
        max_tokens: longest answer; 0 takes the server's default.
        temperature: below `LEAST_TEMPERATURE` takes the most probable token.
        top_p, top_k, min_p: the tokens that may be drawn; 1, 0 and 0 allow all.
        seed: of the draws.
        stop: strings before which the text ends.
        logprobs: True if the log probability of each chosen token is wanted.
        ignore_eos: continue after the model's own end; for measurements.
        repeatable: the text depends on nothing but the prompt and these. An engine draws the tokens of a
            batch together, and its sums depend on the batch, so such a text runs alone.
    """

    max_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: bool = False
    ignore_eos: bool = False
    repeatable: bool = False

    @property
    def is_drawn(self) -> bool:
        """True if tokens are drawn; otherwise each is the most probable one."""
        return self.temperature >= LEAST_TEMPERATURE


class Prompt(msgspec.Struct, frozen=True, array_like=True):
    """One text to generate: after a `text`, or as the next turn after `messages`.

    Attributes:
        messages: JSON, a list of {"role", "content"}; "" where there is a text.
    """

    text: str
    messages: str
    sampling: Sampling

    @property
    def param(self) -> str:
        """The parameter that has its text."""
        return "messages" if self.messages else "prompt"


#: Column -> (type, least, most). A column that is absent has the value of `Sampling`.
_RANGES: Mapping[str, tuple[type, float, float]] = {
    "max_tokens": (int, 1, MOST_TOKENS),
    "temperature": (float, 0.0, 2.0),
    "top_p": (float, 1e-6, 1.0),
    "top_k": (int, 0, 1_000_000),
    "min_p": (float, 0.0, 1.0),
    "seed": (int, -(2**63), 2**63 - 1),
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "repetition_penalty": (float, 0.01, 10.0),
    "logprobs": (bool, 0, 1),
    "ignore_eos": (bool, 0, 1),
    "repeatable": (bool, 0, 1),
}
#: Of a seed that is drawn.
_SEED_BITS = 62
#: Columns that a row may have.
COLUMNS = ("prompt", "messages", "stop", *_RANGES)


def read_rows(columns: Mapping[str, Any] | None) -> list[Prompt]:
    """The texts that a request asks for, checked.

    Args:
        columns: column -> values, of equal length.

    Raises: BadRequest: a column is missing, unknown, or holds a value out of range.
    """
    if not columns:
        raise BadRequest("a generative model takes rows with a column prompt or messages")
    for name in columns:
        if name not in COLUMNS:
            raise BadRequest(
                f"unexpected column {quoted(name)}; a generative model has {', '.join(COLUMNS)}", name
            )
    if ("prompt" in columns) == ("messages" in columns):
        raise BadRequest("a row needs either the column prompt or the column messages, one of both")
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise BadRequest("columns are of unequal length")
    (count,) = lengths
    if not 1 <= count <= MAX_ROWS:
        raise BadRequest(f"{count} rows in one request; a generative model takes 1 to {MAX_ROWS}")
    listed = {name: _plain(values) for name, values in columns.items()}
    return [
        _row(
            {name: values[at] for name, values in listed.items() if values[at] is not None},
            f"row {at}: " if count > 1 else "",
        )
        for at in range(count)
    ]


def completed(request: ScoreRequest, default_outputs: tuple[str, ...]) -> ScoreRequest:
    """The request with what it leaves to the server, as logs have it and a replay repeats it.

    A row without a seed gets a random one; one with a seed is repeatable. Log probabilities are an output
    if a row asks for them, and are asked for if they are an output.

    Args:
        request: `read_rows` checks its columns afterwards.
        default_outputs: where it names none.
    """
    if not request.columns:
        return request
    columns = dict(request.columns)
    count = len(next(iter(columns.values())))
    seeds = _plain(columns.get("seed", [None] * count))
    repeatable = _plain(columns.get("repeatable", [None] * count))
    columns["repeatable"] = [
        seed is not None if chosen is None else chosen
        for seed, chosen in zip(seeds, repeatable, strict=False)
    ]
    columns["seed"] = [secrets.randbits(_SEED_BITS) if seed is None else seed for seed in seeds]
    outputs = request.outputs or default_outputs
    if not request.outputs and any(_plain(columns.get("logprobs", ()))):
        outputs = (*outputs, "logprobs")
    if "logprobs" in outputs:
        columns["logprobs"] = [True] * count
    return msgspec.structs.replace(request, columns=columns, outputs=outputs)


def _plain(values: Any) -> Sequence[Any]:
    return values.tolist() if hasattr(values, "tolist") else values  # type: ignore[no-any-return]


def _row(row: dict[str, Any], where: str) -> Prompt:
    text, messages, stop = row.pop("prompt", ""), row.pop("messages", ""), row.pop("stop", "")
    for name, value in (("prompt", text), ("messages", messages)):
        if not isinstance(value, str):
            raise BadRequest(f"{where}{name} must be a string, not {quoted(value)}", name)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadRequest(
                f"{where}{name} holds half of a surrogate pair: not valid text", name
            ) from None
    if not text and not messages:
        raise BadRequest(f"{where}the prompt is empty", "prompt")
    if messages:
        check_messages(messages, where)
    values = {name: _value(name, value, where) for name, value in row.items()}
    return Prompt(text, messages, Sampling(**values, stop=read_stop(stop, where)))


def _value(name: str, value: Any, where: str) -> Any:
    kind, least, most = _RANGES[name]
    if kind is bool and isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    if kind is not bool and not isinstance(value, bool):
        if isinstance(value, float) and kind is int and value.is_integer():
            value = int(value)
        if isinstance(value, int) and kind is float and abs(value) < 2**53:
            value = float(value)
        number: Any = value
        if isinstance(value, kind) and least <= number <= most:
            return value
    expected = "true or false"
    if kind is int:
        expected = f"a whole number from {least} to {most}"
    elif kind is float:
        expected = f"a number from {least:g} to {most:g}"
    raise BadRequest(f"{where}{name} must be {expected}, not {quoted(value)}", name)


def read_stop(stop: Any, where: str = "") -> tuple[str, ...]:
    """Stop strings: one string, a list, or a list as JSON; `where` begins messages.

    Raises: BadRequest: too many, too long, empty, or no strings.
    """
    if isinstance(stop, str) and stop[:1] == "[":
        try:
            stop = msgspec.json.decode(stop)
        except UNREADABLE:
            stop = [stop]  # a string that begins with a bracket
    if stop is None or (isinstance(stop, str) and not stop):
        return ()
    if not isinstance(stop, str | list | tuple):
        raise BadRequest(f"{where}stop must be a string or a list of strings, not {quoted(stop)}", "stop")
    found = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(found) > MAX_STOPS:
        raise BadRequest(f"{where}stop: {len(found)} stop strings; at most {MAX_STOPS} are allowed", "stop")
    for each in found:
        if not isinstance(each, str) or not 0 < len(each) <= MAX_STOP_CHARS:
            raise BadRequest(
                f"{where}stop: a string has 1 to {MAX_STOP_CHARS} characters; {quoted(each)} does not",
                "stop",
            )
    return found


class _Message(msgspec.Struct):
    role: str
    content: str


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


def check_messages(text: str, where: str = "") -> None:
    """Check a conversation as JSON; `where` begins messages.

    Raises: BadRequest: not a list of messages with a role and text, or a role that is unknown.
    """
    try:
        found = _decode_messages(text)
    except UNREADABLE as error:
        raise BadRequest(
            f"{where}messages: {error}; a message is {{'role': 'user', 'content': 'text'}}", "messages"
        ) from None
    if not found:
        raise BadRequest(f"{where}messages: the list is empty", "messages")
    for message in found:
        if message.role not in _ROLES:
            raise BadRequest(
                f"{where}messages: role {quoted(message.role)} is none of {', '.join(_ROLES)}", "messages"
            )
