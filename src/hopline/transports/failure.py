"""The error that a caller gets for an unexpected failure."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from hopline import errors

logger = logging.getLogger(__name__)


Error = TypeVar("Error", bound=BaseException)


def without_frames(error: Error) -> Error:
    """Remove the traceback and context of an error that is stored.

    Its frames refer to the objects of the call and to the object that stores the error. Only the garbage
    collector could free such a cycle.
    """
    error.__traceback__ = error.__context__ = None
    return error


def without_names(error: errors.HoplineError) -> errors.HoplineError:
    """Return the error without names of models, which a client may not be allowed to know."""
    if isinstance(error, errors.ModelNotFound) and error.brief != str(error):
        return errors.ModelNotFound(f"{error.brief}; the list of models has those that you may read")
    return error


def as_hopline_error(error: BaseException, request_id: str) -> errors.HoplineError:
    """Convert any failure to an error for the caller; an unexpected one is logged with its traceback."""
    if isinstance(error, errors.HoplineError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return errors.Unavailable("the server is shutting down and cancelled the request")
    logger.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    return errors.HoplineError(f"internal error; see the server's log for request id {request_id}")
