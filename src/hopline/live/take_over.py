"""Takes over a live folder that another process writes.

        owner's lock says     I belong to a server               I belong to a stream
        it yields             ask over its socket, and wait      if it answers there, leave it the folder
        it does not           wait for its end, within a time    leave it the folder

A server's writer has the memory that workers read, so it has priority over the writer of a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from hopline.errors import Conflict, HoplineError
from hopline.graph.live.home import LOCK, LiveHome
from hopline.graph.live.lock import Owner, read_owner
from hopline.live.link import WriterLink

log = logging.getLogger(__name__)

#: Seconds between checks of the lock, and between requests to its owner.
_LOOK_S, _ASK_EVERY_S = 0.1, 0.5
#: An owner that yields may first have to read a graph, and to finish a batch and a snapshot.
_YIELDING_S = 60.0
#: Short timeouts, so that the process can stop meanwhile: unanswered requests are repeated.
_CONNECT_S, _ANSWER_S = 0.5, 1.0


class Relieved(Exception):
    """Another process writes the folder, and continues to."""


async def take_over(
    attempt: Callable[[], Awaitable[LiveHome]],
    folder: Path,
    stopping: asyncio.Event,
    *,
    yields: bool,
    stand_by_s: float,
    clock: Callable[[], float],
) -> LiveHome | None:
    """The live folder, once no other process writes there; None if stopped before.

    Args:
        attempt: opens the folder; Conflict if another process has it.
        yields: whether this writer gives up the folder on request.
        stand_by_s: seconds to wait for an owner that does not yield; 0 means for ever.
        clock: monotonic seconds.
    Raises:
        Relieved: this one yields, and the owner writes.
        Conflict: the owner did not end in time; the message names it.
        HoplineError: as `attempt`.
    """
    began, ask_at, logged, answer = clock(), clock(), "", ""
    while not stopping.is_set():
        try:
            return await attempt()
        except Conflict as error:
            conflict = str(error)
        owner = read_owner(folder / LOCK)
        if not logged:
            logged = conflict
            log.info("standing by: %s", logged)
        if yields:
            if not owner.yields or await _answers(owner):
                raise Relieved(f"{conflict}; changes are sent to it")
            answer = "it is starting or stopping"
        elif not owner.yields:
            answer = "it does not yield; waiting for it"
        elif clock() >= ask_at:
            answer = await _ask_to_yield(owner)
            ask_at = clock() + _ASK_EVERY_S
        if f"{owner}: {answer}" != logged:
            logged = f"{owner}: {answer}"
            log.info("standing by for %s", logged)
        patience_s = max(stand_by_s, _YIELDING_S) if owner.yields else stand_by_s
        if stand_by_s and not yields and clock() - began >= patience_s:
            raise Conflict(
                f"{conflict}. It did not end within {patience_s:g} s ({answer}): stop it, use another "
                "live.folder, or wait for as long as it runs (live.stand_by_s = 0)"
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _LOOK_S)
    return None


async def _ask_to_yield(owner: Owner) -> str:
    """Ask an owner to give up the folder; return its answer."""
    link = WriterLink(
        Path(owner.socket), "the next writer", patience_s=_CONNECT_S, timeout_s=_ANSWER_S, quiet=True
    )
    link.start()
    try:
        await link.step_aside()
    except HoplineError as error:
        return str(error)
    finally:
        await link.close()
    return "it yields"


async def _answers(owner: Owner) -> bool:
    """True if an owner accepts changes."""
    link = WriterLink(Path(owner.socket), "another writer", patience_s=_CONNECT_S, quiet=True)
    link.start()
    try:
        await link.welcome()
    except HoplineError:
        return False
    finally:
        await link.close()
    return True
