"""Who asks: keys and tokens to clients, remembered, and read anew when files change."""

from __future__ import annotations

import datetime
import logging
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import jwt
import pytest

from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.errors import ConfigError, RateLimited, Unauthenticated
from hopline.ingress.clients_edit import add_key, remove_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.keys import new_key
from tests.ingress.clocks import Clock

SECRET = "a secret of thirty-two bytes or more"


class Door:
    """A clients file, an issuer of tokens, a clock, and a gatekeeper of them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.file = folder / "clients.toml"
        self.file.touch()
        secret = folder / "secret"
        secret.write_text(SECRET)
        self.clock = Clock()
        self.config = Config().replace(
            auth__clients_file=self.file,
            auth__jwt_key_file=secret,
            auth__jwt_algorithms="HS256",
            auth__jwt_issuer="i",
            auth__jwt_audience="a",
            auth__jwt_leeway_s=0,
            **settings,
        )
        self.gate = self.open()

    def open(self) -> Gatekeeper:
        return Gatekeeper(self.config, now=self.clock, clock=self.clock.monotonic_ns)

    def key(self, client: str, grant: Grant | None = None, expires_s: float | None = None) -> str:
        key = new_key()
        expires = None
        if expires_s is not None:
            expires = datetime.datetime.fromtimestamp(self.clock() + expires_s, datetime.UTC)
        add_key(self.file, client, KeyEntry(key.id, key.sha256, None, expires), grant)
        self.gate.tick()
        return key.text

    def token(self, sub: str = "ada", ttl_s: float = 600, **claims: Any) -> str:
        return jwt.encode(
            {"sub": sub, "iss": "i", "aud": "a", "exp": self.clock() + ttl_s, **claims}, SECRET, "HS256"
        )


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_a_key_is_its_client_however_it_is_presented(door: Door) -> None:
    key = door.key("payments", Grant(("fraud",)))
    for authorization, api_key in [
        (None, key),
        (f"Bearer {key}", None),
        (f"bearer  {key} ", None),
        (None, key.encode()),
        (f"Bearer {key}".encode(), None),
    ]:
        client = door.gate.identify(authorization, api_key)
        assert client.name == "payments"
        assert client.may("score", "fraud")
        assert client is door.gate.identify(authorization, api_key)


@pytest.mark.parametrize(
    ("authorization", "api_key", "message"),
    [
        (None, None, "authentication required"),
        (None, "", "unknown API key"),
        (None, "hopline_0_x", "unknown API key"),
        ("Bearer hopline_0_x", None, "unknown API key"),
        ("Basic YTpi", None, "must be Bearer"),
        ("Bearer", None, "neither a key of this server nor a JSON Web Token"),
        ("Bearer x", "y", "not both"),
        ("Bearer \xff".encode("latin-1"), None, "neither a key"),
        (None, b"\xff\xfe", "unknown API key"),
    ],
)
def test_an_unknown_client_gets_the_reason(
    door: Door, authorization: Any, api_key: Any, message: str
) -> None:
    for _ in range(2):
        with pytest.raises(Unauthenticated, match=message):
            door.gate.identify(authorization, api_key)


def test_tokens_are_clients_by_their_subject(door: Door) -> None:
    token = door.token(scope="hopline:score:fraud")
    client = door.gate.identify(f"Bearer {token}", None)
    assert client.name == "token:ada"
    assert client.may("score", "fraud")
    assert not client.may("score", "churn")
    nobody = door.gate.identify(f"Bearer {door.token('eve')}", None)
    assert not nobody.may("score", "fraud")
    with pytest.raises(Unauthenticated, match="unknown API key"):
        door.gate.identify(None, token)  # a token is no key


def test_what_is_remembered_ends_when_it_ends(door: Door) -> None:
    token, key = f"Bearer {door.token(ttl_s=60)}", door.key("c", Grant(("*",)), expires_s=120)
    door.gate.identify(token, None)
    door.gate.identify(None, key)
    door.clock.pass_s(59)
    door.gate.identify(token, None)
    door.clock.pass_s(1)
    with pytest.raises(Unauthenticated, match="the token has expired"):
        door.gate.identify(token, None)
    door.gate.identify(None, key)
    door.clock.pass_s(60)
    with pytest.raises(Unauthenticated, match="the API key has expired"):
        door.gate.identify(None, key)


def test_a_subject_of_the_file_is_that_client(door: Door) -> None:
    door.file.write_text('[clients.payments]\nscore = ["fraud"]\nsubject = "svc|7"\n')
    door.gate.tick()
    client = door.gate.identify(f"Bearer {door.token('svc|7', scope='hopline:admin')}", None)
    assert (client.name, client.may("score", "fraud"), client.may("admin", "fraud")) == (
        "payments",
        True,
        False,
    )


def test_a_subject_with_a_clients_name_is_not_that_client(door: Door) -> None:
    key = door.key("payments", Grant(("fraud",), rate_per_s=1, burst=1))
    other = door.gate.identify(f"Bearer {door.token('payments', hopline={'rate_per_s': 1})}", None)
    assert other.name != door.gate.identify(None, key).name == "payments"  # in records and messages
    assert not other.may("score", "fraud")
    other.admit()
    door.gate.identify(None, key).admit()  # and it has its bucket for itself


def test_tokens_of_one_subject_share_its_rate(door: Door) -> None:
    own = {"score": True, "rate_per_s": 1, "burst": 2}
    for ttl_s in (100, 200):
        door.gate.identify(f"Bearer {door.token(ttl_s=ttl_s, hopline=own)}", None).admit()
    with pytest.raises(RateLimited):
        door.gate.identify(f"Bearer {door.token(ttl_s=300, hopline=own)}", None).admit()


def test_clients_that_say_nothing_have_the_default_rate(tmp_path: Path) -> None:
    door = Door(tmp_path, auth__rate_per_s=2, auth__burst=1)
    for client in (
        door.gate.identify(None, door.key("c", Grant(("*",)))),
        door.gate.identify(f"Bearer {door.token()}", None),
    ):
        client.admit()
        with pytest.raises(RateLimited, match="2 requests per second, bursts of 1"):
            client.admit()
    fast = door.gate.identify(None, door.key("fast", Grant(("*",), rate_per_s=1000)))
    for _ in range(1000):
        fast.admit()


def test_a_revoked_key_is_refused_at_the_next_tick_and_another_is_not(door: Door) -> None:
    first, second = door.key("c", Grant(("*",))), door.key("c")
    door.gate.identify(None, first)
    remove_key(door.file, "c", first.split("_")[1])
    door.gate.identify(None, first)
    door.gate.tick()
    with pytest.raises(Unauthenticated, match="may have been revoked"):
        door.gate.identify(None, first)
    assert door.gate.identify(None, second).name == "c"


def test_changed_permissions_count_at_the_next_tick_and_rates_are_not_refilled(door: Door) -> None:
    key = door.key("c", Grant(("fraud",), rate_per_s=1, burst=2))
    client = door.gate.identify(None, key)
    client.admit()
    client.admit()
    door.file.write_text(door.file.read_text().replace('"fraud"', '"churn", "x"'))
    door.gate.tick()
    changed = door.gate.identify(None, key)
    assert (changed.may("score", "fraud"), changed.may("score", "churn")) == (False, True)
    with pytest.raises(RateLimited):
        changed.admit()


def test_a_broken_file_keeps_the_clients_in_force(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    key = door.key("c", Grant(("fraud",)))
    good = door.file.read_text()
    with caplog.at_level(logging.ERROR):
        door.file.write_text("[clients.c\n")
        door.gate.tick()
        door.gate.tick()
        assert len(caplog.records) == 1  # once, not every second
        assert "the clients file is invalid and was not loaded" in caplog.text
        assert "not valid TOML" in caplog.text
        door.file.unlink()
        door.gate.tick()
        door.gate.tick()
        assert len(caplog.records) == 2
    assert door.gate.identify(None, key).name == "c"
    door.file.write_text(good + "\n[clients.other]\n")
    door.gate.tick()
    assert door.gate.identify(None, key).name == "c"
    door.file.write_text("[clients.c\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        door.open()  # at start it is an error


def test_invalid_credentials_fill_no_memory(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from hopline.ingress import gatekeeper

    monkeypatch.setattr(gatekeeper, "_MAX_REMEMBERED", 10)
    for number in range(100):
        with pytest.raises(Unauthenticated):
            door.gate.identify(None, f"made up {number}")
        door.gate.identify(f"Bearer {door.token(ttl_s=600 + number)}", None)
    assert not door.gate._by_api_key
    assert len(door.gate._by_authorization) <= 10


def test_without_tokens_the_token_library_is_not_imported(tmp_path: Path) -> None:
    import subprocess
    import sys

    file = tmp_path / "clients.toml"
    file.touch()
    code = (
        "import sys; from hopline.config.schema import Config;"
        "from hopline.ingress.gatekeeper import Gatekeeper;"
        f"Gatekeeper(Config().replace(auth__clients_file={str(file)!r}));"
        "found = {'jwt', 'cryptography', 'numba', 'grpc'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_of_tokens_the_error_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: EntryPoints())
    settings = {"auth.jwt_key_file": "k", "auth.jwt_issuer": "i", "auth.jwt_audience": "a"}
    with pytest.raises(ConfigError, match=r"auth\.jwt_\*: .*pip install 'hopline\[auth\]'"):
        Gatekeeper(load_config(overrides=settings))
