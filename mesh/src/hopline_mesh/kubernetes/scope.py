"""Which namespaces are watched, and how much of that the API server can be asked to sort out."""

from __future__ import annotations

import re

from hopline.errors import ConfigError

#: A name of a namespace, which as a regular expression means itself.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

#: Answers that are kept; clusters that make namespaces all the time have no more of them at once.
KNOWN = 10_000


class Scope:
    """Namespaces that match one of some patterns (all, where there are none), and none of others.

    Args:
        wanted, left_out: regular expressions for whole names.

    Raises:
        ConfigError: one of them is none.
    """

    def __init__(self, wanted: tuple[str, ...] = (), left_out: tuple[str, ...] = ()) -> None:
        self._wanted = wanted
        self._left_out = left_out
        self._compiled = [_compile("namespaces", each) for each in wanted]
        self._excluded = [_compile("exclude_namespaces", each) for each in left_out]
        self._known: dict[str, bool] = {}

    def __contains__(self, namespace: str) -> bool:
        known = self._known.get(namespace)
        if known is None:
            known = not self._compiled or any(each.fullmatch(namespace) for each in self._compiled)
            known = known and not any(each.fullmatch(namespace) for each in self._excluded)
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[namespace] = known
        return known

    def places(self) -> tuple[str | None, ...]:
        """Where to ask: in each namespace alone if all are given by name, else (None) everywhere."""
        if self._wanted and all(_NAME.fullmatch(each) for each in self._wanted):
            return tuple(dict.fromkeys(each for each in self._wanted if each in self))
        return (None,)

    def selectors(self) -> tuple[str, ...]:
        """Field selectors that leave out what is to be left out, as far as it is given by name."""
        return tuple(f"metadata.namespace!={each}" for each in self._left_out if _NAME.fullmatch(each))


def _compile(setting: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{setting}: {pattern!r} is no regular expression: {error}") from None
