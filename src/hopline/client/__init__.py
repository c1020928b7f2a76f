"""Python clients of a Hopline server's JSON API: `Client`, `AsyncClient`, and `Admin` for changes."""

from hopline.client.admin import Admin
from hopline.client.aio import AsyncClient
from hopline.client.graph import EventsOutcome
from hopline.client.sync import Client
from hopline.types import GraphState, RefusedEvent

__all__ = ["Admin", "AsyncClient", "Client", "EventsOutcome", "GraphState", "RefusedEvent"]
