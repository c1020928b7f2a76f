"""Follows the pointer of the server's snapshots: a new snapshot is rolled out as any candidate is.

The worker that judges rollouts reads the pointer, and begins a rollout of each graph model that serves an
older snapshot. The old snapshot serves until the new one is promoted, and stays loaded for a rollback.
A snapshot that was rolled back is not tried again until the pointer has named another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from hopline.answering.unit import Unit
from hopline.config.schema import Config
from hopline.errors import (
    ConfigError,
    Conflict,
    HoplineError,
    SnapshotError,
    SnapshotUnavailable,
    StoreUnavailable,
)
from hopline.models.host_snapshots import HostSnapshots, is_on
from hopline.observe.metrics import Metrics
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from hopline.rollout.state import ModelState
from hopline.snapshots.manifest import Pointer

log = logging.getLogger(__name__)

#: Seconds between tries of a snapshot that cannot be loaded, at most.
_LONGEST_PAUSE_S = 600.0


class SnapshotWatch:
    """See the module.

    Raises: ConfigError: gates or steps that make no sense.
    """

    def __init__(
        self,
        config: Config,
        models: Callable[[], Mapping[str, ModelState]],
        begin: Callable[[RolloutRequest], Awaitable[object]],
        unload: Callable[[str, str], Awaitable[None]],
        snapshots: HostSnapshots,
        leads: Callable[[], bool],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._settings = config.snapshots
        self._reads_store = bool(config.features.store)
        self._models, self._begin, self._unload = models, begin, unload
        self._snapshots = snapshots
        self._leads = leads
        self._clock = clock
        self._gates = gates_of(self._settings.gates)
        self._said = ""
        #: (model, unit id) -> failed tries, and when the next one is due.
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}
        #: (model, unit id) -> when the pointer was published that this worker followed to it.
        self._followed: dict[tuple[str, str], float] = {}
        self._behind = metrics.gauge(
            "hopline_snapshot_behind",
            "1 while a model serves another snapshot than the pointer names.",
            ("model",),
            merge="max",
        )

    async def run(self) -> None:
        """Look at the pointer for ever."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                await self.look()
            except Exception:  # the boundary: what fails now is tried again at the next look
                log.exception("the pointer of snapshots could not be followed")

    async def look(self) -> None:
        """Read the pointer once, and begin what is due."""
        models = self._models()
        if not self._leads():
            for name in models:
                self._behind(name).set(0)
            return
        try:
            pointer = await asyncio.to_thread(self._snapshots.pointer)
        except HoplineError as error:
            self._say(f"the pointer of snapshots cannot be read, and the old ones serve on: {error}")
            return
        target = f"{self._snapshots.base}#{pointer.snapshot}"
        for name, state in models.items():
            serving = state.unit(state.serving)
            if serving is None or not is_on(serving, self._snapshots.base):
                continue
            self._behind(name).set(int(serving.graph != target))
            if serving.graph != target and state.rollout is None and not state.trials:
                await self._adopt(name, state, serving, pointer)

    async def _adopt(self, name: str, state: ModelState, serving: Unit, pointer: Pointer) -> None:
        """Begin the rollout of a new snapshot, where it is due."""
        key = name, pointer.snapshot
        tries, due = self._failed.get(key, (0, 0.0))
        if self._clock() < due:
            return
        try:
            manifest = await asyncio.to_thread(self._snapshots.manifest, pointer.snapshot)
            groups = tuple(sorted(manifest.groups)) if self._reads_store else ()
            graph = f"{self._snapshots.base}#{pointer.snapshot}"
            unit = Unit(manifest.models.get(name, serving.version), graph, groups or serving.groups)
            if self._is_decided(name, state, unit, pointer):
                return
            await self._make_room(name, state, serving, unit)
            log.info("%s: rolling out snapshot %s %s", name, pointer.snapshot, manifest.name)
            await self._begin(self._request(name, unit))
            self._followed[name, unit.id] = pointer.published
        except (Conflict, StoreUnavailable):
            return  # a person was faster, or nothing can be changed now
        except HoplineError as error:
            if not isinstance(error, SnapshotError | SnapshotUnavailable):
                self._snapshots.note_failure(error)
            pause_s = min(_LONGEST_PAUSE_S, self._settings.poll_s * 2**tries)
            self._failed[key] = tries + 1, self._clock() + pause_s
            log.error(
                "%s: snapshot %s cannot be taken up, and %s serves on (next try in %.0f s): %s",
                name,
                pointer.snapshot,
                serving.id,
                pause_s,
                error,
            )
            return
        self._failed.pop(key, None)

    def _request(self, name: str, unit: Unit) -> RolloutRequest:
        settings = self._settings
        return RolloutRequest(
            name,
            unit.version,
            settings.rollout,
            graph=unit.graph,
            groups=unit.groups,
            min_step_s=settings.min_step_s,
            gates=self._gates,
            preflight=settings.preflight,
        )

    async def _make_room(self, name: str, state: ModelState, serving: Unit, candidate: Unit) -> None:
        """Unload units on older snapshots, so that memory and disk hold two of them."""
        for unit in state.units:
            if is_on(unit, self._snapshots.base) and unit.graph not in (serving.graph, candidate.graph):
                log.info("%s: unloading %s, which is on an older snapshot", name, unit.id)
                await self._unload(name, unit.id)

    def _is_decided(self, name: str, state: ModelState, unit: Unit, pointer: Pointer) -> bool:
        """True if a rollout of this snapshot has ended, and the pointer did not move since."""
        ended = [rollout for rollout in state.past if rollout.candidate == unit.id]
        followed = self._followed.get((name, unit.id))
        if not ended or followed is not None:
            return bool(ended) and followed == pointer.published
        return ended[-1].started >= pointer.published  # another worker led then; clocks may differ a little

    def _say(self, text: str) -> None:
        """Log a failure when it begins or changes."""
        if text != self._said:
            self._said = text
            log.error("%s", text)


def gates_of(items: tuple[str, ...]) -> Gates:
    """The gates of "name=number" items. Raises: ConfigError: an unknown gate, or no number."""
    numbers: dict[str, float] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if name not in Gates.__struct_fields__ or not equals:
            known = ", ".join(Gates.__struct_fields__)
            raise ConfigError(f"snapshots.gates: {item!r} is not <gate>=<number>; gates are {known}")
        try:
            numbers[name] = float(text)
            gates = msgspec.convert(numbers, Gates, strict=False)
        except (ValueError, msgspec.ValidationError):
            raise ConfigError(f"snapshots.gates: {item!r}: {text!r} is not a number of this gate") from None
        if problems := gates.problems():
            raise ConfigError(f"snapshots.gates: {'; '.join(problems)}")
    return msgspec.convert(numbers, Gates, strict=False)
