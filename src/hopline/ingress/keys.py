"""API keys: made once, shown once, kept as a digest.

A key is 256 random bits, so SHA-256 is enough to keep it by: slow, salted hashes are for passwords, which
people choose and others can guess, while nobody finds one of 2^256 keys by trying, slowly or fast. A client
is found by looking its key's digest up: how long that takes tells of the digest, from which nothing follows
for the key, so that no comparison has to take constant time.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

#: Begins every key, so that scanners of repositories know one; the rest is id and secret.
PREFIX = "hopline_"


class NewKey(NamedTuple):
    """A key that was just made.

    Attributes:
        id: what people call it by, no secret.
        text: the key itself, which is kept nowhere.
        sha256: what is kept, in hexadecimal.
    """

    id: str
    text: str
    sha256: str


def new_key() -> NewKey:
    """Draw a key of 256 bits."""
    id = secrets.token_hex(4)
    text = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
    return NewKey(id, text, digest(text))


def digest(key: str) -> str:
    """What a key is kept as, in hexadecimal."""
    return hashlib.sha256(key.encode()).hexdigest()
