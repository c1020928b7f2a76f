"""Server reflection, asked by grpcio's own client and message by message, in both versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from hopline.config.reader import load_config
from hopline.ingress.clients_edit import add_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.keys import new_key
from hopline.transports.grpc import GrpcApp
from hopline.transports.proto import message
from tests.fake_service import FakeService
from tests.servers import RunningServer
from tests.transports.grpc_rig import grpc_server

SERVICES = {
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
VERSIONS = ["grpc.reflection.v1", "grpc.reflection.v1alpha"]


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as found:
        yield found


def ask(channel: Any, version: str, *requests: dict[str, Any], **options: Any) -> list[Any]:
    """The answers to the requests of one call."""
    request = message(f"{version}.ServerReflectionRequest")
    call = channel.stream_stream(
        f"/{version}.ServerReflection/ServerReflectionInfo",
        request.SerializeToString,
        message(f"{version}.ServerReflectionResponse").FromString,
    )
    return list(call(iter([request(**each) for each in requests]), timeout=10, **options))


def test_a_client_without_proto_files_scores_a_node(channel: grpc.Channel) -> None:
    """Everything that it knows comes from reflection."""
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) == SERVICES
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    infer = service.FindMethodByName("ModelInfer")
    request, response = map(message_factory.GetMessageClass, (infer.input_type, infer.output_type))
    tensor = {"name": "node_ids", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [5]}}
    call = channel.unary_unary(
        f"/{service.full_name}/{infer.name}", request.SerializeToString, response.FromString
    )
    answer = call(request(model_name="sage", inputs=[tensor]), timeout=10)
    assert [output.name for output in answer.outputs] == ["probabilities", "label"]


@pytest.mark.parametrize("version", VERSIONS)
def test_services_are_listed_and_their_files_found(channel: grpc.Channel, version: str) -> None:
    listed, *found = ask(
        channel,
        version,
        {"list_services": "", "host": "x"},
        {"file_containing_symbol": "inference.GRPCInferenceService"},
        {"file_containing_symbol": "inference.GRPCInferenceService.ModelInfer"},
        {"file_containing_symbol": "inference.ModelInferRequest.InferInputTensor"},
        {"file_by_filename": "inference.proto"},
    )
    assert {each.name for each in listed.list_services_response.service} == SERVICES
    assert (listed.valid_host, listed.original_request.host) == ("x", "x")
    for each in found:
        files = map(FileDescriptorProto.FromString, each.file_descriptor_response.file_descriptor_proto)
        names = [file.name for file in files]
        assert names[0] == "inference.proto"
        assert len(names) == len(set(names))
        assert "model_config.proto" in names  # what it imports comes with it


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"file_containing_symbol": "inference.Absent"}, 5),
        ({"file_by_filename": "../inference.proto"}, 5),
        ({"all_extension_numbers_of_type": "inference.Absent"}, 5),
        (
            {
                "file_containing_extension": {
                    "containing_type": "inference.ModelInferRequest",
                    "extension_number": 7,
                }
            },
            5,
        ),
        ({}, 3),
    ],
)
def test_what_is_not_there_is_an_error_and_the_call_goes_on(
    channel: grpc.Channel, version: str, asked: dict[str, Any], code: int
) -> None:
    refused, listed = ask(channel, version, asked, {"list_services": ""})
    assert refused.error_response.error_code == code
    assert listed.list_services_response.service


def test_messages_without_extensions_have_none(channel: grpc.Channel) -> None:
    (found,) = ask(channel, VERSIONS[0], {"all_extension_numbers_of_type": "inference.ModelInferRequest"})
    assert found.all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"
    assert not found.all_extension_numbers_response.extension_number


def test_a_message_that_is_none_ends_the_call(channel: grpc.Channel) -> None:
    call = channel.stream_stream(f"/{VERSIONS[0]}.ServerReflection/ServerReflectionInfo")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([b"\xff\xff"]), timeout=10))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_compressed_requests_and_many_in_one_call_are_answered(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc, compression=grpc.Compression.Gzip) as channel:
        found = ask(channel, VERSIONS[1], *[{"file_by_filename": "inference.proto"}] * 300)
    assert len(found) == 300
    assert len({each.SerializeToString() for each in found}) == 1


async def test_reflection_needs_any_key_where_clients_authenticate(tmp_path: Path) -> None:
    file, key = tmp_path / "clients.toml", new_key()
    add_key(file, "scorer", KeyEntry(key.id, key.sha256), Grant(("sage",)))
    config = load_config(overrides={"auth.clients_file": file})
    service = FakeService(config)
    await service.start()
    app = GrpcApp(service, Gatekeeper(config))
    request = message("grpc.reflection.v1.ServerReflectionRequest")
    async with grpc_server(app) as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        # nothing is written: grpcio tells a write that meets an ended call as its own INTERNAL
        assert await call(timeout=10).code() is grpc.StatusCode.UNAUTHENTICATED
        asked = iter([request(list_services="").SerializeToString()])
        found = [each async for each in call(asked, timeout=10, metadata=(("x-api-key", key.text),))]
    assert len(found) == 1
