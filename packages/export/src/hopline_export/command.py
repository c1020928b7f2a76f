"""`hopline export`: training tables of what the engine reads and computes for nodes at times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hopline.commands.options import (
    AnySetting,
    AsJson,
    ConfigFile,
    GraphVersion,
    Repository,
    folder_config,
)
from hopline.commands.progress import progress_bars


def export(
    model: Annotated[str, typer.Option(help="Model whose inputs and answers are written.")],
    seeds: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Table of nodes, times and labels: Parquet, CSV and others."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write to.")],
    version: Annotated[str | None, typer.Option(help="Version of the model. Default: the newest.")] = None,
    graph: GraphVersion = None,
    repository: Repository = None,
    node_type: Annotated[
        str, typer.Option(help="Type of the seeds, of a model that answers for several.")
    ] = "",
    id: Annotated[str, typer.Option(help="Column of ids.")] = "id",
    time: Annotated[
        str, typer.Option(help="Column of times: numbers in the graph's unit, or dates. Without it: now.")
    ] = "time",
    label: Annotated[str, typer.Option(help="Column of labels, if the file has it.")] = "label",
    shard: Annotated[int, typer.Option(help="Seeds in one file of ego-graphs.", min=1)] = 256,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Write the rows, sampled ego-graphs, embeddings and scores of nodes, each at its own time."""
    from hopline.commands.batch import model_folder
    from hopline.live.snapshots import needed_graph, open_graph
    from hopline_export.run import export as written
    from hopline_export.seeds import SeedColumns

    resolved = folder_config(config, graph, repository, settings, "an export reads")
    opened = open_graph(needed_graph(resolved), fresh=False)
    folder, _ = model_folder(resolved, model, version)
    with progress_bars(quiet=as_json) as advance:
        report = written(
            folder,
            opened,
            seeds,
            out,
            columns=SeedColumns(id, time, label),
            node_type=node_type,
            shard=shard,
            overwrite=overwrite,
            advance=lambda step, done, total: advance(step, done / total),
        )
    if as_json:
        typer.echo(msgspec.json.encode(report))
        return
    typer.echo(
        f"{out}: {report.num_seeds:,} seeds of {report.model}/{report.version}, {report.num_shards:,} "
        f"shards with {report.num_nodes:,} nodes and {report.num_edges:,} edges"
    )
