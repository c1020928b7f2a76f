"""The URL of a Redis: address, login, TLS and options."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from hopline.config.setting import did_you_mean, read_number
from hopline.config.urls import shown, split
from hopline.errors import ConfigError
from hopline_stores.columns import absent_is_null

_PORT = 6379
_SCHEMES = tuple(
    f"{base}{end}" for end in ("", "+cluster") for base in ("redis", "rediss", "valkey", "valkeys")
)
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = ("absent", "db", "prefix", "ssl_cert_reqs", "ttl_s", *_FILES)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """scheme://[[user]:password@]host[:port][,host[:port] …][/database][?option=value …]

    Attributes:
        kind: "redis", "valkey" or "redis cluster", for errors.
        addresses: (host, port), one except for clusters.
        username, password: None if missing.
        database: database number.
        prefix: prefix of all keys.
        ttl_s: rows expire this many seconds after they were written; None for never.
        absent_is_null: True if a field that a hash lacks is null.
        encrypted: True to use TLS.
        ca_file: certificate authorities; None for those of the system.
        verify: True if the server's certificate is verified.
        cert_file, key_file: the client's certificate.
    """

    kind: str
    addresses: tuple[tuple[str, int], ...]
    username: str | None
    password: str | None
    database: int
    prefix: str
    ttl_s: float | None
    absent_is_null: bool
    encrypted: bool
    ca_file: Path | None
    verify: bool
    cert_file: Path | None
    key_file: Path | None
    setting: str

    @classmethod
    def parse(cls, url: str, setting: str) -> RedisUrl:
        """Parse a URL. Raises: ConfigError: with the setting's name; never with the password."""

        def wrong(text: str) -> ConfigError:
            return ConfigError(f"{setting}: {text}")

        scheme, _, _ = url.partition("://")
        base, _, flavour = scheme.lower().partition("+")
        if scheme.lower() not in _SCHEMES or "://" not in url:
            raise wrong(
                f"{shown(url)!r} is not the URL of a Redis{did_you_mean(scheme, _SCHEMES)}; it must begin "
                f"with one of {', '.join(f'{name}://' for name in _SCHEMES)}"
            )
        parts = split(url, wrong)
        login, at, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in _OPTIONS:
                raise wrong(
                    f"unknown option {name!r} in the URL{did_you_mean(name, _OPTIONS)}; "
                    f"known options: {', '.join(_OPTIONS)}"
                )
        database = options.get("db", parts.path.strip("/")) or "0"
        if not database.isdecimal():
            raise wrong(f"the database must be a number, not {database!r}")
        ttl_s = read_number(options["ttl_s"]) if "ttl_s" in options else None
        if "ttl_s" in options and (ttl_s is None or not 0.001 <= ttl_s < 1e9):
            raise wrong(f"ttl_s must be seconds, 0.001 or more, not {options['ttl_s']!r}")
        reqs = options.get("ssl_cert_reqs", "required")
        if reqs not in ("required", "none"):
            raise wrong(f"ssl_cert_reqs must be 'required' or 'none', not {reqs!r}")
        addresses = []
        for text in (hosts or "localhost").split(","):
            address = _address(text)
            if address is None:
                raise wrong(f"{text!r} is not an address; use host or host:port")
            addresses.append(address)
        if len(addresses) > 1 and not flavour:
            raise wrong("several addresses need redis+cluster://")
        files = {name: Path(options[name]) for name in _FILES if name in options}
        for name, file in files.items():
            if not file.is_file():
                raise wrong(f"{name}: {str(file)!r} does not exist or is not a file")
        return cls(
            kind=("valkey" if base.startswith("valkey") else "redis") + (" cluster" if flavour else ""),
            addresses=tuple(addresses),
            username=unquote(user) if at and user else None,
            password=unquote(password) if at and password else None,
            database=int(database),
            prefix=options.get("prefix", "hopline:"),
            ttl_s=ttl_s,
            absent_is_null=absent_is_null(options, wrong),
            encrypted=base in ("rediss", "valkeys"),
            ca_file=files.get("ssl_ca_certs"),
            verify=reqs == "required",
            cert_file=files.get("ssl_certfile"),
            key_file=files.get("ssl_keyfile"),
            setting=setting,
        )

    @property
    def is_cluster(self) -> bool:
        """True for a cluster."""
        return self.kind.endswith(" cluster")

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context; None without encryption. Raises: ConfigError: a file cannot be used."""
        if not self.encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"{self.setting}: the certificate files cannot be used: {error}") from None
        return context


def _address(text: str) -> tuple[str, int] | None:
    """Parse host, host:port or [IPv6]:port; None if it is none of them."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]/@]+)(?::(\d+))?", text)
    if match is None or int(match[2] or _PORT) not in range(1, 65536):
        return None
    return match[1].strip("[]"), int(match[2] or _PORT)
