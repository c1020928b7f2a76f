"""What a caller may learn of an unexpected failure."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from hopline import errors

logger = logging.getLogger(__name__)


Error = TypeVar("Error", bound=BaseException)


def without_frames(error: Error) -> Error:
    """An error that is kept: its frames refer to all that was at work, and to the one who keeps it, so that
    only the garbage collector would find any of them."""
    error.__traceback__ = error.__context__ = None
    return error


def as_hopline_error(error: BaseException, request_id: str) -> errors.HoplineError:
    """What the caller may know of any failure; an unexpected one is logged here, with its traceback."""
    if isinstance(error, errors.HoplineError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return errors.Unavailable("the server gave the request up while shutting down")
    logger.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    return errors.HoplineError(f"internal error; the server's log has it under request id {request_id}")
