"""Kept tables of torch's exporter: files are those of torch's own, and nothing is left behind."""

import pytest
import torch
from torch import nn
from torch.export import exported_program
from torch.onnx._internal.exporter import _fx_passes, _registration
from torch.onnx._internal.fx.passes import type_promotion

from hopline.packaging.export import _keep_tables, export


class Mixed(nn.Module):
    """Operators that read several dtypes, integers or a size, beside such as read fractions alone."""

    def forward(self, x):
        codes = (x[:, :1] * 2).long()
        known = x.abs().add(2).exp() * (x > 0) + codes / 2 - codes.sum(1, keepdim=True)
        return torch.where(x > 1, known + x.size(0), codes.float()) + codes.exp() + x.sum() * 3


#: Operators with and without an ONNX form of their own, composed ones, and such as torch decomposes.
MODULES = {
    "linear": nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LayerNorm(5)),
    "composed": nn.Sequential(nn.Linear(6, 4), nn.Softmax(1), nn.SELU(), nn.Softplus()),
    "activations": nn.Sequential(nn.Mish(), nn.Hardtanh(), nn.GLU(), nn.LogSigmoid()),
    "decomposed": nn.Sequential(nn.BatchNorm1d(6), nn.ReLU(inplace=True)),
}
KEPT = [
    (_fx_passes, "decompose_with_registry"),
    (_fx_passes, "insert_type_promotion_nodes"),
    (_registration.ONNXRegistry, "from_torchlib"),
]


@pytest.fixture(autouse=True, scope="module")
def _kept():
    _keep_tables()


def written(module, path):
    export(module.eval(), [torch.zeros(7, 6)], [{0: torch.export.Dim("n", min=1)}], ["x"], "h", path)
    return path.read_bytes()


def kernels():
    return {op: dict(op.py_kernels) for op in exported_program._collect_all_valid_cia_ops()}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MODULES)
def test_a_file_is_that_of_torchs_own_exporter(name, tmp_path):
    torch.manual_seed(0)
    found = [written(MODULES[name], tmp_path / f"{turn}.onnx") for turn in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        for place, function in KEPT:
            torchs = getattr(place, function).__wrapped__
            patch.setattr(place, function, staticmethod(torchs) if function == "from_torchlib" else torchs)
        own = written(MODULES[name], tmp_path / "own.onnx")
    assert found == [own] * 3


class InPlace(nn.Module):
    def forward(self, x):
        return torch.relu_(x * 2)


class Converted(nn.Module):
    def forward(self, x):
        return 1 - x.float()


class Listed(nn.Module):
    """A list of one tensor: ONNX has a form for several only."""

    def forward(self, x):
        return sum(each.relu() for each in x.chunk(1, 1))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("module", "is_decomposed"),
    [
        (MODULES["linear"], False),
        (nn.BatchNorm1d(6), False),
        (Converted(), False),
        (MODULES["decomposed"], True),
        (InPlace(), True),
        (Listed(), True),
    ],
)
def test_only_what_has_no_form_or_changes_or_lists_tensors_is_decomposed(
    module, is_decomposed, tmp_path, monkeypatch
):
    decompose, calls = exported_program.ExportedProgram.run_decompositions, []

    def counted(*args, **options):
        calls.append(args)
        return decompose(*args, **options)

    monkeypatch.setattr(exported_program.ExportedProgram, "run_decompositions", counted)
    written(module, tmp_path / "a.onnx")
    assert bool(calls) == is_decomposed


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("module", "is_promoted"), [*((each, False) for each in MODULES.values()), (Mixed(), True)]
)
def test_only_a_program_that_mixes_dtypes_is_run_again_for_conversions(
    module, is_promoted, tmp_path, monkeypatch
):
    run, calls = type_promotion.InsertTypePromotion.run, []

    def counted(*args):
        calls.append(args)
        return run(*args)

    monkeypatch.setattr(type_promotion.InsertTypePromotion, "run", counted)
    file = written(module, tmp_path / "a.onnx")
    assert bool(calls) == is_promoted
    always = _fx_passes.insert_type_promotion_nodes.__wrapped__
    monkeypatch.setattr(_fx_passes, "insert_type_promotion_nodes", always)
    assert written(module, tmp_path / "always.onnx") == file


def test_a_version_of_torch_that_is_not_known_keeps_its_own(monkeypatch):
    for place, function in KEPT:
        monkeypatch.setattr(place, function, getattr(place, function))
    before = [getattr(place, function) for place, function in KEPT]
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    _keep_tables.__wrapped__()
    assert [getattr(place, function) for place, function in KEPT] == before


def test_an_export_leaves_no_kernel_behind(tmp_path):
    before = kernels()
    written(MODULES["composed"], tmp_path / "first.onnx")
    written(MODULES["composed"], tmp_path / "second.onnx")
    assert kernels() == before
