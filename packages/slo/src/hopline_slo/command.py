"""`hopline slo`: compares a server with its objectives, and writes alert rules for them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, Url
from hopline.commands.options import AsJson
from hopline.commands.screen import Screen, whole
from hopline.errors import BadRequest
from hopline_slo.burn import BURN_WINDOWS, Standing, over_window, since_start
from hopline_slo.objectives import LATENCIES, read_objectives
from hopline_slo.prometheus import Prometheus
from hopline_slo.promql import write_rules
from hopline_slo.scrape import read_metrics


def slo(
    file: Annotated[Path, typer.Option(help="File of objectives.")] = Path("slo.toml"),
    prometheus: Annotated[
        str | None,
        typer.Option(
            help="URL of a Prometheus that scrapes the server; measures over each objective's window."
        ),
    ] = None,
    as_json: AsJson = False,
    rules: Annotated[
        Path | None,
        typer.Option(help="Write Prometheus rules for the objectives to this file, or - for stdout."),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Compare a server with its objectives; exits with 1 if an error budget is used up.

    Without --prometheus, the server's own counters since its start are read.
    """
    objectives = read_objectives(file)
    if rules is not None:
        if url is not None or prometheus is not None:
            raise BadRequest("--rules only writes rules; leave out --url and --prometheus")
        text = write_rules(objectives)
        if str(rules) == "-":
            typer.echo(text, nl=False)
        else:
            rules.write_text(text)
        return
    if url is not None and prometheus is not None:
        raise BadRequest("pass either --url of a server or --prometheus")
    if prometheus is None:
        standings = since_start(read_metrics(url, api_key, token), objectives)
    else:
        standings = over_window(Prometheus(prometheus), objectives)
    burnt = [each for each in standings if each.is_burnt]
    if as_json:
        typer.echo(json.dumps({"objectives": [_row(each) for each in standings], "burnt": len(burnt)}))
    else:
        Screen().print(whole(_table(standings, with_burn=prometheus is not None), "model"))
    if burnt:
        raise typer.Exit(1)


def _row(standing: Standing) -> dict[str, object]:
    row = {**asdict(standing), **asdict(standing.objective)}
    row.pop("objective")
    return {**row, "budget_left": standing.budget_left, "burnt": standing.is_burnt}


def _table(standings: list[Standing], *, with_burn: bool) -> Table:
    table = Table("model", "objective", "over")
    for name in ("requests", "measured", "budget left"):
        table.add_column(name, justify="right")
    if with_burn:
        for window in BURN_WINDOWS:
            table.add_column(f"burn {window}", justify="right")
    for each in standings:
        colour = "red" if each.is_burnt else "yellow" if each.budget_left < 0.1 else "green"
        cells = [
            each.objective.model,
            each.objective.text,
            each.over,
            f"{each.requests:,.0f}",
            _measured(each),
            f"[{colour}]{each.budget_left:.1%}[/{colour}]",
        ]
        if with_burn:
            cells += ["–" if rate is None else f"{rate:.2f}" for rate in each.burn.values()]
        table.add_row(*cells)
    return table


def _measured(standing: Standing) -> str:
    if standing.measured is None:
        return "no requests"
    if standing.objective.kind in LATENCIES:
        return f"{standing.measured:.3g} ms"
    return f"{100 * standing.measured:.4g} %"
