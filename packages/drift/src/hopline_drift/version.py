"""The drift state of one model version in one process: its reference, window and hours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hopline.answering.served import ReadsGraph, Version
from hopline.config.schema import DriftConfig
from hopline.errors import ArtifactError
from hopline.graph.live.view import LiveView
from hopline_drift.hours import Hours
from hopline_drift.observed import Observed
from hopline_drift.reader import SampleReader
from hopline_drift.reference import FILE, Reference, read_reference, write_reference
from hopline_drift.reservoir import Sampled
from hopline_drift.structure import GraphModel, Packaged
from hopline_drift.window import NUM_SLICES, Window, window_path

log = logging.getLogger("hopline.drift")


class WatchedVersion:
    """A watched model version; see the module. Used by one thread at a time.

    Args:
        model, version: names.
        folder: folder of its files.
        worker: index of this process.
        settings: section `drift`.
        random: chooses rows and neighbours.
        rest: called between pieces of work.
    """

    def __init__(
        self,
        model: str,
        version: str,
        folder: Path,
        worker: int,
        settings: DriftConfig,
        random: np.random.Generator,
        rest: Callable[[], object],
    ) -> None:
        self._rest = rest
        self.model = model
        self.version = version
        self.folder = folder
        self._settings = settings
        self._reader = SampleReader(settings.max_columns, settings.columns, random, rest)
        self._slice_s = settings.window_s / NUM_SLICES
        self._path = folder / FILE
        self._window_path = window_path(folder, worker)
        self._stamp: tuple[int, int] | None = None
        self._reference: Reference | None = None
        self._window: Window | None = None
        self._collected: Observed | None = Observed()
        self._hours = Hours(folder / "hours", worker)

    def observe(self, served: Version, sampled: Sequence[Sampled], num_seen: int, now: float) -> None:
        """Count sampled requests, out of `num_seen` until `now`.

        Raises: OSError: files cannot be written.
        """
        self._look_for_reference()
        observed = self._reader.read(sampled, _model_of(served))
        self._hours.update(observed, num_seen, self._reference, now)
        if self._window is not None:
            self._window.update(observed, now, self._rest)
        if self._collected is not None:
            self._collected.add(observed)
            if self._collected.num_rows >= self._settings.reference_size:
                self._publish(self._collected, now)

    def write(self) -> None:
        """Write the counts, for other workers to read.

        Raises: OSError.
        """
        self._hours.write()
        window = self._window
        if window is None:
            window = Window("", (), self._slice_s)
        if self._collected is not None:
            window.file.num_collected = self._collected.num_rows
        window.write(self._window_path)

    def _look_for_reference(self) -> None:
        """Load the reference from disk if a worker or a user has replaced it."""
        stamp = self._stamp_on_disk()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self._reference = self._window = None
        if stamp is not None:
            try:
                self._reference, digest = read_reference(self._path)
            except FileNotFoundError:
                self._stamp = None
            except ArtifactError as error:
                damaged = self._path.with_name("reference.damaged")
                self._path.rename(damaged)
                self._stamp = None
                log.error("drift: %s; moved to %s, and a new one is collected", error, damaged.name)
        if self._reference is not None:
            self._window = Window(digest, self._reference.entries, self._slice_s)
            self._window.resume(self._window_path)
        if self._reference is not None and self._reference.is_complete:
            self._collected = None
        elif self._collected is None:
            self._collected = Observed()

    def _publish(self, collected: Observed, now: float) -> None:
        """Write the reference of the collected values, unless another process has written one."""
        if self._stamp_on_disk() == self._stamp:
            reference = Reference.of(
                collected, "traffic", now, model=self.model, version=self.version, base=self._reference
            )
            write_reference(self._path, reference)
            log.info(
                "drift: %s/%s is now compared with its first %d requests, in %d quantities",
                self.model,
                self.version,
                reference.num_requests,
                len(reference.entries),
            )
        self._look_for_reference()

    def _stamp_on_disk(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino


def _model_of(served: Version) -> GraphModel | None:
    """The graph model of a version, if it is one and runs in this process."""
    model = served.graph_model() if isinstance(served, ReadsGraph) else None
    if model is None:
        return None
    if isinstance(model.graph, LiveView):  # pinned separately from computation, for use on another thread
        return Packaged(model.spec, model.graph.beside("drift"), model.encoders)
    return model
