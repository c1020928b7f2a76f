"""`hopline mesh demo`: a simulated mesh with faults, and a watch on it. Needs no other process."""

from __future__ import annotations

from typing import Annotated

import typer

#: Number of incidents that --check waits for, and its speed.
_CHECKED, _CHECK_SPEED = 2, 60.0


def demo(
    services: Annotated[int, typer.Option(help="Number of services, at least 6.", min=6, max=500)] = 12,
    seed: Annotated[
        int, typer.Option(help="Seed of the mesh; the same seed gives the same mesh.", min=0)
    ] = 0,
    speed: Annotated[
        float, typer.Option(help="Simulated seconds per second, up to 100.", min=1.0, max=100.0)
    ] = 30.0,
    port: Annotated[
        int, typer.Option(help="Port of the page; 0 chooses a free one.", min=0, max=65535)
    ] = 9092,
    check: Annotated[
        bool, typer.Option("--check", help="Inject two faults, check that both are detected, and exit.")
    ] = False,
) -> None:
    """Watch a simulated mesh for a simulated day, with faults and planned changes, and show the page."""
    typer.echo("starting ...")  # before the imports, which take a second or two
    from hopline_mesh.demo import SimulatedFeed, check_port, play

    if not check:
        check_port(port)
    feed = SimulatedFeed(
        services, seed, _CHECK_SPEED if check else speed, typer.echo, _CHECKED if check else 0
    )
    play(
        feed,
        0 if check else port,
        lambda started: typer.echo(f"{feed.name}\npage  {started.page}\nCtrl-C stops it\n"),
    )
    if not check:
        return
    missed = ", ".join(fault.kind for fault, found in feed.found.items() if not found)
    if missed or feed.false:
        typer.echo(f"undetected faults: {missed or 'none'}; false incidents: {feed.false}", err=True)
        raise typer.Exit(1)
    typer.echo(
        "the service of each fault, or an end of its call path, was the first or second suspect; "
        "there was no false incident"
    )
