"""The prediction log: records every answer on the event loop, writes on a thread.

`record` only adds a batch to a queue. The thread polls the queue ten times a second, builds entries and
appends them to the journal. Batches that do not fit into the queue, because the disk is full or slower than
the traffic, are dropped and counted: a request never waits for its record. An entry has the identity of the
version that answered: its artifact, preprocessing and libraries.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import numpy as np

from hopline import __version__
from hopline.answering.served import Preprocessing, Ran, Version
from hopline.config.schema import Config
from hopline.errors import ConfigError, HoplineError
from hopline.observe.metrics import Metrics
from hopline.records.entry import Entry, EntryWriter
from hopline.records.inputs import input_hash, inputs_of
from hopline.records.journal import Journal
from hopline.records.names import made_id
from hopline.records.pace import Pace
from hopline.retry import delays
from hopline.types import ScoreRequest, ScoreResult


class _Identity(NamedTuple):
    """The identity of one version; see `entry.Entry`. Has no reference to the version itself.

    Attributes:
        shows_tensors: True if the version is a `Preprocessing`.
    """

    model: str
    version: str
    graph_version: str
    artifact_hash: str
    preprocessing_hash: str
    feature_schema_hash: str
    runtime: str
    shows_tensors: bool


def _identity_of(served: Version) -> _Identity:
    """The identity of a version; the hashes are properties of its `info`."""
    properties = served.info((served.version,)).properties
    return _Identity(
        served.name,
        served.version,
        served.graph_version,
        str(properties.get("artifact_hash", "")),
        str(properties.get("preprocessing_hash", "")),
        str(properties.get("feature_schema_hash", "")),
        _runtime_name(),
        isinstance(served, Preprocessing),
    )


@functools.cache
def _runtime_name() -> str:
    """Versions of Hopline and of the library that runs models."""
    try:
        return f"hopline {__version__}, onnxruntime {version('onnxruntime')}"
    except PackageNotFoundError:  # a build under another name, such as onnxruntime-gpu
        return f"hopline {__version__}, onnxruntime"


log = logging.getLogger(__name__)

_LOOK_S = 0.1
#: Bytes per write to the kernel.
_WRITE_BYTES = 256 * 1024
#: Seconds until a failed write is retried, at first and at most.
_FIRST_WAIT_S, _LAST_WAIT_S = 0.1, 5.0
#: How long a stopping server waits for pending entries, in seconds.
_CLOSE_S = 20.0
#: Assumed bytes of a request before any was written, and the decay of that estimate.
_FIRST_BYTES, _DECAY = 1024.0, 0.999


class PredictionLog:
    """A `Recorder` that writes the prediction log; one for each worker."""

    def __init__(self, config: Config, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._settings = config.prediction_log
        #: See `names.py`; "" before `start`.
        self.log_id = ""
        self._journal = Journal(self._settings, config.worker.index, clock)
        self._pace = Pace()
        self._writer = EntryWriter(self._pace)
        self._pending: deque[Ran] = deque()
        # Only the loop changes the first counter, only the thread the second.
        self._num_taken = self._num_done = 0
        self._room = self._settings.max_pending
        self._request_bytes = _FIRST_BYTES
        self._identities: weakref.WeakKeyDictionary[Version, _Identity] = weakref.WeakKeyDictionary()
        self._buffer = bytearray()
        self._begins = 0.0
        self._num_buffered = 0
        self._complained = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hopline-prediction-log", daemon=True)
        self._written = metrics.counter(
            "hopline_prediction_log_written_total", "Entries written to the prediction log."
        )()
        dropped = metrics.counter(
            "hopline_prediction_log_dropped_total", "Entries dropped from the prediction log.", ("reason",)
        )
        # One child per thread that counts.
        self._dropped_queue, self._dropped_disk = dropped("queue"), dropped("disk")
        self._dropped_end, self._dropped_error = dropped("shutdown"), dropped("error")
        self._failing = metrics.gauge(
            "hopline_prediction_log_failing", "Workers whose prediction log cannot be written."
        )()

    def start(self) -> None:
        """Create the folder, finish files of killed workers, and start the thread.

        Raises: ConfigError: the folder or the sizes are invalid, or pyarrow is missing for Parquet.
        """
        settings = self._settings
        if settings.keep_bytes < 2 * settings.rotate_bytes:
            raise ConfigError(
                f"prediction_log.keep_bytes: {settings.keep_bytes} is less than two files of "
                f"{settings.rotate_bytes} (prediction_log.rotate_bytes)"
            )
        if settings.format == "parquet":
            _check_pyarrow()
        self._journal.open()
        assert settings.path is not None
        self.log_id = made_id(settings.path)
        self._thread.start()

    def record(self, ran: Ran) -> None:
        """Record finished requests: half a microsecond for any number of requests."""
        count = len(ran.requests)
        if self._num_taken - self._num_done + count > self._room:
            (self._dropped_disk if self._failing.value else self._dropped_queue).value += count
            return
        self._num_taken += count
        self._pending.append(ran)

    async def close(self) -> None:
        """Write pending entries and finish the file; call this after the last answer."""
        self._stop.set()
        if self._thread.ident is None:  # the server could not start
            return
        await asyncio.to_thread(self._thread.join, _CLOSE_S)
        if self._thread.is_alive():
            log.warning("prediction log: the disk does not respond; %d entries are lost", self.num_pending)

    @property
    def num_pending(self) -> int:
        """Number of requests that are not on the disk yet."""
        return self._num_taken - self._num_done

    # The thread

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(_LOOK_S)
            try:
                self._drain()
                self._journal.turn()
            except Exception:  # the boundary: nothing would restart this thread
                log.exception("prediction log: entries are lost")
                self._lose(self._dropped_error)
        try:
            if not self._journal.close(_CLOSE_S / 2):
                log.warning(
                    "prediction log: the last files are not converted; the next start converts them"
                )
        except OSError as error:
            log.warning("prediction log: the last file could not be finished: %s", error)

    def _drain(self) -> None:
        """Write everything that is pending."""
        while self._pending:
            ran = self._pending.popleft()
            before = len(self._buffer)
            self._add_batch(ran)
            self._num_buffered += len(ran.requests)
            self._limit_room(len(self._buffer) - before, len(ran.requests))
            del ran  # a disk that hangs must not keep an unloaded version in memory
            if len(self._buffer) >= _WRITE_BYTES:
                self._flush()
        self._flush()

    def _limit_room(self, num_bytes: int, num_requests: int) -> None:
        """Limit the number of waiting requests, so that large ones do not fill the memory."""
        each = num_bytes / max(1, num_requests)
        self._request_bytes = max(each, self._request_bytes * _DECAY)
        room = int(self._settings.max_pending_bytes / max(1.0, self._request_bytes))
        self._room = max(1, min(self._settings.max_pending, room))

    def _flush(self) -> None:
        """Write the buffer; retry until this succeeds or the server stops."""
        waits = delays(_FIRST_WAIT_S, _LAST_WAIT_S)
        since = time.monotonic()
        while self._buffer:
            try:
                self._journal.write(self._buffer, self._begins)
            except OSError as error:
                if not self._failing.value:
                    self._failing.set(1)
                    log.error(
                        "prediction log: cannot write to %s: %s; entries beyond the memory limit are "
                        "dropped until it works again",
                        self._journal.folder,
                        error.strerror or error,
                    )
                if self._stop.wait(next(waits)):
                    self._lose(self._dropped_end)
                    return
                continue
            self._written.value += self._buffer.count(b"\n")
            self._buffer.clear()
        if self._failing.value and not self._stop.is_set():
            self._failing.set(0)
            log.info("prediction log: writing again after %.1f s", time.monotonic() - since)
        self._num_done += self._num_buffered
        self._num_buffered = 0

    def _lose(self, dropped: object) -> None:
        """Drop buffered and pending entries."""
        count = self._num_buffered + sum(len(ran.requests) for ran in self._pending)
        self._pending.clear()
        self._buffer.clear()
        self._num_buffered, self._num_done = 0, self._num_taken
        log.error("prediction log: %d entries are lost", count)
        dropped.value += count  # type: ignore[attr-defined]

    # Entries

    def _add_batch(self, ran: Ran) -> None:
        """Append the lines of a batch to the buffer."""
        known = self._identities.get(ran.served)
        if known is None:
            known = self._identities[ran.served] = _identity_of(ran.served)
        stages = ran.stages or {"compute": ran.compute_s}
        of_batch = {name: round(seconds * 1e3, 3) for name, seconds in stages.items()}
        ended = round(ran.ended, 6)
        if not self._buffer:
            self._begins = ended
        away = ran.away_s or [0.0] * len(ran.requests)
        for request, outcome, queued_s, away_s in zip(
            ran.requests, ran.outcomes, ran.queue_s, away, strict=True
        ):
            if outcome is None:  # not finished, or withdrawn by the caller
                continue
            if isinstance(outcome, ScoreResult) and known.graph_version not in ("", outcome.graph_version):
                # a live graph changes while it is served
                known = self._identities[ran.served] = known._replace(graph_version=outcome.graph_version)
            total_s = queued_s + away_s + ran.compute_s
            latency = {"queue": round(queued_s * 1e3, 3), **of_batch, "total": round(total_s * 1e3, 3)}
            try:
                entry = _entry(known, request, outcome, latency, ended)
                self._add_inputs(entry, ran.served if known.shows_tensors else None, request)
                self._writer.append(entry, self._buffer)
            # the boundary: one odd request must not lose entries of other requests
            except Exception as error:
                self._complain(f"an entry could not be encoded and is dropped: {error!r}")
                self._dropped_error.value += 1
            self._pace()

    def _add_inputs(self, entry: Entry, shows: Version | None, request: ScoreRequest) -> None:
        """Add inputs and tensors to an entry, if this request is sampled."""
        settings = self._settings
        kept = settings.inputs == "all"
        if settings.inputs == "sample" or settings.tensors_share:
            key = entry.request_id or entry.input_hash  # every server draws the same for a request
            draw = zlib.crc32(key.encode("utf-8", "replace")) / 2**32
            kept |= settings.inputs == "sample" and draw < settings.input_share
            if draw < settings.tensors_share:
                kept = True
                if entry.outcome == "ok" and isinstance(shows, Preprocessing):
                    tensors = shows.preprocessed(request)
                    if tensors:
                        entry.tensors = dict(tensors)
        if kept:
            entry.inputs = inputs_of(request, self._pace)

    def _complain(self, what: str) -> None:
        """Log a warning, only the first time."""
        if not self._complained:
            self._complained = True
            log.warning("prediction log: %s (logged once)", what)


def _entry(
    known: _Identity,
    request: ScoreRequest,
    outcome: ScoreResult | HoplineError,
    latency: dict[str, float],
    ended: float,
) -> Entry:
    entry = Entry(
        request.request_id,
        ended,
        known.model,
        known.version,
        known.graph_version,
        latency_ms=latency,
        input_hash=input_hash(request),
        artifact_hash=known.artifact_hash,
        preprocessing_hash=known.preprocessing_hash,
        feature_schema_hash=known.feature_schema_hash,
        runtime=known.runtime,
        client=request.client,
        key=request.key,
        is_copy=request.is_copy,
    )
    if isinstance(outcome, HoplineError):
        entry.outcome = outcome.code
    else:
        entry.outputs = dict(outcome.outputs)
        entry.degraded = outcome.degraded
        if outcome.missing is not None:
            entry.missing = tuple(np.flatnonzero(outcome.missing).tolist())
    return entry


def _check_pyarrow() -> None:
    """Check for what converts, without an import. Raises: ConfigError: it is missing."""
    from importlib.util import find_spec

    if None in map(find_spec, ("pyarrow", "hopline_drift")):
        raise ConfigError("Parquet needs pyarrow; install it with: pip install 'hopline[parquet,drift]'")
