"""The watched namespaces, and the part of the selection that Kubernetes' API server can do."""

from __future__ import annotations

import re

from hopline.errors import ConfigError

#: A name of a namespace, which matches only itself as a regular expression.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class Scope:
    """Namespaces that match any of `wanted` (all, if it is empty) and none of `left_out`.

    Args:
        wanted, left_out: regular expressions for whole names.

    Raises:
        ConfigError: an invalid regular expression.
    """

    def __init__(self, wanted: tuple[str, ...] = (), left_out: tuple[str, ...] = ()) -> None:
        self._wanted = wanted
        self._left_out = left_out
        self._compiled = [_compile("namespaces", each) for each in wanted]
        self._excluded = [_compile("exclude_namespaces", each) for each in left_out]

    def __contains__(self, namespace: str) -> bool:
        if not namespace:
            return True  # services without a namespace are outside of the cluster, and always watched
        wanted = not self._compiled or any(each.fullmatch(namespace) for each in self._compiled)
        return wanted and not any(each.fullmatch(namespace) for each in self._excluded)

    def places(self) -> tuple[str | None, ...]:
        """Return the namespaces for separate requests if all are plain names; else (None), for all."""
        if self._wanted and all(_NAME.fullmatch(each) for each in self._wanted):
            return tuple(dict.fromkeys(each for each in self._wanted if each in self))
        return (None,)

    def selectors(self) -> tuple[str, ...]:
        """Return field selectors that leave out namespaces which are given as plain names."""
        return tuple(f"metadata.namespace!={each}" for each in self._left_out if _NAME.fullmatch(each))


def _compile(setting: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{setting}: {pattern!r} is not a regular expression: {error}") from None
