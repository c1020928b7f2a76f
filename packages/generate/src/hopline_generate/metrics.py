"""Metrics of a generative model: tokens, times, KV blocks, and its share of processor time."""

from __future__ import annotations

from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest
from hopline_generate.link import Generator
from hopline_generate.wire import Stats

_PER_MODEL = ("model", "version")
#: Seconds of the first token.
_FIRST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_NEXT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class GenerativeMetrics:
    """The metrics of one version in this worker.

    Args:
        metrics: of the server.
        model, version: labels.
        generator: its state is read.
    """

    def __init__(self, metrics: Metrics, model: str, version: str, generator: Generator) -> None:
        tokens = metrics.counter(
            "hopline_tokens_total",
            "Tokens of generative models: read in prompts, generated, and read in prompts that began with "
            "whole blocks of an earlier one (cached).",
            (*_PER_MODEL, "kind"),
        )
        self._prompt = tokens(model, version, "prompt")
        self._cached = tokens(model, version, "cached")
        self._generated = tokens(model, version, "generated")
        self._refused = metrics.counter(
            "hopline_token_rate_refusals_total",
            "Requests of clients that had used their tokens of the minute.",
            _PER_MODEL,
        )(model, version)
        self._first = metrics.histogram(
            "hopline_first_token_seconds", "Seconds to the first token.", _PER_MODEL, _FIRST_BUCKETS
        )(model, version)
        self._next = metrics.histogram(
            "hopline_next_token_seconds", "Seconds between tokens of a text.", _PER_MODEL, _NEXT_BUCKETS
        )(model, version)
        self._generator = generator
        self._running = metrics.gauge(
            "hopline_texts_running", "Texts that a generative model generates now.", _PER_MODEL, merge="max"
        )(model, version)
        self._queued = metrics.gauge(
            "hopline_texts_queued", "Texts that wait for KV blocks or a place.", _PER_MODEL, merge="max"
        )(model, version)
        self._blocks = metrics.gauge(
            "hopline_kv_reserved_ratio",
            "Share of KV blocks that running texts reserve.",
            _PER_MODEL,
            merge="max",
        )(model, version)
        self._usage = metrics.gauge(
            "hopline_kv_used_ratio", "Share of KV blocks in use at the last step.", _PER_MODEL, merge="max"
        )(model, version)
        self._age = metrics.queue_age(model, version)
        self._mine = 0
        self._seen_mine = self._seen_all = 0
        self._seen_cpu_s = self._cpu_s = 0.0

    def refused(self) -> None:
        """A request's client had used its tokens."""
        self._refused.inc()

    def first_token(self, seconds: float, request: ScoreRequest) -> None:
        """A text's first token came."""
        if not request.is_copy:
            self._first.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """Another token came."""
        self._next.observe(seconds)

    def prompt(self, num_tokens: int, num_cached: int) -> None:
        """A prompt was read."""
        self._mine += num_tokens
        self._prompt.value += num_tokens
        self._cached.value += num_cached

    def tokens(self, count: int) -> None:
        """Tokens came."""
        self._mine += count
        self._generated.value += count

    def cpu_s(self) -> float:
        """Processor seconds of the process that this worker's tokens took: its share by tokens."""
        self._share()
        return self._cpu_s

    def flush(self) -> None:
        """Show the last state of the process."""
        state = self._generator.state or Stats()
        self._running.set(state.num_running)
        self._queued.set(state.num_queued)
        self._blocks.set(state.used_blocks / state.num_blocks if state.num_blocks else 0.0)
        self._usage.set(state.usage)
        self._age.set(state.oldest_s)
        self._share()

    def close(self) -> None:
        """The version is unloaded: nothing runs."""
        for gauge in (self._running, self._queued, self._blocks, self._usage, self._age):
            gauge.set(0.0)

    def _share(self) -> None:
        state = self._generator.state
        if state is None or state.tokens <= self._seen_all:
            if state is not None and state.tokens < self._seen_all:  # another process
                self._seen_all, self._seen_cpu_s = 0, 0.0
            return
        spent_s = state.cpu_s - self._seen_cpu_s
        share = (self._mine - self._seen_mine) / (state.tokens - self._seen_all)
        self._cpu_s += max(0.0, spent_s) * min(1.0, max(0.0, share))
        self._seen_all, self._seen_cpu_s, self._seen_mine = state.tokens, state.cpu_s, self._mine
