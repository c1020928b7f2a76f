"""Waits until every member of the fleet is in line with a change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from hopline.errors import StoreUnavailable
from hopline.rollout.store.base import Ack

log = logging.getLogger(__name__)

#: Seconds between looks, and after which a member that does not switch is not waited for.
_LOOK_S, _PATIENCE_S = 0.01, 120.0


async def all_in_line(
    read: Callable[[], Awaitable[Mapping[str, Ack]]], generation: int, *, loaded: bool
) -> Mapping[str, str]:
    """Wait until every other member that lives is in line; what any of them could not load, and why.

    Args:
        read: the acknowledgements of the other members that live.
        loaded: wait also until each has loaded what is wanted, however long that takes.

    Raises: StoreUnavailable: the store was lost, and it is not known whether all have loaded.
    """
    failed: dict[str, str] = {}
    done: set[str] = set()
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            acks = await read()
        except StoreUnavailable as error:
            if loaded:
                raise
            # A member that does not hear of the change stops sending callers to the candidate.
            log.warning("not known whether every member follows generation %d: %s", generation, error)
            return failed
        for member, ack in acks.items():
            if member in done:
                continue
            if (ack.loaded if loaded else ack.switched) >= generation:
                failed |= ack.failed
                done.add(member)
            elif ack.switched < generation and time.monotonic() > end:
                log.error("member %s did not switch to generation %d of the state", member, generation)
                done.add(member)
        if done >= acks.keys():
            return failed
        await asyncio.sleep(_LOOK_S)
