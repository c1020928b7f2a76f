"""The rig of turnserve's tests, with Hopline's texts of errors."""

from __future__ import annotations

from hopline.transports.grpc_errors import text_of
from packages.turnserve.tests import http2_rig
from packages.turnserve.tests.http2_rig import Alone, Answer, Client, Transport, frames_of

__all__ = ["Alone", "Answer", "Client", "Served", "Transport", "frames_of"]


class Served(http2_rig.Served):
    """An endpoint whose errors name settings."""

    text_of = staticmethod(text_of)
