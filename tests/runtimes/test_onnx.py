"""Execution providers by device: what is missing is named, and nothing falls back to the processor."""

import onnxruntime as ort
import pytest

from hopline.errors import ConfigError
from hopline.runtimes import ort as runtime
from hopline.runtimes.onnx import check_started, providers, session
from hopline.runtimes.placement import place_models, placed

CPU = ["CPUExecutionProvider"]
CUDA = ["CUDAExecutionProvider", *CPU]
TENSORRT = ["TensorrtExecutionProvider", *CUDA]


def names(found):
    return [name for name, _ in found]


@pytest.fixture
def on():
    """Place models on a device for one test."""
    before = placed()
    yield lambda device: place_models(device)
    place_models(before)


def test_each_device_has_its_providers_best_first():
    assert names(providers("cpu", TENSORRT, "1")) == CPU
    assert names(providers("cuda", TENSORRT, "1")) == CUDA
    assert names(providers("tensorrt", TENSORRT, "1", rows=({"x": 4}, 256))) == TENSORRT


@pytest.mark.parametrize(
    ("device", "available", "missing"),
    [
        ("cuda", CPU, "CUDAExecutionProvider"),
        ("tensorrt", CPU, "TensorrtExecutionProvider"),
        ("tensorrt", CUDA, "TensorrtExecutionProvider"),
    ],
)
def test_a_provider_that_is_not_installed_is_named_with_what_brings_it(device, available, missing):
    with pytest.raises(ConfigError, match=f"compute.device: '{device}'.*{missing}.*1.2.3.*onnxruntime-gpu"):
        providers(device, available, "1.2.3")


def test_tensorrt_gets_the_shapes_of_row_files_and_leaves_others_to_cuda(tmp_path):
    rows = {"x": 128, "degree": 0}, 256
    _, options = providers("tensorrt", TENSORRT, "1", rows=rows, cache=tmp_path)[0]
    assert options["trt_profile_min_shapes"] == "x:1x128,degree:1"
    assert options["trt_profile_max_shapes"] == "x:256x128,degree:256"
    assert options["trt_engine_cache_path"] == str(tmp_path)
    assert names(providers("tensorrt", TENSORRT, "1")) == CUDA


def test_a_provider_that_did_not_start_is_an_error():
    wanted = providers("cuda", CUDA, "1")
    check_started(wanted, CUDA, "1.node.onnx")
    with pytest.raises(ConfigError, match=r"CUDAExecutionProvider.*did not start for 1.node.onnx"):
        check_started(wanted, CPU, "1.node.onnx")


def test_a_session_on_a_device_that_is_not_there_is_refused(on, tmp_path):
    path = tmp_path / "identity.onnx"
    path.write_bytes(runtime._identity_model({"ai.onnx": 13}))
    assert session(path).get_providers() == CPU
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        on("cuda")
        with pytest.raises(ConfigError, match="CUDAExecutionProvider"):
            session(path)
