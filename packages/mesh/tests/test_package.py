"""What makes this a package of its own: versions, errors, kernels, messages, access."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hopline
import hopline_mesh
from hopline.errors import HoplineError
from hopline.jobs import kernels
from hopline.transports.http_access import OPEN, Access
from hopline_mesh import errors
from hopline_mesh.commands import app
from hopline_mesh.commands.warm import SIGNATURES
from hopline_mesh.out.board import Board
from hopline_mesh.out.error_tables import GRPC_CODE, HTTP_STATUS
from hopline_mesh.out.grpc import HEALTH, MESH, permission_of
from hopline_mesh.out.http import MeshHttp, Route
from hopline_mesh.proto import methods

ROOT = Path(__file__).resolve().parents[1]


def test_it_is_released_with_the_hopline_that_it_is_built_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert hopline_mesh.__version__ == hopline.__version__
    assert f"hopline=={hopline.__version__}" in project["dependencies"]


def test_its_entry_point_is_the_group_of_commands():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"hopline.commands": {"mesh": "hopline_mesh.commands:app"}}
    assert [command.name for command in app.registered_commands] == [
        "demo", "watch", "evaluate", "queries", "simulate", "train", "warm",
    ]  # fmt: skip


def test_both_tables_of_errors_are_total():
    def all_errors(base):
        yield base
        for child in base.__subclasses__():
            if child.__module__ in ("hopline.errors", errors.__name__):
                yield from all_errors(child)

    known = set(all_errors(HoplineError))
    assert errors.StateDamaged in known
    assert set(HTTP_STATUS) == set(GRPC_CODE) == known


def test_every_method_was_thought_about():
    asked = {
        method.name: permission_of(method.name) for service in (MESH, HEALTH) for method in methods(service)
    }
    assert set(asked.values()) == {"open", "read", "score"}
    assert [name for name, permission in asked.items() if permission == "score"] == ["ReportEvents"]
    assert permission_of("SomethingNew") == "admin"


def test_a_path_that_was_not_thought_about_is_closed():
    access = {pattern: route.access for pattern, route in MeshHttp(Board()).routes.items()}
    assert [pattern for pattern in access if access[pattern] is OPEN] == [
        "/", "/page/{name}", "/healthz", "/readyz",
    ]  # fmt: skip
    events = access.pop("/v1/mesh/events")
    assert (events.view, events.change) == ("read", "score")
    assert {each for each in access.values() if each is not OPEN} == {Access("read", "admin")}
    assert MeshHttp(Board(), open_metrics=True).routes["/metrics"].access is OPEN
    assert Route(lambda request, options: None).access == Access("read", "admin")


def test_every_signature_is_of_a_kernel_that_is_there_and_has_a_type_for_each_argument():
    there = {(module, name): dispatcher for module, name, dispatcher in kernels.kernels("hopline_mesh")}
    recorded = kernels.signatures(SIGNATURES)
    assert recorded
    for module, name, types in recorded:
        assert (module, name) in there, "run the suite, then scripts/record_signatures.py"
        assert there[module, name].py_func.__code__.co_argcount == len(types), (module, name)
        assert [str(kernels.numba_type(each)) for each in types] == list(types)


@pytest.mark.sample(1)
@pytest.mark.parametrize("module", ["hopline_mesh.watch.run", "hopline_mesh.commands"])
def test_the_watch_needs_no_torch_to_start(module):
    code = f"import {module}, sys; print([m for m in ('torch', 'sklearn', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "setting", ["interval_s={}", "interval_s={0} {0}", "nothing{}=1", "matchers={}", "{}"]
)
def test_an_error_of_a_command_shortens_what_was_typed(setting):
    words = ("mesh", "queries", "--set", setting.format("9" * 5000))
    done = subprocess.run([sys.executable, "-m", "hopline", *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "9" * 100 in done.stderr
    assert len(done.stderr) < 700
