"""Models in stages on a GPU. Without one, ONNX Runtime's CPU provider computes behind the same calls."""

import contextlib

import numpy as np
import onnxruntime as ort
import pytest

from hopline.runtimes import onnx
from hopline.runtimes.placement import place_models, placed
from tests.engine import zoo
from tests.engine.test_answers import ALL, answer, request

HAS_GPU = "CUDAExecutionProvider" in ort.get_available_providers()


@contextlib.contextmanager
def on_gpu():
    """Models that are loaded here compute on the GPU."""
    before = placed()
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_GPU:
            providers, bind, copies = onnx.providers, ort.IOBinding.bind_ortvalue_input, []

            def bind_copy(binding, name, value):
                """As for a GPU: copied when it is bound, and never again."""
                copies.append(value.numpy().copy())
                bind(binding, name, ort.OrtValue.ortvalue_from_numpy(copies[-1]))

            patch.setattr(onnx, "providers", lambda device, *given, rows: providers("cpu", *given))
            patch.setattr(ort.IOBinding, "bind_ortvalue_input", bind_copy)
        place_models("cuda")
        try:
            yield
        finally:
            place_models(before)


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_every_call_computes_with_its_own_inputs(cases, name, caches):
    case = cases[name]
    rng = np.random.default_rng(0)
    # The same number of rows again, of other nodes.
    asked = [
        request(case, rng.permutation(60 if name == "hetero" else zoo.N)[:count])
        for count in (1, 1, 1, 30, 30, 100, 100)
    ]
    here = case.answerer(False, fanout=3)
    expected = [answer(here, each)[0] for each in asked]
    with on_gpu():
        there = case.answerer(caches, fanout=3)
        for each, wanted in zip(asked, expected, strict=True):
            np.testing.assert_allclose(answer(there, each)[0], wanted, atol=1e-5, rtol=1e-5)


def test_a_call_takes_more_rows_than_on_a_cpu(cases):
    with on_gpu():
        model = cases["sage"].model(False)
    stages = [level.runner for levels in model.levels for level in levels.values() if level.runner]
    assert {stage.chunk_rows for stage in stages} == {onnx.GPU_CHUNK_ROWS}
    assert len(stages[0].row_stage.inputs[0]) == onnx.GPU_CHUNK_ROWS > onnx.CHUNK_ROWS
