"""Tokens: JSON Web Tokens (RFC 7519) of one issuer, verified with its public keys or a shared secret.

The algorithms of a key are decided when it is read, never by a token: a key that verifies RS256 is not
tried as an HMAC secret, and `none` is not an algorithm (RFC 8725, 2.1 and 3.1). PyJWT checks signature,
issuer and audience; times are checked here, where the clock is an argument. Imported only if tokens are
enabled.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import msgspec

from hopline.config.schema import AuthConfig
from hopline.errors import ConfigError, Unauthenticated
from hopline.ingress.clients_file import Grant, TokenClaims
from hopline.ingress.watched_file import Watched
from hopline_tokens.issuer import IssuerKeys
from hopline_tokens.token_keys import TokenKey, read_keys

logger = logging.getLogger("hopline.tokens")

_MAX_TOKEN_BYTES = 16 * 1024
#: Words of `scope`: hopline:score, hopline:score:risk-*, hopline:read, hopline:admin:fraud …
_SCOPE = "hopline:"
#: Model names or patterns in one token, and their characters together.
_MAX_GLOBS, _MAX_GLOB_CHARACTERS = 100, 2000


class FileKeys:
    """The keys in a file, which is read again when it changes.

    Attributes:
        keys: by id; the only key of a key file has the id "", which matches any id.

    Raises: ConfigError: keys that cannot be used, with the reason.
    """

    def __init__(self, config: AuthConfig) -> None:
        path = config.jwt_key_file or config.jwt_jwks_file
        assert path is not None
        self._config = config
        self._watched = Watched(path)
        self.keys: Mapping[str, TokenKey] = read_keys(config)

    def tick(self) -> bool:
        """Read the keys again if their file has changed; True if there are new ones."""
        if not self._watched.changed():
            return False
        try:
            self.keys = read_keys(self._config)
        except ConfigError as error:
            logger.error("the token keys are invalid and were not loaded: %s", error)
            return False
        logger.info("token keys reloaded from %s", self._watched.path)
        return True

    def missing(self, name: object) -> None:
        """Return None: a file has all keys."""


Keys = FileKeys | IssuerKeys


class TokenVerifier:
    """Checks tokens of one issuer for one audience.

    Args:
        config: `auth.jwt_*`.
        now: seconds since the epoch.
        keys: the issuer's; None reads them where `config` says.

    Raises: ConfigError: keys that cannot be used, with the reason.
    """

    def __init__(self, config: AuthConfig, now: Callable[[], float], keys: Keys | None = None) -> None:
        self._config = config
        self._now = now
        self._keys: Keys = keys or (IssuerKeys(config) if config.is_remote else FileKeys(config))

    def tick(self) -> bool:
        """Take up changed keys; return True if there are new ones."""
        return self._keys.tick()

    def verify(self, token: str) -> TokenClaims:
        """Verify a token, and return its claims.

        Raises:
            Unauthenticated: with the failed check, without details of keys.
            IssuerUnavailable: the keys are at a URL that does not answer, or are being fetched.
        """
        if len(token) > _MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the token is longer than {_MAX_TOKEN_BYTES} bytes")
        try:
            key = self._key(jwt.get_unverified_header(token))
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=self._config.jwt_audience,
                issuer=self._config.jwt_issuer,
                options={
                    "require": ["exp", "sub", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(_reason(error)) from None
        until = self._until(claims)
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject or not subject.isprintable():
            raise Unauthenticated("the token's sub is not a valid name")
        return TokenClaims(subject, _grant(claims), until)

    def _key(self, header: Mapping[str, Any]) -> TokenKey:
        """Return the key of the token's kid, if it supports the token's algorithm."""
        name = header.get("kid")
        keys = self._keys.keys
        if len(keys) == 1 and (name is None or "" in keys):
            key: TokenKey | None = next(iter(keys.values()))
        else:
            key = (keys.get(name) if isinstance(name, str) else None) or self._keys.missing(name)
        if key is None:
            raise Unauthenticated("the token has no kid of the issuer's keys")
        if header.get("alg") not in key.algorithms:
            raise Unauthenticated(
                f"the token is not signed with an algorithm of its key: {', '.join(key.algorithms)}"
            )
        return key

    def _until(self, claims: Mapping[str, Any]) -> float:
        leeway_s, now = self._config.jwt_leeway_s, self._now()
        until = _time(claims, "exp") + leeway_s
        if now >= until:
            raise Unauthenticated("the token has expired")
        for name in ("nbf", "iat"):
            if name in claims and now < _time(claims, name) - leeway_s:
                raise Unauthenticated(f"the token is not valid yet ({name})")
        return until


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    try:
        time_s = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:  # an integer of hundreds of digits
        time_s = math.inf
    if not math.isfinite(time_s):
        raise Unauthenticated(f"the token's {name} is not a time")
    return time_s


def _grant(claims: Mapping[str, Any]) -> Grant | None:
    """Return the grant of the `hopline` claim, otherwise of `scope`."""
    own = claims.get("hopline")
    if own is not None:
        try:
            return _bounded(msgspec.convert(own, Grant))
        except msgspec.ValidationError as error:
            raise Unauthenticated(f"the token's hopline claim: {error}") from None
    scope = claims.get("scope", "")
    words = scope.split() if isinstance(scope, str) else scope
    if not isinstance(words, list):
        raise Unauthenticated("the token's scope is neither text nor a list")
    globs: dict[str, list[str]] = {"score": [], "read": [], "admin": []}
    for word in words:
        if isinstance(word, str) and word.startswith(_SCOPE):
            permission, colon, glob = word.removeprefix(_SCOPE).partition(":")
            # An empty glob matches no model: the issuer may have inserted an empty name.
            if permission in globs and (glob or not colon):
                globs[permission].append(glob or "*")
    if not any(globs.values()):
        return None
    return _bounded(Grant(tuple(globs["score"]), tuple(globs["read"]), tuple(globs["admin"])))


def _bounded(grant: Grant) -> Grant:
    """Refuse more model names than can be compared in a moment: each is compiled on the event loop.

    Raises: Unauthenticated.
    """
    named = grant.permissions
    globs = (*named.score, *named.read, *named.admin)
    if len(globs) > _MAX_GLOBS or sum(map(len, globs)) > _MAX_GLOB_CHARACTERS:
        raise Unauthenticated(
            f"the token names {len(globs)} models in {sum(map(len, globs))} characters; at most "
            f"{_MAX_GLOBS} and {_MAX_GLOB_CHARACTERS:,} are accepted: use patterns such as risk-*"
        )
    return grant


def _reason(error: jwt.PyJWTError) -> str:
    """Return which check failed, in our own words: the library's text may quote the token or the key."""
    for kind, text in _REASONS.items():
        if isinstance(error, kind):
            return text
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token has no {error.claim}"
    return "the token cannot be verified"


#: Subclasses before their bases.
_REASONS: dict[type[jwt.PyJWTError], str] = {
    jwt.InvalidSignatureError: "the token's signature is not the issuer's",
    jwt.DecodeError: "the token is neither a key of this server nor a JSON Web Token",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is from another issuer",
    jwt.InvalidAlgorithmError: "the token's algorithm is not accepted",
}
