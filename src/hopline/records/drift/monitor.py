"""The recorder that watches drift: a fair sample on the event loop, everything else on a thread.

    event loop    record(ran): a reservoir for each version takes some of the requests    < 0.1 µs each
    thread        every tick: the sample is read into windows and hours, those are written to files
    worker 0      at the end of every slice: all workers' files are added up and judged

What a report says is in the files, so that every worker gives the same one.
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

from hopline.config.schema import Config
from hopline.errors import ConfigError, ModelNotFound
from hopline.observe.metrics import Metrics
from hopline.records.drift.files import known_versions, version_folder
from hopline.records.drift.judge import Judge
from hopline.records.drift.report import summary, version_report
from hopline.records.drift.reservoir import Reservoir
from hopline.records.drift.version import WatchedVersion
from hopline.records.drift.window import NUM_SLICES
from hopline.records.pace import Pace
from hopline.rollout.served import Ran, Served

log = logging.getLogger(__name__)

#: Seconds between looks at the sample and between writes of files, at most.
_TICK_S, _WRITE_S = 1.0, 5.0
#: How often the same trouble is told, in seconds.
_TELL_S = 60.0


class DriftMonitor:
    """A `Recorder`; see the module.

    Args:
        config: section `drift`, and which worker this is.
        metrics: take what the judge finds.
        clock: time.time; slices and hours follow it.
        seed: of the sample; None draws one.
        rest: called between pieces of work, so that the event loop need not wait for the GIL.

    Raises: ConfigError: no folder is set, it cannot be written, or the thresholds are in the wrong order.
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
                f"drift.alert: {settings.alert} is below drift.watch, {settings.watch}; it is the graver"
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
        self._reservoirs: dict[Served, Reservoir] = {}
        self._versions: dict[tuple[str, str], WatchedVersion] = {}
        # Every worker has one, since whoever is scraped must know its metrics; one worker judges.
        self._judge = Judge(self._root, settings, metrics, self._write_s + self._tick_s)
        self._sampled = metrics.counter(
            "hopline_drift_sampled_total", "Requests that drift looked at.", ("model", "version")
        )
        self._num_sampled: dict[tuple[str, str], int] = {}
        self._brought: dict[tuple[str, str], int] = {}
        metrics.before_reading(self._flush_metrics)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = self._told = float("-inf")

    def record(self, ran: Ran) -> None:
        """As `Recorder.record`."""
        reservoir = self._reservoirs.get(ran.served)
        if reservoir is None:
            reservoir = self._reservoirs[ran.served] = Reservoir(self._size, self._random)
        reservoir.offer(ran)

    def start(self) -> None:
        """Begin to fold samples, on a thread."""
        self._thread = threading.Thread(target=self._work, name="hopline-drift", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop the thread and write what was counted; after the last request."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._guarded, self._show)

    def tick(self) -> None:
        """Read the sample of the time since the last tick; write files and judge where it is time.

        Called by the thread; tests without one call it themselves.

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
        """Let go of a version that is unloaded; its files stay, and serve when it comes back."""
        with self._lock:
            known = self._versions.pop((model, version), None)
            if known is not None:
                known.write()

    def report(self, model: str | None = None) -> dict[str, Any]:
        """What `/v1/drift` answers: every version in short, or all about the versions of one model.

        Reads files: milliseconds, so call it on a thread.

        Raises: ModelNotFound: nothing was seen of that model.
        """
        self._guarded(self._show)
        now = self._clock()
        known = list(known_versions(self._root))
        if model is not None and not any(name == model for name, _, _ in known):
            names = ", ".join(sorted({name for name, _, _ in known})) or "none yet"
            raise ModelNotFound(f"drift has seen no requests to {model!r}; it knows: {names}")
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
        """Drift is worth less than answers: its troubles are told, and that is all."""
        try:
            work()
        except Exception as error:  # the boundary: the thread goes on
            now = time.monotonic()
            if now - self._told >= _TELL_S:
                self._told = now
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
            items = reservoir.items[:]  # the loop may still be at its last batch
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
        """Tell the metrics, on the event loop."""
        for key, count in list(self._num_sampled.items()):
            self._sampled(*key).inc(count - self._brought.get(key, 0))
            self._brought[key] = count


def _writable(path: Path | None) -> Path:
    if path is None:
        raise ConfigError("drift.path: not set; drift needs a folder for references and windows")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"drift.path: {path} cannot be written: {error.strerror}") from None
    return path
