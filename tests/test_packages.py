"""Distributions beside the server: what each has, what it imports, and how it is installed."""

import ast
import re
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import hopline
from hopline import cli
from hopline.brokers.registry import DOOR as BROKERS
from hopline.commands.graph import SUBCOMMANDS
from hopline.commands.graph_files import TABLES
from hopline.doors import NAMES
from hopline.features.prefetcher import DOOR as PREFETCHERS
from hopline.features.registry import DOOR as FEATURE_STORES
from hopline.graph_store.base import DOOR as GRAPH_STORES
from hopline.ingress.gatekeeper import VERIFIERS
from hopline.jobs.batch.registry import ENGINES, SINKS
from hopline.models.kinds import MODEL_KINDS
from hopline.records.recorders import DOOR as RECORDERS
from hopline.rollout.store.fleet import DOOR as STATE_STORES
from scripts import distributions, house

PACKAGES = sorted(path.parent for path in (house.ROOT / "packages").glob("*/pyproject.toml"))
PROJECTS = {folder.name: distributions.project(folder) for folder in PACKAGES}
#: Distributions that the server depends on; the others depend on the server.
BELOW = {"turnserve"}
DOORS = {
    door.group: door
    for door in (
        cli.DOOR,
        PREFETCHERS,
        MODEL_KINDS,
        BROKERS,
        ENGINES,
        NAMES,
        RECORDERS,
        FEATURE_STORES,
        GRAPH_STORES,
        SINKS,
        SUBCOMMANDS,
        TABLES,
        STATE_STORES,
        VERIFIERS,
    )
}

#: Distribution -> its most lines; lowered with each issue, as the folders of the server are.
BUDGET = {
    "hopline-agents": 178,
    "hopline-brokers": 6781,
    "hopline-compress": 3398,
    "hopline-demo": 1480,
    "hopline-drift": 5232,
    "hopline-export": 670,
    "hopline-generate": 4567,
    "hopline-mesh": 22757,
    "hopline-pipelines": 3734,
    "hopline-ray": 676,
    "hopline-serverless": 811,
    "hopline-slo": 1134,
    "hopline-sql": 1363,
    "hopline-stores": 8283,
    "hopline-tabular": 3313,
    "hopline-tokens": 629,
    "hopline-weights": 577,
    "hopline-why": 1182,
    "turnserve": 5479,
}


each_package = pytest.mark.parametrize("name", PROJECTS)


def test_no_distribution_grows_beyond_its_budget():
    lines = {
        name: sum(file.num_lines for file in house.sources(package))
        for name, package in house.DISTRIBUTIONS.items()
        if name != "hopline"
    }
    assert set(lines) == set(BUDGET), "a distribution that comes or goes changes the budget"
    over = {name: f"{count} of {BUDGET[name]}" for name, count in lines.items() if count > BUDGET[name]}
    assert over == {}, "remove as much as was added, or move it where it belongs"


@each_package
def test_a_distribution_has_what_a_release_needs(name):
    folder, project = house.ROOT / "packages" / name, PROJECTS[name]
    package = name if name in BELOW else f"hopline_{name}"
    assert project["name"] == package.replace("_", "-")
    for file in ("README.md", "CHANGELOG.md", "LICENSE", "tests", f"src/{package}/py.typed"):
        assert (folder / file).exists(), file
    assert (folder / "LICENSE").read_bytes() == (house.ROOT / "LICENSE").read_bytes()
    server = distributions.project(house.ROOT)
    upper, lower = (server, package) if name in BELOW else (project, "hopline")
    assert f"{lower}=={hopline.__version__}" in upper["dependencies"]
    assert f'__version__ = "{hopline.__version__}"' in (folder / f"src/{package}/__init__.py").read_text()


@each_package
def test_every_entry_point_leads_into_its_own_package(name):
    for group, points in PROJECTS[name].get("entry-points", {}).items():
        for key, target in points.items():
            point = EntryPoint(key, target, group)
            assert point.module.split(".")[0] == f"hopline_{name}"
            assert point.load() is not None
            if group in DOORS:
                assert key not in DOORS[group].own, "a name of the server's own is never taken"
                assert key in DOORS[group].packages, "an error names the package to install"


def test_an_extra_of_the_server_installs_each_distribution_of_this_version():
    extras = distributions.project(house.ROOT)["optional-dependencies"]
    ours = {name for each in extras.values() for name in each if name.startswith("hopline-")}
    assert {re.match(r"[\w-]+", each)[0] for each in ours} | {"hopline-mesh", *BELOW} == {
        project["name"] for project in PROJECTS.values()
    }
    assert all(each.endswith(f"=={hopline.__version__}") for each in ours)


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_what_an_absent_distribution_has_is_named_with_its_extra(door):
    """As `pip install` reads it: 'hopline[pipelines]' in quotes, or hopline-mesh."""
    for requirement in set(door.packages.values()) - {"hopline-mesh"}:
        for each in requirement.split(" or "):
            assert distributions.named({re.fullmatch(r"'hopline\[([\w-]+)\]'", each)[1]})


def test_setup_installs_what_extras_name_and_what_no_extra_names():
    found = distributions.projects({"train"})
    assert found == [
        ".[train]",
        "./packages/compress",
        "./packages/demo",
        "./packages/mesh",
        "./packages/stores",
        "./packages/turnserve",
        "./packages/weights",
    ]
    found = distributions.projects({"test", "lint"})
    assert found[0] == ".[lint,test]"
    assert {re.match(r"\./packages/(\w+)", each)[1] for each in found[1:]} == set(PROJECTS)


def imported(folder):
    """Modules of the server, and of what it is built on, that a package imports."""
    ours = {"hopline", *BELOW}
    found = set()
    for file in folder.rglob("src/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ours:
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names if alias.name.split(".")[0] in ours}
    return found


def test_packages_import_the_modules_that_the_guide_for_authors_lists():
    """The mesh watch has a separate contract in pyproject.toml."""
    page = (house.ROOT / "docs" / "extending.md").read_text()
    table = page[page.index("## Modules for packages") :].split("\n## ")[0]
    listed = set(re.findall(rf"`((?:hopline|{'|'.join(BELOW)})\.[\w.]+)`", table))
    used = {
        name: imported(house.ROOT / "packages" / name) for name in PROJECTS if name not in ("mesh", *BELOW)
    }
    public = {"hopline"}  # its names are for every program
    assert {name: each - listed - public for name, each in used.items() if each - listed - public} == {}
    assert listed - set().union(*used.values()) == set(), "no package of this repository imports them"


@pytest.mark.parametrize("name", sorted(set(PROJECTS) - {"mesh", *BELOW}))
def test_what_a_package_logs_is_below_the_logger_that_the_server_configures(name):
    """The mesh watch and turnserve have loggers of their own, which are configured too."""
    for file in (house.ROOT / "packages" / name / "src").rglob("*.py"):
        names = re.findall(r"getLogger\((.*?)\)", file.read_text())
        assert [each for each in names if each and not each.startswith('"hopline.')] == [], file


ALONE = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda group: []

from hopline.config.schema import Config
from tests.fake_service import FakeService
from hopline.transports.http import HttpApp
from turnserve.http1.messages import Request
import hopline.server, hopline.service, hopline.models.loader, hopline.models.graph_version
import hopline.cli, hopline.serve

app = HttpApp(FakeService(Config()), Config())
for target in (b"/v1/chat/completions", b"/v2/models/fake/generate", b"/no/such/path"):
    answer = app(Request(b"POST", target, {}, b"{}"))
    print(answer.status, answer.body.decode())
print([path for path in app._description.document["paths"] if "chat" in path or "generate" in path])
print([name for name in hopline.cli.DOOR.names() if name in hopline.cli.DOOR.packages])
print(sorted(name for name in sys.modules if name.startswith("hopline_")))
"""


def test_the_server_works_alone_and_answers_routes_of_packages_as_unknown_paths():
    words = [sys.executable, "-c", ALONE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=house.ROOT)
    assert done.returncode == 0, done.stderr
    *answers, paths, commands, modules = done.stdout.splitlines()
    assert len(answers) == 3
    for answer, path in zip(
        answers, ("v1/chat/completions", "v2/models/fake/generate", "no/such/path"), strict=True
    ):
        assert answer.startswith("404 ")
        assert f"unknown path /{path}" in answer
    assert (paths, commands, modules) == ("[]", "[]", "[]")
