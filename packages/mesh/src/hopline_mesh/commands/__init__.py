"""`hopline mesh`: watch a service mesh, with a detector for each series and a regression on neighbours."""

import typer

from hopline_mesh.commands import demo, evaluate, queries, simulate, train, warm, watch

app = typer.Typer(
    no_args_is_help=True,
    help="Watch a service mesh: a robust detector for each series, and a regression on neighbours.",
)
for command in (
    demo.demo,
    watch.watch,
    evaluate.evaluate,
    queries.queries,
    simulate.simulate,
    train.train,
    warm.warm,
):
    app.command(command.__name__)(command)
