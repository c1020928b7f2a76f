"""The process of one model: opens it, answers what its server sends, and ends when the server does.

`run` is the whole life; `fork_server.py` begins it. Stdin is the stop pipe: it only ever ends.

A factory, "module:attribute", makes what answers: called with `ModelOrders`, it returns a `QueuedVersion`,
warm and ready, or an awaitable of that.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, cast

import msgspec

from hopline.answering.limits import ModelLimits
from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.queued import QueuedVersion
from hopline.answering.row_keys import row_keys
from hopline.answering.served import Ran, Recorder
from hopline.config.schema import Config
from hopline.errors import HoplineError, RuntimeFailure
from hopline.isolated import wire
from hopline.observe.metrics import Metrics
from hopline.process.cpu_affinity import pin_to_background_cpus, restore_cpus
from hopline.process.memory import limit_growth, offer_first
from hopline.process.parent import on_parent_end
from hopline.process.time_slice import lower_priority
from hopline.process.wire import pack_error
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest, ScoreResult

log = logging.getLogger(__name__)

Outcome = ScoreResult | HoplineError
_UNIT_FACTORY = "hopline.models.isolated_unit:open_unit"
_BEAT_S = 1.0
#: Seconds for a server that does not read, and for a copy of a request.
_PATIENCE_S, _COPY_S = 5.0, 10.0
_IDLE_NICE = 19
#: Added while a model is loaded: a tenth of the processor where others want it. RLIMIT_NICE counts from 20.
_LOADING_NICE, _NORMAL_NICE_LIMIT = 10, 20


@dataclass(frozen=True, slots=True)
class ModelOrders:
    """The arguments of a factory.

    Attributes:
        name, version: what the model is served as.
        config: of the server, with `worker.isolated`.
        limits: of the model.
        arguments: whatever else the factory takes; values that JSON has.
        metrics: of this process; hits of state caches reach the server.
        recorders: get every batch; they send its times to the server.
    """

    name: str
    version: str
    config: Config
    limits: ModelLimits
    arguments: Mapping[str, Any]
    metrics: Metrics
    recorders: list[Recorder]


def run(orders: Mapping[str, Any], wire_fd: int) -> NoReturn:
    """The process's life, from its orders to its end."""
    import uvloop

    from hopline.observe.logs import configure_logs

    lower_priority(orders["nice"])
    yielding = yield_while_loading()
    # Loading is a burst of work that no request waits for.
    processors = pin_to_background_cpus()
    if orders["nice"] >= _IDLE_NICE:
        # Not only less than others get, but nothing while they need it; and on background CPUs for good.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        processors = set()
    offer_first()
    config = Config.from_json(orders["config"])
    configure_logs(config.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(ModelHost(orders, config, wire_fd, yielding, processors).serve())
    # Threads that still compute are useless.
    sys.stderr.flush()
    os._exit(code)


def yield_while_loading() -> bool:
    """Leave the processor to those who serve until the model is ready; whether that was done.

    Only where the priority can be had back: without privileges it cannot be raised again.
    """
    if os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_NICE)[0] < _NORMAL_NICE_LIMIT:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + _LOADING_NICE)
    return True


def end_yielding() -> None:
    """Take the priority back."""
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - _LOADING_NICE)


class ModelHost(asyncio.Protocol):
    """A model's end of the socket; also the recorder that says what ran."""

    def __init__(
        self, orders: Mapping[str, Any], config: Config, wire_fd: int, yielding: bool, processors: set[int]
    ) -> None:
        self._yielding = yielding
        self._processors = processors
        self._socket = wire_fd
        self._factory: str = orders["factory"] or config.worker.model_factory or _UNIT_FACTORY
        self._metrics = Metrics()
        self._orders = ModelOrders(
            orders["name"],
            orders["version"],
            config,
            ModelLimits(**orders["limits"]),
            orders["arguments"],
            self._metrics,
            [self],
        )
        self._frames = wire.frames()
        self._ending = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._served: QueuedVersion
        #: number -> request, while it has no outcome
        self._open: dict[int, Work] = {}
        #: identity of a request -> its number, until its outcome is sent
        self._numbers: dict[int, int] = {}
        self._done: list[tuple[int, ScoreRequest, Outcome | None]] = []
        self._batches: list[wire.Batch] = []
        #: identity of a copy -> seconds of its batch, until it is compared
        self._took: dict[int, float] = {}
        self._num_batches = 0
        self._code = 0

    async def serve(self) -> int:
        """The whole life; returns the exit code."""
        loop = asyncio.get_running_loop()
        on_parent_end(self._ending.set)
        loop.add_signal_handler(signal.SIGTERM, self._ending.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal's Ctrl-C is the server's business
        await loop.create_unix_connection(lambda: self, sock=socket.socket(fileno=self._socket))
        opening = asyncio.ensure_future(self._opened())
        ending = asyncio.ensure_future(self._ending.wait())
        await asyncio.wait({opening, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return 0
        if not opening.result():
            return await self._leave(1)
        beats = asyncio.ensure_future(self._beat())
        await ending
        beats.cancel()
        self._served.close("the model's process is ending")
        await self._served.join()
        self._send_ended()
        return await self._leave(0)

    async def _leave(self, code: int) -> int:
        """Let the last words out; returns the exit code."""
        assert self._transport is not None
        self._code = code
        self._transport.close()  # and so to `connection_lost`, once all is sent
        await asyncio.sleep(_PATIENCE_S)
        return code

    async def _opened(self) -> bool:
        """Open the version; False where it cannot be built, and the server got the reason."""
        try:
            module, _, attribute = self._factory.partition(":")
            made = getattr(importlib.import_module(module), attribute)(self._orders)
            served: QueuedVersion = await made if inspect.isawaitable(made) else made
        except Exception as error:  # the boundary: whatever a model's code does, the server gets the error
            if not isinstance(error, HoplineError):
                log.exception("model %s cannot be opened", self._orders.name)
                error = RuntimeFailure(f"{self._factory} failed: {type(error).__name__}: {error}")
            self._send(wire.NotLoaded(pack_error(error)))
            return False
        # Everything loaded lives for ever: a full collection need never look at it again.
        gc.collect()
        gc.freeze()
        if self._orders.limits.memory_bytes:
            limit_growth(self._orders.limits.memory_bytes)
        if self._yielding:
            end_yielding()
        if self._processors:
            restore_cpus(self._processors)
        self._served = served  # the first requests may come before this returns
        identity = served.files.identity if served.files is not None else ""
        self._send(wire.Loaded(served.graph_version, served.info((served.version,)), identity))
        return True

    # Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it

    def connection_lost(self, exc: Exception | None) -> None:
        """The server is gone."""
        os._exit(self._code)

    def data_received(self, data: bytes) -> None:
        """Requests, and numbers of withdrawn ones."""
        for view in self._frames.feed(data):
            message = wire.from_server.decode(view)
            if isinstance(message, wire.Submit):
                for number, fields in message.requests:
                    self._accept(number, wire.unpack_request(fields))
            elif isinstance(message, wire.Compare):
                CopyComparison(self._served, message, self._send, self._took)
            else:
                for number in message.numbers:
                    self._drop(number)

    def _accept(self, number: int, request: ScoreRequest) -> None:
        work = self._open[number] = Work(request, partial(self._deliver, number))
        _accept(self._served, work)
        self._numbers[id(work.request)] = number  # a time cut makes another request of it

    def _deliver(self, number: int, outcome: Outcome | None) -> None:
        known = self._open.pop(number, None)
        if known is None:
            return
        if not self._done:
            asyncio.get_running_loop().call_soon(self._send_ended)
        self._done.append((number, known.request, outcome))

    def _drop(self, number: int) -> None:
        work = self._open.get(number)
        if work is not None:
            work.cancel()
            self._deliver(number, None)

    # Recorder

    def record(self, ran: Ran) -> None:
        """Keep what a batch took, to go with its answers."""
        if ran.compute_s <= 0:
            return
        self._num_batches += 1
        for request in ran.requests:
            if request.is_copy:
                self._took[id(request)] = ran.compute_s
        numbers = [self._numbers.get(id(request)) for request in ran.requests]
        known = [number for number in numbers if number is not None]
        stages = {name: seconds for name, seconds in ran.stages.items() if name != "post"}
        self._batches.append(wire.Batch(known, ran.compute_s, stages))

    # To the server

    def _send_ended(self) -> None:
        done, self._done = self._done, []
        batches, self._batches = self._batches, []
        if not done:
            return
        for _, request, _ in done:
            self._numbers.pop(id(request), None)
        outcomes = [(number, outcome) for number, _, outcome in done]
        try:
            self._send(_pack(outcomes, batches))
        except wire.UNSENDABLE:
            for number, outcome in outcomes:
                try:
                    self._send(_pack([(number, outcome)], []))
                except wire.UNSENDABLE as error:
                    self._send(_pack([(number, RuntimeFailure(f"the answer cannot be sent: {error}"))], []))

    def _send(self, message: wire.FromModel) -> None:
        assert self._transport is not None
        self._transport.write(wire.frame(message))

    async def _beat(self) -> None:
        counts = self._metrics.model(self._orders.name, self._orders.version)
        while True:
            self._served.flush_metrics()
            hits, misses = counts.state_cache_hits.value, counts.state_cache_misses.value
            used_s, due = time.process_time(), self._served.queue.due
            files = self._served.files
            state = (files.damage, files.identity) if files is not None else ("", "")
            self._send(wire.Beat(self._num_batches, hits, misses, used_s, due, *state))
            # often enough to distinguish slow from hung
            await asyncio.sleep(min(_BEAT_S, self._orders.limits.hang_s / 4))


class CopyComparison:
    """One `Compare`: copies of requests, held against what went out; sends its counts when all have ended.

    Args:
        served: answers them.
        message: the copies.
        send: to the server.
        took: identity of a request -> seconds of its batch, as the recorder noted them.
    """

    def __init__(
        self,
        served: QueuedVersion,
        message: wire.Compare,
        send: Callable[[wire.FromModel], object],
        took: dict[int, float],
    ) -> None:
        self._send = send
        self._took = took
        self._tolerance = message.tolerance
        self._num_left = len(message.copies)
        self._done: list[tuple[ScoreRequest, Outcome, Outcome]] = []
        deadline = asyncio.get_running_loop().time() + _COPY_S
        for copy in message.copies:
            request, wanted = wire.unpack_copy(copy)
            request = msgspec.structs.replace(request, is_copy=True, deadline=deadline, version=None)
            copied = Work(request, lambda outcome: None)
            copied.deliver = partial(self._answered, copied, wanted)
            _accept(served, copied)

    def _answered(self, work: Work, wanted: Outcome, found: Outcome) -> None:
        self._done.append((work.request, wanted, found))
        self._num_left -= 1
        if not self._num_left:
            # once the recorder has the last batch too
            asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        tally = OutcomeCounts()
        for request, wanted, found in self._done:
            tally.count(found, self._took.pop(id(request), 0.0))
            tally.compare(wanted, found, self._tolerance, partial(row_keys, request))
        self._send(wire.Compared(tally))


def _accept(version: QueuedVersion, work: Work) -> None:
    """Pass a request to a version; one that is refused gets its error."""
    try:
        version.accept(work)
    except HoplineError as error:
        work.report(error)
    except Exception as error:  # the boundary: one request must not end the process
        log.exception("a request failed before it was queued")
        work.finish(RuntimeFailure(f"the model failed: {type(error).__name__}: {error}"))


def _pack(outcomes: list[tuple[int, Outcome | None]], batches: list[wire.Batch]) -> wire.Ended:
    results = [
        (number, wire.pack_result(found)) for number, found in outcomes if isinstance(found, ScoreResult)
    ]
    errors = [
        (number, None if outcome is None else pack_error(outcome))
        for number, outcome in outcomes
        if not isinstance(outcome, ScoreResult)
    ]
    return wire.Ended(results, errors, batches)
