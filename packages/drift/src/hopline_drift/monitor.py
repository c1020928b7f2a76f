"""The recorder that measures drift: it samples on the event loop and does all other work on a thread.

    event loop    record(ran): a reservoir per version samples requests    < 0.1 µs each
    thread        every tick: adds the sample to windows and hours, and writes them to files
    worker 0      at the end of every slice: adds up and evaluates the files of all workers

Reports are built from the files, so that every worker returns the same one. Gauges must be set in one
worker only: those of several workers would be added up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from hopline.answering.served import Ran, Version
from hopline.config.schema import Config, DriftConfig
from hopline.errors import ConfigError, ModelNotFound
from hopline.observe.metrics import Metrics
from hopline.records.pace import Pace
from hopline_drift.alarms import LEVELS, AlarmRule, Level
from hopline_drift.files import known_versions, version_folder, write_sealed
from hopline_drift.report import ALARMS, Compared, ending_with, read_alarms, summary, version_report, view
from hopline_drift.reservoir import Reservoir
from hopline_drift.version import WatchedVersion
from hopline_drift.window import NUM_SLICES

log = logging.getLogger("hopline.drift")

_PER_QUANTITY = ("model", "version", "kind", "name")


class _Judge:
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


#: Longest time between reads of the sample and between writes of files, in seconds.
_TICK_S, _WRITE_S = 1.0, 5.0
#: Shortest time between log messages about errors, in seconds.
_LOG_S = 60.0


class DriftMonitor:
    """A `Recorder` that measures drift; see the module.

    Args:
        config: section `drift`, and the worker's index.
        metrics: updated with the results.
        clock: time.time; slices and hours follow it.
        seed: of the sample; None draws a random seed.
        rest: called between pieces of work, so that the event loop gets the GIL.

    Raises: ConfigError: the folder is not set or not writable, or drift.alert is below drift.watch.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        rest: Callable[[], object] | None = None,
    ) -> None:
        settings = config.drift
        if settings.alert < settings.watch:
            raise ConfigError(
                f"drift.alert: {settings.alert} is below drift.watch, {settings.watch}; raise it"
            )
        self._root = _writable(settings.path)
        self._settings = settings
        self._worker = config.worker.index
        self._clock = clock
        self._rest = Pace() if rest is None else rest
        self._random = Random(seed)
        self._generator = np.random.default_rng(seed)
        slice_s = settings.window_s / NUM_SLICES
        self._slice_s = slice_s
        self._tick_s = min(_TICK_S, slice_s / 8)
        self._write_s = min(_WRITE_S, slice_s / 4)
        self._size = max(1, round(settings.sample_per_s * self._tick_s))
        self._reservoirs: dict[Version, Reservoir] = {}
        self._versions: dict[tuple[str, str], WatchedVersion] = {}
        # Every worker creates it, since each one can be scraped and must have its metrics; one evaluates.
        self._judge = _Judge(self._root, settings, metrics, self._write_s + self._tick_s)
        self._sampled = metrics.counter(
            "hopline_drift_sampled_total", "Requests that drift examined.", ("model", "version")
        )
        self._num_sampled: dict[tuple[str, str], int] = {}
        self._flushed: dict[tuple[str, str], int] = {}
        metrics.before_reading(self._flush_metrics)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = self._logged = float("-inf")

    def record(self, ran: Ran) -> None:
        """See `Recorder.record`."""
        reservoir = self._reservoirs.get(ran.served)
        if reservoir is None:
            reservoir = self._reservoirs[ran.served] = Reservoir(self._size, self._random)
        reservoir.offer(ran)

    def start(self) -> None:
        """Start the thread that processes samples."""
        self._thread = threading.Thread(target=self._work, name="hopline-drift", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop the thread and write pending counts; call this after the last request."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._guarded, self._show)

    def tick(self) -> None:
        """Process the sample since the last tick; write files and evaluate if they are due.

        Called by the thread; tests without the thread call it directly.

        Raises: OSError: files cannot be written.
        """
        with self._lock:
            now = self._clock()
            self._fold(now)
            if now - self._written >= self._write_s:
                self._written = now
                self._write()
            if self._worker == 0:
                self._judge.step(now)

    def forget(self, model: str, version: str) -> None:
        """Release the state of an unloaded version; its files remain for when it is loaded again."""
        with self._lock:
            known = self._versions.pop((model, version), None)
            if known is not None:
                known.write()

    def report(self, model: str | None = None) -> dict[str, Any]:
        """The response of `/v1/drift`: a summary of all versions, or the details of one model's versions.

        Reads files: milliseconds, so call it on a thread.

        Raises: ModelNotFound: there are no requests to that model.
        """
        self._guarded(self._show)
        now = self._clock()
        known = list(known_versions(self._root))
        if model is not None and not any(name == model for name, _, _ in known):
            names = sorted({name for name, _, _ in known})
            raise ModelNotFound(f"drift has seen no requests to {model!r}", names)
        full = [
            version_report(folder, name, version, now, self._slice_s, self._rest)
            for name, version, folder in known
            if model in (None, name)
        ]
        thresholds = {"watch": self._settings.watch, "alert": self._settings.alert}
        if model is not None:
            return {"model": model, "thresholds": thresholds, "versions": full}
        return {"thresholds": thresholds, "versions": [summary(each) for each in full]}

    # The thread

    def _work(self) -> None:
        while not self._stopping.wait(self._tick_s):
            self._guarded(self.tick)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run `work` and log its errors: they must not affect answers."""
        try:
            work()
        except Exception as error:  # the boundary: the thread continues
            now = time.monotonic()
            if now - self._logged >= _LOG_S:
                self._logged = now
                is_disk = isinstance(error, OSError)
                log.error("drift: %s: %s", type(error).__name__, error, exc_info=not is_disk)

    def _fold(self, now: float) -> None:
        reservoirs, self._reservoirs = self._reservoirs, {}
        for served, reservoir in reservoirs.items():
            key = served.name, served.version
            watched = self._versions.get(key)
            if watched is None:
                folder = version_folder(self._root, *key)
                watched = self._versions[key] = WatchedVersion(
                    *key, folder, self._worker, self._settings, self._generator, self._rest
                )
            items = reservoir.items[:]  # the loop may still add its last batch
            watched.observe(served, items, reservoir.num_seen, now)
            self._num_sampled[key] = self._num_sampled.get(key, 0) + len(items)

    def _write(self) -> None:
        for watched in self._versions.values():
            watched.write()

    def _show(self) -> None:
        with self._lock:
            self._fold(self._clock())
            self._write()

    def _flush_metrics(self) -> None:
        """Update the metrics, on the event loop."""
        for key, count in list(self._num_sampled.items()):
            self._sampled(*key).inc(count - self._flushed.get(key, 0))
            self._flushed[key] = count


def _writable(path: Path | None) -> Path:
    if path is None:
        raise ConfigError("drift.path: not set; drift needs a folder for references and windows")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"drift.path: {path} is not writable: {error.strerror}") from None
    return path
