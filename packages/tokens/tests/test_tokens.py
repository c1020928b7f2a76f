"""Tokens: what is refused and with which words, which claims become which permissions."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from hopline.config.schema import AuthConfig, Config
from hopline.errors import ConfigError, Unauthenticated
from hopline.ingress.permissions import Permissions
from hopline_tokens.verifier import TokenVerifier
from tests.ingress.clocks import Clock

ISSUER, AUDIENCE = "https://issuer.example", "hopline"
SECRET = "a secret of thirty-two bytes or more"


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def other_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def pem(key: Any) -> bytes:
    public: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(tmp_path: Path, rsa_key: rsa.RSAPrivateKey) -> AuthConfig:
    file = tmp_path / "issuer.pem"
    file.write_bytes(pem(rsa_key))
    return auth(jwt_key_file=file)


def auth(**values: Any) -> AuthConfig:
    values = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **values}
    return Config().replace(**{f"auth__{name}": value for name, value in values.items()}).auth


@pytest.fixture
def verifier(settings: AuthConfig, clock: Clock) -> TokenVerifier:
    return TokenVerifier(settings, clock)


def claims(clock: Clock, **changes: Any) -> dict[str, Any]:
    made = {"sub": "ada", "iss": ISSUER, "aud": AUDIENCE, "exp": int(clock()) + 600, **changes}
    return {name: value for name, value in made.items() if value is not None}


def signed(key: Any, content: dict[str, Any], algorithm: str = "RS256", **header: Any) -> str:
    return jwt.encode(content, key, algorithm, headers=header or None)


def by_hand(header: dict[str, Any], content: dict[str, Any], signature: bytes = b"") -> str:
    """What no honest library writes."""
    parts = [json.dumps(header).encode(), json.dumps(content).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def test_a_good_token_is_its_subject_until_it_ends(
    verifier: TokenVerifier, rsa_key: rsa.RSAPrivateKey, clock: Clock
) -> None:
    found = verifier.verify(signed(rsa_key, claims(clock, scope="hopline:score:fraud")))
    assert found.subject == "ada"
    assert found.until == int(clock()) + 605  # with the leeway
    assert found.grant is not None
    assert found.grant.permissions == Permissions(score=("fraud",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exp": -6}, "has expired"),
        ({"nbf": 6}, r"not valid yet \(nbf\)"),
        ({"iat": 6}, r"not valid yet \(iat\)"),
        ({"aud": "elsewhere"}, "another audience"),
        ({"aud": ["elsewhere", "there"]}, "another audience"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"exp": None}, "has no exp"),
        ({"sub": None}, "has no sub"),
        ({"iss": None}, "has no iss"),
        ({"aud": None}, "has no aud"),
        ({"sub": ""}, "sub is not a valid name"),
        ({"sub": "a\nb"}, "sub is not a valid name"),
        ({"sub": 7}, "cannot be verified|sub is not a valid name"),
        ({"exp": "soon"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"nbf": [1]}, "nbf is not a time"),
        ({"hopline": {"score": 7}}, "hopline claim.*score"),
        ({"hopline": {"scores": ["a"]}}, "hopline claim.*scores"),
        ({"hopline": "all"}, "hopline claim"),
        ({"scope": {"hopline:score": 1}}, "scope is neither"),
    ],
)
def test_wrong_claims_are_refused_by_name(
    verifier: TokenVerifier,
    rsa_key: rsa.RSAPrivateKey,
    clock: Clock,
    changes: dict[str, Any],
    message: str,
) -> None:
    times = {"exp", "nbf", "iat"}
    content = {
        name: int(clock()) + value if name in times and type(value) is int else value
        for name, value in changes.items()
    }
    # PyJWT itself would not write a subject that is no text.
    header, body = {"alg": "RS256", "typ": "JWT"}, claims(clock, **content)
    unsigned = by_hand(header, body).rpartition(".")[0]
    signature = jwt.get_algorithm_by_name("RS256").sign(unsigned.encode(), rsa_key)
    with pytest.raises(Unauthenticated, match=message) as caught:
        verifier.verify(by_hand(header, body, signature))
    assert "ada" not in str(caught.value)


def test_clocks_may_differ_by_the_leeway(
    verifier: TokenVerifier, rsa_key: rsa.RSAPrivateKey, clock: Clock
) -> None:
    now = int(clock())
    verifier.verify(signed(rsa_key, claims(clock, exp=now - 4, nbf=now + 5, iat=now + 5)))
    verifier.verify(signed(rsa_key, claims(clock, aud=["elsewhere", AUDIENCE])))


def _forged(rsa_key: Any, other_key: Any, clock: Clock) -> dict[str, tuple[str, str]]:
    body = claims(clock, hopline={"score": True, "admin": True})
    good = signed(rsa_key, body)
    head, content, signature = good.split(".")
    changed = claims(clock, sub="root")
    return {
        "by another key": (signed(other_key, body), "signature is not the issuer's"),
        "another body": (f"{head}.{by_hand({}, changed).split('.')[1]}.{signature}", "signature"),
        "no signature": (f"{head}.{content}.", "signature"),
        "none": (by_hand({"alg": "none", "typ": "JWT"}, body), "algorithm of its key: RS256"),
        "None": (by_hand({"alg": "nOnE", "typ": "JWT"}, body), "algorithm of its key: RS256"),
        "no alg": (by_hand({"typ": "JWT"}, body), "algorithm of its key|cannot be verified|neither"),
        # The public key as the secret of an HMAC: known to everybody.
        "hs256 with the public key": (_confused(rsa_key, body), "algorithm of its key: RS256"),
        "a key of its own": (
            signed(
                other_key, body, jwk=json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(other_key.public_key()))
            ),
            "signature is not the issuer's",
        ),
        "another algorithm": (signed(rsa_key, body, "RS512"), "algorithm of its key: RS256"),
        "critical": (signed(rsa_key, body, crit=["b64x"], b64x=False), "cannot be verified|neither"),
        "text": ("hello", "neither a key of this server nor a JSON Web Token"),
        "two dots": ("a.b.c", "neither a key"),
        "long": ("a" * 20_000, "longer than 16384 bytes"),
        "not ascii": ("ü.ü.ü", "neither a key"),
        "a list": (by_hand([], {}), "neither a key"),  # type: ignore[arg-type]
    }


def _confused(key: Any, body: dict[str, Any]) -> str:
    import hashlib
    import hmac

    unsigned = by_hand({"alg": "HS256", "typ": "JWT"}, body).rpartition(".")[0]
    signature = hmac.new(pem(key), unsigned.encode(), hashlib.sha256).digest()
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def test_forged_tokens_are_refused(
    verifier: TokenVerifier, rsa_key: rsa.RSAPrivateKey, other_key: rsa.RSAPrivateKey, clock: Clock
) -> None:
    for name, (token, message) in _forged(rsa_key, other_key, clock).items():
        with pytest.raises(Unauthenticated) as caught:
            verifier.verify(token)
        import re

        assert re.search(message, str(caught.value)), (name, str(caught.value))
        assert token[:20] not in str(caught.value)


@pytest.mark.parametrize(
    ("scope", "permissions"),
    [
        ("hopline:score", Permissions(score=("*",))),
        (
            "openid hopline:score:fraud hopline:score:risk-* hopline:read hopline:admin:fraud",
            Permissions(("fraud", "risk-*"), ("*",), ("fraud",)),
        ),
        (["hopline:read", "email"], Permissions(read=("*",))),
        ("hopline:fly hopline: hoplinescore", None),
        ("hopline:score: hopline:admin: hopline:read:", None),
        ("hopline:score:fraud hopline:admin:", Permissions(("fraud",))),
        ("", None),
    ],
)
def test_scopes_are_permissions(
    verifier: TokenVerifier,
    rsa_key: rsa.RSAPrivateKey,
    clock: Clock,
    scope: Any,
    permissions: Permissions | None,
) -> None:
    grant = verifier.verify(signed(rsa_key, claims(clock, scope=scope))).grant
    assert (None if grant is None else grant.permissions) == permissions


def test_the_hopline_claim_counts_before_the_scope(
    verifier: TokenVerifier, rsa_key: rsa.RSAPrivateKey, clock: Clock
) -> None:
    own = {"score": ["fraud"], "rate_per_s": 5, "burst": 2, "priority": "high"}
    grant = verifier.verify(signed(rsa_key, claims(clock, hopline=own, scope="hopline:admin"))).grant
    assert grant is not None
    assert grant.permissions == Permissions(score=("fraud",))
    assert (grant.rate, grant.priority) == ((5, 2), "high")


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        kind: Any = jwt.algorithms.RSAAlgorithm
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        kind = jwt.algorithms.ECAlgorithm
    else:
        kind = jwt.algorithms.OKPAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, **more}


def test_a_key_set_is_chosen_from_by_kid(tmp_path: Path, rsa_key: rsa.RSAPrivateKey, clock: Clock) -> None:
    curve, edwards = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
    keys = [jwk(rsa_key, "r"), jwk(curve, "c"), jwk(edwards, "e"), jwk(rsa_key, "x", use="enc")]
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    verifier = TokenVerifier(auth(jwt_jwks_file=file), clock)
    body = claims(clock)
    for key, algorithm, kid in [(rsa_key, "RS256", "r"), (curve, "ES256", "c"), (edwards, "EdDSA", "e")]:
        assert verifier.verify(signed(key, body, algorithm, kid=kid)).subject == "ada"
    for token in (
        signed(rsa_key, body),
        signed(rsa_key, body, kid="x"),
        by_hand({"alg": "RS256", "kid": ["r"]}, body),
    ):
        with pytest.raises(Unauthenticated, match=r"has no kid|neither|cannot"):
            verifier.verify(token)
    with pytest.raises(Unauthenticated, match="algorithm of its key: ES256"):
        verifier.verify(signed(rsa_key, body, kid="c"))


def test_a_shared_secret_takes_hmac_only(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    verifier = TokenVerifier(auth(jwt_key_file=file, jwt_algorithms="RS256,HS256,HS512"), clock)
    assert verifier.verify(signed(SECRET, claims(clock), "HS256")).subject == "ada"
    with pytest.raises(Unauthenticated, match="signature"):
        verifier.verify(signed(SECRET[::-1], claims(clock), "HS256"))
    long_enough = SECRET * 2
    with pytest.raises(Unauthenticated, match=r"algorithm of its key: HS256$"):
        verifier.verify(signed(long_enough, claims(clock), "HS512"))


def _private(key: Any) -> bytes:
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


@pytest.mark.parametrize(
    ("setting", "content", "algorithms", "message"),
    [
        ("jwt_key_file", lambda key: pem(key), "HS256", "this key supports RS256.*accepts HS256"),
        ("jwt_key_file", lambda key: SECRET.encode(), "RS256", "this key supports HS256.*accepts RS256"),
        ("jwt_key_file", lambda key: pem(key), "none", "accepts none"),
        ("jwt_key_file", lambda key: b"short", "HS256", "a secret of 5 bytes can be guessed"),
        ("jwt_key_file", lambda key: _private(key), "RS256", "a private key"),
        ("jwt_key_file", lambda key: b"-----BEGIN PUBLIC KEY-----", "RS256", "not a PEM public key"),
        ("jwt_key_file", lambda key: pem(rsa.generate_private_key(65537, 1024)), "RS256", "1024 bits"),
        ("jwt_key_file", lambda key: pem(ec.generate_private_key(ec.SECP256K1())), "ES256", "neither"),
        ("jwt_key_file", None, "RS256", "auth.jwt_key_file: .*cannot be read: No such file"),
        ("jwt_jwks_file", lambda key: b"{}", "RS256", "not a JSON Web Key Set"),
        ("jwt_jwks_file", lambda key: b"[", "RS256", "not a JSON Web Key Set"),
        ("jwt_jwks_file", lambda key: b'{"keys": []}', "RS256", "no key for signatures"),
        ("jwt_jwks_file", lambda key: b'{"keys": [{"kty": "RSA"}]}', "RS256", "no kid"),
        (
            "jwt_jwks_file",
            lambda key: b'{"keys": [{"kty": "?", "kid": "a"}]}',
            "RS256",
            "not a JSON Web Key",
        ),
        (
            "jwt_jwks_file",
            lambda key: json.dumps({"keys": [jwk(key, "a") | {"n": "x" * 100_000}]}).encode(),
            "RS256",
            "an RSA key of 600000 bits; expected 2048 to 16384",
        ),
        (
            "jwt_jwks_file",
            lambda key: json.dumps({"keys": [jwk(key, "a"), jwk(key, "a")]}).encode(),
            "RS256",
            "two keys have the same kid",
        ),
        (
            "jwt_jwks_file",
            lambda key: json.dumps({"keys": [jwk(key, "a")]}).encode(),
            "HS256",
            "key 'a': this key supports RS256",
        ),
    ],
)
def test_keys_that_cannot_be_used_are_reported_at_start(
    tmp_path: Path,
    rsa_key: rsa.RSAPrivateKey,
    clock: Clock,
    setting: str,
    content: Callable[[Any], bytes] | None,
    algorithms: str,
    message: str,
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content(rsa_key))
    with pytest.raises(ConfigError, match=message) as caught:
        TokenVerifier(auth(**{setting: file, "jwt_algorithms": algorithms}), clock)
    assert SECRET not in str(caught.value)


def test_new_keys_are_taken_up_and_broken_ones_are_not(
    tmp_path: Path,
    rsa_key: rsa.RSAPrivateKey,
    other_key: rsa.RSAPrivateKey,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "issuer.pem"
    file.write_bytes(pem(rsa_key))
    verifier = TokenVerifier(auth(jwt_key_file=file), clock)
    assert not verifier.tick()
    file.write_bytes(b"-----BEGIN nothing")
    with caplog.at_level(logging.ERROR):
        assert not verifier.tick()
        assert not verifier.tick()
    assert len(caplog.records) == 1
    assert "the token keys are invalid and were not loaded: auth.jwt_key_file" in caplog.text
    verifier.verify(signed(rsa_key, claims(clock)))
    file.write_bytes(pem(other_key))
    assert verifier.tick()
    verifier.verify(signed(other_key, claims(clock)))
    with pytest.raises(Unauthenticated):
        verifier.verify(signed(rsa_key, claims(clock)))


def test_verifying_a_token_takes_well_under_a_millisecond(
    verifier: TokenVerifier, rsa_key: rsa.RSAPrivateKey, clock: Clock
) -> None:
    token = signed(rsa_key, claims(clock))
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        verifier.verify(token)
        best = min(best, time.perf_counter() - began)
    assert best < 1e-3
