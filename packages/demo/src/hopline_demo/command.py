"""`hopline demo`: build, train and serve an example network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FULL, _SMALL = (200_000, 2_000_000), (8_000, 80_000)


def demo(
    accounts: Annotated[
        int | None,
        typer.Option(help=f"Number of accounts. Default: {_FULL[0]}, or {_SMALL[0]} with --check."),
    ] = None,
    transfers: Annotated[
        int | None,
        typer.Option(help=f"Number of transfers. Default: {_FULL[1]}, or {_SMALL[1]} with --check."),
    ] = None,
    port: Annotated[
        int, typer.Option(help="HTTP port; gRPC takes the next one. 0 picks free ones.")
    ] = 8700,
    dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder for work files. Default: ~/.cache/hopline/demo; with --check a temporary folder."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Training epochs. Default: by size.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random network.", min=0, max=2**63 - 1)] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Smaller, on a free port: check the answers, then exit.")
    ] = False,
) -> None:
    """Generate a payment network, train GraphSAGE to find fraud rings, package and serve the model."""
    from hopline_demo import show
    from hopline_demo.recipe import Recipe
    from hopline_demo.screen import Screen

    sizes = _SMALL if check else _FULL
    num_accounts = sizes[0] if accounts is None else accounts
    usual = sizes[1] if accounts is None else 10 * num_accounts
    num_transfers = usual if transfers is None else transfers
    recipe = Recipe.of(num_accounts, num_transfers, epochs, seed)
    if not check:
        show.run(recipe, dir or show.default_folder(), port, Screen())
    elif not show.check(recipe, dir, Screen()):
        raise typer.Exit(1)
