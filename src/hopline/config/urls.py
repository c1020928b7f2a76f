"""URLs with a login: how they are shown and split, so that no message has a part of a password."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from hopline.config.setting import did_you_mean
from hopline.doors import Door
from hopline.errors import ConfigError


def shown(url: str) -> str:
    """The URL without what may be a login, and without its options; a path is returned unchanged.

    People write passwords with any character, encoded or not: what comes before the last @ is not shown.
    """
    scheme, mark, rest = url.partition("://")
    login, at, place = (rest if mark else url).rpartition("@")
    if not mark:
        return f"…@{place}" if ":" in login else url
    return f"{scheme}://{'…@' if at else ''}{place.partition('?')[0].rstrip('/')}"


def split(url: str, wrong: Callable[[str], Exception]) -> SplitResult:
    """Split a URL whose host may have a login before it.

    Args:
        wrong: makes the error to raise from its text.

    Raises: the error of `wrong`: it is no URL, or an @ comes after its host. Then a part of the password
        would be taken for the host, the path or an option.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may have the password
        raise wrong(f"{shown(url)!r} is not a URL") from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise wrong(
            f"{shown(url)!r}: an @ comes after the host; in a login write / as %2F, ? as %3F, # as %23 and "
            "% as %25; elsewhere write @ as %40"
        )
    return parts


def find_by_scheme(door: Door, url: str, setting: str, what: str) -> Any:
    """The object that a URL's scheme names.

    Args:
        setting, what: name of the setting, and "the URL of a feature store" …, for errors.

    Raises: ConfigError: an unknown scheme, or one whose package is not installed.
    """
    scheme, colon, _ = url.partition(":")
    scheme = scheme.lower()
    if colon and (found := door.find(scheme)) is not None:
        return found
    if colon and (install := door.how_to_install(scheme)):
        raise ConfigError(f"{setting}: {scheme}:// needs a package; install it with: {install}")
    known = [*dict.fromkeys([*door.names(), *door.packages])]
    raise ConfigError(
        f"{setting}: {shown(url)!r} is not {what}{did_you_mean(scheme, known)}; it must begin with one of "
        f"{', '.join(f'{name}://' for name in known)}"
    )
