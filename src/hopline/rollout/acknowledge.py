"""How far each worker has followed the lifecycle's state, exchanged through small files."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hopline.config.schema import Config
from hopline.files import write_atomically
from hopline.rollout.state import FirstState

log = logging.getLogger(__name__)

#: Seconds between looks, and after which a worker that does not switch is not waited for.
_LOOK_S, _PATIENCE_S = 0.01, 120.0


class _Ack(msgspec.Struct):
    """How far one worker is in line with the state.

    Attributes:
        switched: generation of the state by which requests are answered.
        loaded: generation of which all that is wanted was loaded, or could not be.
        failed: "model/unit" -> why it could not be loaded.
    """

    pid: int
    switched: int
    loaded: int
    failed: dict[str, str]


class Acknowledgements:
    """The acknowledgements of all workers of a host.

    Args:
        config: which worker this is, and of how many.
        folder: of the state; workers of one server use that of their metrics instead.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        worker = config.worker
        self._folder = Path(worker.metrics_dir) if worker.metrics_dir else folder
        self._index = worker.index
        self._count = worker.count
        self._mine: Mapping[str, str] = {}

    def say(self, switched: int, loaded: int, failed: Mapping[str, str]) -> None:
        """How far this worker is in line with the state.

        Args:
            switched, loaded: as in `_Ack`.
            failed: "model/unit" -> why it could not be loaded, of the generation that is `loaded`.
        """
        self._mine = failed
        if self._count == 1:
            return
        ack = _Ack(os.getpid(), switched, loaded, dict(self._mine))
        write_atomically(self._file(self._index), msgspec.json.encode(ack), durable=False)

    def first(self, make: Callable[[], FirstState]) -> FirstState:
        """What `make` says, or said to the first worker of this server that asked."""
        if self._count == 1:
            return make()
        file = self._folder / "first.json"
        with file.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                write_atomically(file, msgspec.json.encode(make()), durable=False)
            return msgspec.json.decode(file.read_bytes(), type=FirstState)

    async def of_all(self, generation: int, *, loaded: bool) -> Mapping[str, str]:
        """Wait until every worker that lives is in line; what any of them could not load.

        Args:
            loaded: wait also until each has loaded what is wanted, however long that takes.
        """
        failed: dict[str, str] = {}
        waiting = set(range(self._count)) - {self._index}
        end = time.monotonic() + _PATIENCE_S
        while waiting:
            for index in list(waiting):
                ack = self._read(index)
                # A worker that died reads the newest state when it restarts.
                if ack is None or not _lives(ack.pid):
                    waiting.discard(index)
                elif (ack.loaded if loaded else ack.switched) >= generation:
                    failed |= ack.failed
                    waiting.discard(index)
                elif ack.switched < generation and time.monotonic() > end:
                    log.error("worker %d did not switch to generation %d of the state", index, generation)
                    waiting.discard(index)
            if waiting:
                await asyncio.sleep(_LOOK_S)
        return failed | dict(self._mine)

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
