"""`hopline quantize`: quantise a packaged model, as a new version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from hopline.commands.batch import id_kind, model_folder
from hopline.commands.options import AnySetting, AsJson, ConfigFile, folder_config
from hopline.commands.progress import progress_bars
from hopline.commands.screen import Screen, whole
from hopline.config.schema import Config
from hopline.errors import BadRequest, ConfigError

if TYPE_CHECKING:
    from hopline.models.local_repository import LocalRepository
    from hopline_compress.quantize.judge import BucketFigures
    from hopline_compress.quantize.report import Latency, QuantizeReport

_FORMS = ("int8", "float16", "bfloat16")


def quantize(
    model: Annotated[str, typer.Option(help="Model to quantise.")],
    version: Annotated[
        str | None,
        typer.Option(help="Version of the model. Default: the newest one that is not quantised."),
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Graph folder, for calibration and evaluation.")
    ] = None,
    repository: Annotated[str | None, typer.Option(help="Folder of <model>/<version> artifacts.")] = None,
    to: Annotated[str, typer.Option(help="Target type: int8, float16 or bfloat16.")] = "int8",
    fallback_dtype: Annotated[
        str, typer.Option(help="Type of layers in which int8 costs too much: float32, float16 or bfloat16.")
    ] = "float32",
    weight_bits: Annotated[
        int | None,
        typer.Option(
            help="Bits of int8 weights: 8, or 7, which is also correct on CPUs without VNNI. "
            "Default: 8 if this CPU has VNNI.",
            min=7,
            max=8,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new model. Default: the same.")] = None,
    new_version: Annotated[
        str | None, typer.Option(help="Version of the new model. Default: the original's with -int8 added.")
    ] = None,
    calibration: Annotated[int, typer.Option(help="Nodes to calibrate on.", min=1)] = 512,
    nodes: Annotated[
        Path | None, typer.Option(help="Calibrate on these ids: one a line, or a .npy file.")
    ] = None,
    eval_nodes: Annotated[int, typer.Option(help="Nodes to evaluate on.", min=1)] = 4096,
    labels: Annotated[
        Path | None, typer.Option(help="Known classes, to evaluate by accuracy: CSV of id,class, or .npy.")
    ] = None,
    max_drop: Annotated[
        float,
        typer.Option(
            help="Largest loss in percentage points, overall and for each range of degrees.", min=0.0
        ),
    ] = 0.5,
    exclude: Annotated[
        str | None, typer.Option(help="Layers to leave in float32, comma-separated.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing version.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of all samples.", min=0)] = 0,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Quantise a packaged model's weights where that costs no accuracy, and write a new version."""
    from hopline.jobs.batch.nodes_file import read_nodes
    from hopline.live.snapshots import needed_graph, open_graph

    resolved = folder_config(config, graph, repository, settings, "calibration reads")
    _check_words(to, fallback_dtype, weight_bits)
    folder = _model_folder(resolved, model, version)
    opened = open_graph(needed_graph(resolved), fresh=False)
    from hopline_compress.quantize.run import QuantizeOptions
    from hopline_compress.quantize.run import quantize as run

    options = QuantizeOptions(
        to=to,  # type: ignore[arg-type]
        calibration=calibration,
        nodes=None if nodes is None else read_nodes(nodes, id_kind(opened, folder)),
        eval_nodes=eval_nodes,
        labels=labels,
        max_drop=max_drop,
        exclude=tuple(word.strip() for word in (exclude or "").split(",") if word.strip()),
        fallback_dtype=fallback_dtype,  # type: ignore[arg-type]
        weight_bits=weight_bits,  # type: ignore[arg-type]
        overwrite=force,
        seed=seed,
    )
    with progress_bars(quiet=as_json) as advance:
        done = run(
            folder,
            opened,
            folder.parents[1],
            options,
            name=name or "",
            new_version=new_version or "",
            advance=advance,
        )
    if report is not None:
        report.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")
    if as_json:
        typer.echo(msgspec.json.encode(done))
    else:
        show(done, Screen())


def _check_words(to: str, fallback_dtype: str, weight_bits: int | None) -> None:
    if to not in _FORMS:
        raise BadRequest(f"--to {to!r}: must be one of {', '.join(_FORMS)}")
    if fallback_dtype not in ("float32", "float16", "bfloat16"):
        raise BadRequest(f"--fallback-dtype {fallback_dtype!r}: must be one of float32, float16, bfloat16")
    if weight_bits is not None and to != "int8":
        raise BadRequest(f"--weight-bits {weight_bits}: only for int8 weights, not with --to {to}")


def _model_folder(config: Config, model: str, version: str | None) -> Path:
    from hopline.models.local_repository import LocalRepository
    from hopline.models.repositories import configured_repository

    repository = configured_repository(config)
    if not isinstance(repository, LocalRepository):
        raise ConfigError(
            f"models.repository: {repository.address} is not writable; copy the model into a folder, "
            "quantise it there and copy the new version back"
        )
    if version is None:
        newest = reversed(repository.versions(model))
        version = next((each for each in newest if not _is_quantized(repository, model, each)), None)
    return model_folder(config, model, version)[0]


def _is_quantized(repository: LocalRepository, model: str, version: str) -> bool:
    from hopline.artifact import read_spec

    folder = repository.fetch(model, version)
    if not (folder / "model.json").is_file():  # a pipeline
        return False
    return "quantized" in read_spec(folder, verify=False).parity


def show(report: QuantizeReport, console: Console) -> None:
    """Print a report."""
    layers = Table("layer", "weights", "stored as", "costs alone", "", box=None, pad_edge=False)
    for layer in report.layers:
        costs = "" if layer.drop is None else f"{layer.drop:.2f}"
        kept = f"{layer.form} {layer.scheme}".strip()
        layers.add_row(layer.name, " x ".join(map(str, layer.shape)), kept, costs, layer.why)
    console.print(whole(layers, "layer"), highlight=False)
    console.print()
    accuracy = ("before %", "after %") if report.labels else ("agreement %",)
    buckets = Table("nodes of", "evaluated", *accuracy, "costs, points", box=None, pad_edge=False)
    for bucket in (*report.figures.buckets, report.figures.overall):
        buckets.add_row(*_cells(bucket, labels=report.labels))
    console.print(buckets, highlight=False)
    console.print(
        f"\nsize {report.bytes_before:,} -> {report.bytes_after:,} bytes ({report.size_ratio:.2f} x); "
        f"files alone {_times(report.latency_model)}; whole requests {_times(report.latency_request)}",
        highlight=False,
    )
    if min(each.ratio for each in report.latency_request) >= 1 and report.to == "int8":
        console.print(
            "Not faster on this machine: the layers are narrow. Serve the original if size is no concern.",
            highlight=False,
        )
    console.print(f"Written: {report.path}", style="bold green", highlight=False)


def _cells(bucket: BucketFigures, *, labels: bool) -> list[str]:
    measured = (bucket.before, bucket.after) if labels else (bucket.agreement,)
    shown = ["" if value is None else f"{value:.2f}" for value in measured]
    return [bucket.name, f"{bucket.nodes:,}", *shown, f"{bucket.drop:.2f}"]


def _times(latencies: tuple[Latency, ...]) -> str:
    return ", ".join(f"{each.ratio:.2f} x for {each.rows:,}" for each in latencies)
