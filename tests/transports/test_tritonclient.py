"""Unmodified tritonclient clients, over HTTP and gRPC."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.servers import RunningServer


@pytest.fixture(scope="module")
def over_http(server: RunningServer) -> Iterator[Any]:
    with tritonclient.http.InferenceServerClient(server.address, concurrency=4) as client:
        yield client


@pytest.fixture(scope="module")
def over_grpc(server: RunningServer) -> Iterator[Any]:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """(module, client)"""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    return module, request.getfixturevalue(f"over_{request.param}")


def node_ids(module: Any, ids: list[Any], **options: Any) -> Any:
    array = np.array(ids, dtype=object if isinstance(ids[0], str) else np.int64)
    tensor = module.InferInput("node_ids", list(array.shape), "BYTES" if array.dtype == object else "INT64")
    tensor.set_data_from_numpy(array, **options)
    return tensor


def as_dict(answer: Any) -> Any:
    if isinstance(answer, dict | list):
        return answer
    from google.protobuf import json_format

    return json_format.MessageToDict(answer, preserving_proto_field_name=True)


def test_health(triton: tuple[Any, Any]) -> None:
    _, client = triton
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("sage")
    assert client.is_model_ready("sage", "1")
    assert not client.is_model_ready("loading")


def test_metadata(triton: tuple[Any, Any]) -> None:
    _, client = triton
    server = as_dict(client.get_server_metadata())
    assert server["name"] == "hopline"
    assert "binary_tensor_data" in server["extensions"]
    model = as_dict(client.get_model_metadata("sage"))
    assert model["name"] == "sage"
    assert model["versions"] == ["1", "2"]
    assert model["inputs"][0]["name"] == "node_ids"
    assert [int(size) for size in model["outputs"][0]["shape"]] == [-1, 2]


def test_config(triton: tuple[Any, Any]) -> None:
    _, client = triton
    config = as_dict(client.get_model_config("sage"))
    config = config.get("config", config)
    assert config["name"] == "sage"
    assert config["backend"] == "hopline"
    assert config["input"][0]["data_type"] == "TYPE_INT64"
    assert "dynamic_batching" in config


def test_statistics_and_index(triton: tuple[Any, Any]) -> None:
    _, client = triton
    stats = as_dict(client.get_inference_statistics("sage"))["model_stats"]
    assert int(stats[0]["inference_stats"]["success"]["count"]) == 7
    assert len(as_dict(client.get_inference_statistics())["model_stats"]) > 1
    index = as_dict(client.get_model_repository_index())
    rows = index if isinstance(index, list) else index["models"]
    assert {"name": "sage", "version": "1"}.items() <= rows[0].items()


@pytest.mark.parametrize("verb", ["load_model", "unload_model"])
def test_loading_says_that_it_is_not_enabled(triton: tuple[Any, Any], verb: str) -> None:
    _, client = triton
    with pytest.raises(InferenceServerException, match=r"does not (load|unload) models"):
        getattr(client, verb)("sage")


def test_infer(triton: tuple[Any, Any]) -> None:
    module, client = triton
    answer = client.infer("sage", [node_ids(module, [1, 2, 3])], request_id="mine")
    np.testing.assert_array_equal(answer.as_numpy("label"), [1, 0, 1])
    np.testing.assert_array_equal(
        answer.as_numpy("probabilities"), np.array([[0.1, 0.9], [0.9, 0.1], [0.1, 0.9]], dtype=np.float32)
    )
    assert as_dict(answer.get_response())["id"] == "mine"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_http_data_as_json_or_binary(over_http: Any, binary_in: bool, binary_out: bool) -> None:
    module = tritonclient.http
    outputs = [
        module.InferRequestedOutput("embedding", binary_data=binary_out),
        module.InferRequestedOutput("label", binary_data=not binary_out),
    ]
    answer = over_http.infer("people", [node_ids(module, ["n4"], binary_data=binary_in)], outputs=outputs)
    np.testing.assert_array_equal(answer.as_numpy("embedding"), np.array([[4, 2, 4 / 3, 0]], np.float32))
    np.testing.assert_array_equal(answer.as_numpy("label"), [0])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(over_http: Any, algorithm: str) -> None:
    inputs = [node_ids(tritonclient.http, list(range(1000)))]
    answer = over_http.infer("sage", inputs, request_compression_algorithm=algorithm)
    assert len(answer.as_numpy("label")) == 1000


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_grpc_requests(over_grpc: Any, algorithm: str) -> None:
    inputs = [node_ids(tritonclient.grpc, list(range(1000)))]
    answer = over_grpc.infer("sage", inputs, compression_algorithm=algorithm)
    assert len(answer.as_numpy("label")) == 1000


def test_typed_grpc_contents_are_read(server: RunningServer) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    with grpc.insecure_channel(server.grpc) as channel:
        request = service_pb2.ModelInferRequest(model_name="sage")
        item = request.inputs.add(name="node_ids", datatype="INT64", shape=[2, 1])
        item.contents.int64_contents.extend([3, 4])
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert [output.name for output in answer.outputs] == ["probabilities", "label"]
        assert np.frombuffer(answer.raw_output_contents[1], np.int64).tolist() == [1, 0]


@pytest.mark.parametrize("datatype", ["INT32", "FP32", "UINT64"])
def test_ids_of_other_types_are_taken_where_lossless(triton: tuple[Any, Any], datatype: str) -> None:
    module, client = triton
    dtype = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64}[datatype]
    tensor = module.InferInput("node_ids", [2, 1], datatype)
    tensor.set_data_from_numpy(np.array([[5], [6]], dtype=dtype))
    assert client.infer("sage", [tensor]).as_numpy("label").tolist() == [1, 0]


def test_fractional_ids_are_refused(triton: tuple[Any, Any]) -> None:
    module, client = triton
    tensor = module.InferInput("node_ids", [1], "FP32")
    tensor.set_data_from_numpy(np.array([1.5], dtype=np.float32))
    with pytest.raises(InferenceServerException, match="not whole numbers"):
        client.infer("sage", [tensor])


def test_error_texts_reach_the_caller(triton: tuple[Any, Any]) -> None:
    module, client = triton
    with pytest.raises(InferenceServerException, match=r"1 unknown node ids: \[-3\]"):
        client.infer("sage", [node_ids(module, [-3])])
    with pytest.raises(InferenceServerException, match="no model 'nothing'"):
        client.infer("nothing", [node_ids(module, [1])])
    with pytest.raises(InferenceServerException, match="no model 'nothing'"):
        client.get_model_metadata("nothing")
    wide = module.InferInput("node_ids", [1, 2], "INT64")
    wide.set_data_from_numpy(np.array([[1, 2]]))
    with pytest.raises(InferenceServerException, match=r"shape \[1, 2\]"):
        client.infer("sage", [wide])
    output = module.InferRequestedOutput("label", class_count=3)
    with pytest.raises(InferenceServerException, match="classification"):
        client.infer("sage", [node_ids(module, [1])], outputs=[output])


def test_async_infer(over_http: Any, over_grpc: Any) -> None:
    waiting = [over_http.async_infer("sage", [node_ids(tritonclient.http, [n])]) for n in range(4)]
    assert [int(one.get_result().as_numpy("label")[0]) for one in waiting] == [0, 1, 0, 1]
    done: queue.Queue[Any] = queue.Queue()
    for n in range(4):
        inputs = [node_ids(tritonclient.grpc, [n])]
        over_grpc.async_infer("sage", inputs, lambda result, error: done.put((result, error)))
    results = [done.get(timeout=10) for _ in range(4)]
    assert all(error is None for _, error in results)
    assert sorted(int(result.as_numpy("label")[0]) for result, _ in results) == [0, 0, 1, 1]


def slow_inputs(milliseconds: int) -> list[Any]:
    as_of = tritonclient.grpc.InferInput("as_of", [1], "INT64")
    as_of.set_data_from_numpy(np.array([milliseconds]))
    return [node_ids(tritonclient.grpc, [1]), as_of]


def test_a_cancelled_call_is_withdrawn_from_the_server(over_grpc: Any, server: RunningServer) -> None:
    line = 'hopline_requests_total{model="slow",version="2",outcome="cancelled"}'
    before = server.metric(line)
    done: queue.Queue[Any] = queue.Queue()
    call = over_grpc.async_infer("slow", slow_inputs(60_000), lambda result, error: done.put(error))
    time.sleep(0.2)  # the call must have arrived for there to be something to cancel
    call.cancel()
    assert "CANCELLED" in str(done.get(timeout=10))
    wait_until(lambda: server.metric(line) == before + 1)


def test_a_client_timeout_is_the_requests_deadline(over_grpc: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
        over_grpc.infer("slow", slow_inputs(60_000), client_timeout=0.1)


def test_streams_answer_each_request_in_order(over_grpc: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    over_grpc.start_stream(lambda result, error: answers.put((result, error)))
    try:
        over_grpc.async_stream_infer("slow", slow_inputs(100), request_id="first")
        for n in range(5):
            over_grpc.async_stream_infer("sage", [node_ids(tritonclient.grpc, [n])], request_id=str(n))
        over_grpc.async_stream_infer("sage", [node_ids(tritonclient.grpc, [-1])])
        over_grpc.async_stream_infer("sage", [node_ids(tritonclient.grpc, [1])], request_id="last")
        got = [answers.get(timeout=10) for _ in range(8)]
    finally:
        over_grpc.stop_stream()
    ids = [as_dict(result.get_response())["id"] for result, error in got if error is None]
    assert ids == ["first", "0", "1", "2", "3", "4", "last"]
    assert "unknown node ids" in str(got[6][1])


def test_extensions_that_there_are_not_say_so(over_grpc: Any) -> None:
    with pytest.raises(InferenceServerException, match="shared memory is not supported"):
        over_grpc.get_system_shared_memory_status()
    with pytest.raises(InferenceServerException, match="log settings"):
        over_grpc.get_log_settings()
    with pytest.raises(InferenceServerException, match="trace settings"):
        over_grpc.get_trace_settings()


def test_sequences_are_refused(triton: tuple[Any, Any]) -> None:
    module, client = triton
    with pytest.raises(InferenceServerException, match="sequences are not supported"):
        client.infer("sage", [node_ids(module, [1])], sequence_id=5)


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_request_has_as_many_rows_as_the_config_says(triton: tuple[Any, Any]) -> None:
    """`perf_analyzer -b 8` reads it so: [8] and the dimensions of one item."""
    module, client = triton
    config = as_dict(client.get_model_config("sage"))
    config = config.get("config", config)
    assert config["max_batch_size"] == 4096
    by_name = {tensor["name"]: tensor for tensor in config["input"] + config["output"]}
    assert [int(size) for size in by_name["features"]["dims"]] == [3]
    assert [int(size) for size in by_name["probabilities"]["dims"]] == [2]
    dims = [int(size) for size in by_name["node_ids"]["dims"]]
    tensor = module.InferInput("node_ids", [8, *dims], "INT64")
    tensor.set_data_from_numpy(np.arange(8, dtype=np.int64).reshape([8, *dims]))
    assert client.infer("sage", [tensor]).as_numpy("label").tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda client: client.get_trace_settings(), "trace settings are not supported"),
        (lambda client: client.get_trace_settings("sage"), "trace settings are not supported"),
        (lambda client: client.update_trace_settings("sage", {}), "trace settings are not supported"),
        (lambda client: client.get_log_settings(), "log settings cannot be changed"),
        (lambda client: client.update_log_settings({}), "log settings cannot be changed"),
        (lambda client: client.get_system_shared_memory_status(), "shared memory is not supported"),
        (
            lambda client: client.register_system_shared_memory("a", "/a", 8),
            "shared memory is not supported",
        ),
        (lambda client: client.unregister_system_shared_memory(), "shared memory is not supported"),
        (lambda client: client.get_cuda_shared_memory_status("a"), "shared memory is not supported"),
        (lambda client: client.unregister_cuda_shared_memory("a"), "shared memory is not supported"),
    ],
)
def test_what_there_is_not_says_so_over_both(triton: tuple[Any, Any], ask: Any, text: str) -> None:
    with pytest.raises(InferenceServerException, match=text):
        ask(triton[1])
