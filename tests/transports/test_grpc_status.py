"""Status codes are those of gRPC's own library."""

import grpc

from turnserve.grpc.status import StatusCode


def test_names_and_numbers_are_those_of_grpc():
    assert {code.name: code.value for code in StatusCode} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }
