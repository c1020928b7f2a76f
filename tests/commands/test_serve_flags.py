"""Flags of `hopline serve` that are read without Typer mean what they mean to Typer."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from hopline.commands.serve import serve
from hopline.commands.serve_flags import FLAGS, REPEATABLE, config_of


def test_the_table_has_every_flag_of_the_command():
    flags = {"--" + name.replace("_", "-") for name in inspect.signature(serve).parameters}
    assert set(FLAGS) == flags - {"--settings"} | {"--set"}
    assert {flag for flag, (setting, _) in FLAGS.items() if setting in REPEATABLE} == {
        "--model",
        "--precomputed",
        "--set",
    }


def test_flags_become_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--graph", "g", "--port=0", "--grpc-port", "-1", "--model", "a", "--model", "b", "--live"]
    config = config_of([*words, "--precomputed=x"])
    assert config is not None
    assert (config.graph.path, config.server.http_port, config.server.grpc_port) == (Path("g"), 0, -1)
    assert (config.models.names, config.precomputed.file, config.live.enabled) == (("a", "b"), ("x",), True)


@pytest.mark.parametrize(
    "words", [["--help"], ["--port", "many"], ["--port"], ["--bogus", "1"], ["graph"], ["--live=yes"]]
)
def test_what_is_not_plain_is_left_to_typer(words):
    assert config_of(words) is None


def test_help_loads_no_heavy_library():
    code = (
        "import sys; sys.argv = ['hopline', '--help']\nfrom hopline.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "hopline.cli" in done.stderr.split()
    assert not {"numpy", "numba", "onnxruntime", "torch", "grpc", "uvloop"} & set(done.stderr.split())
