"""The sinks by address; only the requested one is imported."""

from __future__ import annotations

import importlib
from pathlib import Path

from hopline.config.urls import shown
from hopline.errors import SinkError
from hopline.features.registry import PUBLISHING
from hopline.jobs.batch.sink import Sink

#: Scheme -> "module:attribute" of a function from the address to a sink.
SINKS = {
    **dict.fromkeys(PUBLISHING, "hopline.jobs.batch.store_sink:from_address"),
    "npy": "hopline.jobs.batch.npy:from_address",
    "parquet": "hopline.jobs.batch.parquet_sink:from_address",
    "precomputed": "hopline.jobs.batch.precomputed_sink:from_address",
}
#: File ending -> scheme, for addresses that are paths.
ENDINGS: dict[str, str] = {".parquet": "parquet", ".precomputed": "precomputed"}

#: Scheme -> its default outputs.
OUTPUTS = {"precomputed": ("state", "logits")}


def scheme_of(address: str) -> str:
    """The scheme of an address: the part before the colon, or the scheme of a path's ending.

    Raises:
        SinkError: neither names a sink; the message lists them.
    """
    scheme, colon, _ = address.partition(":")
    if colon and scheme in SINKS:
        return scheme
    for ending, named in ENDINGS.items():
        if address.endswith(ending):
            return named
    known = ", ".join([*(f"{name}:…" for name in sorted(SINKS)), *(f"*{e}" for e in sorted(ENDINGS))])
    raise SinkError(f"--to {shown(address)!r} names no sink; known are {known}")


def open_sink(address: str) -> Sink:
    """The sink of an address; nothing is written yet.

    Raises:
        SinkError: the address names no sink, or is not well formed.
    """
    module, _, attribute = SINKS[scheme_of(address)].partition(":")
    sink: Sink = getattr(importlib.import_module(module), attribute)(address)
    return sink


def work_folder(address: str, run: str) -> Path:
    """The default work folder of a run: next to a path, else in the current folder.

    Args:
        run: a name for it, if the address is not a path.
    """
    if "://" in address:
        return Path(f"{run}.run")
    scheme, colon, rest = address.partition(":")
    path = rest if colon and scheme in SINKS else address
    return Path(path.rstrip("/") + ".run")
