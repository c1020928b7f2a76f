"""`hopline snapshot`: publish graphs with all that belongs to them at an address, and look after them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hopline.commands.options import AnySetting, ConfigFile, pair
from hopline.commands.screen import Screen, whole
from hopline.commands.serve_flags import resolve_config
from hopline.errors import BadRequest, PrecomputedFileError, SnapshotDamaged, SnapshotNotFound
from hopline.remote_address import is_address
from hopline.snapshots.manifest import SnapshotAddress
from hopline.snapshots.store import SnapshotStore

app = typer.Typer(no_args_is_help=True, help="Publish, list and fetch snapshots at an address.")

Address = Annotated[
    str, typer.Argument(help="Folder of snapshots: s3://, gs://, https://, file:// or another URL.")
]


@app.command()
def publish(
    graph: Annotated[Path, typer.Argument(help="Folder of a graph.")],
    address: Address,
    precomputed: Annotated[
        list[Path] | None, typer.Option(help="Precomputed answers of `hopline batch`; repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Version to roll out with it, as MODEL=VERSION; repeatable. Default: the one that serves."
        ),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Feature group to serve with it, as TYPE=GROUP; repeatable.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name for people, such as a date.")] = "",
    move: Annotated[bool, typer.Option(help="Move the pointer to it, so that servers take it up.")] = True,
) -> None:
    """Upload a graph, its features and precomputed answers as one snapshot, and move the pointer to it."""
    from hopline.graph import Graph
    from hopline_stores.snapshots.publish import publish as publish_snapshot

    store = _store(address)
    for path in precomputed or []:
        _check_precomputed(path, Graph.open(graph).version)
    done = publish_snapshot(
        store,
        graph,
        precomputed=precomputed or [],
        name=name,
        groups=["=".join(pair(item, "--group", "TYPE=GROUP")) for item in group or []],
        models=dict(pair(item, "--model", "MODEL=VERSION") for item in model or []),
        move=move,
    )
    print(f"{store.shown}#{done.id}")
    what = f"{done.num_bytes} bytes, {done.uploaded_bytes} of them uploaded"
    Screen().say(f"{what}; the pointer {'names it' if move else 'did not move'}")


@app.command("list")
def list_snapshots(address: Address) -> None:
    """Show the snapshots of an address, the newest first.

    Exit code 1: the pointer or a manifest is damaged. The others are shown.
    """
    store = _store(address)
    table = Table(title=store.shown, title_justify="left")
    for column in ("id", "published", "name", "graph", "nodes", "edges", "bytes", ""):
        table.add_column(column)
    damaged: list[str] = []
    try:
        newest = store.pointer().snapshot
    except SnapshotNotFound:
        newest = ""
    except SnapshotDamaged as error:
        newest = ""
        damaged.append(str(error))
    for entry in store.manifests():
        try:
            manifest = store.manifest(entry.name)
        except SnapshotNotFound:  # removed since it was listed
            continue
        except SnapshotDamaged as error:
            damaged.append(str(error))
            continue
        when = datetime.fromtimestamp(entry.changed).strftime("%Y-%m-%d %H:%M") if entry.changed else "–"
        numbers = [f"{number:,}" for number in (manifest.num_nodes, manifest.num_edges, manifest.num_bytes)]
        mark = "newest" if entry.name == newest else ""
        table.add_row(entry.name, when, manifest.name, manifest.graph_version, *numbers, mark)
    Screen().print(whole(table, "id"))
    if damaged:
        raise SnapshotDamaged("; ".join(damaged))


@app.command()
def use(
    address: Address,
    snapshot: Annotated[str, typer.Argument(help="Id of a snapshot that was published there.")],
) -> None:
    """Move the pointer to another snapshot, such as an older one; servers that follow it roll it out."""
    from hopline_stores.snapshots.publish import point_to

    parsed = SnapshotAddress.parse(f"{address}#{snapshot}")
    point_to(_store(address), parsed.id)
    Screen().say(f"the pointer of {parsed._replace(id='').shown} names {snapshot}")


@app.command()
def fetch(
    address: Annotated[str, typer.Argument(help="Folder of snapshots, or one of them: URL#ID.")],
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Copy a snapshot to this host before a server needs it, verify it, and print the graph's folder."""
    from hopline.models.host_snapshots import HostSnapshots
    from hopline.observe.metrics import Metrics

    if not is_address(address):
        raise BadRequest(f"{address} is not an address: write a URL, such as s3://bucket/daily")
    resolved = resolve_config(config, {}, settings or [])
    on_host = HostSnapshots(resolved, Metrics())
    pinned, _ = on_host.pinned(address)
    held = on_host.take(pinned)
    print(held.graph)


@app.command()
def prune(
    address: Address, keep: Annotated[int, typer.Option(help="Newest snapshots that stay.", min=1)] = 7
) -> None:
    """Remove old snapshots from an address, but never the one that the pointer names.

    Do not publish meanwhile. Servers keep the copies that they use.
    """
    from hopline_stores.snapshots.publish import prune as prune_snapshots

    gone, freed = prune_snapshots(_store(address), keep)
    Screen().say(f"removed {len(gone)} snapshots, {freed} bytes")


def _store(address: str) -> SnapshotStore:
    if not is_address(address):
        raise BadRequest(
            f"{address} is not an address: write a URL, such as s3://bucket/daily or file:///shared/daily"
        )
    parsed = SnapshotAddress.parse(address)
    if parsed.id:
        raise BadRequest(f"{parsed.shown}: leave out # and the id")
    return SnapshotStore(parsed.base, "address")


def _check_precomputed(path: Path, graph_version: str) -> None:
    """Refuse a file that no server could use with the graph, before anything is uploaded."""
    from hopline.engine.precomputed_file.reader import PrecomputedFile

    file = PrecomputedFile.open(path)
    if file.header.plan.graph_version != graph_version:
        raise PrecomputedFileError(
            f"{path} was computed on graph {file.header.plan.graph_version}, and this graph is "
            f"{graph_version}; run `hopline batch` on it"
        )
    file.verify()
