"""The commands of `hopline mesh`, one line each."""

from __future__ import annotations

import typer

from hopline_mesh.commands import demo, evaluate, queries, simulate, train, warm, watch

app = typer.Typer(
    no_args_is_help=True,
    help="Watch a service mesh: a robust detector for each series, and a regression on neighbours.",
)
app.command("demo")(demo.demo)
app.command("watch")(watch.watch)
app.command("evaluate")(evaluate.evaluate)
app.command("queries")(queries.queries)
app.command("simulate")(simulate.simulate)
app.command("train")(train.train)
app.command("warm")(warm.warm)


@app.callback()
def mesh() -> None:
    """Watch a service mesh: a robust detector for each series, and a regression on neighbours."""
