"""How far each worker has followed the lifecycle's state, told through small files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hopline.config import Config
from hopline.rollout.state import ModelState

#: Seconds between looks, and after which a worker that says nothing is not waited for.
_LOOK_S, _PATIENCE_S = 0.01, 120.0


class _Ack(msgspec.Struct):
    """Attributes:
    failed: "model/unit" -> why it could not be loaded.
    """

    pid: int
    generation: int
    failed: dict[str, str]


class Acknowledgements:
    """Args:
    config: which worker this is, and of how many.
    folder: of the state; workers of one server use that of their metrics instead.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        worker = config.worker
        self._folder = Path(worker.metrics_dir) if worker.metrics_dir else folder
        self._index = worker.index
        self._count = worker.count
        self._mine: Mapping[str, str] = {}

    def say(self, generation: int, failed: Mapping[str, str]) -> None:
        """This worker is in line with a generation of the state.

        Args:
            failed: "model/unit" -> why it could not be loaded.
        """
        self._mine = failed
        if self._count == 1:
            return
        file = self._file(self._index)
        draft = file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(_Ack(os.getpid(), generation, dict(self._mine))))
        os.replace(draft, file)

    def first(self, make: Callable[[], dict[str, ModelState]]) -> dict[str, ModelState]:
        """What `make` says, or said to the first worker of this server that asked."""
        if self._count == 1:
            return make()
        file = self._folder / "first.json"
        with file.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                file.write_bytes(msgspec.json.encode(make()))
            return msgspec.json.decode(file.read_bytes(), type=dict[str, ModelState])

    async def of_all(self, generation: int) -> Mapping[str, str]:
        """Wait until every worker that lives is in line; what any of them could not load."""
        failed = dict(self._mine)
        waiting = set(range(self._count)) - {self._index}
        end = time.monotonic() + _PATIENCE_S
        while waiting and time.monotonic() < end:
            for index in list(waiting):
                ack = self._read(index)
                # One that died reads the newest state when it starts anew.
                if ack is None or not _lives(ack.pid):
                    waiting.discard(index)
                elif ack.generation >= generation:
                    failed |= ack.failed
                    waiting.discard(index)
            if waiting:
                await asyncio.sleep(_LOOK_S)
        return failed

    def _file(self, index: int) -> Path:
        return self._folder / f"lifecycle-{index}.ack"

    def _read(self, index: int) -> _Ack | None:
        try:
            return msgspec.json.decode(self._file(index).read_bytes(), type=_Ack)
        except FileNotFoundError:
            return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
