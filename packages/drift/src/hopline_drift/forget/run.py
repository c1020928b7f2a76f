"""Forgets nodes of a graph, in steps that a kill does not undo: the same call continues.

    journal ─► removed ─► stores ─► history ─► graph ─► others ─► search, and the end of the journal
               events     rows of   snapshot,   folder   log, precomputed rows, caches
                          features  older ones
                                    and log go

The journal lies next to the graph folder, and holds the ids and the rows to search for until the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from hopline.errors import (
    BadRequest,
    FeatureStoreError,
    FeatureStoreUnavailable,
    GraphError,
    HoplineError,
)
from hopline.features.base import FeatureGroup, FeatureStore
from hopline.features.registry import open_store
from hopline.files import write_atomically
from hopline.graph import Graph
from hopline.graph.file_watch import open_compared
from hopline.graph.live.changes import Changes
from hopline.graph.live.history import make_writer
from hopline.graph.live.home import LOCK, LiveHome
from hopline.graph.live.keeper import GraphKeeper
from hopline.graph.live.lock import read_owner
from hopline.graph.live.manifest import NAME
from hopline.live.link import WriterLink
from hopline.live.snapshots import open_present
from hopline.types import ExternalId, ExternalIds
from hopline_drift.forget import erase

STEPS = ("removed", "stores", "history", "graph", "others")
NO_LOG = "prediction logs: none was named by --log, or by prediction_log.path of the server's settings"
#: What no host can reach.
NOT_REACHED = (
    "backups and copies of the folders",
    "snapshots that hosts share (live.snapshots), and live folders of other hosts: run it there",
    "topics of brokers, and events that are sent again",
    "results of batch runs in a store: publish a run without the nodes",
    "files that the graph was built from",
    "memory of running processes: it is gone once they are replaced",
)


@dataclass(frozen=True)
class Places:
    """The places where a host keeps data of nodes.

    Attributes:
        graph: its folder. live: the live folder, which may be missing.
        logs: folders of prediction logs. tables: precomputed files. caches: files that are made again.
        models: folder of artifacts; None for none.
        stores: setting -> URL of a feature store. groups: node type -> group, where they differ.
    """

    graph: Path
    live: Path
    logs: Sequence[Path] = ()
    tables: Sequence[Path] = ()
    caches: Sequence[Path] = ()
    models: Path | None = None
    stores: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def searched(self) -> dict[str, list[Path]]:
        """Name -> folders and files."""
        named = {
            "graph folder": [self.graph],
            "live folder": [self.live],
            "prediction log": self.logs,
            "precomputed rows": self.tables,
            "caches": self.caches,
        }
        return {name: [path for path in paths if path.exists()] for name, paths in named.items()}


class Journal(msgspec.Struct):
    """The nodes that are being forgotten, and how far that is.

    Attributes:
        name: of the events. done: of `STEPS`. patterns: to search for. found: place -> files that had one.
        refused: why rows of a store could not be deleted.
    """

    ids: list[int | str]
    node_type: str
    name: str
    patterns: list[bytes]
    found: dict[str, list[str]]
    done: list[str] = []
    counts: dict[str, int] = {}
    refused: list[str] = []


class Report(msgspec.Struct):
    """An account of what was found, and what is left.

    Attributes:
        found, left: place -> files with an id or a feature row, before and after.
        counts: nodes removed, entries of the log, precomputed rows and caches erased.
        models: those that were packaged while the nodes were in the graph, as far as is known: all; and
            which of their files have an id.
        not_searched: ids that files have by chance, since they are small or short.
    """

    ids: list[int | str]
    node_type: str
    found: dict[str, list[str]]
    left: dict[str, list[str]]
    counts: dict[str, int]
    models: dict[str, list[str]]
    not_searched: list[int | str]
    not_reached: tuple[str, ...] = NOT_REACHED

    @property
    def is_clean(self) -> bool:
        """True if nothing is left."""
        return not any(self.left.values())


def journal_of(places: Places) -> Path:
    """The path of the journal."""
    return places.graph.with_name(f"{places.graph.name}.forget.json")


def forget(
    places: Places,
    ids: Sequence[ExternalId],
    node_type: str = "",
    on_step: Callable[[str], object] = lambda step: None,
) -> Report:
    """Forget nodes, or continue to; see the module.

    Args:
        ids: of nodes, also of those that are removed already; none to continue.
        on_step: called before each step and at the end.

    Raises:
        BadRequest: others are being forgotten; or ids are of a wrong kind.
        GraphError: a folder cannot be written. WriterUnavailable: the writer of the live folder is away.
    """
    path = journal_of(places)
    journal = _continued(path, ids) or _begun(places, ids, node_type)
    steps: dict[str, Callable[[Places, Journal], dict[str, int]]] = {
        "removed": _removed, "stores": _stores, "history": _history, "graph": _graph, "others": _others,
    }  # fmt: skip
    on_step("journal")
    _write(path, journal)
    for name, step in steps.items():
        on_step(name)
        if name not in journal.done:
            journal.counts |= step(places, journal)
            journal.done.append(name)
            _write(path, journal)
    on_step("search")
    left = _search(places, journal.patterns) | _found_in_stores(places, journal.node_type, journal.ids)
    small = [each for each in journal.ids if not erase.is_searched(each)]
    models = _models(places, journal)
    not_reached = (*NOT_REACHED, *(() if places.logs else (NO_LOG,)), *journal.refused)
    found = Report(
        journal.ids, journal.node_type, journal.found, left, journal.counts, models, small, not_reached
    )
    if found.is_clean:
        path.unlink()
    on_step("end")
    return found


def _write(path: Path, journal: Journal) -> None:
    write_atomically(path, msgspec.json.encode(journal), durable=True, mode=0o600)


def _continued(path: Path, ids: Sequence[ExternalId]) -> Journal | None:
    with contextlib.suppress(FileNotFoundError):
        journal = msgspec.json.decode(path.read_bytes(), type=Journal)
        if ids and [*ids] != journal.ids:
            raise BadRequest(
                f"{path}: {len(journal.ids)} other nodes are being forgotten: run it without ids"
            )
        return journal
    return None


def _begun(places: Places, ids: Sequence[ExternalId], node_type: str) -> Journal:
    if not ids:
        raise BadRequest(f"{journal_of(places)} is missing: nothing is being forgotten; name ids")
    base = Graph.open(places.graph)
    graphs = [base, open_present(places.live)] if (places.live / NAME).is_file() else [base]
    node_type = node_type or (next(iter(base.nodes)) if len(base.nodes) == 1 else "")
    if node_type not in base.nodes:
        raise BadRequest(f"--type {node_type or 'is missing'}: the graph has {', '.join(base.nodes)}")
    patterns = dict.fromkeys(
        each for graph in graphs for each in erase.patterns_of(ids, graph.nodes[node_type])
    )
    found = _search(places, [*patterns]) | _found_in_stores(places, node_type, ids)
    return Journal([*ids], node_type, f"forget-{secrets.token_hex(8)}", [*patterns], found)


def _search(places: Places, patterns: Sequence[bytes]) -> dict[str, list[str]]:
    return {name: [*map(str, erase.search(paths, patterns))] for name, paths in places.searched.items()}


def _models(places: Places, journal: Journal) -> dict[str, list[str]]:
    if places.models is None:
        return {}
    return {
        "/".join(each.parent.parts[-2:]): [*map(str, erase.search([each.parent], journal.patterns))]
        for each in sorted(places.models.glob("*/*/model.json"))
    }


def _removed(places: Places, journal: Journal) -> dict[str, int]:
    """Remove the nodes from the live graph: from now on, no answer reads them."""
    if not (places.live / NAME).is_file():
        return {}
    base = Graph.open(places.graph)
    changes = erase.removal(base, journal.node_type, journal.ids, journal.name)
    return {"nodes": _with_writer(places, lambda writer: writer.apply(changes))}


def _stores(places: Places, journal: Journal) -> dict[str, int]:
    """Delete rows of features, and copies of them."""

    async def remove(store: FeatureStore, group: FeatureGroup) -> None:
        await store.remove(group, cast(ExternalIds, journal.ids))

    found = _in_stores(places, journal.node_type, remove, journal.refused)
    return {"groups of stores": len(found)} if found else {}


def _found_in_stores(places: Places, node_type: str, ids: Sequence[ExternalId]) -> dict[str, list[str]]:
    """Place -> groups that have rows of these nodes; {} where features lie in the graph."""
    named = cast(ExternalIds, ids)

    async def has(store: FeatureStore, group: FeatureGroup) -> bool:
        if group.types:
            return any(row is not None for row in await store.fetch_columns(group, named))
        return bool((await store.fetch(group, named)).found.any())

    if not places.stores:
        return {}
    return {
        "feature stores": [
            name for name, is_there in _in_stores(places, node_type, has).items() if is_there
        ]
    }


def _in_stores(
    places: Places,
    node_type: str,
    call: Callable[[FeatureStore, FeatureGroup], Awaitable[Any]],
    refused: list[str] | None = None,
) -> dict[str, Any]:
    """Call for the group of a node type in each store, and its copies there: "setting: group" -> result.

    Args:
        refused: gets what stores say that Hopline cannot write.

    Raises:
        FeatureStoreUnavailable: a store does not respond.
    """
    stored = places.groups.get(node_type, node_type)

    @contextlib.contextmanager
    def noted(setting: str) -> Iterator[None]:
        try:
            yield
        except FeatureStoreUnavailable:
            raise
        except FeatureStoreError as error:
            if refused is not None:
                refused.append(f"{setting}: {error}")

    async def called() -> dict[str, Any]:
        found = {}
        for setting, url in places.stores.items():
            store = open_store(url, setting)
            await store.open()
            try:
                with noted(setting):
                    names = [
                        name for name in await store.group_names() if f"{name}@".startswith(f"{stored}@")
                    ]
                    if not names:
                        raise FeatureStoreError(f"the store has no group {stored!r}")
                    for name in sorted(names):
                        with noted(setting):  # other groups are not kept from it
                            found[f"{setting}: {name}"] = await call(store, await store.describe(name))
            finally:
                await store.close()
        return found

    return asyncio.run(called())


def _history(places: Places, journal: Journal) -> dict[str, int]:
    """Write a snapshot without the nodes; drop earlier ones, and all of the log before it."""
    if (places.live / NAME).is_file():
        _with_writer(places, lambda writer: writer.drop_history())
    return {}


def _graph(places: Places, journal: Journal) -> dict[str, int]:
    return {"graphs": int(erase.erase_from_graph(places.graph, journal.node_type, journal.ids))}


def _others(places: Places, journal: Journal) -> dict[str, int]:
    for path in places.caches:
        path.unlink(missing_ok=True)
    return {
        "entries": sum(erase.erase_entries(path, journal.ids) for path in places.logs),
        "rows": sum(erase.erase_rows(path, journal.node_type, journal.ids) for path in places.tables),
        "caches": len(places.caches),
    }


class _Linked:
    """The writer of the live folder, in another process."""

    def __init__(self, link: WriterLink) -> None:
        self._link = link

    async def apply(self, changes: Changes) -> int:
        (applied,) = await self._link.apply([changes])
        _check(applied.rejected)
        return applied.num_applied

    async def drop_history(self) -> int:
        await self._link.drop_history()  # what follows is in another file of the log
        wanted = (await self._link.status()).sequence
        for _ in range(3):  # one may have begun before
            if (await self._link.snapshot()).snapshot >= wanted:
                break
        else:
            raise GraphError(f"the writer wrote no snapshot of version {wanted}; run this again")
        await self._link.drop_history()
        return 0


class _Own:
    """The writer of the live folder, in this process."""

    def __init__(self, keeper: GraphKeeper) -> None:
        self._keeper = keeper

    async def apply(self, changes: Changes) -> int:
        (applied,) = self._keeper.apply([changes])
        _check(applied.rejected)
        return applied.num_applied

    async def drop_history(self) -> int:
        self._keeper.home.drop_history()
        draft = self._keeper.begin_snapshot()
        if draft is not None:
            self._keeper.write_snapshot(draft)
        self._keeper.home.drop_history()
        return 0


def _check(rejected: Sequence[Any]) -> None:
    """Refuse what was not removed; nodes that the graph does not have need no removal."""
    others = [each for each in rejected if each.code != "unknown_node"]
    if others:
        raise GraphError(f"a node cannot be removed: {others[0].reason}")


def _with_writer(places: Places, call: Callable[[Any], Any]) -> int:
    """Call the writer of the live folder, or be it."""

    async def linked(socket: Path) -> int:
        link = WriterLink(socket, "forget")
        link.start()
        try:
            found: int = await call(_Linked(link))
            return found
        finally:
            await link.close()

    socket = Path(read_owner(places.live / LOCK).socket)
    if socket.is_socket() and _is_running(places):
        return asyncio.run(linked(socket))
    home = LiveHome.open(places.live, open_compared(places.graph))
    try:
        room = {"spare_nodes": 100_000, "spare_edges": 1_000_000, "num_levels": 4, "reads_degrees": True}
        now = lambda: time.time_ns() // 1_000_000  # noqa: E731
        writer, view = make_writer(home.start, home.lineage, None, now, **room)
        keeper = GraphKeeper(home, writer, view, now)
        keeper.recover()
        found: int = asyncio.run(call(_Own(keeper)))
        return found
    except HoplineError as error:
        if isinstance(error, BadRequest):
            raise BadRequest(f"{error}; then run this again") from None
        raise
    finally:
        home.close()


def _is_running(places: Places) -> bool:
    """True if the process that the lock names exists."""
    with contextlib.suppress(OSError):
        os.kill(read_owner(places.live / LOCK).pid or 2**30, 0)
        return True
    return False
