"""`hopline mesh demo`: a simulated mesh, faults, and the watch on it, without anything else."""

from __future__ import annotations

from typing import Annotated

import typer

#: Incidents that a check waits for, and how fast it plays.
_CHECKED, _CHECK_SPEED = 2, 60.0


def demo(
    services: Annotated[int, typer.Option(help="Number of services, at least 6.", min=6, max=500)] = 12,
    seed: Annotated[int, typer.Option(help="Another seed gives another mesh.", min=0)] = 0,
    speed: Annotated[
        float, typer.Option(help="Simulated seconds in a second, up to 100.", min=1.0, max=100.0)
    ] = 30.0,
    port: Annotated[int, typer.Option(help="Of the page; 0 takes a free one.", min=0, max=65535)] = 9092,
    check: Annotated[
        bool, typer.Option("--check", help="Play two faults, see that they are found, then exit.")
    ] = False,
) -> None:
    """Play a day of a simulated mesh: look at the page while things go wrong and the watch finds them."""
    from hopline_mesh.demo import SimulatedFeed, play

    feed = SimulatedFeed(
        services, seed, _CHECK_SPEED if check else speed, typer.echo, _CHECKED if check else 0
    )
    play(
        feed,
        0 if check else port,
        lambda what: typer.echo(f"{feed.name}\npage  {what.page}\nCtrl-C ends it\n"),
    )
    if not check:
        return
    missed = ", ".join(fault.kind for fault, found in feed.found.items() if not found)
    if missed or feed.false:
        typer.echo(f"not found: {missed or 'none'}; incidents for nothing: {feed.false}", err=True)
        raise typer.Exit(1)
    typer.echo("each fault was named first or second, and there was no incident for nothing")
