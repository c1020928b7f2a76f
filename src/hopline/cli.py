"""The `hopline` command: names and modules. Only the requested command is imported."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopline import __version__
from hopline.doors import Door
from hopline.errors import ConfigError, HoplineError, short_values

if TYPE_CHECKING:
    import typer

#: Set by a shell that asks for completions of a word.
_COMPLETE = "_HOPLINE_COMPLETE"

#: name -> one line of help, and what it runs: a Typer app or a function at "module:attribute".
COMMANDS: dict[str, tuple[str, str]] = {
    "graph": ("Build, inspect and change graphs.", "hopline.commands.graph:app"),
    "package": (
        "Package a trained PyG, scikit-learn or XGBoost model.",
        "hopline.commands.package:package",
    ),
    "serve": ("Run the server.", "hopline.commands.serve:serve"),
    "warm": ("Compile all kernels now, for a fast first start.", "hopline.commands.warm:warm"),
    "score": ("Score nodes or links on a running server.", "hopline.commands.score:score"),
    "batch": ("Score a whole graph into files or stores.", "hopline.commands.batch:batch"),
    "models": ("List, load and unload versions on a running server.", "hopline.commands.models:app"),
    "rollout": ("Canary, blue/green, shadow and A/B rollouts.", "hopline.commands.rollout:app"),
    "auth": ("Create, list and revoke API keys.", "hopline.commands.auth:app"),
    "config": ("Show all settings and their values.", "hopline.commands.config:app"),
}

#: Other packages add commands: name = a Typer app or a function.
DOOR = Door(
    "hopline.commands",
    {name: target for name, (_, target) in COMMANDS.items()},
    {
        **dict.fromkeys(("demo", "init"), "'hopline[demo]'"),
        **dict.fromkeys(("drift", "log", "replay", "skew"), "'hopline[drift]'"),
        **dict.fromkeys(("cost", "slo"), "'hopline[slo]'"),
        "mcp": "'hopline[mcp]'",
        "distill": "'hopline[compress]'",
        "quantize": "'hopline[compress]'",
        "export": "'hopline[export]'",
        "explain": "'hopline[why]'",
        "generate": "'hopline[generate]'",
        "pipeline": "'hopline[pipelines]'",
        **dict.fromkeys(("features", "prefetch"), "'hopline[redis]'"),
        "snapshot": "'hopline[remote]'",
        "stream": "'hopline[kafka]' or 'hopline[redis-streams]' or 'hopline[nats]'",
        "mesh": "hopline-mesh",
    },
)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line for these arguments: the requested command, and one line of help for the others."""
    import typer

    def root(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
        """Serve graph neural networks: the server owns the graph, the client sends node ids."""

    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(root)
    wanted = next((word for word in arguments if not word.startswith("-")), "")
    for name, (text, _) in COMMANDS.items():
        if name == wanted:
            _add(app, name, DOOR.find(name))
        else:
            app.command(name, help=text)(lambda: None)  # help only: never called
    if wanted not in COMMANDS:  # listing installed packages is slow
        _add_installed(app, wanted)
    return app


def _add_installed(app: typer.Typer, wanted: str) -> None:
    """Add the commands of other packages; for a known one that is missing, name the package to install."""
    from hopline.commands.arguments import summary_of

    found = DOOR.installed()
    if wanted not in found and (install := DOOR.how_to_install(wanted)):

        def absent() -> None:
            raise ConfigError(f"`hopline {wanted}` is not installed: {install}")

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(wanted, hidden=True, add_help_option=False, context_settings=anything)(absent)
    for name, point in found.items():
        if name == wanted:
            _add(app, name, point.load())
        else:
            app.command(name, help=summary_of(point.module))(lambda: None)


def _add(app: typer.Typer, name: str, found: Any) -> None:
    import typer

    from hopline.commands.arguments import NumbersAreValues

    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name, cls=NumbersAreValues)(found)


def main() -> None:
    """Run the command line; expected errors are printed as one line, without a traceback."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"hopline {__version__}")
        return
    try:
        if arguments[:1] == ["serve"]:
            _serve_directly(arguments[1:])
        build_app(_completed() if _COMPLETE in os.environ else arguments)(prog_name="hopline")
    except HoplineError as error:
        _fail(_with_flags(short_values(str(error)), arguments))
    except ModuleNotFoundError as error:
        if "pip install 'hopline" in str(error):  # raised by the code that needs it
            _fail(str(error))
        if error.name not in ("torch", "torch_geometric", "onnx", "onnxscript", "sklearn"):
            raise
        _fail(f"this command needs {error.name}; install it with: pip install 'hopline[train]'")
    except OSError as error:  # a full disk, a file that cannot be read or written
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        _fail(str(error))


def _completed() -> list[str]:
    """The words of the command line that a shell asks to complete."""
    # bash sets the first, other shells the second
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()[1:]


def _with_flags(text: str, arguments: Sequence[str]) -> str:
    """The text of an error, with Python arguments replaced by flags of the typed command."""
    import typer.core
    import typer.main

    from hopline.commands.arguments import as_flags, flags_of

    command: Any = typer.main.get_command(build_app(arguments))
    for word in arguments:
        if isinstance(command, typer.core.TyperGroup) and word in command.commands:
            command = command.commands[word]
    return as_flags(text, flags_of([each.opts for each in command.params]))


def _serve_directly(arguments: Sequence[str]) -> None:
    """Serve without Typer, and exit, where `serve_flags` can parse the arguments."""
    from hopline.commands.serve_flags import config_of

    if (config := config_of(arguments)) is not None:
        from hopline import serve

        sys.exit(serve.run(config))


def _fail(message: str) -> None:
    import typer

    typer.secho(f"error: {message}", fg="red", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
