"""Creates the enabled recorders: prediction log, drift, traces, access log. Imports no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopline.answering.served import Recorder
from hopline.config.schema import Config
from hopline.observe.metrics import Metrics

if TYPE_CHECKING:
    from hopline.records.access import AccessLog
    from hopline.records.drift.monitor import DriftMonitor
    from hopline.records.log import PredictionLog
    from hopline.records.tracing import TraceRecorder


class Recorders:
    """The recorders that the settings enable.

    Args:
        config: sections `prediction_log`, `drift`, `tracing` and `log`.
        metrics: of the server.

    Attributes:
        all: the enabled recorders.
        drift: for its reports; None if it is off.

    Raises:
        ConfigError: a setting of a recorder is invalid.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self.all: list[Recorder] = []
        self.drift: DriftMonitor | None = None
        self._log: PredictionLog | None = None
        self._traces: TraceRecorder | None = None
        self._access: AccessLog | None = None
        if config.worker.isolated:
            return  # the parent process records its answers
        if config.prediction_log.path is not None:
            from hopline.records.log import PredictionLog

            self._log = PredictionLog(config, metrics)
            self.all.append(self._log)
        if config.drift.enabled:
            from hopline.records.drift.monitor import DriftMonitor

            self.drift = DriftMonitor(config, metrics)
            self.all.append(self.drift)
        if config.tracing.endpoint:
            from hopline.records.tracing import TraceRecorder

            self._traces = TraceRecorder(config, metrics)
            self.all.append(self._traces)
        if config.log.access:
            from hopline.records.access import AccessLog

            self._access = AccessLog(metrics)
            self.all.append(self._access)

    @property
    def log_id(self) -> str:
        """The id of the prediction log that is written; "" if none is."""
        return "" if self._log is None else self._log.log_id

    def start(self) -> None:
        """Start to write and to evaluate drift."""
        if self._log is not None:
            self._log.start()
        if self.drift is not None:
            self.drift.start()

    async def close(self) -> None:
        """Write pending records; call this after the last answer."""
        for recorder in (self._log, self.drift, self._traces, self._access):
            if recorder is not None:
                await recorder.close()
