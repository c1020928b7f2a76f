"""`hopline mesh simulate`: a simulated mesh with real metrics and a Kubernetes API."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopline.errors import BadRequest
from hopline_mesh.commands.flags import bars, count_of

if TYPE_CHECKING:
    from hopline_mesh.simulate import Simulation
    from hopline_mesh.simulate.live import Live

_PRESETS = ("plain", "calm", "high-churn")


def simulate(
    services: Annotated[int, typer.Option(help="Number of services.")] = 12,
    seed: Annotated[
        int, typer.Option(help="Seed of the mesh; the same seed gives the same mesh.", min=0)
    ] = 0,
    port: Annotated[
        int,
        typer.Option(
            help="Port of /metrics, /state and control requests; 0 chooses a free one.", min=0, max=65535
        ),
    ] = 9400,
    kubernetes_port: Annotated[
        int,
        typer.Option(help="Port of the simulated Kubernetes API; 0 chooses a free one.", min=0, max=65535),
    ] = 9401,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests per second that enter the mesh. Default: 150; for the other presets 300."
        ),
    ] = None,
    daily: Annotated[
        float | None,
        typer.Option(help="Amplitude of the load over a day, 0 to 0.9. Default: 0; in a recording 0.35."),
    ] = None,
    autoscale: Annotated[bool, typer.Option(help="Scale the number of pods with the load.")] = True,
    missing: Annotated[
        float | None,
        typer.Option(
            help="Share of scrapes that fail. Default: 0. In a recording, share of missing measurements; "
            "default: 0.001."
        ),
    ] = None,
    unkind: Annotated[
        bool,
        typer.Option(
            "--unkind",
            help="Draw properties that make a real mesh harder to watch: workloads with other names than "
            "their Services, canaries, cycles, retry budgets, services without a sidecar, missing series, "
            "no TCP metrics, a daily rhythm.",
        ),
    ] = False,
    trait: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHARE",
            help="Set one of these properties, such as without_sidecar=0.2 or tcp=0; repeatable.",
        ),
    ] = None,
    speed: Annotated[float, typer.Option(help="Simulated seconds per second.")] = 1.0,
    per_pod: Annotated[
        bool,
        typer.Option(
            help="Count requests by pod, as in a real mesh. By service there are a third of the lines; use "
            "it for hundreds of services."
        ),
    ] = True,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND@T[+SECONDS][:TARGET]",
            help="Inject a fault T simulated seconds after the start, such as memory_leak@300+600:cart or "
            "edge_latency@300:web>cart; repeatable.",
        ),
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND@T[:SERVICE][=PODS]",
            help="Make a planned change, such as scale@300:cart=7 or rollout@300:cart; repeatable.",
        ),
    ] = None,
    prometheus_config: Annotated[
        Path | None, typer.Option(help="Write a configuration for a Prometheus that scrapes the mesh.")
    ] = None,
    scrape_interval: Annotated[
        float, typer.Option(help="Seconds between scrapes, for --prometheus-config.")
    ] = 15.0,
    seconds: Annotated[
        float | None, typer.Option("--for", help="Stop after this number of seconds.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Do not serve; write a recording for `hopline mesh evaluate` to this new folder."
        ),
    ] = None,
    hours: Annotated[float, typer.Option(help="Length of the recording in hours.")] = 24.0,
    preset: Annotated[
        str,
        typer.Option(
            help="Content of the recording: plain (only --fault and --operation), calm, or high-churn "
            "(pods are replaced all the time, with faults)."
        ),
    ] = "plain",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON with the URLs or the recording.")
    ] = False,
) -> None:
    """Simulate a service mesh: metrics of Istio, cAdvisor and kube-state-metrics, pods, and faults."""
    from hopline_mesh.simulate import MeshPlan, Simulation, calm, high_churn, unkind_plan
    from hopline_mesh.simulate.orders import read_fault, read_operation, read_traits
    from hopline_mesh.simulate.plan import MAX_HOURS

    if preset not in _PRESETS:
        raise BadRequest(f"--preset {preset} is not one of {', '.join(_PRESETS)}")
    if preset != "plain" and record is None:
        raise BadRequest(f"--preset {preset} needs --record; use --fault for faults of a running mesh")
    if preset != "plain" and (fault or operation):
        raise BadRequest(
            f"--preset {preset} defines its faults and operations; remove --fault and --operation"
        )
    if not 0.0 <= hours <= MAX_HOURS:
        raise BadRequest(f"--hours {hours:g}: must be from 0 to {MAX_HOURS:g}")
    if preset == "calm":
        plan = calm(hours, services, seed=seed).plan
    elif preset == "high-churn":
        plan = high_churn(hours, services, seed=seed, quiet_hours=min(4.0, hours / 4)).plan
    else:
        faults = tuple(read_fault(each) for each in fault or [])
        operations = tuple(read_operation(each) for each in operation or [])
        plan = MeshPlan(services, hours=hours, rate=150.0, faults=faults, operations=operations)
    if record is None:
        plan = replace(plan, daily=0.0, missing=0.0)
    if unkind:
        plan = unkind_plan(plan, seed)
    given: dict[str, Any] = {"rate": rate, "daily": daily, "missing": missing}
    plan = replace(
        plan,
        autoscale=autoscale,
        traits=read_traits(trait or [], plan.traits),
        **{name: value for name, value in given.items() if value is not None},
    )
    if record is not None:
        _record(Simulation(plan, seed), record, as_json)
        return
    if not scrape_interval >= 0.001:
        raise BadRequest("--scrape-interval must be at least 0.001 s")
    if seconds is not None and not 0.0 <= seconds <= threading.TIMEOUT_MAX:
        raise BadRequest(f"--for {seconds:g} is not a number of seconds; without it, stop with Ctrl-C")
    from hopline_mesh.simulate.live import Live

    live = Live(plan, seed, speed, per_pod=per_pod)
    _serve(live, host, port, kubernetes_port, prometheus_config, scrape_interval, seconds, as_json)


def _record(run: Simulation, folder: Path, as_json: bool) -> None:
    from hopline_mesh.simulate.truth import write

    if not len(run):
        least = run.plan.interval_s / 3600.0
        raise BadRequest(
            f"--hours {run.plan.hours:g}: must be at least {least:.2g}, one interval of "
            f"{run.plan.interval_s:g} s"
        )
    done = itertools.count(1)
    try:
        with bars(quiet=as_json) as advance:
            write(run, folder, folder.resolve().name, lambda: advance("Simulating", next(done), len(run)))
    except OSError as error:
        raise BadRequest(f"--record {folder} cannot be written: {error}") from error
    written = {
        "folder": str(folder),
        "snapshots": len(run),
        "services": run.plan.services,
        "faults": len(run.faults),
        "operations": len(run.operations),
    }
    counts = f"{count_of(len(run), 'snapshot')}, {count_of(len(run.faults), 'fault')}"
    typer.echo(json.dumps(written) if as_json else f"{folder}: {counts}")


def _serve(
    live: Live,
    host: str,
    port: int,
    kubernetes_port: int,
    config: Path | None,
    scrape_s: float,
    seconds: float | None,
    as_json: bool,
) -> None:
    from hopline_mesh.simulate import control
    from hopline_mesh.simulate.cluster import web
    from hopline_mesh.simulate.exposition import prometheus_config
    from hopline_mesh.simulate.http_server import Server

    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, lambda *_: stop.set())
            stack.callback(signal.signal, number, before)
        stack.callback(live.close)
        try:
            server = Server(host, port, control.handler(live))
            stack.callback(server.close)
            api = Server(host, kubernetes_port, web.handler(live.log))
            stack.callback(api.close)
        except OSError as error:
            raise BadRequest(f"cannot listen on {host}: {error}; choose other ports, or 0") from error
        if config is not None:
            try:
                config.write_text(prometheus_config(server.port, scrape_s, host), encoding="utf-8")
            except OSError as error:
                raise BadRequest(f"--prometheus-config {config} cannot be written: {error}") from error
        live.start()
        url, api_url = f"http://{host}:{server.port}", f"http://{host}:{api.port}"
        if as_json:
            typer.echo(json.dumps({"metrics": f"{url}/metrics", "control": url, "kubernetes": api_url}))
        else:
            typer.echo(f"metrics: {url}/metrics; Kubernetes API: {api_url}")
            typer.echo(
                f'state: {url}/state; inject a fault: curl {url}/faults -d \'{{"kind": "memory_leak"}}\''
            )
        stop.wait(seconds)
