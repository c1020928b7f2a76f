"""A version of a generative model: takes requests, and has a `Generator` make their texts.

    accept ─► admission ─► one text for each row ─► generator ─► parts ─► on_part (streams)
                                 ▲                                   └─► all ended: the outcome
                                 └─ deadlines and cancellation hold here

Parts are passed on as they come. A caller that reads slowly delays nothing here: the engine does not wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson

from hopline.answering.counted_version import CountedVersion
from hopline.answering.limits import ModelLimits
from hopline.answering.queued import admission_of
from hopline.answering.served import Recorder
from hopline.config.schema import Config
from hopline.errors import BadRequest, DeadlineExceeded, HoplineError, ModelNotReady, RateLimited
from hopline.observe.metrics import Metrics
from hopline.process.wire import unpack_error
from hopline.scheduling.token_rate import TokenRates
from hopline.scheduling.work import Work
from hopline.types import AnyArray, ModelInfo, ScoreRequest, ScoreResult
from hopline_generate import wire
from hopline_generate.engine import EngineSettings
from hopline_generate.link import Generator, ProcessLink, try_once
from hopline_generate.metrics import GenerativeMetrics
from hopline_generate.process import Orders
from hopline_generate.request import Prompt, Sampling, completed, read_rows
from hopline_generate.runner import RunnerSettings
from hopline_generate.spec import DEFAULT_OUTPUTS, OUTPUTS, GenerativeSpec, describe, read_generative

#: Requests that may be without an outcome, where `max_concurrency` says nothing.
_MAX_OPEN = 4096
_OUTPUTS = frozenset(tensor.name for tensor in OUTPUTS)
_WARM_UP = Prompt("Hello", "", Sampling(max_tokens=2, temperature=0.0))


class GenerativeVersion(CountedVersion):
    """See the module; a `Version`. Made by `load_generative`.

    Args:
        spec: of its folder.
        version: as it is served.
        generator: used by nothing else.
        config, limits, metrics, recorders: as for other versions.
        token_rates: of clients, over all generative models.
    """

    def __init__(
        self,
        spec: GenerativeSpec,
        version: str,
        generator: Generator,
        config: Config,
        limits: ModelLimits,
        metrics: Metrics,
        recorders: Sequence[Recorder] = (),
        token_rates: TokenRates | None = None,
    ) -> None:
        super().__init__(spec.name, version, "", config, metrics.model(spec.name, version), recorders)
        self.spec = spec
        self.generator = generator
        self.token_rates = token_rates or TokenRates()
        self._clock = time.monotonic
        self.admission = admission_of(
            f"{spec.name}/{version}", limits, config, limits.max_concurrency or _MAX_OPEN, self._clock
        )
        self.counts = GenerativeMetrics(metrics, spec.name, version, generator)

    async def warm_up_once(self) -> None:
        """Generate a text: the first one may need seconds, in which the engine compiles."""
        if self.spec.engine != "openai":
            await try_once(self.generator, _WARM_UP)

    # Version

    def accept(self, work: Work) -> None:
        """As `Scorer.accept`: begins its texts.

        Raises:
            BadRequest, RequestTooLarge: it can never be answered.
            RateLimited, DeadlineExceeded, Overloaded, Unavailable, ModelNotReady: not now.
        """
        try:
            self._check(work.request)
            work.request = completed(work.request, DEFAULT_OUTPUTS)
            prompts = read_rows(work.request.columns)
            self.generator.engine.check_size(prompts)
            self._check_tokens(work.request.client)
            self.admission.admit(work)
            if self.generator.reason:
                raise ModelNotReady(f"{self.name}: {self.generator.reason}", 1.0)
            self.admission.pay()
        except HoplineError as error:
            self.refuse(work, error)
            raise
        _Run(self, work, prompts, self._clock)

    def _check(self, request: ScoreRequest) -> None:
        if len(request.nodes) or request.inline or request.context or request.ends is not None:
            raise BadRequest(f"model {self.name!r} takes prompts; ask with rows, not with nodes or pairs")
        for name in sorted({*request.outputs} - {*_OUTPUTS}):
            raise BadRequest(
                f"output {name!r} is unknown; model {self.name!r} has {', '.join(sorted(_OUTPUTS))}"
            )
        if request.as_of is not None or request.edits or request.exclude_seed_edges:
            name = "as_of" if request.as_of is not None else "if" if request.edits else "exclude_seed_edges"
            raise BadRequest(f"{name}: model {self.name!r} reads no edges; leave {name} out", name)

    def _check_tokens(self, client: str) -> None:
        try:
            self.token_rates.check(client)
        except RateLimited:
            self.counts.refused()
            raise

    def reject_early(self) -> None:
        """As `Scorer.reject_early`."""
        if self._recorders:
            return
        try:
            self.admission.check()
        except HoplineError as error:
            self.outcome(error.code)
            raise

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Description for transports."""
        generator = self.generator
        context = self.spec.context_tokens or generator.engine.context_tokens
        state = "UNAVAILABLE" if generator.reason else "READY"
        return describe(self.spec, versions, self.version, state, generator.reason, context)

    def warm_up(self) -> None:
        """Nothing: `load_generative` has generated a text."""

    @property
    def queued_rows(self) -> int:
        """Requests that wait or run."""
        return self.admission.num_open

    async def release(self) -> None:
        """Leave the process, or the upstream."""
        self.admission.closed = self.admission.closed or "the model is unloaded"
        await self.generator.close()
        self.counts.close()

    def _cpu_s(self) -> float:
        return self.counts.cpu_s()

    def flush_metrics(self) -> None:
        """As `CountedVersion.flush_metrics`; tokens cost also while no request has ended."""
        self.counts.flush()
        super().flush_metrics()

    def ended(self, run: _Run, outcome: ScoreResult | HoplineError | None) -> None:
        """Count a run; None where it was cancelled."""
        if outcome is None:
            self.outcome("cancelled")
            return
        first_s, rest_s = run.times()
        self.outcome(outcome.code if isinstance(outcome, HoplineError) else "ok")
        if not isinstance(outcome, HoplineError):
            self._note(len(run.texts), (first_s,), rest_s, {})
        self._report([run.work.request], [outcome], [first_s], rest_s)


class _Text:
    """The outcome of one row."""

    __slots__ = ("cached_tokens", "finish", "logprobs", "num_tokens", "number", "parts", "prompt_tokens")

    def __init__(self) -> None:
        self.number = 0
        self.parts: list[str] = []
        #: (text, log probability) of each token; one that ends within a character has no text.
        self.logprobs: list[tuple[str, float]] = []
        self.num_tokens = self.prompt_tokens = self.cached_tokens = 0
        self.finish = ""


class _Run:
    """One request under way; the holder of its `Work`."""

    def __init__(
        self, version: GenerativeVersion, work: Work, prompts: list[Prompt], clock: Callable[[], float]
    ) -> None:
        self.work = work
        self.texts = [_Text() for _ in prompts]
        self._version = version
        self._clock = clock
        self._began = clock()
        self._first = self._last = 0.0
        self._num_open = len(prompts)
        left_s = work.deadline - self._began
        work.holder = self
        self._timer = asyncio.get_running_loop().call_later(left_s, self._late)
        for row, prompt in enumerate(prompts):
            if work.ended:  # the one before could not begin
                return
            text = self.texts[row]
            try:
                text.number = version.generator.begin(prompt, work.lane, left_s, _for(self, row))
            except HoplineError as error:
                self._finish(error)

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`."""
        if self._stop():
            self._version.ended(self, None)

    def times(self) -> tuple[float, float]:
        """Seconds to the first token, and from there to the end."""
        now = self._clock()
        first = self._first or now
        return first - self._began, now - first

    def take(self, row: int, part: wire.Part) -> None:
        """Take a part of a row."""
        work = self.work
        if work.ended:
            return
        if part.error is not None:
            self._finish(unpack_error(part.error))
            return
        text, counts = self.texts[row], self._version.counts
        now, used = self._clock(), part.num_tokens
        if part.num_tokens:
            if not self._first:
                self._first = now
                counts.first_token(now - self._began, self.work.request)
            elif len(self.texts) == 1:
                counts.next_token(now - self._last)
            self._last = now
        if not text.prompt_tokens and part.prompt_tokens:
            text.prompt_tokens, text.cached_tokens = part.prompt_tokens, part.cached_tokens
            counts.prompt(part.prompt_tokens, part.cached_tokens)
            used += part.prompt_tokens
        counts.tokens(part.num_tokens)
        self._version.token_rates.charge(work.request.client, used)
        text.num_tokens += part.num_tokens
        if part.logprobs:
            text.logprobs += wire.token_logprobs(part)
        if part.text:
            text.parts.append(part.text)
        if part.finish:
            text.finish = part.finish
            text.number = 0
            self._num_open -= 1
        if work.on_part is not None and (part.num_tokens or part.finish):
            work.on_part(row, part)
        if not self._num_open and not work.ended:
            self._finish(self._result())

    def _result(self) -> ScoreResult:
        request, texts = self.work.request, self.texts
        columns: dict[str, AnyArray] = {}
        for name in request.outputs:
            columns[name] = _OUTPUT_OF[name](texts)
        return ScoreResult(self._version.name, self._version.version, "", columns)

    def _late(self) -> None:
        self._finish(DeadlineExceeded("the deadline passed before the text was complete"))

    def _finish(self, outcome: ScoreResult | HoplineError) -> None:
        if self._stop():
            self._version.ended(self, outcome)
            self.work.report(outcome)

    def _stop(self) -> bool:
        """Free what it has; whether it had not ended before."""
        if not self.work.end():
            return False
        self._timer.cancel()
        for text in self.texts:
            if text.number:
                self._version.generator.cancel(text.number)
                text.number = 0
        return True


def _for(run: _Run, row: int) -> Callable[[wire.Part], None]:
    def take(part: wire.Part) -> None:
        run.take(row, part)

    return take


def _strings(values: list[str]) -> AnyArray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


_OUTPUT_OF: dict[str, Callable[[list[_Text]], AnyArray]] = {
    "text": lambda texts: _strings(["".join(text.parts) for text in texts]),
    "finish_reason": lambda texts: _strings([text.finish for text in texts]),
    "prompt_tokens": lambda texts: np.asarray([text.prompt_tokens for text in texts], np.int64),
    "completion_tokens": lambda texts: np.asarray([text.num_tokens for text in texts], np.int64),
    "logprobs": lambda texts: _strings([orjson.dumps(text.logprobs).decode() for text in texts]),
}


def generator_of(
    spec: GenerativeSpec,
    folder: Path,
    version: str,
    config: Config,
    nice: int,
    hang_s: float,
    on_replaced: Callable[[str], object],
) -> Generator:
    """The generator of a version's texts; arguments as for `ProcessLink`."""
    if spec.engine == "openai":
        from hopline_generate.upstream import Upstream

        upstream: Any = Upstream(spec)
        return upstream  # type: ignore[no-any-return]
    settings = config.generate
    orders = Orders(
        name=f"{spec.name}/{version}",
        socket="",
        engine=spec.engine,
        model=str((folder / spec.model).absolute()),
        settings=EngineSettings(
            device=settings.device,
            threads=settings.threads,
            kv_tokens=settings.kv_tokens,
            max_running=settings.max_running,
            batch_tokens=settings.batch_tokens,
            prefix_caching=settings.prefix_caching,
            context_tokens=spec.context_tokens,
            chat_template=spec.chat_template if spec.sets_template else "",
        ),
        limits=RunnerSettings(
            settings.max_running,
            settings.max_queue_tokens,
            settings.default_tokens,
            settings.prefix_caching,
        ),
        config=config.to_json(),
        ready=0,
        nice=nice,
    )
    return ProcessLink(orders, config, hang_s, on_replaced)


async def load_generative(
    folder: Path,
    model: str,
    version: str,
    config: Config,
    limits: ModelLimits,
    metrics: Metrics,
    recorders: Sequence[Recorder] = (),
    nice: int = 0,
    token_rates: TokenRates | None = None,
) -> GenerativeVersion:
    """A version of the repository, which has generated a text.

    Args:
        nice: is added to the niceness of its process.

    Raises: HoplineError: it does not load, or does not generate.
    """
    spec = msgspec.structs.replace(await asyncio.to_thread(read_generative, folder), name=model)

    def on_replaced(reason: str) -> None:
        metrics.model_process_restarts(model, version, reason).inc()

    generator = generator_of(spec, folder, version, config, nice, limits.hang_s, on_replaced)
    await generator.start()
    served = GenerativeVersion(spec, version, generator, config, limits, metrics, recorders, token_rates)
    try:
        await served.warm_up_once()
    except BaseException:
        await served.release()
        raise
    return served
