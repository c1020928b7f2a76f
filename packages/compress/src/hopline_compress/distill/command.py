"""`hopline distill`: train a small student of a packaged graph model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from hopline.commands.batch import model_folder
from hopline.commands.options import AnySetting, AsJson, ConfigFile, GraphVersion, folder_config
from hopline.commands.progress import progress_bars
from hopline.commands.screen import Screen
from hopline.config.folders import needed_folder
from hopline.errors import BadRequest, PackagingError

if TYPE_CHECKING:
    from hopline_compress.distill.report import DistillReport


def distill(
    model: Annotated[str, typer.Option(help="The teacher: a packaged graph model.")],
    version: Annotated[
        str | None, typer.Option(help="Version of the teacher. Default: the newest.")
    ] = None,
    graph: GraphVersion = None,
    repository: Annotated[str | None, typer.Option(help="Folder of <model>/<version> artifacts.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Known classes: CSV of id,class, or .npy with one per row (-1: unknown)."),
    ] = None,
    student: Annotated[
        str | None, typer.Option(help="Name of the student. Default: the teacher's with -student added.")
    ] = None,
    structure: Annotated[
        bool | None,
        typer.Option(
            "--structure/--no-structure",
            help="Also give the student rows from a diffusion over the graph, computed beforehand. "
            "Default: if the scored nodes have edges among them.",
        ),
    ] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of hidden layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of linear layers.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Most epochs.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many epochs without improvement.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the split and the training.", min=0, max=2**63 - 1)
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Write the student even if it is more than 2 % worse.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing student of this name and version.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw accuracy by degree and calibration to this .svg file.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Train an MLP to answer as a graph model does, and write it as a model that reads no neighbours."""
    if plot is not None and plot.suffix != ".svg":
        raise BadRequest(f"--plot {plot}: the plot is drawn as SVG; name a .svg file")
    for name, path in (("--report", report), ("--plot", plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise BadRequest(f"{name} {path}: {path.parent} is not a folder")
    resolved = folder_config(config, graph, repository, settings, "a student learns from")
    from hopline.live.snapshots import needed_graph

    graph_folder = needed_graph(resolved)
    own = needed_folder(resolved, "models.repository")
    folder, _ = model_folder(resolved, model, version)
    # imported here because they import torch
    from hopline_compress.distill.run import Distillation, DistillOptions
    from hopline_compress.distill.settings import Settings

    given = {"hidden": hidden, "layers": layers, "epochs": epochs, "patience": patience}
    chosen = Settings(
        seed=seed,
        structure=structure is not False,
        **{name: value for name, value in given.items() if value is not None},
    )
    options = DistillOptions(
        student=student or "",
        needs_structure=structure is True,
        labels=labels,
        force=force,
        overwrite=overwrite,
        settings=chosen,
    )
    with progress_bars(quiet=as_json) as advance:
        done = Distillation(folder, graph_folder, own, options, advance=advance).run()
    if report is not None:
        report.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1))
    if plot is not None:
        from hopline_compress.distill.report import draw

        plot.write_text(draw(done), "utf-8")
    if as_json:
        typer.echo(msgspec.json.encode(done))
    else:
        show(done, Screen())
    if not done.written:
        raise PackagingError(
            f"{done.student} is not written: {done.why}. More labels, --hidden or --structure may help; "
            "--force writes it anyway"
        )


def show(report: DistillReport, console: Console) -> None:
    """Print a report."""
    table = Table("held-out nodes", "nodes", "agreement", "teacher", "student", "plain MLP", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    of_all = (report.teacher_accuracy, report.student_accuracy, report.mlp_accuracy)
    rows = [("all", report.nodes["held_out"], report.agreement, of_all)]
    for bucket in report.by_degree:
        accuracies = (bucket.teacher, bucket.student, bucket.mlp)
        rows.append((f"in-degree {bucket.degrees}", bucket.nodes, bucket.agreement, accuracies))
    for name, nodes, agreement, values in rows:
        style = "bold" if name == "all" else None
        table.add_row(name, str(nodes), f"{agreement:.2%}", *map(_percent, values), style=style)
    console.print(table)
    console.print(
        f"Best epoch {report.best_epoch + 1} of {report.epochs}; "
        f"calibration error {report.calibration['student'].ece:.3f}",
        style="dim",
        highlight=False,
    )
    console.print(f"Gate: {report.why}", style="green" if report.within else "yellow", highlight=False)
    if report.written:
        console.print(f"Student: {report.path}", style="bold green", highlight=False)
        console.print(f"Together with its teacher: {report.fallback}", style="dim", highlight=False)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
