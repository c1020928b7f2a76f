"""Warns when a process has reached its limit of open files: the event loop then closes new connections.

libuv accepts such a connection with a descriptor that it keeps for this, closes it, and raises no error.
"""

from __future__ import annotations

import errno
import logging
import os
import resource

logger = logging.getLogger(__name__)

#: Seconds between two warnings.
_QUIET_S = 60.0


class OpenFiles:
    """Tries once in a while whether one more file can be opened."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def tick(self, now: float) -> None:
        """Warn if no file can be opened, at most once a minute."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno == errno.EMFILE and now >= self._quiet_until:
                self._quiet_until = now + _QUIET_S
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                logger.warning(
                    "the limit of %d open files is reached: new connections are closed, and files cannot "
                    "be opened. Raise the limit (ulimit -n, LimitNOFILE of systemd, ulimits of the "
                    "container), use more workers, or let clients share connections",
                    limit,
                )
