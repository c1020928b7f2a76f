"""Clients of a Hopline server, over its JSON API: `Client`, `AsyncClient`, and `Admin` for changes."""

from hopline.client.admin import Admin
from hopline.client.aio import AsyncClient
from hopline.client.sync import Client

__all__ = ["Admin", "AsyncClient", "Client"]
