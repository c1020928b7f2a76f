"""`hopline batch`: score all nodes of a graph or those of a file, or edges."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from hopline.artifact import read_spec
from hopline.commands.options import (
    AnySetting,
    AsJson,
    ConfigFile,
    GraphVersion,
    Repository,
    folder_config,
)
from hopline.commands.progress import RowRate, progress_bars
from hopline.commands.screen import Screen
from hopline.config.schema import Config
from hopline.config.setting import read_size
from hopline.errors import BadRequest, ModelNotFound
from hopline.graph.cell_text import read_text
from hopline.graph.id_values import integer_id

if TYPE_CHECKING:
    from hopline.graph import Graph
    from hopline.jobs.batch.report import BatchReport


def batch(
    model: Annotated[str, typer.Option(help="Model that scores.")],
    to: Annotated[
        str, typer.Option(help="Destination of the results; the batch guide lists the addresses.")
    ],
    version: Annotated[str | None, typer.Option(help="Version of the model. Default: the newest.")] = None,
    graph: GraphVersion = None,
    repository: Repository = None,
    outputs: Annotated[
        str | None, typer.Option(help="Comma-separated, of probabilities, label, embedding, logits, state.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Read all neighbours instead of a sample of the fanouts.")
    ] = False,
    memory: Annotated[str | None, typer.Option(help="Memory limit, such as 8GiB.")] = None,
    threads: Annotated[int, typer.Option(help="Threads; 0: one for each CPU.", min=0)] = 0,
    nodes: Annotated[
        Path | None, typer.Option(help="Score only these ids: one a line, or a .npy file.")
    ] = None,
    edges: Annotated[
        str | None, typer.Option(help="Score edges: a table with columns from and to, or all of the graph.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option(help="Of all edges, those from this time on: a number, or ISO 8601.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Of all edges, those before this time.")] = None,
    exclude_seed_edges: Annotated[
        str, typer.Option(help="Edges that the score of an edge does not see: none, self or reverse.")
    ] = "",
    since: Annotated[
        Path | None, typer.Option(help="Work folder of an earlier run: compute only what changed since.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the work folder for a later --since.")] = False,
    work: Annotated[
        Path | None, typer.Option(help="Work folder. Default: the address with .run added.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the work of an unfinished run.")
    ] = False,
    checkpoint_s: Annotated[
        float,
        typer.Option(
            help="Seconds between checkpoints: a kill loses at most that much work, plus the beginning "
            "of the last level.",
            min=0.0,
        ),
    ] = 5.0,
    engine: Annotated[str, typer.Option(help="Where to compute: local (this process) or ray.")] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster for --engine ray. Default: RAY_ADDRESS, else a cluster started here."
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Score all nodes of a graph, or edges, and publish all results together."""
    from hopline.config.urls import shown
    from hopline.jobs.batch.edges import EdgeChoice, EdgeRun
    from hopline.jobs.batch.nodes_file import read_nodes
    from hopline.jobs.batch.registry import OUTPUTS, open_engine, open_sink, scheme_of, work_folder
    from hopline.jobs.batch.run import BatchOptions, BatchRun
    from hopline.live.snapshots import needed_graph, open_graph

    resolved = folder_config(config, graph, repository, settings, "a batch run reads")
    graph_folder = needed_graph(resolved)
    scheme = scheme_of(to)
    folder, version = model_folder(resolved, model, version)
    if scheme == "precomputed" and (heads := read_spec(folder, verify=False)).heads:
        raise BadRequest(
            f"{model} has heads of {' and '.join(heads.by_type)}: name one output type (target=)"
        )
    chosen = None
    names = tuple(name.strip() for name in outputs.split(",") if name.strip()) if outputs else ()
    if nodes is not None:
        chosen = read_nodes(nodes, id_kind(open_graph(graph_folder, fresh=False), folder, names))
    options = BatchOptions(
        outputs=names,
        usual=OUTPUTS.get(scheme, ()),
        exact=exact,
        memory_bytes=read_size(memory, "--memory") if memory else 0,
        threads=threads,
        nodes=chosen,
        since=since,
        keep=keep,
        restart=restart,
        checkpoint_s=checkpoint_s,
    )
    if edges is None and (begin or end or exclude_seed_edges):
        raise BadRequest("--begin, --end and --exclude-seed-edges are for --edges")
    if edges is not None and (scheme not in ("npy", "parquet") or engine != "local"):
        raise BadRequest(
            "scores of edges are computed here (--engine local) and written to npy: or Parquet"
        )
    places = folder, graph_folder, work or work_folder(to, f"batch-{model}-{version}")
    with progress_bars(RowRate(), quiet=as_json) as advance:
        run: BatchRun | EdgeRun
        if edges is not None:
            file = None if edges == "all" else Path(edges)
            choice = EdgeChoice(file, _moment(begin), _moment(end), exclude_seed_edges)
            run = EdgeRun(*places, choice, options, advance=advance)
        else:
            opened = partial(open_engine, engine, address=ray_address or "")
            run = BatchRun(*places, options, engine=opened, advance=advance)
        report = run.run(lambda: open_sink(to))
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        show(report, shown(to), Screen())


def _moment(text: str | None) -> int | datetime | None:
    """A time in the graph's unit, or a date. Raises: BadRequest."""
    try:
        if text is None or text.strip().lstrip("-").isdecimal():
            return None if text is None else integer_id(text)
        found: datetime = read_text("timestamp", text)
    except ValueError as error:
        raise BadRequest(f"--begin, --end: {error}") from None
    return found


def model_folder(config: Config, model: str, version: str | None) -> tuple[Path, str]:
    """The folder of a model's version, and that version; the newest if `version` is None.

    Raises: ModelNotFound: it does not exist; the message lists the versions.
    """
    from hopline.models.repositories import configured_repository
    from hopline.models.repository import absent

    repository = configured_repository(config)
    versions = repository.versions(model)
    if not versions:
        raise ModelNotFound(absent(repository, model, version or "1"))
    version = version or versions[-1]
    return repository.fetch(model, version), version


def id_kind(graph: Graph, folder: Path, outputs: tuple[str, ...] = ()) -> str:
    """The kind of ids of nodes that a version scores. Raises: BadRequest: the graph lacks their type."""
    from hopline.jobs.batch.results import chosen_outputs, with_heads

    spec = read_spec(folder, verify=False)
    node_type = with_heads(spec, chosen_outputs(spec, outputs)).head.node_type
    if node_type not in graph.nodes:
        raise BadRequest(f"the graph has no nodes of type {node_type!r}, which the model scores")
    return graph.nodes[node_type].ids.kind


def show(report: BatchReport, to: str, console: Console) -> None:
    """Print a report."""
    table = Table("", "", box=None, show_header=False, pad_edge=False)
    table.columns[1].justify = "right"
    for name, value in (
        ("rows", f"{report.rows:,}"),
        ("rows computed, all levels", f"{report.recomputed:,}"),
        ("seconds", f"{report.seconds:.1f}"),
        ("rows per second", f"{report.rows_per_s:,.0f}"),
        ("peak memory", f"{report.peak_rss_bytes / 2**20:,.0f} MiB"),
    ):
        table.add_row(name, value)
    console.print(table)
    for level in report.levels:
        way = f", {level.compact_edges:,} compact edges" if level.compact_edges else ""
        copied = f", {level.copied:,} copied" if level.copied else ""
        console.print(
            f"level {level.level} of {level.node_type}: {level.computed:,} of {level.rows:,} rows computed"
            f"{copied}, {level.edges:,} edges, {level.seconds:.1f} s{way}",
            style="dim",
            highlight=False,
        )
    if report.resumed:
        console.print("Resumed an earlier attempt.", style="dim")
    if report.duplicates:
        console.print(f"{report.duplicates:,} repeated ids; each id is one row.", style="dim")
    console.print(f"Published: {to}", style="bold green", highlight=False)
    if report.kept:
        console.print(f"States for --since: {report.kept}", style="dim", highlight=False)
