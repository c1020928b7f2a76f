"""The caller's trace reaches the request, by every route; and costs nothing where nobody traces."""

import grpc
import pytest

from hopline.config.reader import load_config
from hopline.transports.grpc import INFERENCE, GrpcApp
from hopline.transports.http import HttpApp
from hopline.transports.proto import message
from tests.fake_service import FakeService
from tests.transports.grpc_rig import grpc_server
from turnserve.http1.messages import Request

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INFER = b'{"inputs": [{"name": "node_ids", "shape": [1], "datatype": "INT64", "data": [1]}]}'


class Noting(FakeService):
    """Keeps the requests that it gets."""

    def __init__(self, config):
        super().__init__(config)
        self.requests = []

    def submit(self, request, deliver):
        self.requests.append(request)
        return super().submit(request, deliver)

    async def score(self, request):
        self.requests.append(request)
        return await super().score(request)


@pytest.mark.parametrize("endpoint", ["console", ""])
@pytest.mark.parametrize("header", [PARENT, None])
@pytest.mark.parametrize(
    ("target", "body"), [(b"/v1/models/sage/score", b'{"nodes": [1]}'), (b"/v2/models/sage/infer", INFER)]
)
def test_http_requests_belong_to_the_trace_of_their_header(target, body, header, endpoint):
    config = load_config(overrides={"tracing.endpoint": endpoint})
    service = Noting(config)
    headers = {} if header is None else {b"traceparent": header.encode()}
    answer = HttpApp(service, config)(Request(b"POST", target, headers, body))
    assert answer.response.status == 200
    assert service.requests[0].traceparent == (header if header and endpoint else "")


@pytest.mark.parametrize("value", [PARENT, b"\xff\xfe"])
def test_odd_headers_harm_nobody(value):
    config = load_config(overrides={"tracing.endpoint": "console"})
    service = Noting(config)
    headers = {b"traceparent": value if isinstance(value, bytes) else value.encode()}
    request = Request(b"POST", b"/v1/models/sage/score", headers, b'{"nodes": [1]}')
    assert HttpApp(service, config)(request).response.status == 200
    assert isinstance(service.requests[0].traceparent, str)


@pytest.mark.parametrize("traces", [True, False])
async def test_grpc_calls_belong_to_the_trace_of_their_metadata(traces):
    service = Noting(load_config())
    app = GrpcApp(service, traces=traces)
    metadata = (("traceparent", PARENT), ("bytes-bin", b"\0"))
    call = message("inference.ModelInferRequest")(model_name="sage")
    item = call.inputs.add(name="node_ids", datatype="INT64", shape=[1])
    item.contents.int64_contents.append(1)
    async with grpc_server(app) as target, grpc.aio.insecure_channel(target) as channel:
        infer = channel.unary_unary(
            f"/{INFERENCE}/ModelInfer",
            type(call).SerializeToString,
            message("inference.ModelInferResponse").FromString,
        )
        answer = await infer(call, metadata=metadata)
    assert answer.model_name == "sage"
    assert service.requests[0].traceparent == (PARENT if traces else "")
