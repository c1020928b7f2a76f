"""`hopline mesh`: watch a service mesh, and what belongs to it. One line for each command."""

from __future__ import annotations

import typer

from hopline.commands import mesh_demo, mesh_evaluate, mesh_queries, mesh_simulate, mesh_train, mesh_watch

app = typer.Typer(no_args_is_help=True, help="Watch a service mesh with a temporal graph autoencoder.")
app.command("demo")(mesh_demo.demo)
app.command("watch")(mesh_watch.watch)
app.command("evaluate")(mesh_evaluate.evaluate)
app.command("queries")(mesh_queries.queries)
app.command("simulate")(mesh_simulate.simulate)
app.command("train")(mesh_train.train)


@app.callback()
def mesh() -> None:
    """Watch a service mesh with a temporal graph autoencoder."""
