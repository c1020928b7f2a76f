"""Seeds on the command line: numpy and torch accept none below 0, and torch none of more than 64 bits."""

import typer

from hopline.cli import DOOR, build_app


def options(command, path):
    """Each option with its command, of all commands below this one."""
    for name, each in getattr(command, "commands", {}).items():
        yield from options(each, f"{path} {name}")
    for option in command.params:
        yield path, option


def test_every_seed_is_at_least_0():
    found = {
        path: option.min
        for name in DOOR.names()
        for path, option in options(typer.main.get_command(build_app([name])).commands[name], name)
        if option.name == "seed"
    }
    assert {"demo", "distill", "quantize"} <= set(found)
    assert set(found.values()) == {0}
