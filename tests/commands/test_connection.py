"""Every command that talks to a server finds it, and says who asks, in one way."""

import pytest
import typer.main

from hopline import cli
from hopline.commands.connection import DEFAULT_URL, credentials, server_url
from hopline.errors import BadRequest

NAMES = ("HOPLINE_URL", "HOPLINE_API_KEY", "HOPLINE_TOKEN")


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_a_flag_goes_before_the_environment_and_that_before_this_host(monkeypatch):
    assert server_url(None) == DEFAULT_URL
    monkeypatch.setenv("HOPLINE_URL", "http://elsewhere:1")
    assert server_url(None) == "http://elsewhere:1"
    assert server_url("http://flag:2") == "http://flag:2"
    monkeypatch.setenv("HOPLINE_URL", "")
    assert server_url(None) == DEFAULT_URL


@pytest.mark.parametrize(
    ("flags", "environment", "used"),
    [
        ((None, None), {}, (None, None)),
        ((None, None), {"HOPLINE_API_KEY": "k"}, ("k", None)),
        ((None, None), {"HOPLINE_TOKEN": "t"}, (None, "t")),
        ((None, None), {"HOPLINE_API_KEY": "k", "HOPLINE_TOKEN": "t"}, (None, "t")),
        (("flag", None), {"HOPLINE_TOKEN": "t"}, ("flag", None)),
        ((None, "flag"), {"HOPLINE_API_KEY": "k"}, (None, "flag")),
    ],
)
def test_a_key_or_token_of_a_flag_goes_before_all_of_the_environment(monkeypatch, flags, environment, used):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert credentials(*flags) == used


def test_a_key_and_a_token_are_one_too_many():
    with pytest.raises(BadRequest, match="--api-key or --token, not both"):
        credentials("k", "t")


def leaves(prefix, command):
    if not hasattr(command, "commands"):
        yield prefix, command
        return
    for name, child in command.commands.items():
        yield from leaves(f"{prefix} {name}", child)


def every_command():
    for name in cli.DOOR.names():
        yield from leaves(name, typer.main.get_command(cli.build_app([name])).commands[name])


def test_each_command_of_a_server_has_all_three_flags_and_no_other_spelling():
    asking = {"score", "cost", "slo", "stream", "replay", "mcp", "drift show", "pipeline check"}
    asking |= {f"graph {name}" for name in ("events", "status")}
    asking |= {f"models {name}" for name in ("list", "load", "unload")}
    verbs = ("start", "status", "promote", "rollback", "pause", "resume", "advance", "end")
    asking |= {f"rollout {name}" for name in verbs}
    found = set()
    for name, command in every_command():
        flags = {flag for each in command.params for flag in each.opts}
        if name.startswith("mesh"):  # asks a Prometheus, not a server of Hopline's
            continue
        assert not flags & {"--server", "--address", "--key", "--jwt"}, name
        if flags & {"--url", "--api-key", "--token"}:
            assert {"--url", "--api-key", "--token"} <= flags, name
            found.add(name)
    assert found == asking
