"""Runs an engine on the event loop: prompts in, text out.

    begin ─► read prompts (template, tokens, limits) ─► schedule ─► step ─► text, stop strings ─► on_part
                 ▲                                                                                  │
                 └──── a few turns of the loop: parts are sent, messages are received ◄─────────────┘

The engine has no separate thread: openvino-genai holds the interpreter's lock during a step, so a loop on
another thread could send a token only after the next step. The process does nothing else. No step waits
for a caller.

A token may end within a character, so text is held back until its character is whole. A text that may be
the beginning of a stop string is held back until it is known not to be.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import msgspec

from hopline.errors import BadRequest, DeadlineExceeded, HoplineError, RequestTooLarge, RuntimeFailure
from hopline.process.wire import pack_error
from hopline_generate import wire
from hopline_generate.engine import Engine, Produced
from hopline_generate.request import Prompt
from hopline_generate.schedule import Need, Schedule

_BROKEN = "\ufffd"
#: Characters in place of the bytes of an incomplete character: at most so many.
_MOST_BROKEN = 3
#: Tokens of a window that never ends with a whole character, as of bytes that are not text.
_LONGEST_WINDOW = 64


class Detokenizer:
    """Turns the tokens of one text into text. The window that is decoded again stays short.

    Algorithm: decode the last emitted tokens together with the new ones, and emit what is longer (as in
    Hugging Face's text-generation-inference): a tokenizer may write a token differently at the beginning.
    """

    __slots__ = ("_begin", "_done", "_extra", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        #: The window begins here; the tokens before `_done` are emitted, and `_extra` characters behind.
        self._begin = self._done = self._extra = 0

    def take(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Add tokens; returns what has to be decoded: the emitted part of the window, and all of it."""
        self._tokens += tokens
        return self._tokens[self._begin : self._done], self._tokens[self._begin :]

    def new_text(self, emitted: str, whole: str, *, is_last: bool) -> str:
        """The new text, by both decoded, without a character that is incomplete."""
        num_broken = min(len(whole) - len(whole.rstrip(_BROKEN)), _MOST_BROKEN)
        if is_last or len(self._tokens) - self._done >= _LONGEST_WINDOW:
            num_broken = 0
        new = whole[len(emitted) + self._extra : len(whole) - num_broken]
        if num_broken:
            self._extra += len(new)
        else:
            self._begin, self._done, self._extra = self._done, len(self._tokens), 0
        return new


class StopStrings:
    """Cuts a text before the first of its stop strings.

    Attributes:
        found: True if a stop string came; no text follows.
    """

    __slots__ = ("_held", "_longest", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = False
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def take(self, text: str, *, is_last: bool) -> str:
        """Add text; returns what may be shown now."""
        if not self._stops:
            return text
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        held = 0 if is_last else self._num_held(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _num_held(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


def decode_together(
    decode: Callable[[Sequence[Sequence[int]]], list[str]],
    texts: Sequence[tuple[Detokenizer, Sequence[int], bool]],
) -> list[str]:
    """The new text of several, with one call of the tokenizer.

    Args:
        texts: each with its new tokens, and whether they are its last.
    """
    windows = [detokenizer.take(tokens) for detokenizer, tokens, _ in texts]
    wanted = [tokens for window in windows for tokens in window if tokens]
    decoded = iter(decode(wanted) if wanted else ())
    found = []
    for (detokenizer, _, is_last), (emitted, whole) in zip(texts, windows, strict=True):
        before = next(decoded) if emitted else ""
        found.append(detokenizer.new_text(before, next(decoded) if whole else "", is_last=is_last))
    return found


log = logging.getLogger("hopline.generate")

#: Between looks at deadlines of texts that wait, in seconds.
_LOOK_S = 0.05
#: Time for reading prompts between two steps.
_READ_S = 0.005
#: Turns of the loop between two steps: parts are collected and written, new messages are read and taken.
#: uvloop writes at the end of a turn, and reads after that.
_TURNS = 3
OnPart = Callable[[wire.Part], object]


class RunnerSettings(msgspec.Struct, frozen=True):
    """Limits of the queue.

    Attributes:
        max_running: texts that run together.
        max_queue_tokens: as for `Schedule`.
        default_tokens: longest answer of a text that names none.
        prefix_caching: the engine keeps states of earlier texts, so that no drawn text is repeatable.
    """

    max_running: int = 32
    max_queue_tokens: int = 65_536
    default_tokens: int = 512
    prefix_caching: bool = False


class Text:
    """One text on its way. `number` is the runner's own; `key` the caller's.

    Attributes:
        ended: nothing more is reported about it.
    """

    __slots__ = (
        "cached_tokens",
        "deadline",
        "detokenizer",
        "ended",
        "key",
        "lane",
        "number",
        "on_part",
        "prompt",
        "prompt_tokens",
        "sampling",
        "since",
        "stops",
        "tokens",
    )

    def __init__(self, number: int, key: int, prompt: Prompt, lane: int, deadline: float, on_part: OnPart):
        self.number = number
        self.key = key
        self.prompt: Prompt | None = prompt
        self.sampling = prompt.sampling
        self.lane = lane
        self.deadline = deadline
        self.on_part = on_part
        self.ended = False
        self.tokens: list[int] = []
        self.prompt_tokens = self.cached_tokens = 0
        self.since = 0.0
        self.detokenizer = Detokenizer()
        self.stops = StopStrings(prompt.sampling.stop)


class Runner:
    """See the module. All methods are called on the event loop.

    Args:
        engine: used by nothing else.
        settings: limits.
        on_failure: the engine failed; nothing runs any more.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        settings: RunnerSettings,
        on_failure: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.stats = wire.Stats(num_blocks=engine.info.num_blocks)
        self._settings = settings
        self._on_failure = on_failure
        self._clock = clock
        self._schedule = Schedule(engine.info, settings.max_running, settings.max_queue_tokens)
        self._texts: dict[int, Text] = {}
        self._numbers = 0
        self._loop = asyncio.get_running_loop()
        self._prefixes = Prefixes(engine.info.block_tokens, engine.info.num_blocks)
        self._looks: asyncio.TimerHandle | None = None
        self._unread: deque[Text] = deque()
        #: A cancelled text frees its blocks in the next step.
        self._has_cancelled = False
        self._wanted = asyncio.Event()
        self._work = asyncio.ensure_future(self._turns())

    def begin(self, key: int, prompt: Prompt, lane: int, left_s: float, on_part: OnPart) -> Text:
        """Take a prompt; `on_part` is called with its parts, of which the last has a finish or an error."""
        self._numbers += 1
        text = Text(self._numbers, key, prompt, lane, self._clock() + left_s, on_part)
        self._texts[text.number] = text
        self._unread.append(text)
        self._wanted.set()
        return text

    def cancel(self, text: Text) -> None:
        """Its caller does not wait any more: its place is free within one step."""
        if not text.ended:
            self._end(text, cancel=True)
            self._wanted.set()

    def state(self) -> wire.Stats:
        """Counters and state."""
        stats, schedule = self.stats, self._schedule
        stats.num_running, stats.num_queued = schedule.num_running, schedule.num_queued
        stats.queued_tokens, stats.used_blocks = schedule.queued_tokens, schedule.used_blocks
        stats.oldest_s = schedule.oldest(self._clock())
        stats.cpu_s = time.process_time()
        return stats

    async def close(self) -> None:
        """Stop; texts that run are dropped."""
        self._work.cancel()
        await asyncio.wait([self._work])
        if self._looks is not None:
            self._looks.cancel()

    async def _turns(self) -> None:
        """Work as long as there is some."""
        while True:
            await self._wanted.wait()
            self._read_prompts()
            try:
                self._start()
                if self._schedule.num_running or self._has_cancelled:
                    self._step()
            except Exception:  # the boundary: what an engine throws fails all that runs
                log.exception("the engine failed")
                self._failed()
                return
            schedule = self._schedule
            if not (self._unread or schedule.num_running or schedule.num_queued or self._has_cancelled):
                self._wanted.clear()
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    # Prompts

    def _read_prompts(self) -> None:
        """Queue the texts that have come, or some of them: texts that run must not wait long."""
        end = time.perf_counter() + _READ_S
        while self._unread:
            text = self._unread.popleft()
            if text.prompt is not None:  # else cancelled
                self._queue(text, text.prompt)
            if time.perf_counter() > end:
                return

    def _tokens(self, text: Text, prompt: Prompt) -> list[int]:
        """The tokens of a prompt.

        Raises: HoplineError: it can never be answered.
        """
        info = self.engine.info
        if prompt.sampling.repeatable and self._settings.prefix_caching:
            raise BadRequest(
                "seed: this server keeps KV blocks of earlier texts (generate.prefix_caching), and a text "
                "depends on them; leave seed out, or send repeatable false for a text that may be another "
                "one next time",
                "seed",
            )
        source = prompt.text
        if prompt.messages:
            source = self.engine.render(msgspec.json.decode(prompt.messages))
        tokens = self.engine.encode(source, is_rendered=bool(prompt.messages))
        if not tokens:
            raise RequestTooLarge("the prompt has no tokens")
        longest = text.sampling.max_tokens
        room = info.context_tokens - len(tokens)
        if room < max(1, longest):
            limit = f" and max_tokens {longest}" if longest else ""
            raise RequestTooLarge(
                f"the prompt has {len(tokens)} tokens{limit}; the model's context is {info.context_tokens}",
                "max_tokens" if room > 0 else None,
            )
        most = min(room, info.num_blocks * info.block_tokens - len(tokens))
        if not longest and most > 0:
            text.sampling = msgspec.structs.replace(
                text.sampling, max_tokens=min(self._settings.default_tokens, most)
            )
        return tokens

    def _queue(self, text: Text, prompt: Prompt) -> None:
        try:
            text.tokens = self._tokens(text, prompt)
            text.prompt = None
            text.prompt_tokens = len(text.tokens)
            now = text.since = self._clock()
            if text.deadline <= now:
                raise DeadlineExceeded("the deadline passed while the prompt was read")
            tokens = text.prompt_tokens + text.sampling.max_tokens
            alone = text.sampling.repeatable
            self._schedule.put(Need(text.number, tokens, text.lane, text.deadline, now, alone))
        except HoplineError as refusal:
            if isinstance(refusal, BadRequest) and refusal.param is None:
                info = self.engine.info
                fits = 0 < text.prompt_tokens < info.num_blocks * info.block_tokens
                refusal.param = "max_tokens" if fits else prompt.param
            self._fail(text, refusal)
        except Exception as failure:  # the boundary: a tokenizer may fail in any way on any text
            log.exception("a prompt could not be read")
            self._fail(text, RuntimeFailure(f"the prompt could not be read: {type(failure).__name__}"))

    def _start(self) -> None:
        """Give the engine what fits now."""
        for need in self._schedule.start(is_quiet=not self._has_cancelled):
            text = self._texts[need.number]
            self.stats.tokens += text.prompt_tokens
            if self._settings.prefix_caching:
                text.cached_tokens = self._prefixes.known(text.tokens)
            try:
                self.engine.add(text.number, text.tokens, text.sampling)
            except HoplineError as refusal:
                self._fail(text, refusal)
                continue
            text.tokens = []
            # Before the first token: its client has used them, even if it leaves now.
            started = wire.Part(text.key, "", 0)
            started.prompt_tokens, started.cached_tokens = text.prompt_tokens, text.cached_tokens
            text.on_part(started)
        if self._schedule.num_queued and self._looks is None:
            self._looks = self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        """Refuse the texts whose deadline passed while they waited."""
        self._looks = None
        for need in self._schedule.expired(self._clock()):
            self._fail(self._texts[need.number], DeadlineExceeded("the deadline passed in the queue"))
        if self._schedule.num_queued:
            self._looks = self._loop.call_later(_LOOK_S, self._look)
        self._wanted.set()

    # Text

    def _step(self) -> None:
        """The next tokens of all texts that run."""
        began = time.perf_counter()
        self._has_cancelled = False
        produced = self.engine.step()
        self._took(produced, self.engine.usage(), time.perf_counter() - began)

    def _took(self, produced: list[Produced], usage: float, seconds: float) -> None:
        stats = self.stats
        stats.steps += 1
        stats.step_s += seconds
        stats.usage = usage
        pairs = [(self._texts[each.number], each) for each in produced if each.number in self._texts]
        texts = decode_together(
            self.engine.decode,
            [(text.detokenizer, each.tokens, bool(each.finish)) for text, each in pairs],
        )
        for (text, each), new in zip(pairs, texts, strict=True):
            stats.tokens += len(each.tokens)
            if each.failed:
                self._fail(text, RuntimeFailure(f"the engine gave the text up: {each.failed}"))
                continue
            shown = text.stops.take(new, is_last=bool(each.finish))
            finish = "stop" if text.stops.found else each.finish
            logprobs = tuple(each.logprobs) if text.sampling.logprobs else ()
            part = wire.Part(text.key, shown, len(each.tokens), logprobs, finish)
            if finish:
                self._end(text, cancel=not each.finish)
            part.prompt_tokens, part.cached_tokens = text.prompt_tokens, text.cached_tokens
            text.on_part(part)

    def _failed(self) -> None:
        for text in list(self._texts.values()):
            self._fail(text, RuntimeFailure("the engine failed; the text is lost"))
        self._on_failure()

    def _fail(self, text: Text, error: HoplineError) -> None:
        self._end(text)
        text.on_part(wire.Part(text.key, "", 0, error=pack_error(error)))

    def _end(self, text: Text, *, cancel: bool = False) -> None:
        text.ended = True
        text.prompt = None
        self._texts.pop(text.number, None)
        ran = self._schedule.remove(text.number)
        if cancel and ran:
            self.engine.cancel(text.number)
            self._has_cancelled = True


class Prefixes:
    """Remembers with which whole blocks prompts began, as a prefix cache of this size would.

    Engines do not say what they found; this is a count of what could be found.
    """

    def __init__(self, block_tokens: int, num_blocks: int) -> None:
        self._block_tokens = block_tokens
        self._num_blocks = num_blocks
        self._known: OrderedDict[int, None] = OrderedDict()

    def known(self, tokens: Sequence[int]) -> int:
        """Tokens at the beginning of a prompt that an earlier one began with; remembers it."""
        chain, count, is_known = 0, 0, True
        for begin in range(0, len(tokens) - self._block_tokens, self._block_tokens):
            chain = hash((chain, *tokens[begin : begin + self._block_tokens]))
            is_known = is_known and chain in self._known
            count += self._block_tokens * is_known
            self._known[chain] = None
            self._known.move_to_end(chain)
        while len(self._known) > self._num_blocks:
            self._known.popitem(last=False)
        return count
