"""`hopline package`: writes the artifact of a model in a Python file, with its weights, for a graph.

With `--sklearn`, of a fitted estimator with sample rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import msgspec
import typer
from rich.table import Table

from hopline.artifact import check_choice
from hopline.commands.model_reference import load_module, parse_init
from hopline.commands.options import AsJson, pair
from hopline.commands.screen import Screen, whole
from hopline.doors import NAMES
from hopline.errors import PackagingError
from hopline.graph import Graph
from hopline.observe.progress import shown
from hopline.packaging.settings import NAMED_ROLES, Device

if TYPE_CHECKING:
    from hopline.packaging import PackageReport

_TASKS = ("multiclass", "binary", "multilabel", "regression", "embedding")


def package(
    repository: Annotated[Path, typer.Option(metavar="DIR", help="Repository folder to write to.")],
    name: Annotated[str, typer.Option(help="Model name.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="FILE.py:NAME or MODULE:NAME of a module, or of a function or class that returns one."
        ),
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the graph that the model is served on.")
    ] = None,
    fanouts: Annotated[
        list[str] | None,
        typer.Option(
            help="Neighbours per layer, seed-outward: 10,5; or SRC__RELATION__DST=10,5 (repeatable)."
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(_TASKS)}; optional with --sklearn. Of several outputs: NAME=TASK "
            "(repeatable)."
        ),
    ] = None,
    sklearn: Annotated[
        str | None,
        typer.Option(
            help="Instead of --model: a fitted scikit-learn or XGBoost estimator, as FILE.py:NAME, "
            "MODULE:NAME or a .joblib file (loading it runs code in it)."
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For --sklearn: rows as CSV or Parquet, on which answers are compared."
        ),
    ] = None,
    version: Annotated[str, typer.Option(help="Model version.")] = "1",
    state_dict: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Weights: a state dict, a checkpoint with one inside (.pt, .ckpt), or safetensors.",
        ),
    ] = None,
    state_dict_key: Annotated[
        str | None, typer.Option(help="Weights to load if several in a checkpoint fit: KEY, or KEY/PREFIX.")
    ] = None,
    unsafe_pickle: Annotated[
        bool,
        typer.Option(
            "--unsafe-pickle",
            help="Allow whole modules in the file of --state-dict. Loading it EXECUTES CODE in it: use "
            "only files that you trust.",
        ),
    ] = False,
    init: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Argument of the class or function of --model (repeatable): JSON, Python value or text.",
        ),
    ] = None,
    head: Annotated[str | None, typer.Option(help="'dot', or a head in the form of --model.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Node type of the ids in requests; SRC,DST for links.")
    ] = None,
    sampling: Annotated[
        str, typer.Option(help="Neighbour sampling: uniform, recent or weighted.")
    ] = "uniform",
    max_degree: Annotated[int | None, typer.Option(help="Most neighbours of a node.")] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(
            help="Only edges of the last time before the question: SRC__RELATION__DST=30d, or for each "
            "layer 30d,none (repeatable)."
        ),
    ] = None,
    salt: Annotated[int, typer.Option(help="Salt of the sampler's hash.")] = 0,
    classes: Annotated[
        list[str] | None, typer.Option(help="Names of the output columns: a,b,c; or OUTPUT=a,b,c.")
    ] = None,
    relation: Annotated[
        list[str] | None,
        typer.Option(help="Edge type key, in the order of the model's relation numbers (repeatable)."),
    ] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=ROLE: input of an argument of forward (repeatable), one of "
            f"{', '.join(NAMED_ROLES)}, the name of a tensor of nodes, or none to leave it out."
        ),
    ] = None,
    embedding: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=TYPE: a table of the module that has a row for each node of a type (repeatable)."
        ),
    ] = None,
    preprocess: Annotated[
        list[str] | None,
        typer.Option(
            help="TYPE=FITTED: fitted transformer of a node type's columns, or of SRC:RELATION:DST's "
            "(repeatable), in the form of --sklearn; none: they are not read."
        ),
    ] = None,
    later_nodes: Annotated[
        str,
        typer.Option(help="A later graph's nodes without a row of such a table: refuse, zero or mean-row."),
    ] = "refuse",
    output: Annotated[
        str, typer.Option(help="Kind of the model's output: logits, probabilities, or auto to detect it.")
    ] = "auto",
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Statistics of all rows are constants: those of this graph.")
    ] = False,
    device: Annotated[
        str, typer.Option(help="cuda keeps attention in the stages, where a GPU computes it; or cpu.")
    ] = "cpu",
    check_nodes: Annotated[
        int, typer.Option(help="Nodes of each type on which the package is checked.")
    ] = 512,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing version.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the rule of each layer, and what a request costs here.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write and check the artifact of a trained PyG module or, with --sklearn, of a tabular model."""
    given = {"--model": model, "--graph": graph, "--fanouts": fanouts, "--task": task}
    if sklearn is not None:
        more = {"--task": None, "--state-dict": state_dict, "--init": init, "--preprocess": preprocess}
        others: dict[str, Any] = {**given, **more, "--explain": explain, "--json": as_json}
        if of_graphs := [option for option, value in others.items() if value]:
            raise PackagingError(f"{of_graphs[0]} is for graph models and cannot be used with --sklearn")
        if sample is None:
            raise PackagingError("--sklearn needs --sample FILE: rows on which the answers are compared")
        of_table = _by_output(task or (), "--task", "fraud=binary") or None
        NAMES.require("package.sklearn")(sklearn, sample, repository, name, version, of_table, overwrite)
        return
    if sample is not None:
        raise PackagingError("--sample needs --sklearn; graph models are checked on their graph")
    if model is None or graph is None or not fanouts or not task:
        missing = ", ".join(option for option, value in given.items() if not value)
        raise PackagingError(
            f"{missing} missing: for a graph model pass --model, --graph, --fanouts and --task, "
            "for a tabular model pass --sklearn and --sample"
        )
    tasks = _by_output(task or (), "--task", "fraud=binary")
    for each in tasks.values() if isinstance(tasks, dict) else (tasks,):
        check_choice("--task", each, _TASKS)
    check_choice("--device", device, get_args(Device))
    check_choice("--sampling", sampling, ("uniform", "recent", "weighted"))
    with shown(True, f"packaging {name}") as progress:
        progress("loading PyTorch, the graph and the model", 0.0)
        from hopline.packaging import package as package_module

        opened = Graph.open(graph)
        module = load_module(model, opened, parse_init(init or ()))
        fitted = _pairs(preprocess or (), "--preprocess", "account=prep.joblib")
        notes = _weights(module, model, state_dict, state_dict_key, unsafe_pickle)
        progress("loading PyTorch, the graph and the model", 1.0)
        report = package_module(
            module, opened, repository, name=name, version=version, fanouts=parse_fanouts(fanouts or ()),
            task=cast(Any, tasks), sampling=cast(Any, sampling), max_degree=max_degree, salt=salt,
            head=load_module(head, opened, what="--head") if head and head != "dot" else cast(Any, head),
            target=cast(Any, tuple(target.split(",")) if target and "," in target else target),
            classes=_class_names(classes or ()), arguments=parse_arguments(argument or ()),
            embeddings=_pairs(embedding or (), "--embedding", "user_emb=user"),
            later_nodes=cast(Any, later_nodes), relations=relation, output=cast(Any, output),
            preprocess=NAMES.require("package.preprocess")(fitted, opened) if fitted else None,
            windows=parse_windows(window or ()), freeze=freeze, device=cast(Any, device),
            check_nodes=check_nodes, overwrite=overwrite, progress=progress,
        )  # fmt: skip
        report = report.explain(opened) if explain else report
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        typer.echo(msgspec.json.encode(report, enc_hook=str))
    else:
        _show(report, explain)


def _weights(module: Any, model: str, file: Path | None, key: str | None, unsafe_pickle: bool) -> list[str]:
    """Load the weights of `file`, if given; return notes for the user."""
    if file is not None:
        load_weights = NAMES.require("package.weights")
        return cast(list[str], load_weights(module, file, key=key, unsafe_pickle=unsafe_pickle))
    for option, value in (("--state-dict-key", key), ("--unsafe-pickle", unsafe_pickle)):
        if value:
            raise PackagingError(f"{option} needs --state-dict")
    return [f"no --state-dict: the weights are those of {model} as loaded"]


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Argument of forward -> its role, None to leave it out.

    Raises: PackagingError: not NAME=ROLE.
    """
    pairs = _pairs(texts, "--argument", "edge_weight=edge_attr")
    return {name: None if role == "none" else role for name, role in pairs.items()}


def parse_windows(texts: Sequence[str]) -> dict[str, Any]:
    """Edge type key -> window, or one for each layer: text such as 30d, a number, or None for any time."""
    found: dict[str, Any] = {}
    for key, text in _pairs(texts, "--window", "account__pays__merchant=30d").items():
        each = [int(one) if one.isdecimal() else None if one == "none" else one for one in text.split(",")]
        found[key] = each if len(each) > 1 else each[0]
    return found


def _pairs(texts: Sequence[str], option: str, example: str) -> dict[str, str]:
    return dict(pair(text, option, f"NAME=VALUE, such as {example}", PackagingError) for text in texts)


def _by_output(texts: Sequence[str], option: str, example: str) -> str | dict[str, str]:
    """The only value, or the values NAME=VALUE of several outputs by name; "" without any."""
    if not any("=" in text for text in texts) and len(texts) < 2:
        return "".join(texts)
    return _pairs(texts, option, example)


def _class_names(texts: Sequence[str]) -> Any:
    named = _by_output(texts, "--classes", "fraud=no,yes")
    if isinstance(named, dict):
        return {output: names.split(",") for output, names in named.items()}
    return named.split(",") if named else ()


def parse_fanouts(texts: Sequence[str]) -> list[int] | dict[str, list[int]]:
    """Read the fanouts: one list, or edge type key -> list.

    Raises: PackagingError: not integers, or both forms together.
    """
    plain = [text for text in texts if "=" not in text]
    if plain and len(texts) > 1:
        raise PackagingError("--fanouts is given once as 10,5, or once for each edge type as KEY=10,5")
    if plain:
        return _numbers(plain[0])
    return {key: _numbers(values) for key, _, values in (text.rpartition("=") for text in texts)}


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise PackagingError(
            f"--fanouts {text!r}: must be integers separated by commas, such as 10,5"
        ) from None


def _show(report: PackageReport, explain: bool) -> None:
    console = Screen()
    costs = ("rows", "edges", "µs measured on this machine") if explain else ()
    table = Table("stage", "reads", "columns", "bytes", *costs, box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for line in report.stages:
        cost = (f"{line.rows:,.0f}", f"{line.edges:,.0f}", f"{line.us:,.1f}") if explain else ()
        reads = ", ".join(line.inputs) or "raw features"
        table.add_row(line.name, reads, str(line.state_dim), f"{line.num_bytes:,}", *cost)
    console.print(whole(table, "stage"))
    said = [f"{each.name}: {text}" for each in report.stages for text in (*each.rules, each.advice) if text]
    for note in (*(said if explain else ()), *report.notes):
        console.print(f"note: {note}", markup=False)
    console.print(
        f"[bold]{report.path}[/bold]  {report.num_bytes:,} bytes  largest difference from PyG "
        f"{report.spec.parity['max_abs_diff']:.1e}  {report.seconds:.1f} s"
    )
