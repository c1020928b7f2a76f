"""The address of a topic at a broker, and its options.

    kafka://[user:password@]host:port[,host:port …]/topic?group=g
    redis://[user:password@]host:port/0?stream=s&group=g
    nats://[user:password@]host:port[,host:port …]/stream?subject=s&durable=d

An "s" at the end of the scheme (kafkas, rediss, natss) means TLS. Options that must not appear in a command
line or a setting are in a TOML file that `options_file` names. This file defines the form; each broker
defines its options. A password never appears in a message or a repr.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from hopline.brokers.registry import scheme_of
from hopline.config.setting import did_you_mean
from hopline.config.urls import shown, split
from hopline.errors import ConfigError
from hopline.toml import TOMLDecodeError, parse_toml

#: Options of every broker.
COMMON = (
    "group",
    "start",
    "options_file",
    "username",
    "password",
    "ca_file",
    "cert_file",
    "key_file",
    "verify",
)
#: Setting whose stream all hosts of a fleet follow.
_FLEET = "live.stream"
_SECRET = ("password", "token")
_YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

_Choice = TypeVar("_Choice", bound=str)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a topic.

    Attributes:
        scheme: in lower case, without the "s" of TLS.
        encrypted: True if over TLS.
        servers: (host, port), one or more.
        path: what follows the servers, without slashes around it.
        options: name -> value, from the query, the file and the login.
        setting: name of the setting with the address, for errors.
    """

    scheme: str
    encrypted: bool
    servers: tuple[tuple[str, int], ...]
    path: str
    options: Mapping[str, str] = field(repr=False)
    setting: str

    @classmethod
    def parse(cls, text: str, setting: str, schemes: Iterable[str], default_port: int = 0) -> Address:
        """Read an address.

        Args:
            text: as above.
            setting: its name, for errors.
            schemes: without the "s".
            default_port: if the address has no port; 0 requires one.

        Raises: ConfigError: it begins with the setting's name and never contains a password.
        """

        def wrong(what: str) -> ConfigError:
            return ConfigError(f"{setting}: {what}")

        scheme, known = scheme_of(text), list(schemes)
        encrypted = scheme not in known and scheme.removesuffix("s") in known
        if not encrypted and scheme not in known:
            raise wrong(
                f"{shown(text)!r} is not the address of a broker{did_you_mean(scheme, known)}; "
                f"it begins with {' or '.join(f'{name}://' for name in known)}"
            )
        parts = split(text, wrong)
        try:
            query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise wrong(f"{shown(text)} cannot be read: {error}") from None
        login, _, hosts = parts.netloc.rpartition("@")
        options: dict[str, str] = {}
        for name, value in query:
            if name in options:
                raise wrong(f"option {name!r} is repeated")
            options[name] = value
        user, _, password = login.partition(":")
        for name, value in (("username", user), ("password", password)):
            if value:
                options[name] = unquote(value)
        if "options_file" in options:
            options = {**_from_file(Path(options["options_file"]), setting), **options}
        servers = tuple(_server(host, default_port, wrong) for host in hosts.split(","))
        return cls(
            scheme=scheme.removesuffix("s") if encrypted else scheme,
            encrypted=encrypted,
            servers=servers,
            path=unquote(parts.path).strip("/"),
            options=options,
            setting=setting,
        )

    @property
    def is_of_fleet(self) -> bool:
        """True if all hosts of a fleet follow the topic, so that each must get all messages of it."""
        return self.setting == _FLEET

    def wrong(self, what: str) -> ConfigError:
        """The error to raise about this address."""
        return ConfigError(f"{self.setting}: {what}")

    def expect(self, own: Iterable[str], *, native: bool = False) -> None:
        """Check the names of the options.

        Args:
            own: options of this broker, in addition to `COMMON`.
            native: accept names with a dot, which are the driver's own.

        Raises: ConfigError: an unknown option.
        """
        known = (*COMMON, *own)
        for name in self.options:
            if name not in known and not (native and "." in name):
                raise self.wrong(
                    f"unknown option {name!r} of {self.scheme}://{did_you_mean(name, known)}; "
                    f"known are {', '.join(known)}"
                )

    def text(self, name: str, default: str = "") -> str:
        """An option as text."""
        return self.options.get(name, default)

    def required(self, name: str, example: str) -> str:
        """A required option. Raises: ConfigError: it is missing or empty."""
        value = self.text(name)
        if not value:
            raise self.wrong(f"{self.scheme}:// needs the option {name}, for example {example}")
        return value

    def choice(self, name: str, choices: tuple[_Choice, ...]) -> _Choice:
        """An option with fixed values, by default the first. Raises: ConfigError: another value."""
        value = self.text(name, choices[0])
        for known in choices:
            if value == known:
                return known
        raise self.wrong(f"{name} must be {' or '.join(map(repr, choices))}; got {value!r}")

    def number(self, name: str, default: float, minimum: float, maximum: float = 1e9) -> float:
        """A number. Raises: ConfigError: not a number, or out of bounds."""
        value = self.text(name, str(default))
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if not minimum <= found <= maximum:
            raise self.wrong(f"{name} must be a number from {minimum:g} to {maximum:g}; got {value!r}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises: ConfigError: neither."""
        value = self.text(name, str(default)).lower()
        if value not in _YES_NO:
            raise self.wrong(f"{name} must be true or false; got {value!r}")
        return _YES_NO[value]

    def file(self, name: str) -> Path | None:
        """An existing file; None without the option. Raises: ConfigError: the file does not exist."""
        value = self.text(name)
        if not value:
            return None
        if not Path(value).is_file():
            raise self.wrong(f"{name}: {value!r} does not exist or is not a file")
        return Path(value)

    def hidden(self, text: str) -> str:
        """A driver's message without the secrets of this address."""
        for name in _SECRET:
            secret = self.text(name)
            if secret:
                text = text.replace(secret, "…")
        return text

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; None without TLS. Raises: ConfigError: a file cannot be used."""
        if not self.encrypted:
            return None
        ca, cert, key = (self.file(name) for name in ("ca_file", "cert_file", "key_file"))
        try:
            context = ssl.create_default_context(cafile=str(ca) if ca else None)
            if not self.flag("verify", True):
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if cert is not None:
                context.load_cert_chain(cert, key)
        except (ssl.SSLError, OSError) as error:
            raise self.wrong(f"the certificate files cannot be used: {error}") from None
        return context

    def __str__(self) -> str:
        """The address for messages: without options and login."""
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )
        return f"{self.scheme}{'s' if self.encrypted else ''}://{hosts}/{self.path}"


def _server(text: str, default_port: int, wrong: Any) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]/@\s]+)(?::(\d+))?", text)
    port = 0 if match is None else int(match[2] or default_port)
    if match is None or port not in range(1, 65536):
        needed = "host:port" if not default_port else "host or host:port"
        raise wrong(f"{text!r} is not the address of a server; expected {needed}")
    return match[1].strip("[]"), port


def _from_file(file: Path, setting: str) -> dict[str, str]:
    """Options of a TOML file: a flat table of texts, numbers and booleans."""
    try:
        found = parse_toml(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{setting}: options_file: {str(file)!r} does not exist") from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}: options_file: {str(file)!r} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{setting}: options_file: {str(file)!r}: {error.strerror}") from None
    options = {}
    for name, value in found.items():
        if isinstance(value, dict | list):
            raise ConfigError(
                f"{setting}: options_file: {name!r} must be a text, a number or true or false; "
                'names with dots need quotes, for example "sasl.mechanism" = "PLAIN"'
            )
        options[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return options
