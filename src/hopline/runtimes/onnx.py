"""Stages in ONNX Runtime, and its execution providers for each device, with their options.

A stage whose inputs have one row for each destination runs over *bound buffers*: the engine writes
inputs into them and the session writes the result next to them, so that a call neither allocates nor
converts anything (6 instead of 14 µs for one row, log/). Rows beyond a buffer go in chunks,
which also keeps the working set in the L2 cache. On a GPU the buffers are not bound: ONNX Runtime copies a
bound input to the GPU when it is bound, and never again, so that later calls would compute with old inputs.

ONNX Runtime falls back to the processor if a provider is missing or cannot start, and reports that in its
log only. Here both are errors that name what is missing. CUDA's options ran on a GPU (docs/benchmarks.md);
TensorRT's are written from ONNX Runtime's documentation and have not run yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hopline.errors import ArtifactError, BadRequest, ConfigError, HoplineError, RuntimeFailure
from hopline.files import expanded
from hopline.runtimes.ort import load_cuda, ort
from hopline.runtimes.placement import Device, placed
from hopline.types import AnyArray, FloatArray

_Provider: TypeAlias = tuple[str, dict[str, Any]]

_CPU: _Provider = ("CPUExecutionProvider", {})
_CUDA: _Provider = (
    "CUDAExecutionProvider",
    # The arena grows by the requested size: several workers share one GPU. Copies run in the stream that
    # computes, so that no call waits for two streams. TF32, ONNX Runtime's default, moved scores by up to
    # 1e-3; float32 gives what the CPU gives.
    {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": "0",
    },
)
_INSTALL_CUDA = "pip install 'onnxruntime-gpu[cuda,cudnn]' in place of onnxruntime"
#: Device -> the providers that it needs, and how to install each.
_NEEDED: dict[Device, tuple[tuple[str, str], ...]] = {
    "cpu": (),
    "cuda": (("CUDAExecutionProvider", _INSTALL_CUDA),),
    "tensorrt": (
        ("TensorrtExecutionProvider", "pip install onnxruntime-gpu and tensorrt in place of onnxruntime"),
        ("CUDAExecutionProvider", _INSTALL_CUDA),
    ),
}


def _check_device(device: Device, available: Sequence[str], version: str) -> None:
    """Check that the installed ONNX Runtime was built for a device.

    Args:
        available: `onnxruntime.get_available_providers()`. version: of ONNX Runtime.

    Raises:
        ConfigError: names the provider that is missing and how to install it.
    """
    for name, how in _NEEDED[device]:
        if name not in available:
            raise ConfigError(
                f"compute.device: {device!r} needs ONNX Runtime's {name}; the installed onnxruntime "
                f"{version} has {', '.join(available)}: {how}, or set compute.device to 'cpu'"
            )


def providers(
    device: Device,
    available: Sequence[str],
    version: str,
    *,
    rows: tuple[Mapping[str, int], int] | None = None,
    cache: Path | None = None,
) -> list[_Provider]:
    """The providers of a session, best first.

    Args:
        available, version: as for `_check_device`.
        rows: for a file whose inputs have one row for each destination: (input name -> columns, 0 for a
            one-dimensional input), and the most rows of a call. TensorRT builds an engine for these shapes;
            without them it would build one while a request waits. So a file without `rows` runs on
            CUDA.
        cache: folder of TensorRT's engines; the user's cache by default.

    Raises:
        ConfigError: as `_check_device`.
    """
    _check_device(device, available, version)
    if device == "cpu":
        return [_CPU]
    if device == "cuda" or rows is None:
        return [_CUDA, _CPU]
    folder = cache or expanded("~/.cache/hopline/tensorrt", "compute.device")
    widths, most = rows
    options = {
        "device_id": "0",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
        "trt_profile_min_shapes": _shapes(widths, 1),
        "trt_profile_opt_shapes": _shapes(widths, min(32, most)),
        "trt_profile_max_shapes": _shapes(widths, most),
    }
    return [("TensorrtExecutionProvider", options), _CUDA, _CPU]


def check_started(wanted: Sequence[_Provider], started: Sequence[str], what: str) -> None:
    """Check that a session runs on the providers that it was opened with.

    Args:
        wanted: requested providers. started: `InferenceSession.get_providers()`. what: the file.

    Raises:
        ConfigError: a provider is built in and could not start: its libraries or its GPU are missing.
    """
    for name, _ in wanted:
        if name not in started:
            raise ConfigError(
                f"compute.device: {name} is built into onnxruntime but did not start for {what} (it runs "
                f"on {', '.join(started)}): check the GPU, its driver and the libraries of CUDA"
                f"{' and TensorRT' if name.startswith('Tensorrt') else ''}"
            )


def _shapes(widths: Mapping[str, int], rows: int) -> str:
    return ",".join(
        f"{name}:{rows}x{width}" if width else f"{name}:{rows}" for name, width in widths.items()
    )


#: Destination rows of one call; 256 rows of 128 float32 are 128 KiB, well inside L2.
CHUNK_ROWS = 256
#: The same on a GPU, where a call costs 0.1 ms before anything is computed.
GPU_CHUNK_ROWS = 4096

#: Calls are for multiples of so many rows. ONNX Runtime computes Elu, Log, Softplus, Sin and others four
#: values at a time, and what remains with other code, whose last bit may differ. So if the number of values
#: were no multiple of four, a row's bits would depend on the other rows of the call.
ROW_STEP = 4
#: Above so many rows, calls are for multiples of `_LARGE_STEP`. The first call with a number of rows takes
#: 0.15 ms more than later ones; 16 more rows of 128 columns take 3 µs.
_FEW_ROWS, _LARGE_STEP = 32, 16

#: What ONNX Runtime says of an index that a table does not have, by operator.
_BEYOND_TABLE = ("out of data bounds", "invalid index found", "index tensor")
_INDEX = re.compile(r"idx=(-?\d+) must be within the inclusive range \[-?\d+,(\d+)\]")
#: Index that a stage has in place of a code below 0.
_BELOW = "2147483647"

#: Input kinds with exactly one row for each destination.
ROW_KINDS = frozenset({"self", "features", "structure", "reduce", "attend", "degree", "count"})


def chunk_rows() -> int:
    """Destination rows of one call on the device of this process."""
    return CHUNK_ROWS if placed() == "cpu" else GPU_CHUNK_ROWS


def session(path: Path, threads: int = 1, rows: Mapping[str, int] | None = None) -> ort.InferenceSession:
    """Open an ONNX file on the device of this process (`placement.placed`).

    Args:
        rows: input name -> columns (0 for a one-dimensional input), if each has one row for each
            destination, at most `chunk_rows()` of them.

    Raises:
        ArtifactError: ONNX Runtime refuses the file; the message says why.
        ConfigError: ONNX Runtime lacks the device.
    """
    wanted = providers(
        placed(),
        ort.get_available_providers(),
        ort.__version__,
        rows=None if rows is None else (rows, chunk_rows()),
    )
    if placed() != "cpu":
        load_cuda()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = rows is not None
    # A spinning pool would take CPU time from the event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        opened = ort.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # onnxruntime raises its own errors, without a common public base
        raise ArtifactError(f"{path}: ONNX Runtime {ort.__version__} cannot load it: {error}") from error
    check_started(wanted, opened.get_providers(), path.name)
    return opened


def _check_declared(
    path: Path, opened: ort.InferenceSession, inputs: Mapping[str, int | None], output: str, output_dim: int
) -> None:
    """Compare a file with what model.json declares of it.

    Args:
        inputs: name -> columns, 0 for a one-dimensional input, None for any shape.

    Raises: ArtifactError: names or columns differ.
    """
    has = {each.name: each.shape for each in opened.get_inputs()}
    gives = {each.name: each.shape for each in opened.get_outputs()}
    wrong = [
        f"input {name!r} has columns {has[name][1:]}, not {[width] if width else []}"
        for name, width in inputs.items()
        if name in has
        and width is not None
        and all(isinstance(each, int) for each in has[name][1:])
        and has[name][1:] != ([width] if width else [])
    ]
    if has.keys() != inputs.keys():
        wrong.append(f"its inputs are {', '.join(has)}, not {', '.join(inputs)}")
    if output not in gives:
        wrong.append(f"its outputs are {', '.join(gives)}, not {output}")
    elif isinstance(gives[output][-1], int) and gives[output][-1] != output_dim:
        wrong.append(f"output {output!r} has {gives[output][-1]} columns, not {output_dim}")
    if wrong:
        raise ArtifactError(f"{path} differs from model.json: {'; '.join(wrong)}; package again")


def _failure(path: Path, error: Exception) -> HoplineError:
    """The error of a call: a request that reaches a code without an entry is refused."""
    text = f"{path.name} failed in ONNX Runtime: {error}"
    if not any(words in text for words in _BEYOND_TABLE):
        return RuntimeFailure(text)
    named = _INDEX.search(text)
    shown, entries = "", ""
    if named:
        shown = "below 0" if named[1] == _BELOW else named[1]
        shown, entries = f" ({shown})", f", whose entries are 0 to {named[2]}"
    return BadRequest(
        "a feature or edge attribute, of a node of the request or its neighbourhood, is a code that has no "
        f"entry in its table{shown}{entries}: correct it, or package a model with an entry for unknown "
        f"codes ({path.name})"
    )


class RowStage:
    """A stage of row inputs only, over bound buffers.

    Rows behind those of a call may be computed too. No row's result depends on another row, but a row for
    which the file fails (a code beyond its table) makes a call fail. So the rows behind are copies of a row
    of the call, or what calls that succeeded left there.

    Args:
        names: the file's inputs. widths: columns of each; 0 for a one-dimensional input.
        output, output_dim: the file's output.
        threads: of ONNX Runtime; answers are bit-equal for one number of threads.

    Attributes:
        chunk_rows: most rows of a call.
        inputs: one float32 [chunk_rows, width] buffer ([chunk_rows] for width 0) for each input, to be
            written by the caller.
        output: float32 [chunk_rows, output_dim].
    """

    def __init__(
        self,
        path: Path,
        names: list[str],
        widths: list[int],
        output: str,
        output_dim: int,
        threads: int = 1,
    ) -> None:
        self.path = path
        self._session = session(path, threads, dict(zip(names, widths, strict=True)))
        _check_declared(path, self._session, dict(zip(names, widths, strict=True)), output, output_dim)
        self._names = names
        self._output = output
        self._is_bound = placed() == "cpu"
        self._run = self._session._sess.run_with_iobinding
        #: rows -> (binding, the output's first rows, computed rows)
        self._bound: dict[int, tuple[Any, FloatArray, int]] = {}
        #: The first rows of the buffers that a call computed without failing.
        self._num_usable = 0
        self.chunk_rows = rows = chunk_rows()
        self.inputs = [np.zeros((rows, w) if w else rows, np.float32) for w in widths]
        self.output = np.zeros((rows, output_dim), np.float32)

    def run(self, num_rows: int) -> FloatArray:
        """Compute the first `num_rows` rows; the view returned is valid until the next call."""
        try:
            if not self._is_bound:
                return self._run_copied(num_rows)
            bound = self._bound.get(num_rows)
            if bound is None:
                bound = self._bind(num_rows)
            if bound[2] > self._num_usable:
                self._fill(num_rows, bound[2])
            self._run(bound[0], None)
        except Exception as error:  # see `session`
            self._num_usable = 0
            raise _failure(self.path, error) from error
        return bound[1]

    def _fill(self, num_rows: int, computed: int) -> None:
        """Make the rows behind those of a call copies of its last one."""
        for buffer in self.inputs:
            buffer[num_rows:computed] = buffer[num_rows - 1]
        self._num_usable = computed

    def _run_copied(self, num_rows: int) -> FloatArray:
        computed = -(-num_rows // ROW_STEP) * ROW_STEP
        self._fill(num_rows, computed)
        feeds = {name: each[:computed] for name, each in zip(self._names, self.inputs, strict=True)}
        self.output[:computed] = self._session._sess.run([self._output], feeds, None)[0]
        return self.output[:num_rows]

    def _bind(self, num_rows: int) -> tuple[Any, FloatArray, int]:
        step = _LARGE_STEP if num_rows > _FEW_ROWS else ROW_STEP
        computed = -(-num_rows // step) * step
        if computed > num_rows:
            self._bound[num_rows] = (
                (self._bound.get(computed) or self._bind(computed))[0],
                self.output[:num_rows],
                computed,
            )
            return self._bound[num_rows]
        binding = self._session.io_binding()
        for name, buffer in zip(self._names, self.inputs, strict=True):
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(buffer[:num_rows]))
        out = self.output[:num_rows]
        binding.bind_ortvalue_output(self._output, ort.OrtValue.ortvalue_from_numpy(out))
        self._bound[num_rows] = binding._iobinding, out, computed
        return self._bound[num_rows]


class EdgeStage:
    """A stage with rows of edges, whose number varies from call to call.

    Numbers of rows and of edges must be multiples of `ROW_STEP` (see there). One thread: sums would race.

    Args:
        names: the file's inputs. output_dim: columns of its output `h`.
    """

    def __init__(self, path: Path, names: list[str], output_dim: int) -> None:
        self.path = path
        opened = session(path)
        _check_declared(path, opened, dict.fromkeys(names), "h", output_dim)
        self._run = opened._sess.run

    def run(self, feeds: dict[str, AnyArray]) -> FloatArray:
        """Compute `h` float32 [n, state_dim] from named inputs."""
        try:
            return self._run(["h"], feeds, None)[0]  # type: ignore[no-any-return]
        except Exception as error:  # see `session`
            raise _failure(self.path, error) from error
