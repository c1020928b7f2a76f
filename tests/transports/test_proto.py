"""Our messages against the ones that tritonclient was made with."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import tritonclient.grpc.model_config_pb2
import tritonclient.grpc.service_pb2
from google.protobuf import descriptor_pool

from hopline.transports.proto import DESCRIPTORS, message, methods, pool
from tests.servers import RunningServer


def compare(ours: Any, theirs: Any) -> int:
    """Every field of ours is theirs; returns how many were compared."""
    count = 0
    for field in ours.fields:
        other = theirs.fields_by_name[field.name]
        assert (field.number, field.type, field.is_repeated) == (
            other.number,
            other.type,
            other.is_repeated,
        )
        if field.message_type is not None:
            assert field.message_type.full_name == other.message_type.full_name
        count += 1
    for nested in ours.nested_types:
        count += compare(nested, theirs.nested_types_by_name[nested.name])
    return count


def test_field_numbers_and_types_are_the_published_ones() -> None:
    published = descriptor_pool.Default()
    count = 0
    for file in ("inference.proto", "model_config.proto"):
        for name, ours in pool().FindFileByName(file).message_types_by_name.items():
            count += compare(ours, published.FindMessageTypeByName(f"inference.{name}"))
        for name, ours in pool().FindFileByName(file).enum_types_by_name.items():
            theirs = published.FindEnumTypeByName(f"inference.{name}")
            assert {v.name: v.number for v in ours.values} == {v.name: v.number for v in theirs.values}
    assert count > 100


def test_every_published_method_is_answered() -> None:
    from hopline.transports.grpc import _UNIMPLEMENTED

    published = tritonclient.grpc.service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    ours = {method.name for method in methods("inference.GRPCInferenceService")} | set(_UNIMPLEMENTED)
    assert {method.name for method in published} == ours


def test_descriptors_are_those_of_the_sources() -> None:
    import subprocess
    import sys

    script = DESCRIPTORS.parents[4] / "scripts" / "protos"
    subprocess.run([sys.executable, script, "--check"], check=True)


def test_health_checking_protocol(server: RunningServer) -> None:
    request = message("grpc.health.v1.HealthCheckRequest")
    response = message("grpc.health.v1.HealthCheckResponse")
    with grpc.insecure_channel(server.grpc) as channel:
        serialize, parse = request.SerializeToString, response.FromString
        check = channel.unary_unary("/grpc.health.v1.Health/Check", serialize, parse)
        assert check(request()).status == 1
        assert check(request(service="inference.GRPCInferenceService")).status == 1
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", serialize, parse)(request())
        assert next(watch).status == 1
        watch.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            check(request(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_what_we_read_a_request_as_has_its_fields() -> None:
    ours = pool().FindMessageTypeByName("hopline.oip.v1.OuterInferRequest").fields_by_name
    theirs = pool().FindMessageTypeByName("inference.ModelInferRequest").fields_by_name
    assert {name: field.number for name, field in ours.items()} == {
        name: field.number for name, field in theirs.items()
    }
