"""The clients file: read with errors that name what is wrong, and changed without touching the rest."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hopline.commands.auth import app
from hopline.errors import BadRequest, ConfigError, HoplineError
from hopline.ingress.clients_edit import add_key, remove_key
from hopline.ingress.clients_file import ClientEntry, Grant, KeyEntry, parse_clients, read_clients
from hopline.ingress.keys import digest, new_key
from hopline.ingress.permissions import Permissions
from tests.thorough import thorough

ONE, TWO = "1" * 64, "2" * 64
FILE = f"""
# Who may ask.
[clients.payments]            # the service of the payments team
score = ["fraud", "risk-*"]
read = true
rate_per_s = 500
burst = 100
priority = "high"

[[clients.payments.keys]]
id = "k1"
sha256 = "{ONE}"
created = 2026-10-06

# The second one is for the move to the new cluster.
[[clients.payments.keys]]
id = "k2"
sha256 = "{TWO}"
expires = 2027-10-06T00:00:00Z

[clients."a b"]
admin = ["risk-*"]
subject = "auth0|7"
"""


def test_a_file_is_read() -> None:
    clients = parse_clients(FILE, "f")
    assert list(clients) == ["payments", "a b"]
    payments = clients["payments"]
    assert payments.permissions == Permissions(("fraud", "risk-*"), ("*",), ())
    assert payments.rate == (500, 100)
    assert payments.priority == "high"
    assert payments.keys[0].created == datetime.date(2026, 10, 6)
    assert payments.keys[0].until == float("inf")
    assert payments.keys[1].until == datetime.datetime(2027, 10, 6, tzinfo=datetime.UTC).timestamp()
    assert clients["a b"].permissions == Permissions(admin=("risk-*",))
    assert clients["a b"].subject == "auth0|7"
    assert parse_clients("", "f") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[clients", "not valid TOML"),
        ("[client.a]", "'client': only"),
        ("clients = 3", "'clients': only"),
        ('[clients.a]\nscores = ["x"]', "client 'a'.*scores.*did you mean 'score'"),
        ('[clients.a]\nscore = "fraud"', "client 'a'.*score"),
        ('[clients.a]\nscore = [""]', "client 'a'.*score"),
        (
            '[clients."token:ada"]',
            "client 'token:ada': names that begin with 'token:' are reserved for tokens",
        ),
        ("[clients.a]\nrate_per_s = 0", "client 'a'.*rate_per_s"),
        ("[clients.a]\nrate_per_s = inf", "client 'a'.*rate_per_s"),
        ("[clients.a]\nrate_per_s = 1\nburst = 0", "client 'a'.*burst"),
        ("[clients.a]\nburst = 5", "client 'a': burst also needs rate_per_s"),
        ('[clients.a]\npriority = "urgent"', "client 'a'.*urgent"),
        ('[[clients.a.keys]]\nid = "k"\nsha256 = "abc"', "client 'a'.*sha256"),
        (f'[[clients.a.keys]]\nid = "k"\nsha256 = "{ONE}"\nexpires = 2027-01-01T00:00:00', "a.*expires"),
        (
            f'[[clients.a.keys]]\nid="k"\nsha256="{ONE}"\n[[clients.b.keys]]\nid="l"\nsha256="{ONE}"',
            "clients 'a' and 'b' have the same key",
        ),
        ('[clients.a]\nsubject="s"\n[clients.b]\nsubject="s"', "'a' and 'b' have the same subject"),
        ('[clients."a\\nb"]', "printable"),
        ("[clients]\na = 3", "client 'a'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^the-file: .*{message}"):
        parse_clients(text, "the-file")


def test_an_absent_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"auth.clients_file: .*does not exist; create it with `hopline auth new-key`"
    ):
        read_clients(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_clients(tmp_path)


def test_keys_are_random_and_kept_as_digests() -> None:
    keys = [new_key() for _ in range(50)]
    assert len({key.text for key in keys}) == 50
    assert all(digest(key.text) == key.sha256 and len(key.text) > 50 for key in keys)


def test_adding_and_removing_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(FILE)
    file.chmod(0o640)
    before = read_clients(file)
    add_key(file, "a b", KeyEntry("k3", "3" * 64, datetime.date(2026, 1, 2)))
    add_key(file, "new", KeyEntry("k4", "4" * 64), Grant(("x",), True, False, 2.5, 7, "low", 900))
    after = read_clients(file)
    assert after["a b"].keys == (KeyEntry("k3", "3" * 64, datetime.date(2026, 1, 2)),)
    keys = (KeyEntry("k4", "4" * 64),)
    assert after["new"] == ClientEntry(("x",), True, False, 2.5, 7, "low", 900, keys)
    assert after["payments"] == before["payments"]
    assert file.read_text().startswith(FILE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640

    assert remove_key(file, "payments", "k1").sha256 == ONE
    text = file.read_text()
    assert ONE not in text
    assert "# The second one is for" in text
    assert [key.id for key in read_clients(file)["payments"].keys] == ["k2"]
    remove_key(file, "payments", None)  # the only one that is left
    remove_key(file, "a b", "k3")
    remove_key(file, "new", "k4")
    assert {name: entry.keys for name, entry in read_clients(file).items()} == {
        "payments": (),
        "a b": (),
        "new": (),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["clients.toml"]  # no drafts are left


@pytest.mark.parametrize(
    ("client", "grant", "message"),
    [
        ("new", None, "unknown client 'new': give the permissions of a new client"),
        ("payments", Grant(("x",)), "'payments' exists: change its permissions in the file"),
        ("a\nb", Grant(("x",)), "by hand"),
    ],
)
def test_keys_that_cannot_be_added(tmp_path: Path, client: str, grant: Grant | None, message: str) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(FILE)
    with pytest.raises(ConfigError, match=message):
        add_key(file, client, KeyEntry("k", "9" * 64), grant)
    assert file.read_text() == FILE


def test_keys_that_cannot_be_removed(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    inline = f'[clients.a]\nkeys = [{{id = "k", sha256 = "{ONE}"}}]\n'
    for text, client, id, message in [
        (FILE, "nobody", None, "unknown client 'nobody'; known clients: payments, a b"),
        (FILE, "payments", None, "give the id of one key of client 'payments'; its keys: k1, k2"),
        (FILE, "payments", "k9", "its keys: k1, k2"),
        (inline, "a", "k", "by hand"),
    ]:
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            remove_key(file, client, id)
        assert file.read_text() == text
    with pytest.raises(ConfigError, match="by hand"):
        add_key(file, "a", KeyEntry("l", TWO))
    with pytest.raises(ConfigError, match="No such file"):
        add_key(tmp_path / "absent" / "clients.toml", "a", KeyEntry("l", TWO), Grant(("x",)))


_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)


@settings(max_examples=thorough(10, 40), deadline=None)
@given(
    grants=st.dictionaries(
        _NAMES, st.tuples(st.lists(_NAMES, min_size=1, max_size=3), st.booleans()), max_size=4
    ),
    seed=st.randoms(use_true_random=False),
)
def test_whatever_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, grants: dict[str, tuple[list[str], bool]], seed: object
) -> None:
    file = tmp_path_factory.mktemp("clients") / "clients.toml"
    keys: list[tuple[str, KeyEntry]] = []
    for name, (score, read) in grants.items():
        for number in range(2):
            key = KeyEntry(f"k{number}", new_key().sha256)
            add_key(file, name, key, Grant(tuple(score), read) if number == 0 else None)
            keys.append((name, key))
    seed.shuffle(keys)  # type: ignore[attr-defined]
    while keys:
        name, key = keys.pop()
        assert remove_key(file, name, key.id) == key
        left = {(name, key) for name, entry in read_clients(file).items() for key in entry.keys}
        assert left == set(keys)


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_commands_make_list_and_revoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    options = ["--score", "fraud", "--score", "risk-*", "--read", "--rate", "500", "--priority", "high"]
    code, key, told = invoke("new-key", "payments", *options, "--days", "30")
    assert code == 0
    file = tmp_path / "clients.toml"
    entry = read_clients(file)["payments"]
    assert entry.keys[0].sha256 == digest(key.strip())
    assert entry.permissions == Permissions(("fraud", "risk-*"), ("*",), ())
    assert (entry.rate, entry.priority) == ((500, 500), "high")
    assert entry.keys[0].expires is not None
    assert key.strip() not in file.read_text() + told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    _, second, _ = invoke("new-key", "payments")
    assert second != key
    code, shown, _ = invoke("list")
    assert code == 0
    ids = [item.id for item in read_clients(file)["payments"].keys]
    assert all(word in shown for word in ("payments", "fraud, risk-*", "500/s, burst 500", "high", *ids))
    code, said, _ = invoke("revoke", "payments", ids[0])
    assert (code, said) == (0, f"Key {ids[0]} of client payments was revoked.\n")
    assert [item.id for item in read_clients(file)["payments"].keys] == ids[1:]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["new-key", "a", "--score", "x", "--priority", "urgent"], BadRequest, "urgent"),
        (["new-key", "a", "--score", "x", "--burst", "5"], BadRequest, "--burst needs --rate"),
        (["new-key", "a", "--score", "x", "--rate", "1e12"], BadRequest, "rate_per_s"),
        (["new-key", "a"], ConfigError, "give the permissions of a new client"),
        (["revoke", "a"], ConfigError, "unknown client 'a'"),
        (["list"], ConfigError, "does not exist"),
    ],
)
def test_commands_say_what_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    kind: type[HoplineError],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        invoke(*arguments)
    assert not list(tmp_path.iterdir())
