"""The eviction policy of a Redis that has to keep what is written to it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from hopline.errors import ConfigError

log = logging.getLogger(__name__)

#: Commands whose reply has the policy, in the order to try them. Managed servers often forbid CONFIG.
QUESTIONS = (("INFO", "memory"), ("CONFIG", "GET", "maxmemory-policy"))


def policy_in(reply: object) -> str:
    """The eviction policy in the reply to one of `QUESTIONS`; "" if the reply has none.

    Args:
        reply: bytes or a list of bytes as the server sends them, or a mapping as redis-py parses INFO.
    """
    if isinstance(reply, Mapping):
        return str(reply.get("maxmemory_policy", ""))
    if isinstance(reply, list):
        reply = b":".join(part for part in reply if isinstance(part, bytes))
    found = re.search(rb"^maxmemory[_-]policy:([\w-]+)", reply, re.M) if isinstance(reply, bytes) else None
    return found[1].decode() if found else ""


def check_keeps(policy: str, where: str, setting: str, *, expiring: bool) -> None:
    """Refuse a server that may evict keys; warn about one that does not tell.

    Args:
        policy: from `policy_in`; "" if neither reply has it.
        where, setting: the server and the setting of its address, for the message.
        expiring: some of the keys have an expiry, which policies such as volatile-lru evict.

    Raises: ConfigError: the policy evicts such keys when the memory is full.
    """
    if not policy:
        log.warning(
            f"{setting}: {where} tells its memory policy neither in INFO nor in CONFIG GET; check that it "
            "is noeviction, since a server that evicts keys loses what Hopline stores there"
        )
    elif policy != "noeviction" and (expiring or not policy.startswith("volatile-")):
        raise ConfigError(
            f"{setting}: {where} has the memory policy {policy}, which may delete keys of Hopline when its "
            "memory is full; set maxmemory-policy to noeviction, or name a separate server"
        )
