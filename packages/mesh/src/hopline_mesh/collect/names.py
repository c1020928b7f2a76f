"""Makes names from outside safe for logs, pages and alerts. Knows no Prometheus."""

from __future__ import annotations

import hashlib
import re

_KEPT_OF_LONG = 100
# A service outside of the mesh may have the name of a host or a pattern of hosts.
_PLAIN = re.compile(r"[A-Za-z0-9._:*@+-]{1,253}")
_ODD = re.compile(r"[^A-Za-z0-9._:*@+-]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


def safe_name(raw: str) -> str:
    """Return a part of a service's name without markup, line breaks or look-alikes.

    Valid names of Kubernetes are unchanged. In other names, each unusual character becomes "_", long names
    are cut, and "~" with 12 hexadecimal digits of the original's hash is added, so different names stay
    different. No unchanged name has a "~".

    Returns: 1 to 253 characters of ASCII, none of them "/".
    """
    if _PLAIN.fullmatch(raw):
        return raw
    digest = hashlib.blake2s(raw.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{_ODD.sub('_', raw[:_KEPT_OF_LONG])}~{digest}"


def full_name(namespace: str, service: str) -> str:
    """Return the name in the roster: `namespace/service`, or the service alone without a namespace."""
    return f"{safe_name(namespace)}/{safe_name(service)}" if namespace else safe_name(service)


def safe_text(raw: object, longest: int = 200) -> str:
    """Make the text of another program safe for a message: one line, no control characters, limited."""
    text = _CONTROL.sub(" ", str(raw)[: 4 * longest])
    text = "".join(each if each.isprintable() else " " for each in text).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"
