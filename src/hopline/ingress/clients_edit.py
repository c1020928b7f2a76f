"""Changes a clients file: adds or removes a key, and leaves other text unchanged.

The standard library reads TOML but does not write it. So text is appended or removed, and the result is
parsed and compared with the expected one before the file is replaced in one step.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import asdict, replace

from hopline.errors import ConfigError
from hopline.files import lock, write_atomically
from hopline.ingress.clients_file import ClientEntry, Globs, Grant, KeyEntry, parse_clients

_HEAD = "# Clients of a Hopline server (auth.clients_file). Keys are stored as SHA-256.\n"
_HEADER = re.compile(r"\s*\[")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def add_key(file: Path, client: str, key: KeyEntry, grant: Grant | None = None) -> None:
    """Add a key to the file; create the file if it is missing.

    Args:
        client: owner of the key.
        grant: permissions of a new client; None for an existing one.

    Raises: ConfigError: the file or the client's name is invalid; a new client without a grant, or an
        existing one with a grant.
    """
    with _changing(file) as (text, known):
        added = ""
        if client not in known:
            if grant is None:
                raise ConfigError(
                    f"{file}: unknown client {client!r}: give the permissions of a new client (--score …)"
                )
            added = f"\n[clients.{_name(client)}]\n{_grant_text(grant)}"
            entry = ClientEntry(**asdict(grant))
        elif grant is not None:
            raise ConfigError(f"{file}: client {client!r} exists: change its permissions in the file")
        else:
            entry = known[client]
        added += f"\n[[clients.{_name(client)}.keys]]\n{_key_text(key)}"
        wanted = {**known, client: replace(entry, keys=(*entry.keys, key))}
        text = text or _HEAD
        _write(file, text + ("" if text.endswith("\n") else "\n") + added, wanted)


def remove_key(file: Path, client: str, id: str | None) -> KeyEntry:
    """Remove a key from the file, and return it.

    Args:
        id: key id; None if the client has only one key.

    Raises: ConfigError: no such client or key, or a file that must be edited by hand.
    """
    with _changing(file) as (text, known):
        if client not in known:
            raise ConfigError(
                f"{file}: unknown client {client!r}; known clients: {', '.join(known) or 'none'}"
            )
        keys = known[client].keys
        chosen = [key for key in keys if id is None or key.id == id]
        if len(chosen) != 1:
            ids = ", ".join(key.id for key in keys) or "none"
            raise ConfigError(f"{file}: give the id of one key of client {client!r}; its keys: {ids}")
        left = tuple(key for key in keys if key is not chosen[0])
        wanted = {**known, client: replace(known[client], keys=left)}
        _write(file, _without(text, chosen[0].sha256), wanted)
        return chosen[0]


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[tuple[str, dict[str, ClientEntry]]]:
    """Lock the file, and yield its text and clients."""
    try:
        folder = os.open(file.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    try:
        lock(folder)
        text = file.read_text() if file.exists() else ""
        yield text, parse_clients(text, str(file))
    finally:
        os.close(folder)


def _write(file: Path, text: str, wanted: Mapping[str, ClientEntry]) -> None:
    """Replace the file, unless its text does not have the expected meaning."""
    try:
        right = parse_clients(text, str(file)) == wanted
    except ConfigError:
        right = False
    if not right:
        raise ConfigError(
            f"{file}: must be edited by hand: keys can only be changed here if they are in "
            "[[clients.<name>.keys]] tables"
        )
    file = file.resolve()
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    write_atomically(file, text.encode(), durable=True, mode=mode)


def _without(text: str, sha256: str) -> str:
    """Return the text without the table that has this digest; comments after its last line stay."""
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if sha256 in line)
    begin = next((number for number in range(at, -1, -1) if _HEADER.match(lines[number])), at)
    end = next((number for number in range(at, len(lines)) if _HEADER.match(lines[number])), len(lines))
    while end > at + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    while begin and end < len(lines) and not lines[begin - 1].strip() and not lines[end].strip():
        end += 1  # keep one empty line in between
    return "".join(lines[:begin] + lines[end:])


def _grant_text(grant: Grant) -> str:
    allowed = {name: getattr(grant, name) for name in ("score", "read", "admin")}
    lines = [f"{name} = {_text(globs)}" for name, globs in allowed.items() if globs != ()]
    for name in ("rate_per_s", "burst", "tokens_per_minute"):
        if getattr(grant, name) is not None:
            lines.append(f"{name} = {getattr(grant, name)!r}")
    if grant.priority != "normal":
        lines.append(f"priority = {_text(grant.priority)}")
    return "".join(f"{line}\n" for line in lines)


def _key_text(key: KeyEntry) -> str:
    """Return the lines of a key's table."""
    lines = [f"id = {_text(key.id)}", f"sha256 = {_text(key.sha256)}"]
    for name, moment in (("created", key.created), ("expires", key.expires)):
        if moment is not None:
            lines.append(f"{name} = {moment.isoformat()}")
    return "".join(f"{line}\n" for line in lines)


def _name(client: str) -> str:
    return client if _BARE.fullmatch(client) else _text(client)


def _text(value: str | Globs) -> str:
    """Encode a string, truth value or list of strings as TOML, which has the same escapes as JSON."""
    return json.dumps(value, ensure_ascii=False)
