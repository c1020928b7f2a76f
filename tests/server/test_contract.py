"""Servers keep the contract of their /openapi.json: schemathesis sends what it generates from it.

Checked are all requests: no 5xx, only documented statuses, media types, headers and bodies, 405 with Allow
for other methods, and that invalid requests and requests without credentials are refused.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from hopline.ingress.clients_edit import add_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.keys import new_key
from tests.server.live_rig import World, serving
from tests.servers import running
from tests.thorough import thorough

HOOKS = "tests.server.contract_hooks"
COMMAND = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
#: A valid body may be refused: an unknown output, features of another size, a model without rollout.
OPTIONS = ["--exclude-checks", "positive_data_acceptance", "--seed", "1"]
#: Without the limits of each field, which take most of the time.
FEWER = ["--phases", "examples,fuzzing,stateful"]

METHODS = {"get", "post", "put", "delete"}


def check(url: str, models: str, folder: Path, *options: str) -> None:
    """Fail with what schemathesis finds."""
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": HOOKS,
        "CONTRACT_MODELS": models,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    few = ["--max-examples", str(thorough(3, 8)), *([] if thorough(0, 1) else FEWER)]
    done = subprocess.run(
        [*COMMAND, f"{url}/openapi.json", *OPTIONS, *few, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.fail(done.stdout[done.stdout.find("= FAILURES") :] + done.stderr, pytrace=False)


def statuses(url: str, **options: dict[str, str]) -> dict[str, float]:
    """status -> HTTP answers so far."""
    lines = httpx.get(f"{url}/metrics", **options).text.splitlines()
    found = [line for line in lines if line.startswith("hopline_transport_answers_total{")]
    return {line.partition('status="')[2][:3]: float(line.split()[-1]) for line in found}


def other_methods(url: str) -> None:
    """Send a method that it does not document to each path, as the phase does that is left to a release."""
    for path, documented in httpx.get(f"{url}/openapi.json").json()["paths"].items():
        answer = httpx.request("PATCH", url + re.sub(r"{\w+}", "1", path))
        assert "patch" not in documented
        allowed = {each.strip().lower() for each in answer.headers.get("allow", "").split(",")}
        assert (answer.status_code, allowed & {*documented}) == (405, {*documented} & METHODS), path


def test_a_server_with_a_live_graph_keeps_its_contract(tmp_path: Path) -> None:
    world = World(tmp_path, copies=("other",))
    with serving(**world.settings(), drift__enabled=True, drift__path=tmp_path / "drift") as live:
        check(live.server.url, "plain,link,other", tmp_path)
        other_methods(live.server.url)
        assert statuses(live.server.url).keys() >= {"200", "400", "404", "405"}
        assert "Traceback" not in "".join(live.server.log)


@pytest.fixture
def clients(tmp_path: Path) -> tuple[Path, str]:
    """A clients file, and a key in it."""
    file, key = tmp_path / "clients.toml", new_key()
    add_key(file, "tester", KeyEntry(key.id, key.sha256), Grant(("sage", "link"), read=True))
    return file, key.text


@pytest.mark.release
def test_a_server_with_authentication_keeps_its_contract(clients: tuple[Path, str], tmp_path: Path) -> None:
    file, key = clients
    with running(auth__clients_file=file) as server:
        check(server.url, "sage,link", tmp_path, "-H", f"x-api-key: {key}")
        assert statuses(server.url, headers={"x-api-key": key}).keys() >= {"200", "401", "403"}
