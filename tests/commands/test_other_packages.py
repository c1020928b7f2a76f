"""The command line: commands of other packages, and none of their cost for those of its own."""

import importlib.metadata
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from hopline import cli
from hopline.errors import ConfigError

GREET = typer.Typer()


@GREET.command()
def hello(name: str) -> None:
    """Greet."""
    print(f"hello {name}")


@GREET.callback()
def group() -> None:
    """Greetings."""


def wave(times: int = 1) -> None:
    """Wave."""
    print("wave " * times)


class Point:
    """An entry point of an installed package."""

    module = "no_such_module"

    def __init__(self, name, found):
        self.name, self._found = name, found

    def load(self):
        return self._found


@pytest.fixture
def installed(monkeypatch):
    """Packages that bring the commands that are put into the list."""
    points = []

    def entry_points(*, group):
        assert group == "hopline.commands"
        return points

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return points


def run(*words):
    result = CliRunner().invoke(cli.build_app(words), words, catch_exceptions=False)
    return result.output


def test_a_group_and_a_function_of_another_package_are_commands(installed):
    installed += [Point("greet", GREET), Point("wave", wave)]
    assert run("greet", "hello", "Ann") == "hello Ann\n"
    assert run("wave", "--times", "2") == "wave wave \n"


def test_help_lists_each_command_by_the_docstring_of_its_module_and_imports_none(
    installed, tmp_path, monkeypatch
):
    for name, text in {"greet": "say hello.", "wave": "wave a hand."}.items():
        package = tmp_path / f"words_for_{name}"
        package.mkdir()
        (package / "__init__.py").write_text('raise AssertionError("imported")')
        (package / "command.py").write_text(f'"""`hopline {name}`: {text}\n\nMore."""\n\n1 / 0\n')
        installed.append(EntryPoint(name, f"words_for_{name}.command:app", "hopline.commands"))
    installed.append(EntryPoint("damaged", "no_such_package.command:app", "hopline.commands"))
    monkeypatch.syspath_prepend(tmp_path)
    lines = [line.strip("│ ").split(maxsplit=1) for line in run("--help").splitlines()]
    assert ["greet", "Say hello."] in lines
    assert ["wave", "Wave a hand."] in lines
    assert ["damaged"] in lines
    assert "mesh" not in {line[0] for line in lines if line}


def test_a_command_of_our_own_reads_no_entry_points(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    assert "Show" in run("config", "--help")


def test_no_other_package_takes_a_command_of_our_own(installed):
    installed.append(Point("warm", wave))
    assert run("--help").count("warm ") == 1
    assert "Wave." not in run("warm", "--help")


@pytest.mark.parametrize("words", [[], ["watch", "--set", "a=b"], ["--help"]])
def test_a_known_command_that_is_not_installed_says_what_to_install(installed, words):
    with pytest.raises(ConfigError, match="`hopline mesh` is not installed: pip install hopline-mesh"):
        run("mesh", *words)


def test_an_unknown_command_is_a_usage_error(installed):
    assert "No such command 'meshh'" in run("meshh")


def test_an_error_is_one_line_on_stderr():
    code = (
        "import sys, importlib.metadata as m; m.entry_points = lambda group: [];"
        "sys.argv = ['hopline', 'mesh', 'watch']; from hopline.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: `hopline mesh` is not installed: pip install hopline-mesh"]
