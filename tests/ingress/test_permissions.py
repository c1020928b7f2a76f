"""What a client may do, by globs of model names."""

from __future__ import annotations

import pytest

from hopline.errors import PermissionDenied, RateLimited
from hopline.ingress.client import Client
from hopline.ingress.permissions import SERVER, Permissions, globs_of
from hopline.scheduling.limiter import LocalBucket, Rate
from hopline.types import Priority, ScoreRequest
from tests.ingress.clocks import Clock


@pytest.mark.parametrize(
    ("permissions", "permission", "model", "allowed"),
    [
        (Permissions(score=("fraud",)), "score", "fraud", True),
        (Permissions(score=("fraud",)), "score", "fraud2", False),
        (Permissions(score=("fraud",)), "score", "FRAUD", False),
        (Permissions(score=("risk-*",)), "score", "risk-eu", True),
        (Permissions(score=("risk-*",)), "score", "risk", False),
        (Permissions(score=("*",)), "score", "anything", True),
        (Permissions(), "score", "fraud", False),
        (Permissions(read=("*",)), "score", "fraud", False),
        (Permissions(admin=("*",)), "score", "fraud", False),
        # Who scores a model may look at it, not at the server.
        (Permissions(score=("*",)), "read", "fraud", True),
        (Permissions(score=("*",)), "read", SERVER, False),
        (Permissions(read=("fraud",)), "read", SERVER, False),
        (Permissions(read=("*",)), "read", SERVER, True),
        (Permissions(admin=("*",)), "read", SERVER, True),
        (Permissions(score=("*",), read=("*",)), "admin", "fraud", False),
        (Permissions(admin=("risk-*",)), "admin", "risk-eu", True),
        (Permissions(admin=("risk-*",)), "admin", SERVER, False),
    ],
)
def test_globs_decide(permissions: Permissions, permission: str, model: str, allowed: bool) -> None:
    assert permissions.allow(permission, model) is allowed  # type: ignore[arg-type]
    client = Client("c", permissions)
    for _ in range(2):  # found out, and remembered
        assert client.may(permission, model) is allowed  # type: ignore[arg-type]


def test_truth_values_stand_for_everything_and_nothing() -> None:
    assert (globs_of(True), globs_of(False), globs_of(("a",))) == (("*",), (), ("a",))


def test_a_refusal_names_the_permission_and_what_it_is_given_for() -> None:
    client = Client("payments", Permissions(score=("fraud", "risk-*")))
    with pytest.raises(PermissionDenied, match=r"'payments' may not score model 'churn'.* fraud, risk-\*$"):
        client.check("score", "churn")
    with pytest.raises(PermissionDenied, match=r"'payments' may not change the server.* covers nothing"):
        client.check("admin", SERVER)


def test_made_up_models_do_not_fill_memory() -> None:
    client = Client("c", Permissions(score=("a*",)))
    for number in range(5000):
        assert client.may("score", f"a{number}")
    assert len(client._allowed) <= 1024


def test_a_client_above_its_rate_gets_the_time_of_a_retry() -> None:
    clock = Clock()
    client = Client("c", Permissions(), bucket=LocalBucket(Rate(4, 2)), clock=clock.monotonic_ns)
    client.admit()
    client.admit()
    with pytest.raises(RateLimited, match="'c' may send 4 requests per second, bursts of 2") as caught:
        client.admit()
    assert caught.value.retry_after_s == 0.25
    clock.pass_s(0.25)
    client.admit()


@pytest.mark.parametrize(
    ("asked", "own", "left"),
    [
        ("high", "normal", "normal"),
        ("high", "high", "high"),
        ("high", "low", "low"),
        ("normal", "low", "low"),
        ("normal", "high", "normal"),
        ("low", "high", "low"),
    ],
)
def test_nobody_requests_more_than_their_own_priority(asked: Priority, own: Priority, left: str) -> None:
    request = ScoreRequest("m", priority=asked)
    Client("c", Permissions(), own).sign(request)
    assert (request.client, request.priority) == ("c", left)
