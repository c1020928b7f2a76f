"""The command line itself: how it is started, what shells ask of it, and numbers below 0."""

import errno
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from hopline import __version__, cli
from hopline.commands.arguments import NumbersAreValues


def hopline(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "hopline", *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_package_is_a_command():
    assert hopline("--version") == f"hopline {__version__}\n"
    assert "Usage: hopline " in hopline("--help")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("hopline rol", {"rollout"}),
        ("hopline models ", {"list", "load", "unload", "import"}),
        ("hopline rollout start --sha", {"--share"}),
        ("hopline score --on", {"--on-missing"}),
    ],
)
def test_a_shell_completes_commands_and_their_options(typed, wanted):
    words = typed.split(" ")
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    assert set(hopline(_HOPLINE_COMPLETE="complete_bash", **asked).split()) == wanted
    answer = hopline(_HOPLINE_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed)
    assert all(f'"{word}"' in answer for word in wanted)


def test_the_scripts_of_shells_are_shown():
    # The shell is found among the parents of the process; the second command keeps bash there.
    line = '"$0" -m hopline --show-completion; exit $?'
    shown = subprocess.run(
        ["bash", "-c", line, sys.executable], capture_output=True, text=True, check=True
    ).stdout
    assert "complete -o default -F" in shown


@pytest.fixture
def taken():
    """A command that notes its values, and runs words."""
    app, seen = typer.Typer(), []

    @app.command(cls=NumbersAreValues)
    def ask(model: str, nodes: list[str], timeout: float = 1.0, pairs: bool = False) -> None:
        seen.append((model, nodes, timeout, pairs))

    def run(*words):
        seen.clear()
        result = CliRunner().invoke(app, words)
        return seen[0] if seen else result.output

    return run


def test_numbers_below_0_are_values(taken):
    assert taken("m", "-10") == ("m", ["-10"], 1.0, False)
    assert taken("m", "5", "-10", "7") == ("m", ["5", "-10", "7"], 1.0, False)
    assert taken("m", "-1,-2", "--pairs", "3,-4", "--timeout", "2") == ("m", ["-1,-2", "3,-4"], 2.0, True)
    assert taken("m", "--timeout", "-2", "-10") == ("m", ["-10"], -2.0, False)
    assert taken("m", "--timeout=2", "-10", "--", "--pairs") == ("m", ["-10", "--pairs"], 2.0, False)


@pytest.mark.parametrize("word", ["--nodes", "-x", "-1x"])
def test_what_is_no_number_is_an_option_that_there_is_not(taken, word):
    assert "No such option" in taken("m", "-10", word)
    assert "No such option" in taken("m", "10", word)


def test_a_flag_without_its_value_is_named(taken):
    assert "requires an argument" in taken("m", "-10", "--timeout")


@pytest.mark.parametrize("file", ["clients.toml", None])
def test_a_full_disk_is_one_line(monkeypatch, capsys, file):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([file] if file else []))

    monkeypatch.setattr(cli, "build_app", full)
    monkeypatch.setattr(sys, "argv", ["hopline", "auth", "list"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error == "error: [Errno 28] No space left on device" + (f": {file!r}\n" if file else "\n")


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    def fault(*_):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(cli, "build_app", fault)
    monkeypatch.setattr(sys, "argv", ["hopline", "auth", "list"])
    with pytest.raises(OSError, match="Bad file descriptor"):
        cli.main()
