"""Builds the model of an isolated process: a unit of the repository, as the server itself would load it."""

from __future__ import annotations

import msgspec

from hopline.answering.queued import QueuedVersion
from hopline.answering.served import Version
from hopline.answering.unit import Unit
from hopline.errors import RuntimeFailure
from hopline.isolated.main import ModelOrders
from hopline.models.loader import Loader


async def open_unit(orders: ModelOrders) -> QueuedVersion:
    """A factory; `arguments` are the unit's fields, and the content that the server found.

    Raises: HoplineError: it cannot be loaded, or its content is another one.
    """

    def resolve(name: str, version: str | None) -> Version:
        raise RuntimeFailure(f"{orders.name} runs alone, without {name!r}")

    unit = msgspec.convert(orders.arguments["unit"], Unit)
    load = await Loader(orders.config, orders.metrics, orders.recorders, resolve).load(orders.name, unit)
    load.check_same(orders.arguments["content"] | {"graph": load.content["graph"]}, load.content)
    assert isinstance(load.served, QueuedVersion)
    return load.served
