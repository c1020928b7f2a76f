"""Compares the windows of all workers with their references and raises alarms, in one worker only.

Gauges must be set in one worker only: those of several workers would be added up.
"""

from __future__ import annotations

import logging
from pathlib import Path

from hopline.config.schema import DriftConfig
from hopline.observe.metrics import Metrics
from hopline.records.drift.alarms import LEVELS, AlarmRule, Level
from hopline.records.drift.files import known_versions, write_sealed
from hopline.records.drift.report import ALARMS, Compared, ending_with, read_alarms, view
from hopline.records.drift.window import NUM_SLICES

log = logging.getLogger(__name__)

_PER_QUANTITY = ("model", "version", "kind", "name")


class Judge:
    """Evaluates drift; see the module.

    Args:
        root: folder of drift files.
        settings: thresholds.
        metrics: updated with indices, levels and alerts.
        grace_s: time after the end of a slice until all workers have written it.
    """

    def __init__(self, root: Path, settings: DriftConfig, metrics: Metrics, grace_s: float) -> None:
        self._root = root
        self._rule = AlarmRule(settings.watch, settings.alert, settings.consecutive_windows)
        self._slice_s = settings.window_s / NUM_SLICES
        self._grace_s = grace_s
        self._psi = metrics.gauge(
            "hopline_drift_psi", "Stability index minus its expectation by chance.", _PER_QUANTITY
        )
        self._level = metrics.gauge("hopline_drift_level", "0 ok, 1 watch, 2 alert.", _PER_QUANTITY)
        self._alerts = metrics.counter(
            "hopline_drift_alerts_total", "Quantities that rose to alert.", ("model", "version", "kind")
        )
        self._number = -1
        #: Results of the last evaluation, until the event loop reads them.
        self._measured: dict[tuple[str, ...], tuple[float, int]] = {}
        self._raised: list[tuple[str, str, str]] = []
        metrics.before_reading(self._flush_metrics)

    def step(self, now: float) -> None:
        """Evaluate every version whose window has moved since the last call.

        Raises: OSError: alarms cannot be written.
        """
        number = int((now - self._grace_s) // self._slice_s) - 1
        if number == self._number:
            return
        self._number = number
        for model, version, folder in known_versions(self._root):
            self._judge(model, version, folder, number, now)

    def _judge(self, model: str, version: str, folder: Path, number: int, now: float) -> None:
        found = view(folder)
        if found.reference is None:
            return
        alarms = read_alarms(folder, found.digest)
        if alarms.judged >= number:
            return
        alarms.judged = number
        _, compared = found.compared(ending_with(number))
        measured: dict[tuple[str, ...], tuple[float, int]] = {}
        for each in compared:
            quantity = each.entry.quantity
            alarm = alarms.of(quantity)
            before = alarm.level
            if self._rule.step(alarm, each.comparison, now):
                _log_change(model, version, each, before, alarm.level)
                if alarm.level == "alert":
                    self._raised.append((model, version, quantity.kind))
            measured[model, version, *quantity] = (each.comparison.excess, LEVELS.index(alarm.level))
        # Without traffic nothing is compared: a replaced version does not keep its alarms.
        gone = {labels: (0.0, 0) for labels in self._measured if labels[:2] == (model, version)}
        self._measured = {**self._measured, **gone, **measured}
        write_sealed(folder / ALARMS, alarms)

    def _flush_metrics(self) -> None:
        """Update the metrics, on the event loop."""
        raised, self._raised = self._raised, []
        for labels in raised:
            self._alerts(*labels).inc()
        for quantity, (excess, level) in self._measured.items():
            self._psi(*quantity).set(excess)
            self._level(*quantity).set(level)


def _log_change(model: str, version: str, compared: Compared, before: Level, after: Level) -> None:
    comparison = compared.comparison
    at = compared.entry.sketch.bins.names().index(comparison.bin) if comparison.bin else 0
    log.log(
        logging.WARNING if LEVELS.index(after) > LEVELS.index(before) else logging.INFO,
        "drift: %s/%s: %s %r changed from %s to %s: psi %.3f (%.3f expected by chance) over %d values; "
        "most in %r, %.1f %%, reference %.1f %%",
        model,
        version,
        compared.entry.kind,
        compared.entry.name,
        before,
        after,
        comparison.psi,
        min(comparison.noise, comparison.psi),
        comparison.num_current,
        comparison.bin,
        100 * compared.current.shares()[at],
        100 * compared.entry.sketch.shares()[at],
    )
