from __future__ import annotations

from collections.abc import Iterator

from hopline import errors
from hopline.transports.grpc_errors import GRPC_CODE, grpc_code
from hopline.transports.http_errors import HTTP_STATUS, error_response, http_status


def all_errors(
    base: type[errors.HoplineError] = errors.HoplineError,
) -> Iterator[type[errors.HoplineError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__ == "hopline.errors":
            yield from all_errors(child)


def test_both_tables_are_total() -> None:
    known = set(all_errors())
    assert len(known) > 15
    assert set(HTTP_STATUS) == known
    assert set(GRPC_CODE) == known


def test_a_further_subclass_has_its_parents_status() -> None:
    class Odd(errors.NodeNotFound):
        pass

    assert http_status(Odd("x")) == 404
    assert grpc_code(Odd("x")) is GRPC_CODE[errors.NodeNotFound]


def test_details_and_retry_after_are_reported() -> None:
    response = error_response(errors.Overloaded("full", retry_after_s=1.2))
    assert response.status == 503
    assert b"retry-after: 2\r\n" in response.headers
    assert b'"retry_after_s":1.2' in response.body
    assert b'"missing":[1,"b"]' in error_response(errors.NodeNotFound("x", [1, "b"])).body
    assert b'"differences":["one"]' in error_response(errors.SchemaMismatch("x", ["one"])).body
    assert error_response(errors.BadRequest("wrong"), oip=True).body == b'{"error":"wrong"}'


def test_texts_of_a_caller_are_repeated_in_part() -> None:
    long = "n" * 1_000_000
    for error in (
        errors.BadRequest(f"unknown field {long!r}", param=long),
        errors.NodeNotFound(f"no node {long!r}", [long]),
        errors.SchemaMismatch(long, [long]),
    ):
        assert len(error_response(error).body) < 4000
    assert b'"param":"nodes"' in error_response(errors.BadRequest("x", param="nodes")).body
