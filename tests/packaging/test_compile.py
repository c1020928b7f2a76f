"""Compiled whole models: written once, compared, and run only where they fit.

One model is compiled for all of them: about 15 s of a processor, most of it the compiler's.
"""

import asyncio
import logging
import shutil
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import hopline
from hopline.artifact import read_spec, sha256_of
from hopline.config.reader import load_config
from hopline.errors import ArtifactError, ConfigError, PackagingError
from hopline.packaging import compile as compiling
from hopline.runtimes.placement import Placement, place_models, placed
from hopline.runtimes.torch import WholeModel
from hopline.runtimes.torch_compiled import RECORD_FILE, CompiledRecord, Machine, read_record
from hopline.service import Service
from tests.packaging.graphs import MOLECULE_HOPS, homogeneous, molecules

HERE = Machine.here()


class Pooled(nn.Module):
    """Scores a node by its whole ego-graph, through attention."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.lin = pyg.GATConv(6, 4), nn.Linear(4, 3)

    def forward(self, x, edge_index):
        return self.lin(self.conv(x, edge_index).relu().mean(0, keepdim=True))


def package(repository, **options):
    options = {"name": "pooled", "task": "multiclass", "runtime": "torch", **options}
    return hopline.package(Pooled(), molecules(), repository, fanouts=[-1] * MOLECULE_HOPS, **options)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return package(tmp_path_factory.mktemp("compiled"), compile=True)


@pytest.fixture
def policy():
    """Decide about compiled programs for one test."""
    before = placed()
    yield lambda compiled, device="cpu": place_models(Placement(device, compiled))
    place_models(before)


def altered(report, folder, **changes):
    """A copy whose record says otherwise."""
    shutil.copytree(report.path, folder, dirs_exist_ok=True)
    record = msgspec.structs.replace(read_record(folder), **changes)
    (folder / RECORD_FILE).write_bytes(msgspec.json.encode(record))
    return folder


def ego(num_nodes, num_edges):
    rng = np.random.default_rng(num_nodes)
    return rng.normal(size=(num_nodes, 6)).astype(np.float32), rng.integers(0, num_nodes, (2, num_edges))


def test_a_compiled_model_answers_what_the_module_answers_for_any_size(compiled):
    spec = read_spec(compiled.path)
    assert {"whole.pt2", "compiled.pt2", "compiled.json"} <= set(spec.files)
    whole = WholeModel(compiled.path, spec)
    assert (whole.compiled, whole.why_eager) == (True, "")
    for num_nodes, num_edges in ((1, 0), (1, 2), (3, 0), (20, 50), (500, 3000)):
        x, edge_index = ego(num_nodes, num_edges)
        with torch.no_grad():
            expected = Pooled().eval()(torch.from_numpy(x), torch.from_numpy(edge_index)).numpy()
        np.testing.assert_allclose(whole.run(x, edge_index, np.array([0])), expected, atol=1e-5)


def test_the_record_names_torch_and_the_machine(compiled):
    record = read_record(compiled.path)
    assert (record.torch, record.machine) == (torch.__version__, HERE)
    assert record.shapes > 5
    assert record.max_abs_diff < 1e-5
    assert any("compiled for torch" in note for note in compiled.notes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"torch": "2.0.0"}, "compiled by torch 2.0.0, and torch"),
        ({"machine": Machine("riscv64-linux")}, "compiled for riscv64-linux"),
        ({"machine": Machine(HERE.triple, (*HERE.features, "avx9"))}, "a processor with avx9"),
    ],
    ids=["torch", "system", "processor"],
)
def test_a_program_for_something_else_gives_way_to_the_eager_one(
    changes, reason, compiled, tmp_path, policy, caplog
):
    folder = altered(compiled, tmp_path / "1", **changes)
    whole = WholeModel(folder, compiled.spec)
    assert not whole.compiled
    assert reason in whole.why_eager
    assert reason in caplog.text
    x, edge_index = ego(9, 20)
    eager = whole.run(x, edge_index, np.array([0]))
    np.testing.assert_allclose(
        eager, WholeModel(compiled.path, compiled.spec).run(x, edge_index, np.array([0])), atol=1e-5
    )
    policy("require")
    with pytest.raises(ArtifactError, match=f"compute.compiled is 'require'.*{reason}"):
        WholeModel(folder, compiled.spec)


def test_a_file_that_torch_cannot_read_gives_way_too(compiled, tmp_path):
    folder = altered(compiled, tmp_path / "1")
    (folder / "compiled.pt2").write_bytes(b"no archive")
    whole = WholeModel(folder, compiled.spec)
    assert not whole.compiled
    assert "cannot load it" in whole.why_eager


def test_compiled_programs_can_be_ignored(compiled, policy):
    policy("never")
    whole = WholeModel(compiled.path, compiled.spec)
    assert (whole.compiled, whole.why_eager) == (False, "")


def test_a_machine_with_more_than_was_compiled_for_runs_it():
    record = CompiledRecord("2", Machine("x86_64-linux", ("avx", "fma")), 0.0, 1, 1.0)
    assert record.misfit("2", Machine("x86_64-linux", ("avx", "avx512f", "fma"))) == ""


def test_instructions_are_read_from_cpuinfo_and_nothing_else(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t: fpu sse4_2 avx2 md_clear hypervisor ibrs fma\n")
    assert Machine.here(cpuinfo).features == ("avx2", "fma", "sse4_2")
    cpuinfo.write_text("Features : fp asimd sve cpuid\n")
    assert Machine.here(cpuinfo).features == ("asimd", "sve")
    assert Machine.here(tmp_path / "absent").features == ()


def test_a_server_runs_it_and_counts_where_it_cannot(compiled, tmp_path):
    folder = altered(compiled, tmp_path / "models" / "old" / "1", torch="2.0.0")
    spec = msgspec.structs.replace(compiled.spec, name="old")
    files = {file: sha256_of(folder / file) for file in spec.files}
    (folder / "model.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(spec, files=files)))
    shutil.copytree(compiled.path, tmp_path / "models" / "pooled" / "1")
    molecules().save(tmp_path / "graph")

    async def told():
        settings = {"models.repository": tmp_path / "models", "graph.path": tmp_path / "graph"}
        service = Service(load_config(overrides={key: str(value) for key, value in settings.items()}))
        await service.start()
        try:
            compiled = {name: service.describe(name).properties["compiled"] for name in ("old", "pooled")}
            return compiled, service.metrics.render().decode()
        finally:
            await service.close()

    compiled_here, metrics = asyncio.run(told())
    assert compiled_here == {"old": False, "pooled": True}
    assert 'hopline_compiled_fallbacks_total{model="old",version="1"} 1' in metrics
    assert 'hopline_compiled_fallbacks_total{model="pooled",version="1"} 0' in metrics


def test_serving_it_needs_no_compiler_and_loads_none(compiled):
    code = f"""
import sys
from pathlib import Path
import numpy as np
from hopline.artifact import read_spec
from hopline.runtimes.torch import WholeModel
folder = Path({str(compiled.path)!r})
whole = WholeModel(folder, read_spec(folder))
whole.run(np.zeros((2, 6), np.float32), np.zeros((2, 1), np.int64), np.array([0]))
print(whole.compiled, "torch._inductor.codecache" in sys.modules, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False", "False"]


def test_a_machine_without_a_compiler_is_reported_before_any_work(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackagingError, match=r"--compile needs a C\+\+ compiler.*apt-get install"):
        package(tmp_path / "models", compile=True)
    monkeypatch.setenv("CXX", "absent-g++ -O2")
    with pytest.raises(PackagingError, match="CXX is 'absent-g"):
        compiling.check_compiler()
    assert not (tmp_path / "models").exists()


def test_split_only_and_compiled_contradict(tmp_path):
    with pytest.raises(PackagingError, match="served whole, and runtime 'onnx' excludes them"):
        package(tmp_path, runtime="onnx", compile=True)


def test_a_split_model_is_not_compiled_and_the_report_says_so(tmp_path):
    report = hopline.package(
        pyg.SAGEConv(6, 3), homogeneous(), tmp_path, name="m", fanouts=[4], task="multiclass", compile=True
    )
    assert any("not compiled: the model is split" in note for note in report.notes)


def test_what_the_compiler_refuses_is_packaged_without_it(tmp_path, monkeypatch, caplog):
    def refuses(*arguments, **options):
        raise RuntimeError("\n  no kernel for aten::odd\nand a long trace")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", refuses)
    report = package(tmp_path, compile=True)
    assert set(report.spec.files) == {"whole.pt2", "whole.json"}
    assert "AOTInductor refuses it: RuntimeError: no kernel for aten::odd" in report.notes[-1]
    assert "is not compiled" in caplog.text


def test_code_that_differs_is_not_written(tmp_path, monkeypatch, compiled):
    def wrong(program, *, package_path, inductor_configs):
        shutil.copy(compiled.path / "compiled.pt2", package_path)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", wrong)
    model = Pooled()
    with torch.no_grad():
        model.lin.bias += 0.5
    report = hopline.package(
        model,
        molecules(),
        tmp_path,
        name="m",
        fanouts=[-1] * MOLECULE_HOPS,
        task="multiclass",
        runtime="torch",
        compile=True,
    )
    assert set(report.spec.files) == {"whole.pt2", "whole.json"}
    assert "the compiled program is wrong: its answer on 1 node nodes and 0" in report.notes[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_whole_model_on_a_gpu_that_is_not_there_is_refused(compiled, policy, caplog):
    caplog.set_level(logging.INFO)
    policy("auto", "cuda")
    with pytest.raises(ConfigError, match=r"compute.device: 'cuda'.*torch .* finds no device"):
        WholeModel(compiled.path, compiled.spec)
