"""Creates the enabled recorders (prediction log, drift, traces, access log) and imports no others.

The access log is here: one JSON line for each request to a model, written outside the event loop. Requests
that transports refuse themselves reach no model and have no line; `hopline_transport_answers_total` counts
them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

import msgspec

from hopline.answering.served import Ran, Recorder
from hopline.config.schema import Config
from hopline.doors import Door
from hopline.errors import ConfigError, HoplineError
from hopline.observe.metrics import Metrics
from hopline.records.background import BackgroundQueue
from hopline.records.pace import Pace

if TYPE_CHECKING:
    from hopline.records.log import PredictionLog

#: "drift": a `DriftRecorder`, "tracing": a `Recorder`; called with the settings and the metrics.
DOOR = Door("hopline.recorders", packages={"drift": "'hopline[drift]'", "tracing": "'hopline[otel]'"})
#: Most requests that wait to be written: one second of a fast worker.
_ROOM = 20_000
_encode = msgspec.json.Encoder().encode


class AccessLog:
    """A `Recorder` that writes the access log; one for each worker.

    Args:
        metrics: counts dropped lines.
        out: destination of lines; None is stderr, like other log lines.
    """

    def __init__(self, metrics: Metrics, out: TextIO | None = None) -> None:
        self._out = out
        self._pace = Pace()
        dropped = metrics.counter(
            "hopline_access_log_dropped_total", "Requests dropped from the access log."
        )()
        self._background: BackgroundQueue[Ran] = BackgroundQueue(
            "hopline-access-log", self._write, _ROOM, dropped
        )

    def record(self, ran: Ran) -> None:
        """Record finished requests: a third of a microsecond for any number of requests."""
        self._background.put(ran, len(ran.requests))

    async def close(self) -> None:
        """Write pending lines."""
        await self._background.close()

    def _write(self, pending: Iterator[Ran]) -> None:
        out = self._out or sys.stderr
        lines = []
        for ran in pending:
            for line in access_lines(ran):
                lines.append(_encode(line).decode())
                self._pace()
        if lines:
            out.write("\n".join(lines) + "\n")
            out.flush()


def access_lines(
    ran: Ran, zone: Callable[[float], time.struct_time] = time.gmtime
) -> Iterator[dict[str, Any]]:
    """The lines of a batch: client, request, outcome and duration.

    Excludes requests that wait for rows, requests whose caller disconnected, and copies of a rollout.
    """
    seconds, fraction = divmod(ran.ended, 1)
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', zone(seconds))}.{int(1e3 * fraction):03d}Z"
    away = ran.away_s or [0.0] * len(ran.requests)
    for request, outcome, queue_s, away_s in zip(
        ran.requests, ran.outcomes, ran.queue_s, away, strict=True
    ):
        if outcome is None or request.is_copy:
            continue
        failed = isinstance(outcome, HoplineError)
        line: dict[str, Any] = {
            "time": stamp,
            "logger": "hopline.access",
            "request_id": request.request_id,
            "client": request.client,
            "model": ran.served.name,
            "version": ran.served.version,
            "status": outcome.code if isinstance(outcome, HoplineError) else "ok",
            "ms": round(1e3 * (queue_s + away_s + ran.compute_s), 3),
            "queue_ms": round(1e3 * queue_s, 3),
            "batch": len(ran.requests),
        }
        if away_s:
            line["fetch_ms"] = round(1e3 * away_s, 3)
        if not failed and outcome.degraded:  # type: ignore[union-attr]
            line["degraded"] = list(outcome.degraded)  # type: ignore[union-attr]
        yield line


class _Owned(Recorder, Protocol):
    """A recorder that ends with the server."""

    async def close(self) -> None:
        """Write what is pending; called after the last answer."""
        ...


class DriftRecorder(_Owned, Protocol):
    """Compares requests and answers with a reference. A package has it."""

    def start(self) -> None:
        """Begin to work."""
        ...


class Recorders:
    """The recorders that the settings enable.

    Attributes:
        all: the enabled recorders.
        drift: for its reports; None if it is off.

    Raises: ConfigError: a setting of a recorder is invalid, or its package is not installed.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self.all: list[_Owned] = []
        self.drift: DriftRecorder | None = None
        self._log: PredictionLog | None = None
        if config.worker.isolated:
            return  # the parent process records its answers
        if config.prediction_log.path is not None:
            from hopline.records.log import PredictionLog

            self._log = PredictionLog(config, metrics)
            self.all.append(self._log)
        enabled = {"drift.enabled": config.drift.enabled, "tracing.endpoint": config.tracing.endpoint}
        for setting in [name for name, value in enabled.items() if value]:
            try:
                recorder = DOOR.require(setting.partition(".")[0])
            except ModuleNotFoundError as error:
                raise ConfigError(f"{setting}: {error}") from error
            self.all.append(recorder(config, metrics))
            if setting == "drift.enabled":
                self.drift = cast(DriftRecorder, self.all[-1])
        if config.log.access:
            self.all.append(AccessLog(metrics))

    @property
    def log_id(self) -> str:
        """The id of the prediction log that is written; "" if none is."""
        return "" if self._log is None else self._log.log_id

    def start(self) -> None:
        """Start to write and to evaluate drift."""
        for recorder in (self._log, self.drift):
            if recorder is not None:
                recorder.start()

    async def close(self) -> None:
        """Write pending records; call this after the last answer."""
        for recorder in self.all:
            await recorder.close()
