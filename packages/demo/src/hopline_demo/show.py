"""The whole demo: build or reuse the folder, serve it, and explain requests and answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.table import Table

from hopline import Client
from hopline.errors import Unavailable
from hopline.process.listeners import reserve
from hopline_demo.process import Served, serving
from hopline_demo.recipe import MODEL, Outcome, Quality, Recipe, finished, make, packaged_scores
from hopline_demo.screen import Screen

#: Limits of `--check`. Seeds 0 to 3 reach 0.98 to 1.0 and 0.7 to 0.9 at that size, the features alone 0.95
#: and 0.2.
LEAST_AUC, LEAST_AVERAGE_PRECISION = 0.93, 0.45
#: Served and packaged answers differ only by rounding, and not at all with the same runtime.
_EQUAL = 1e-5
_CHUNK = 1000


def default_folder() -> Path:
    """Folder for work files: $XDG_CACHE_HOME/hopline/demo, else ~/.cache/hopline/demo."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hopline" / "demo"


def run(recipe: Recipe, folder: Path, port: int, screen: Screen) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises: HoplineError: the port is in use, a size is invalid, or the server exited.
    """
    grpc_port = port + 1 if port else 0
    # Report a port in use before minutes of work.
    for number, flag in ((port, "--port"), (grpc_port, "--port (gRPC takes the next one)")):
        reserve("127.0.0.1", number, flag).close()
    screen.title("Hopline demo: find fraud rings in a payment network")
    outcome = finished(folder, recipe)
    if outcome is None:
        outcome = make(folder, recipe, screen)
    else:
        sizes = f"{recipe.accounts:,} accounts, {recipe.transfers:,} transfers"
        screen.line("network", f"{sizes}; built and trained by an earlier run in {folder}")
    with contextlib.suppress(KeyboardInterrupt), _sigterm_is_ctrl_c():
        with _served(folder, port, grpc_port, screen) as served:
            explain(served, outcome, screen)
            screen.text(f"[dim]Work files: {folder}[/dim]")
            screen.text("Serving until you press Ctrl-C.")
            code = served.process.wait()
        raise Unavailable(f"the server exited with code {code}")
    screen.text("Stopped. To serve it again:")
    screen.paste(f"{_command()} serve --graph {folder / 'graph'} --repository {folder / 'models'}")


def _command() -> str:
    """The command to type for `hopline`: its path, if the shell does not find this installation."""
    beside = Path(sys.executable).with_name("hopline")
    return "hopline" if shutil.which("hopline") == str(beside) else str(beside)


def check(recipe: Recipe, folder: Path | None, screen: Screen) -> bool:
    """Run the demo on a free port and check the answers; return True if all checks passed.

    Args:
        folder: None uses a temporary folder.

    Raises: HoplineError: a step failed.
    """
    began = time.perf_counter()
    screen.title("Hopline demo, with checks: find fraud rings in a payment network")
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopline-demo-")))
        outcome = make(folder, recipe, screen)
        with _served(folder, 0, 0, screen) as served:
            explain(served, outcome, screen)
            good = _verify(served, outcome, folder, screen)
    screen.blank()
    took = time.perf_counter() - began
    screen.text(f"[bold]{'All checks passed' if good else 'The check failed'}[/bold] ({took:.0f} s).")
    return good


def figures(outcome: Outcome) -> Table:
    """A table that compares both models."""
    table = Table(
        title=f"On {outcome.num_held_out:,} held-out accounts, "
        f"{outcome.num_held_out_members:,} of them in rings",
        title_justify="left",
        title_style="",
        box=None,
        pad_edge=False,
        padding=(0, 3, 0, 0),
    )
    table.add_column("")
    top = outcome.num_held_out_members
    for column in ("ROC-AUC", "average precision", f"hits in the top {top:,}"):
        table.add_column(column, justify="right", header_style="dim")
    rows: tuple[tuple[str, Quality, str], ...] = (
        ("features only (MLP)", outcome.features_only, ""),
        ("with the graph (GraphSAGE)", outcome.with_graph, "bold green"),
    )
    for label, each, style in rows:
        cells = (f"{each.auc:.3f}", f"{each.average_precision:.3f}", f"{each.precision_at_members:.0%}")
        table.add_row(label, *cells, style=style)
    return table


def explain(served: Served, outcome: Outcome, screen: Screen) -> None:
    """Print the quality, two commands to paste, their answers, and an explanation."""
    screen.blank()
    screen.table(figures(outcome))
    screen.blank()
    share = outcome.num_members / outcome.recipe.accounts
    shown = {"a typical ring member": outcome.member, "an ordinary account": outcome.ordinary}
    with Client(served.url) as client:
        for what, account in shown.items():
            result = client.score(MODEL, [account])
            chance = float(result.outputs["probabilities"][0])
            screen.text(f"Score {what}:")
            screen.paste(f"curl -s {served.url}/v1/models/{MODEL}/score -d '{{\"nodes\": [{account}]}}'")
            screen.text(f"  answer: [bold]{_number(chance)}[/bold], {_in_words(chance, share)}")
            screen.blank()
    screen.text(
        f'The number under "probabilities" is the probability that the account belongs to a fraud ring; '
        f'{share:.1%} of all accounts do. "label" is 1 from 0.5 on. The request contains only the '
        "account's number: the server has the graph, and reads the accounts around it."
    )
    screen.blank()


def _number(chance: float) -> str:
    return f"{chance:.3f}" if chance >= 0.0005 else "less than 0.001"


def _in_words(chance: float, share: float) -> str:
    if chance >= 0.5:
        return f"so it is very likely in a ring: {chance / share:.0f} times the average"
    if chance >= share:
        return f"so it is suspicious: {chance / share:.0f} times the average"
    return "so it is not suspicious"


def _verify(served: Served, outcome: Outcome, folder: Path, screen: Screen) -> bool:
    """Score all held-out accounts on the server, and compare the answers with the truth."""
    with np.load(folder / "accounts.npz") as accounts:
        held = np.flatnonzero(accounts["held_out"])
        is_fraud = accounts["ring"][held] >= 0
    with Client(served.url) as client:
        parts = [
            client.score(MODEL, held[at : at + _CHUNK]).outputs["probabilities"]
            for at in range(0, len(held), _CHUNK)
        ]
    scores = np.concatenate(parts)
    quality = Quality.of(is_fraud, scores)
    difference = float(np.abs(scores - packaged_scores(folder, held)).max())
    member, ordinary = (float(scores[held == account][0]) for account in (outcome.member, outcome.ordinary))
    verdicts = (
        (
            quality.auc >= LEAST_AUC,
            f"ROC-AUC over HTTP is {quality.auc:.3f}; at least {LEAST_AUC} is required",
        ),
        (
            quality.average_precision >= LEAST_AVERAGE_PRECISION,
            f"average precision over HTTP is {quality.average_precision:.3f}; at least "
            f"{LEAST_AVERAGE_PRECISION} is required",
        ),
        (
            quality.average_precision > outcome.features_only.average_precision,
            f"the graph helps: the features alone reach {outcome.features_only.average_precision:.3f}",
        ),
        (
            member > ordinary,
            f"the ring member scores {_number(member)}, the ordinary account {_number(ordinary)}",
        ),
        (
            difference <= _EQUAL,
            f"served and packaged answers differ by {difference:.0e}; {_EQUAL:.0e} is allowed",
        ),
    )
    for good, text in verdicts:
        screen.line("check", text, good=good)
    return all(good for good, _ in verdicts)


@contextlib.contextmanager
def _served(folder: Path, port: int, grpc_port: int, screen: Screen) -> Iterator[Served]:
    with contextlib.ExitStack() as stack:
        with screen.step("serving") as step:
            step.wait("starting the server; the first start on a machine compiles kernels")
            served = stack.enter_context(
                serving(folder / "graph", folder / "models", port=port, grpc_port=grpc_port)
            )
            step.say(f"{served.url} and gRPC at {served.grpc}, in a process without torch")
        yield served


@contextlib.contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """Also stop in order on SIGTERM or when the terminal is closed."""

    def stop(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
