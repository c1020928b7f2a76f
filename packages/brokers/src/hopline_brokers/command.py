"""`hopline stream`: apply events of a message broker to a live graph."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hopline.commands.connection import ApiKey, Token, Url, credentials, server_url
from hopline.commands.options import AnySetting, ConfigFile, GraphFolder
from hopline.commands.serve_flags import resolve_config
from hopline.config.folders import needed_folder
from hopline.errors import BadRequest

if TYPE_CHECKING:
    from hopline_brokers.stream.follow import Rescoring

#: Exit code of a stream that stopped at an event that it could not apply.
STOPPED = 3


class UnknownNode(StrEnum):
    """Treatment of events that name nodes that the graph does not have."""

    reject = "reject"
    add = "add"


class SchemaChange(StrEnum):
    """Treatment of events with another schema."""

    dead_letter = "dead-letter"
    stop = "stop"


def stream(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ADDRESS",
            help="Source of events: a kafka://, redis:// or nats:// address with options.",
        ),
    ],
    graph: GraphFolder = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Destination of events that cannot be applied: a broker's address, a file, or `discard`. "
            "Without it the stream stops at the first one.",
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Most messages in one batch.", min=1)] = 10_000,
    max_wait_ms: Annotated[
        float,
        typer.Option(
            help="Shortest time between the starts of two batches, unless one is full; the first batch "
            "after a pause starts immediately.",
            min=0,
        ),
    ] = 20.0,
    on_unknown_node: Annotated[
        UnknownNode,
        typer.Option(
            help="Action for events that name an unknown node: reject the event, or add the node."
        ),
    ] = UnknownNode.reject,
    on_schema_change: Annotated[
        SchemaChange,
        typer.Option(help="Action for events with other features, attributes or columns than the graph."),
    ] = SchemaChange.dead_letter,
    rescore: Annotated[
        str, typer.Option(help="When changed nodes are scored: request, immediate or schedule:SECONDS.")
    ] = "request",
    model: Annotated[str | None, typer.Option(help="Model that scores changed nodes.")] = None,
    node_type: Annotated[
        str | None, typer.Option(help="Node type to score. Default: the only type.")
    ] = None,
    results: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Topic for the scores.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when the broker has no more events.")] = False,
    metrics_host: Annotated[
        str, typer.Option(help="Address to listen on for --metrics-port.")
    ] = "127.0.0.1",
    metrics_port: Annotated[
        int, typer.Option(help="Port of /metrics and /healthz; 0 picks a free one, -1 turns them off.")
    ] = -1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress line.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Apply events of a message broker to a live graph. Exits with 3 if it stops at an event."""
    resolved = resolve_config(config, {"graph.path": graph}, settings or [])
    needed_folder(resolved, "graph.path")
    from hopline.observe.logs import configure_logs
    from hopline_brokers.stream.consumer import StreamOptions
    from hopline_brokers.stream.dead_letters import StreamStopped
    from hopline_brokers.stream.follow import Stream, follow, run

    followed = Stream(
        source,
        resolved,
        dead_letters,
        _rescoring(rescore, model, node_type, results, url, api_key, token),
        metrics_host,
        metrics_port,
        quiet,
        StreamOptions(
            max_batch=max_batch,
            max_wait_ms=max_wait_ms,
            on_unknown_node=on_unknown_node.value,
            on_schema_change=on_schema_change.value,
            once=once,
            features_elsewhere=bool(resolved.features.store),
        ),
    )
    configure_logs(resolved.log)
    try:
        run(follow(followed), resolved.live.nice)
    except StreamStopped as error:
        typer.secho(f"stopped: {error}", fg="red", err=True)
        raise typer.Exit(STOPPED) from None


def _rescoring(
    mode: str,
    model: str | None,
    node_type: str | None,
    results: str | None,
    url: str | None,
    api_key: str | None,
    token: str | None,
) -> Rescoring | None:
    from hopline_brokers.stream.follow import Rescoring
    from hopline_brokers.stream.rescore import read_mode

    kind, every_s = read_mode(mode)
    given = {"--model": model, "--results": results}
    if kind == "request":
        if extra := [name for name, value in (given | {"--url": url}).items() if value is not None]:
            raise BadRequest(
                f"{', '.join(extra)}: cannot be used with --rescore request, which scores nothing"
            )
        return None
    if missing := [name for name, value in given.items() if value is None]:
        raise BadRequest(f"--rescore {mode} needs {', '.join(missing)}, too")
    assert model is not None
    assert results is not None
    return Rescoring(every_s, server_url(url), model, results, node_type, *credentials(api_key, token))
