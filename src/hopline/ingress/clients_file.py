"""The clients file: clients and their permissions, in TOML.

    [clients.payments]
    score = ["fraud", "risk-*"]      # globs, or true for every model
    read = true                      # descriptions, statistics, metrics
    admin = false                    # load, unload, rollouts
    rate_per_s = 500
    burst = 100
    tokens_per_minute = 20_000       # of prompts and answers of generative models
    priority = "high"                # its highest priority
    subject = "service|payments"     # tokens with this `sub` are this client
    certificate = "spiffe://prod/payments"  # certificates with this name are this client

    [[clients.payments.keys]]
    id = "3f9a1c07"
    sha256 = "…"                     # SHA-256 of the key; see keys.py
    created = 2026-10-06
    expires = 2027-10-06T00:00:00Z

This file reads the format; `clients_edit.py` changes a file.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from hopline.config.setting import did_you_mean
from hopline.errors import ConfigError
from hopline.files import check_regular
from hopline.ingress.permissions import Permissions, globs_of
from hopline.scheduling.limiter import Rate
from hopline.toml import TOMLDecodeError, parse_toml
from turnserve.peers import normalized

#: Expiry time of what never expires, in seconds since the epoch.
NEVER = math.inf
#: Prefix of client names from tokens (before the `sub`); clients of the file must not have it.
TOKEN_PREFIX = "token:"
#: The same for certificates without a client of the file (before their name).
CERTIFICATE_PREFIX = "certificate:"
#: Limits within which nanoseconds fit in 63 bits.
RatePerS = Annotated[float, msgspec.Meta(ge=0.001, le=1e9)]
Burst = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
TokensPerMinute = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Glob = Annotated[str, msgspec.Meta(min_length=1)]
Globs = bool | tuple[Glob, ...]


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key of a client.

    Attributes:
        id: public name of the key.
        sha256: SHA-256 of the key, hexadecimal.
        expires: with a UTC offset; None for never.
    """

    id: Annotated[str, msgspec.Meta(min_length=1)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created: datetime.date | None = None
    expires: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def until(self) -> float:
        """Expiry time, seconds since the epoch."""
        return NEVER if self.expires is None else self.expires.timestamp()


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The permissions and limits of a client; a token's `hopline` claim has the same fields.

    Attributes:
        tokens_per_minute: of prompts and answers of generative models; None takes the server's default.
    """

    score: Globs = ()
    read: Globs = ()
    admin: Globs = ()
    rate_per_s: RatePerS | None = None
    burst: Burst | None = None
    priority: Literal["high", "normal", "low"] = "normal"
    tokens_per_minute: TokensPerMinute | None = None

    @property
    def permissions(self) -> Permissions:
        """The permissions."""
        return Permissions(globs_of(self.score), globs_of(self.read), globs_of(self.admin))

    @property
    def rate(self) -> Rate | None:
        """The rate limit; None without one."""
        return Rate.of(self.rate_per_s, self.burst)


class TokenClaims(NamedTuple):
    """The claims of a verified token.

    Attributes:
        subject: the token's `sub`.
        grant: its permissions; None without claims for Hopline.
        until: expiry time, seconds since the epoch, leeway included.
    """

    subject: str
    grant: Grant | None
    until: float


class ClientEntry(Grant, frozen=True, forbid_unknown_fields=True):
    """One client of the file.

    Attributes:
        keys: each is valid, so that one can be replaced without a gap.
        subject: tokens with this `sub` are this client, regardless of other claims; "" for none.
        certificate: client certificates with this name are this client; "" for none.
    """

    keys: tuple[KeyEntry, ...] = ()
    subject: str = ""
    certificate: str = ""


def read_clients(path: Path) -> dict[str, ClientEntry]:
    """Read the clients of a file: client name -> entry, in the file's order.

    Raises: ConfigError: with the file, the client and what is wrong.
    """
    try:
        check_regular(path)
        text = path.read_text()
    except FileNotFoundError:
        raise ConfigError(
            f"auth.clients_file: {path} does not exist; create it with `hopline auth new-key`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"auth.clients_file: {path} cannot be read: {error}") from None
    return parse_clients(text, str(path))


def parse_clients(text: str, source: str) -> dict[str, ClientEntry]:
    """Parse the text of a clients file; `source` names it in errors."""
    try:
        tree = parse_toml(text)
    except TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    clients = tree.pop("clients", {})
    if tree or not isinstance(clients, Mapping):
        raise ConfigError(
            f"{source}: {next(iter(tree), 'clients')!r}: only [clients.<name>] tables are allowed"
        )
    found = {name: _entry(name, values, source) for name, values in clients.items()}
    _check_distinct(found, source)
    return found


def _entry(name: str, values: Any, source: str) -> ClientEntry:
    place = f"{source}: client {name!r}"
    if not name or not name.isprintable():
        raise ConfigError(f"{place}: a name must be printable text")
    for prefix, what in ((TOKEN_PREFIX, "tokens"), (CERTIFICATE_PREFIX, "certificates")):
        if name.startswith(prefix):
            raise ConfigError(f"{place}: names that begin with {prefix!r} are reserved for {what}")
    try:
        entry = msgspec.convert(values, ClientEntry)
    except msgspec.ValidationError as error:
        hint = ""
        if isinstance(values, Mapping):
            unknown = [key for key in values if key not in ClientEntry.__struct_fields__]
            hint = did_you_mean(unknown[0], ClientEntry.__struct_fields__) if unknown else ""
        raise ConfigError(f"{place}: {error}{hint}") from None
    if entry.burst is not None and entry.rate_per_s is None:
        raise ConfigError(f"{place}: burst also needs rate_per_s")
    return entry


def _check_distinct(clients: Mapping[str, ClientEntry], source: str) -> None:
    """Refuse a key or a subject of two clients: its client would depend on the order of the file."""
    owners: dict[tuple[str, str], str] = {}
    for name, entry in clients.items():
        marks = [("key", key.sha256) for key in entry.keys]
        if entry.subject:
            marks.append(("subject", entry.subject))
        if entry.certificate:
            marks.append(("certificate", normalized(entry.certificate)))
        for mark in marks:
            if mark in owners:
                raise ConfigError(
                    f"{source}: clients {owners[mark]!r} and {name!r} have the same {mark[0]}"
                )
            owners[mark] = name
