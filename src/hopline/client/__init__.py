"""Clients of a Hopline server, over its JSON API: `Client` and `AsyncClient`."""

from hopline.client.aio import AsyncClient
from hopline.client.sync import Client

__all__ = ["AsyncClient", "Client"]
