"""`hopline explain`: reasons of a node's score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from hopline.errors import BadRequest

if TYPE_CHECKING:
    from hopline_why.explain import Explanation


def explain(
    model: Annotated[str, typer.Argument(help="Model whose score is explained.")],
    node: Annotated[str, typer.Argument(metavar="ID", help="Id of the node.")],
    version: Annotated[str | None, typer.Option(help="Version of the model. Default: the newest.")] = None,
    graph: GraphVersion = None,
    repository: Repository = None,
    node_type: Annotated[
        str, typer.Option(help="Type of the node, of a model that answers for several.")
    ] = "",
    output: Annotated[
        str, typer.Option(help="Output that is explained: logits or probabilities.")
    ] = "logits",
    klass: Annotated[
        str | None,
        typer.Option("--class", help="Class, by name or number. Default: that of the answered label."),
    ] = None,
    players: Annotated[
        int, typer.Option(help="Columns and neighbours at most; beyond, they are grouped.", min=1)
    ] = 20,
    groups: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON: name -> columns or neighbors that are one.")
    ] = None,
    background: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON: column -> its value where it is absent. Default: medians."
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(help="Pairs of orders that are drawn.", min=2)] = 4,
    exact: Annotated[bool, typer.Option("--exact", help="All coalitions, of up to 12 players.")] = False,
    threshold: Annotated[
        float | None,
        typer.Option(help="A score of at least this is a decision: also find what flips it."),
    ] = None,
    changeable: Annotated[
        list[str] | None, typer.Option(help="Name that a flip may leave out; repeatable. Default: all.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Say what each column and each neighbour of a node added to its score, by scoring without them."""
    from hopline.artifact import read_spec
    from hopline.commands.batch import model_folder
    from hopline.engine.model import load_model
    from hopline.graph.id_values import integer_id
    from hopline.live.snapshots import needed_graph, open_graph
    from hopline_why.explain import Explainer, Options
    from hopline_why.players import Group

    resolved = folder_config(config, graph, repository, settings, "an explanation reads")
    opened = open_graph(needed_graph(resolved), fresh=False)
    folder, _ = model_folder(resolved, model, version)
    by_type = load_model(folder, read_spec(folder), opened).by_type
    if not (node_type or len(by_type) == 1) or (node_type and node_type not in by_type):
        raise BadRequest(f"--node-type {node_type!r}: the model answers {', '.join(by_type)}; name one")
    loaded = by_type[node_type] if node_type else next(iter(by_type.values()))
    is_text = opened.nodes[loaded.spec.head.node_type].ids.kind == "string"
    own_groups: dict[str, Any] = {} if groups is None else _read(groups, "--groups", dict[str, Group])
    options = Options(
        output=output,
        klass=int(klass) if klass is not None and klass.lstrip("-").isdigit() else klass,
        players=players,
        groups=own_groups,
        background={} if background is None else _read(background, "--background", dict[str, float]),
        pairs=pairs,
        exact=exact,
        threshold=threshold,
        changeable=changeable or [],
    )
    found = Explainer(loaded).explain(node if is_text else integer_id(node), options)
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        _show(found, threshold)


def _read(path: Path, option: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadRequest(f"{option} {path}: {error}") from None


def _show(found: Explanation, threshold: float | None) -> None:
    from rich.table import Table

    from hopline.commands.screen import Screen

    title = (
        f"{found.model} version {found.version}, graph {found.graph_version}: "
        f"{found.output}[{found.column}] of {found.node!r} is {found.score:.6g}, "
        f"and {found.background:.6g} without all of these"
    )
    table = Table(title=title, title_justify="left")
    for column in ("added", "±", "by", "value", "without"):
        table.add_column(column, justify="left" if column == "by" else "right")
    for each in found.reasons:
        cells = ["" if value is None else f"{value:.6g}" for value in (each.given, each.absent)]
        error = "" if found.method == "exact" else f"{each.error:.2g}"
        table.add_row(f"{each.value:+.6g}", error, each.name, *cells)
    screen = Screen(markup=False)
    screen.print(table)
    screen.print(f"Sum: {found.score - found.background:+.6g}. {found.evaluations} scores; {found.absent}.")
    if found.flip is not None:
        which = "smallest" if found.flip.is_smallest else "small"
        screen.print(
            f"Without {', '.join(found.flip.without)} it is {found.flip.score:.6g}: a {which} flip."
        )
    elif threshold is not None:
        screen.print("No set was found that flips the decision.")
