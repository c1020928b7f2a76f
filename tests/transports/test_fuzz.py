"""Whatever is sent, the answer is a 2xx or 4xx, and the next request is served."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.config import Config
from hopline.testing.service import FakeService
from hopline.transports.http import HttpApp
from hopline.transports.http_messages import Pending, Request

KEYS = [
    "nodes", "inline", "pairs", "outputs", "as_of", "on_missing", "timeout_ms", "version", "degraded",
    "features", "neighbors", "id", "inputs", "name", "datatype", "shape", "data", "parameters",
    "binary_data_size",
]  # fmt: skip
WORDS = [
    "node_ids",
    "INT64",
    "BYTES",
    "FP32",
    "label",
    "embedding",
    "error",
    "null",
    "features",
    "as_of",
    "n1",
]
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(WORDS)
)
documents = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=20,
)
tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(
            ["node_ids", "src_ids", "dst_ids", "features", "neighbors", "neighbor_counts"]
        ),
        "datatype": st.sampled_from(["INT64", "INT32", "FP32", "BYTES", "BOOL", "UINT64"]),
        "shape": st.lists(st.integers(-1, 3), max_size=3),
    },
    optional={
        "data": st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=3)), max_size=3),
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 30)}),
    },
)
infers = st.fixed_dictionaries({"inputs": st.lists(tensors, max_size=3)})


@functools.cache
def app() -> tuple[asyncio.Runner, HttpApp]:
    """One application for all examples: what one request leaves behind must not harm the next."""
    runner = asyncio.Runner()

    async def make() -> HttpApp:
        service = FakeService(Config())
        await service.start()
        return HttpApp(service, Config())

    return runner, runner.run(make())


@pytest.fixture(scope="module", autouse=True)
def closed_loop() -> Iterator[None]:
    yield
    app()[0].close()
    app.cache_clear()


def statuses(path: bytes, bodies: list[bytes], headers: dict[bytes, bytes]) -> list[int]:
    runner, asked = app()

    async def main() -> list[int]:
        found = []
        for body in bodies:
            answer = asked(Request(b"POST", path, dict(headers), body))
            if isinstance(answer, Pending):
                while answer.response is None:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                answer = answer.response
            found.append(answer.status)
        return found

    return runner.run(main())


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=80), documents.map(json.dumps).map(str.encode)), st.booleans())
def test_score_never_fails(body: bytes, link: bool) -> None:
    path = b"/v1/models/link/score" if link else b"/v1/models/sage/score"
    first, second = statuses(path, [body, b'{"pairs":[[1,2]]}' if link else b'{"nodes":[1]}'], {})
    assert first < 500
    assert second == 200


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.binary(max_size=80), st.one_of(documents, infers).map(json.dumps).map(str.encode)),
    st.binary(max_size=40),
    st.booleans(),
)
def test_infer_never_fails(body: bytes, tail: bytes, binary: bool) -> None:
    headers = {b"inference-header-content-length": b"%d" % len(body)} if binary else {}
    good = b'{"inputs":[{"name":"node_ids","datatype":"INT64","shape":[1],"data":[1]}]}'
    path = b"/v2/models/sage/infer"
    assert statuses(path, [body + tail if binary else body], headers)[0] < 500
    assert statuses(path, [good], {}) == [200]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_target_has_an_answer(target: bytes) -> None:
    assert statuses(b"/" + target, [b""], {})[0] < 500


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20))
def test_any_node_id_text_has_an_answer(text: str) -> None:
    body: Any = json.dumps({"nodes": [text]}).encode()
    assert statuses(b"/v1/models/people/score", [body], {})[0] < 500
