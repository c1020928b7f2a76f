"""Names as they come from outside, made fit for logs, pages and alerts. Knows nothing of Prometheus."""

from __future__ import annotations

import hashlib
import re

#: Of a Kubernetes name. No longer one is kept whole.
LONGEST = 253

_KEPT_OF_LONG = 100
# A host or a pattern of hosts may stand for a service outside of the mesh.
_PLAIN = re.compile(r"[A-Za-z0-9._:*@+-]{1,253}")
_ODD = re.compile(r"[^A-Za-z0-9._:*@+-]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


def safe_name(raw: str) -> str:
    """A part of a service's name without anything that could be markup, a line break or a look-alike.

    Names that Kubernetes takes stay as they are. In any other, each odd character becomes "_", what is too
    long is cut, and "~" with 12 hexadecimal digits of the original's hash is put behind it: names that
    differ stay different. No name that stays as it is has a "~".

    Returns: 1 to 253 characters of ASCII, none of them "/".
    """
    if _PLAIN.fullmatch(raw):
        return raw
    digest = hashlib.blake2s(raw.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{_ODD.sub('_', raw[:_KEPT_OF_LONG])}~{digest}"


def full_name(namespace: str, service: str) -> str:
    """As in the roster: `namespace/service`, or the service alone where it has no namespace."""
    return f"{safe_name(namespace)}/{safe_name(service)}" if namespace else safe_name(service)


def safe_text(raw: object, longest: int = 200) -> str:
    """Text of another program for a message: one line, no control characters, not too long."""
    text = _CONTROL.sub(" ", str(raw)[: 4 * longest])
    text = "".join(each if each.isprintable() else " " for each in text).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"
