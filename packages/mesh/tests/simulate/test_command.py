"""`hopline mesh simulate`: recordings, and what is refused."""

import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from hopline import cli
from hopline.errors import BadRequest, ConfigError, HoplineError
from hopline_mesh.commands import app
from hopline_mesh.evaluate.folder import read_folder
from hopline_mesh.simulate import MeshPlan, Simulation, calm, high_churn, unkind_plan
from hopline_mesh.simulate.orders import read_fault, read_operation
from hopline_mesh.simulate.truth import events, periods


def run(*arguments: object):
    words = ["mesh", "simulate", *map(str, arguments)]
    return CliRunner().invoke(cli.build_app(words), words)


def test_a_recording_on_disk_is_that_in_memory(tmp_path):
    done = run(
        "--record", tmp_path / "run", "--preset", "high-churn", "--hours", 1, "--services", 8, "--json"
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["snapshots"] == 240
    found = read_folder(tmp_path / "run")
    expected = high_churn(1.0, 8, seed=0, quiet_hours=0.25)
    assert found.events == events(expected)
    assert (*found.train, *found.test) == periods(expected)
    for one, (other, _) in zip(found.snapshots, expected, strict=True):
        np.testing.assert_array_equal(one.node_features, other.node_features)
        np.testing.assert_array_equal(one.edge_features, other.edge_features)


@pytest.mark.sample(1)
@pytest.mark.parametrize("preset", ["plain", "calm", "high-churn"])
def test_options_of_the_mesh_hold_for_every_preset(tmp_path, preset):
    options = ("--rate", 60, "--daily", 0, "--missing", 0, "--no-autoscale")
    done = run("--record", tmp_path / "run", "--preset", preset, "--hours", 0.25, "--services", 6, *options)
    assert done.exit_code == 0, done.output
    given = {"rate": 60.0, "daily": 0.0, "missing": 0.0, "autoscale": False}
    plans = {
        "plain": MeshPlan(services=6, hours=0.25),
        "calm": calm(0.25, 6).plan,
        "high-churn": high_churn(0.25, 6, quiet_hours=0.0625).plan,
    }
    expected = Simulation(replace(plans[preset], **given), 0)
    found = read_folder(tmp_path / "run")
    for one, (other, _) in zip(found.snapshots, expected, strict=True):
        np.testing.assert_array_equal(one.node_features, other.node_features)


def test_an_option_goes_above_what_unkind_draws(tmp_path):
    done = run(
        "--record", tmp_path / "run", "--unkind", "--daily", 0.1, "--hours", 0.25, "--services", 6
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    plan = replace(unkind_plan(MeshPlan(services=6, hours=0.25, rate=150.0), 0), daily=0.1)
    recorded = read_folder(tmp_path / "run").snapshots
    for one, (other, _) in zip(recorded, Simulation(plan, 0), strict=True):
        np.testing.assert_array_equal(one.node_features, other.node_features)


def test_a_recording_has_the_faults_that_were_requested(tmp_path):
    done = run(
        "--record", tmp_path / "run", "--hours", 0.5, "--services", 8,
        "--fault", "edge_latency@900+300*0.9", "--fault", "memory_leak@300+200",
        "--operation", "scale@600=6",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "120 snapshots, 2 faults" in done.output
    events = read_folder(tmp_path / "run").events
    assert [(event.kind, event.end_s - event.start_s) for event in events] == [
        ("memory_leak", 200.0),
        ("edge_latency", 300.0),
    ]
    assert events[1].path is not None


def test_it_serves_for_as_long_as_it_is_configured(tmp_path):
    config = tmp_path / "prometheus.yml"
    done = run(
        "--port", 0, "--kubernetes-port", 0, "--services", 4, "--for", 0.1, "--json",
        "--prometheus-config", config,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["metrics"] == f"{told['control']}/metrics"
    assert told["control"].removeprefix("http://") in config.read_text()


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(number):
    words = ["mesh", "simulate", "--port", "0", "--kubernetes-port", "0", "--services", "4", "--json"]
    with subprocess.Popen([sys.executable, "-m", "hopline.cli", *words], stdout=subprocess.PIPE) as process:
        try:
            assert json.loads(process.stdout.readline())["kubernetes"]
            process.send_signal(number)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_folder_with_a_recording_is_left_alone(tmp_path):
    assert run("--record", tmp_path, "--hours", 0.1, "--services", 4).exit_code == 0
    before = (tmp_path / "nodes.csv").read_bytes()
    again = run("--record", tmp_path, "--hours", 0.1, "--services", 4)
    assert again.exit_code != 0
    assert (tmp_path / "nodes.csv").read_bytes() == before


def test_every_command_of_the_mesh_with_a_seed_refuses_one_below_0():
    commands = typer.main.get_command(app).commands
    seeds = [option for each in commands.values() for option in each.params if option.name == "seed"]
    assert [option.min for option in seeds] == [0, 0]  # demo, simulate


def test_a_recording_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("/proc/x", tmp_path / "file", tmp_path / "file" / "below"):
        done = run("--record", folder, "--hours", 0.1, "--services", 4)
        assert isinstance(done.exception, BadRequest)
        assert str(done.exception).startswith(f"--record {folder} cannot be written: ")


def test_a_recording_without_an_interval_is_refused_with_the_least_length(tmp_path):
    done = run("--record", tmp_path / "run", "--hours", 0.001)
    assert str(done.exception) == "--hours 0.001: must be at least 0.0042, one interval of 15 s"
    assert run("--record", tmp_path / "run", "--hours", 0.0042, "--services", 4).exit_code == 0


def test_one_fault_is_not_counted_in_the_plural(tmp_path):
    words = ("--hours", 0.1, "--services", 4, "--fault", "cpu_hog@60+60")
    assert run("--record", tmp_path / "run", *words).output.endswith("run: 24 snapshots, 1 fault\n")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("memory_leak@300", ("memory_leak", 300.0, 300.0, "", "", 0.6)),
        ("memory_leak@300+90.5:shop/cart*1", ("memory_leak", 300.0, 90.5, "shop/cart", "", 1.0)),
        ("partition@0:web>cart", ("partition", 0.0, 300.0, "cart", "web", 0.6)),
    ],
)
def test_faults_are_read_from_words(text, fields):
    fault = read_fault(text)
    assert (
        fault.kind, fault.start_s, fault.duration_s, fault.service, fault.caller, fault.severity
    ) == fields  # fmt: skip


def test_operations_are_read_from_words():
    operation = read_operation("scale@60:cart=7")
    assert (operation.kind, operation.start_s, operation.service, operation.replicas) == (
        "scale",
        60,
        "cart",
        7,
    )
    assert read_operation("rollout@5").service == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("memory_leak", "must be KIND@T"),
        ("memory_leak@soon", "must be KIND@T"),
        ("memory_leak@1.2.3", "not a number"),
        ("cpu_hog@1=3", "must be KIND@T"),
    ],
)
def test_words_that_are_no_fault_are_refused(text, says):
    with pytest.raises(BadRequest, match=says):
        read_fault(text)


def test_more_pods_than_any_number_are_refused():
    with pytest.raises(BadRequest, match="must be KIND@T"):
        read_operation(f"scale@1={'9' * 5000}")


@pytest.mark.parametrize("text", ["explode@5", "cpu_hog@5*3", "cpu_hog@5:a>b"])
def test_faults_that_cannot_be_are_refused(text):
    with pytest.raises(ConfigError):
        read_fault(text)


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "arguments",
    [
        ("--services", 1),
        ("--seed", -1),
        ("--port", 70_000),
        ("--port", 0, "--kubernetes-port", -1),
        ("--seed", -1, "--record", "x"),
        ("--trait", "tcp=5", "--record", "x"),
        ("--record", "x", "--hours", 0),
        ("--record", "x", "--hours", 0.001),
        ("--record", "x", "--hours", -1, "--preset", "calm"),
        ("--record", "x", "--hours", "nan", "--preset", "calm"),
        ("--record", "x", "--hours", "inf", "--preset", "high-churn"),
        ("--speed", 0),
        ("--preset", "high-churn"),
        ("--record", "x", "--preset", "wild"),
        ("--record", "x", "--preset", "calm", "--fault", "cpu_hog@1"),
        ("--fault", "partition@1:nobody>nothing"),
        ("--operation", "scale@1:nobody=3"),
        ("--host", "192.0.2.1", "--port", 0),
        ("--scrape-interval", 0),
        ("--for", -1),
        ("--for", "inf"),
        ("--port", 0, "--kubernetes-port", 0, "--prometheus-config", "no/such/folder.yml"),
    ],
)
def test_what_cannot_be_simulated_is_an_error_and_starts_nothing(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code != 0
    assert isinstance(done.exception, HoplineError | SystemExit)
    assert not list(tmp_path.iterdir())
