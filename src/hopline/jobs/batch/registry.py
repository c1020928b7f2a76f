"""The engines by name and the sinks by address; only the requested one is imported."""

from __future__ import annotations

from pathlib import Path

from hopline.artifact import ModelSpec
from hopline.config.urls import shown
from hopline.doors import Door
from hopline.errors import BadRequest, SinkError
from hopline.features.registry import PUBLISHING
from hopline.graph import Graph
from hopline.jobs.batch.sink import Sink
from hopline.jobs.batch.work import Engine

#: Name -> what is called with graph, model and threads (0 means all); an engine for a cluster also gets its
#: address.
ENGINES = Door(
    "hopline.batch_engines", {"local": "hopline.jobs.batch.local:LocalEngine"}, {"ray": "'hopline[ray]'"}
)


def open_engine(name: str, graph: Graph, spec: ModelSpec, threads: int, *, address: str = "") -> Engine:
    """The engine of a name.

    Args:
        address: of a cluster; "" uses the engine's default.

    Raises:
        BadRequest: an unknown name (the message lists the known ones), one whose package is missing, or an
            address for an engine without a cluster.
        BatchError: the engine cannot be used here.
    """
    made = ENGINES.find(name)
    if made is None and (install := ENGINES.how_to_install(name)):
        raise BadRequest(f"--engine {name} needs a package: {install}")
    if made is None:
        known = sorted({*ENGINES.names(), *ENGINES.packages})
        raise BadRequest(f"--engine {name!r} is unknown; choose one of {', '.join(known)}")
    if address and name == "local":
        raise BadRequest(f"--engine local has no cluster; an address ({address}) is for --engine ray")
    engine: Engine = made(graph, spec, threads, **({"address": address} if address else {}))
    return engine


#: Scheme -> a function from the address to a sink.
SINKS = Door(
    "hopline.batch_sinks",
    {
        "npy": "hopline.jobs.batch.npy:from_address",
        "precomputed": "hopline.jobs.batch.precomputed_sink:from_address",
    },
    PUBLISHING | {"parquet": "'hopline[parquet]'"},
)
#: Schemes whose addresses are paths.
_PATHS = {*SINKS.own, "parquet"}
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
    known = {*SINKS.names(), *SINKS.packages}
    if colon and scheme in known:
        return scheme
    for ending, named in ENDINGS.items():
        if address.endswith(ending):
            return named
    shapes = [*(f"{name}:…" for name in sorted(known)), *(f"*{e}" for e in sorted(ENDINGS))]
    raise SinkError(f"--to {shown(address)!r} names no sink; known are {', '.join(shapes)}")


def open_sink(address: str) -> Sink:
    """The sink of an address; nothing is written yet.

    Raises:
        SinkError: the address names no sink, one whose package is missing, or is not well formed.
    """
    scheme = scheme_of(address)
    made = SINKS.find(scheme)
    if made is None:
        raise SinkError(f"--to {scheme}: needs a package: {SINKS.how_to_install(scheme)}")
    sink: Sink = made(address)
    return sink


def work_folder(address: str, run: str) -> Path:
    """The default work folder of a run: next to a path, else in the current folder.

    Args:
        run: a name for it, if the address is not a path.
    """
    if "://" in address:
        return Path(f"{run}.run")
    scheme, colon, rest = address.partition(":")
    path = rest if colon and scheme in _PATHS else address
    return Path(path.rstrip("/") + ".run")
