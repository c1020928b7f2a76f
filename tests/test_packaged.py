"""Fixtures' models are packaged once a run, and are what `hopline.package` writes."""

import pytest
import torch
from torch import nn

from hopline import packaging
from hopline.errors import PackagingError
from tests import packaged
from tests.engine import zoo

OPTIONS = {"name": "m", "fanouts": [2], "task": "multiclass", "check_nodes": 8}


class Small(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.conv, self.scale = zoo.SAGEConv(6, 3), scale

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) * self.scale


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Modules that were packaged indeed."""
    found = []
    right = packaging.package

    def counted(module, *args, **options):
        found.append(module)
        torch.rand(3)
        return right(module, *args, **options)

    monkeypatch.setattr(packaging, "package", counted)
    monkeypatch.setattr(packaged, "folder", tmp_path / "packaged")
    return found


def small(seed=0, **options):
    torch.manual_seed(seed)
    return Small(**options).eval()


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_equal_call_copies_what_the_first_one_wrote(calls, tmp_path):
    graph = zoo.homogeneous(1)
    reports, drawn = [], []
    for place in ("a", "b"):
        reports.append(packaged.package(small(), graph, tmp_path / place, **OPTIONS))
        drawn.append(torch.rand(2))
    assert len(calls) == 1
    assert [report.path for report in reports] == [tmp_path / place / "m" / "1" for place in ("a", "b")]
    assert files(reports[0].path) == files(reports[1].path)
    assert "model.json" in map(str, files(reports[0].path))
    assert reports[0].spec == reports[1].spec
    assert (drawn[0] == drawn[1]).all()


def test_another_module_graph_or_option_has_another_key():
    graph, other = zoo.homogeneous(1), zoo.homogeneous(2)
    trained = small()
    trained.conv.lin_l.weight.data[0, 0] += 1
    maximum = small()
    maximum.conv.aggr = "max"
    scaled, halved = small(), small()
    scaled.register_buffer("factor", torch.ones(1), persistent=False)
    halved.register_buffer("factor", torch.full((1,), 0.5), persistent=False)
    keys = [
        packaged.key_of(small(), graph, OPTIONS),
        packaged.key_of(scaled, graph, OPTIONS),
        packaged.key_of(halved, graph, OPTIONS),
        packaged.key_of(small(seed=1), graph, OPTIONS),
        packaged.key_of(small(scale=2.0), graph, OPTIONS),
        packaged.key_of(trained, graph, OPTIONS),
        packaged.key_of(maximum, graph, OPTIONS),
        packaged.key_of(small().train(), graph, OPTIONS),
        packaged.key_of(small(), other, OPTIONS),
        packaged.key_of(small(), graph, OPTIONS | {"fanouts": [3]}),
    ]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert packaged.key_of(small(), zoo.homogeneous(1), dict(reversed(OPTIONS.items()))) == keys[0]


def test_a_module_that_cannot_be_described_is_packaged_each_time(calls, tmp_path):
    graph = zoo.homogeneous(1)
    assert packaged.key_of(small(scale=torch.ones(1)), graph, OPTIONS) is None
    assert packaged.key_of(small(), graph, OPTIONS | {"head": nn.Linear(3, 3)}) is None

    hooked = small()
    hooked.conv.register_forward_hook(lambda *_: None)
    assert packaged.key_of(hooked, graph, OPTIONS) is None

    class Local(Small):
        pass

    assert packaged.key_of(Local(), graph, OPTIONS) is None
    for place in ("a", "b"):
        packaged.package(small(scale=torch.ones(1)), graph, tmp_path / place, **OPTIONS)
    assert len(calls) == 2


def test_what_was_refused_is_refused_again(calls, tmp_path):
    graph = zoo.homogeneous(1)
    for place in ("a", "b"):
        with pytest.raises(PackagingError):
            packaged.package(small(), graph, tmp_path / place, **OPTIONS | {"task": "nothing"})
