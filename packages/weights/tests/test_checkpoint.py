"""Weights as people save them: loaded, or a message that says what the file is.

The oracle is the module that was saved.
"""

import argparse
import copy
import io
import json
import struct
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch_geometric.nn import GATConv, SAGEConv

from hopline.errors import PackagingError
from hopline_weights.checkpoint import load_weights


class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(4, hidden), SAGEConv(hidden, 3)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, x, edge_index):
        return self.conv2(self.norm(self.conv1(x, edge_index)).relu(), edge_index)


class Lit(nn.Module):
    """What a Lightning module looks like to its state dict."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


@pytest.fixture
def trained():
    torch.manual_seed(7)
    net = Net()
    net.norm.running_mean += 1
    return net


def same(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def prefixed(state, prefix):
    return {f"{prefix}{name}": value for name, value in state.items()}


OPTIMIZER = {
    "state": {0: {"exp_avg": torch.zeros(2), "step": torch.tensor(3.0)}},
    "param_groups": [{"lr": 0.1, "params": [0]}],
}

FORMS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state},
    "model_state_dict": lambda state: {
        "epoch": 3,
        "model_state_dict": state,
        "optimizer_state_dict": OPTIMIZER,
        "loss": torch.tensor(0.1),
    },
    "model": lambda state: {"model": state, "optimizer": OPTIMIZER, "args": argparse.Namespace(lr=0.1)},
    "net": lambda state: {"net": state, "acc": 93.1},
    "deep": lambda state: {"checkpoint": {"model": {"state_dict": state}}},
    "numpy scalars": lambda state: {"model": state, "best": np.float64(0.9), "at": np.int64(3)},
    "numpy arrays": lambda state: {"model": state, "curve": np.arange(3.0), "name": np.str_("run")},
    "DataParallel": lambda state: prefixed(state, "module."),
    "torch.compile": lambda state: prefixed(state, "_orig_mod."),
    "compiled DataParallel": lambda state: prefixed(state, "module._orig_mod."),
    "compiled part": lambda state: {
        name.replace("conv1.", "conv1._orig_mod."): state[name] for name in state
    },
    "DataParallel part": lambda state: {
        name.replace("conv1.", "conv1.module."): state[name] for name in state
    },
    "Lightning": lambda state: {
        "epoch": 3,
        "global_step": 10,
        "pytorch-lightning_version": "2.4",
        "state_dict": prefixed(state, "model."),
        "optimizer_states": [OPTIMIZER],
        "lr_schedulers": [],
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5), "dirpath": "x"}},
        "hyper_parameters": {"hidden": 8},
    },
    "Lightning, net": lambda state: {"state_dict": prefixed(state, "net.")},
    "Lightning, compiled": lambda state: {"state_dict": prefixed(state, "model._orig_mod.")},
    "half": lambda state: {
        name: value.half() if value.is_floating_point() else value for name, value in state.items()
    },
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("legacy", [False, True])
def test_weights_are_found_in_what_people_save(trained, tmp_path, form, legacy):
    if form == "half":
        trained = trained.half().float()
    torch.save(
        FORMS[form](trained.state_dict()), tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy
    )
    net = Net()
    load_weights(net, tmp_path / "a.pt")
    assert same(net, trained)
    assert net.conv1.lin_l.weight.dtype == torch.float32


def test_bfloat16_and_float64_become_what_the_module_has(trained, tmp_path):
    for dtype in (torch.bfloat16, torch.float64):
        saved = copy.deepcopy(trained).to(dtype)
        torch.save(saved.state_dict(), tmp_path / "a.pt")
        net = Net()
        load_weights(net, tmp_path / "a.pt")
        assert same(net, saved.float())


def test_tensors_of_a_gpu_come_to_the_cpu(trained, tmp_path):
    data = io.BytesIO()
    torch.save(trained.state_dict(), data, _use_new_zipfile_serialization=False)
    # As CUDA tensors are tagged; both names are lengths of one byte away from each other.
    tagged = data.getvalue().replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    assert tagged != data.getvalue()
    (tmp_path / "a.pt").write_bytes(tagged)
    net = Net()
    load_weights(net, tmp_path / "a.pt")
    assert same(net, trained)


def test_a_lazy_module_takes_its_sizes_from_the_weights(tmp_path):
    def lazy():
        return nn.ModuleDict({"a": SAGEConv(-1, 5), "b": GATConv(-1, 3), "c": nn.LazyLinear(2)})

    saved, x = lazy(), torch.ones(2, 4)
    edges = torch.tensor([[0], [1]])
    saved["a"](x, edges), saved["b"](x, edges), saved["c"](x)
    torch.save({"model": saved.state_dict()}, tmp_path / "a.pt")
    net = lazy()
    load_weights(net, tmp_path / "a.pt")
    assert same(net, saved)
    torch.save(lazy().state_dict(), tmp_path / "never.pt")
    with pytest.raises(PackagingError, match=r"never\.pt: .*(no values|Uninitialized)"):
        load_weights(lazy(), tmp_path / "never.pt")


def test_names_of_earlier_releases_are_the_layers_own_affair(tmp_path):
    def build(old):
        with pytest.warns(FutureWarning) if old else torch.no_grad():
            wrap = nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm
            return nn.Sequential(wrap(nn.Linear(3, 2)))

    saved = build(old=True)
    torch.save({"model": saved.state_dict()}, tmp_path / "a.pt")
    net = build(old=False)
    load_weights(net, tmp_path / "a.pt")
    assert torch.allclose(net[0].weight, saved[0].weight)


def test_averaged_weights_are_found(trained, tmp_path):
    averaged = AveragedModel(trained)
    torch.save(averaged.state_dict(), tmp_path / "a.pt")
    net = Net()
    load_weights(net, tmp_path / "a.pt")
    assert same(net, trained)


@pytest.mark.parametrize(
    ("main", "other"),
    [("state_dict", "state_dict_ema"), ("model", "ema_state_dict"), ("model_state_dict", "ema")],
)
def test_weights_and_their_average_are_an_ambiguity_that_a_key_ends(trained, tmp_path, main, other):
    average = Net()
    torch.save({main: trained.state_dict(), other: average.state_dict()}, tmp_path / "a.pt")
    with pytest.raises(PackagingError, match=rf"2 sets of weights.*{main}, {other}.*--state-dict-key"):
        load_weights(Net(), tmp_path / "a.pt")
    for key, saved in ((main, trained), (other, average)):
        net = Net()
        notes = load_weights(net, tmp_path / "a.pt", key=key)
        assert same(net, saved)
        assert f"weights under '{key}'" in notes[0]
    with pytest.raises(PackagingError, match=rf"no weights under --state-dict-key 'nope'.*{main}, {other}"):
        load_weights(Net(), tmp_path / "a.pt", key="nope")


def test_two_modules_in_one_state_dict_are_an_ambiguity(trained, tmp_path):
    lit = Lit(model=trained, ema_model=AveragedModel(Net()))
    torch.save({"state_dict": lit.state_dict()}, tmp_path / "a.ckpt")
    with pytest.raises(PackagingError, match=r"state_dict/ema_model\.module, state_dict/model"):
        load_weights(Net(), tmp_path / "a.ckpt")
    net = Net()
    load_weights(net, tmp_path / "a.ckpt", key="state_dict/model")
    assert same(net, trained)


def test_what_is_outside_of_the_prefix_is_reported(trained, tmp_path):
    lit = Lit(model=trained, criterion=nn.Linear(3, 3))
    torch.save({"state_dict": lit.state_dict()}, tmp_path / "a.ckpt")
    notes = load_weights(Net(), tmp_path / "a.ckpt")
    assert any("not used" in note and "criterion.weight" in note for note in notes)


def test_a_part_that_has_more_than_the_module_is_refused(trained, tmp_path):
    bigger = Lit(**dict(trained.named_children()), head=nn.Linear(3, 3))
    for state in (bigger.state_dict(), {"state_dict": prefixed(bigger.state_dict(), "model.")}):
        torch.save(state, tmp_path / "a.pt")
        net = Net()
        before = copy.deepcopy(net)
        with pytest.raises(PackagingError, match=r"2 not in the model: head\.weight, head\.bias"):
            load_weights(net, tmp_path / "a.pt")
        assert same(net, before)


def test_names_and_shapes_that_do_not_fit_are_listed(trained, tmp_path):
    state = trained.state_dict()
    for name in [name for name in state if name.startswith("conv2")]:
        del state[name]
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(PackagingError, match=r"does not fit Net; 3 missing: conv2\.lin_l\.weight, conv2"):
        load_weights(Net(), tmp_path / "a.pt")
    torch.save(trained.state_dict(), tmp_path / "a.pt")
    message = (
        r"9 of another shape or type: conv1\.lin_l\.weight is \[8, 4\], the model has \[16, 4\], .*"
        r" and 4 more; --init"
    )
    with pytest.raises(PackagingError, match=message):
        load_weights(Net(hidden=16), tmp_path / "a.pt")
    torch.save({f"layer.{i}.weight": torch.zeros(3) for i in range(9)}, tmp_path / "a.pt")
    with pytest.raises(
        PackagingError, match=r"10 missing: .* and 5 more; 9 not in the model: .* and 4 more"
    ):
        load_weights(Net(), tmp_path / "a.pt")


def test_a_module_of_plain_names_is_found_beside_other_tensors(tmp_path):
    saved = nn.Linear(3, 2)
    content = {**saved.state_dict(), "scaler": {"mean": torch.zeros(3)}, "epoch": 3}
    torch.save(content, tmp_path / "a.pt")
    net = nn.Linear(3, 2)
    assert load_weights(net, tmp_path / "a.pt") == []
    assert same(net, saved)


def test_a_wrapped_and_a_plain_copy_in_one_file_are_an_ambiguity(trained, tmp_path):
    for prefix in ("_orig_mod.", "module."):
        both = {**trained.state_dict(), **prefixed(Net().state_dict(), prefix)}
        torch.save(both, tmp_path / "a.pt")
        with pytest.raises(PackagingError, match=rf"2 sets of weights.*\., {prefix[:-1]};"):
            load_weights(Net(), tmp_path / "a.pt")
        net = Net()
        (note,) = load_weights(net, tmp_path / "a.pt", key=".")
        assert same(net, trained)
        assert f"not used, since they are outside of it: {prefix}conv1.lin_l.weight" in note


def test_a_loss_beside_the_weights_is_not_named_among_them(trained, tmp_path):
    torch.save({"loss": torch.tensor(0.5), "model": trained.state_dict()}, tmp_path / "a.pt")
    assert load_weights(Net(), tmp_path / "a.pt") == ["weights under 'model'"]
    with pytest.raises(PackagingError) as refused:
        load_weights(Net(hidden=4), tmp_path / "a.pt")
    assert "nor does" not in str(refused.value)


def test_two_values_for_a_shared_weight_are_refused(tmp_path):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

    state = Shared().state_dict()
    torch.save(state, tmp_path / "w.pt")
    module = Shared()
    assert load_weights(module, tmp_path / "w.pt") == []
    assert torch.equal(module.second.weight, state["first.weight"])
    state["second.weight"] = state["first.weight"] + 1
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(PackagingError, match=r"uses one tensor as first\.weight and second\.weight, but"):
        load_weights(module, tmp_path / "w.pt")


def test_weights_of_nan_are_not_two_values_for_one_weight(trained, tmp_path):
    weights = trained.state_dict() | {"conv1.lin_l.bias": torch.full((8,), float("nan"))}
    torch.save(weights, tmp_path / "w.pt")
    net = Net()
    load_weights(net, tmp_path / "w.pt")
    assert net.conv1.lin_l.bias.isnan().all()


def test_a_state_that_is_no_tensor_is_loaded(tmp_path):
    class Scaled(Net):
        scale = 1.0

        def get_extra_state(self):
            return {"scale": self.scale}

        def set_extra_state(self, state):
            self.scale = state["scale"]

    saved, loaded = Scaled(), Scaled()
    saved.scale = 3.0
    torch.save({"state_dict": prefixed(saved.state_dict(), "module.")}, tmp_path / "w.pt")
    load_weights(loaded, tmp_path / "w.pt")
    assert loaded.scale == 3.0
    torch.save(Net().state_dict(), tmp_path / "w.pt")
    with pytest.raises(PackagingError, match="1 missing: _extra_state"):
        load_weights(loaded, tmp_path / "w.pt")


def test_integers_are_no_weights(trained, tmp_path):
    state = {name: (value * 100).to(torch.int8) for name, value in trained.state_dict().items()}
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(PackagingError, match=r"conv1\.lin_l\.weight is int8, the model has float32"):
        load_weights(Net(), tmp_path / "a.pt")


class Whole(nn.Linear):
    """Pickled by name."""


def test_a_whole_module_needs_a_word(tmp_path):
    saved = Whole(3, 2)
    for content in (saved, {"model": saved, "optimizer": OPTIMIZER}):
        torch.save(content, tmp_path / "a.pt")
        with pytest.raises(
            PackagingError, match=r"class \S*Whole, not tensors.*--unsafe-pickle.*executes code"
        ):
            load_weights(Whole(3, 2), tmp_path / "a.pt")
        net = Whole(3, 2)
        load_weights(net, tmp_path / "a.pt", unsafe_pickle=True)
        assert same(net, saved)


def test_nothing_is_executed_without_that_word(tmp_path):
    class Attack:
        def __reduce__(self):
            return open, (str(tmp_path / "executed"), "w")

    for legacy in (False, True):
        torch.save({"model": Attack()}, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(PackagingError, match="--unsafe-pickle"):
            load_weights(Net(), tmp_path / "a.pt")
        assert not (tmp_path / "executed").exists()


def test_a_class_of_the_script_that_trained_is_found_in_the_models_file(tmp_path, monkeypatch):
    script = types.ModuleType("train_script")
    script.__file__ = str(tmp_path / "train_script.py")
    script.Part = type("Part", (nn.Linear,), {"__module__": "__main__"})
    script.Mine = type("Mine", (nn.Linear,), {"__module__": "train_script"})
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "Part", script.Part, raising=False)
    saved = script.Part(3, 2)
    torch.save(saved, tmp_path / "a.pt")
    monkeypatch.delattr(main, "Part")
    monkeypatch.setitem(sys.modules, "train_script", script)
    net = script.Mine(3, 2)
    load_weights(net, tmp_path / "a.pt", unsafe_pickle=True)
    assert same(net, saved)
    with pytest.raises(PackagingError, match="class cannot be imported here"):
        load_weights(nn.Linear(3, 2), tmp_path / "a.pt", unsafe_pickle=True)


def refusals():
    whole = io.BytesIO()
    torch.save(Net().state_dict(), whole)
    return {
        "empty": (b"", "is empty"),
        "text": (b"weights go here\n", "not a file of torch.save or safetensors"),
        "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        "cut off": (whole.getvalue()[:-100], "cut off or damaged"),
        "zip of something else": (b"PK\x03\x04" + bytes(40), "cut off or damaged"),
        "pickle cut off": (b"\x80\x02}q\x00", "cut off or damaged"),
    }


@pytest.mark.parametrize("kind", refusals())
def test_files_that_are_no_checkpoint_are_named(tmp_path, kind):
    content, message = refusals()[kind]
    (tmp_path / "a.pt").write_bytes(content)
    for unsafe in (False, True):
        with pytest.raises(PackagingError, match=rf"a\.pt: .*{message}"):
            load_weights(Net(), tmp_path / "a.pt", unsafe_pickle=unsafe)


def test_places_that_are_no_file_are_named(tmp_path):
    with pytest.raises(PackagingError, match="no such file"):
        load_weights(Net(), tmp_path / "absent.pt")
    with pytest.raises(PackagingError, match=r"a folder; expected one file of weights$"):
        load_weights(Net(), tmp_path)
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(PackagingError, match=r"a folder.*; it contains last\.ckpt"):
        load_weights(Net(), tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (OPTIMIZER, "holds the state of an optimizer"),
        ({"epoch": 3, "optimizer_state_dict": OPTIMIZER}, "holds the state of an optimizer"),
        ({"epoch": 3, "lr": 0.1}, "holds no weights; its keys are: epoch, lr"),
        ({}, "holds no weights; its keys are: none"),
        ([torch.zeros(3)], "holds a list"),
        (torch.zeros(3), "holds a Tensor"),
        (None, "holds a NoneType"),
    ],
)
def test_checkpoints_without_weights_say_what_they_hold(tmp_path, content, message):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(PackagingError, match=message):
        load_weights(Net(), tmp_path / "a.pt")


def test_torchscript_says_how_to_get_its_weights(tmp_path):
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.script(nn.Linear(3, 2)), tmp_path / "a.pt")
    with pytest.raises(PackagingError, match="TorchScript"):
        load_weights(nn.Linear(3, 2), tmp_path / "a.pt")


def safetensors_bytes(state):
    """The published layout, by hand: length, JSON of dtypes, shapes and offsets, then values."""
    head, body = {}, b""
    for name, value in state.items():
        raw = value.numpy().tobytes()
        kind = {torch.float32: "F32", torch.int64: "I64"}[value.dtype]
        head[name] = {
            "dtype": kind,
            "shape": list(value.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_safetensors_need_their_library(trained, tmp_path, monkeypatch):
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(trained.state_dict()))
    (tmp_path / "b.bin").write_bytes(safetensors_bytes(trained.state_dict()))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for name in ("a.safetensors", "b.bin"):
        with pytest.raises(PackagingError, match="pip install safetensors"):
            load_weights(Net(), tmp_path / name)


def test_safetensors_are_read_where_the_library_is(trained, tmp_path, monkeypatch):
    def load_file(path, device):
        assert device == "cpu"
        if path.read_bytes()[:1] == b"x":
            raise ValueError("header too large")
        return prefixed(trained.state_dict(), "model.")

    library, torch_side = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
    library.__spec__, torch_side.load_file = types.SimpleNamespace(), load_file
    monkeypatch.setitem(sys.modules, "safetensors", library)
    monkeypatch.setitem(sys.modules, "safetensors.torch", torch_side)
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes({}))
    net = Net()
    load_weights(net, tmp_path / "a.safetensors")
    assert same(net, trained)
    (tmp_path / "a.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(PackagingError, match="cannot be read as safetensors: ValueError: header too large"):
        load_weights(net, tmp_path / "a.safetensors")


KEYS = st.sampled_from(["state_dict", "model", "net", "module", "ema", "weights", "a.b"])
PREFIXES = st.lists(
    st.sampled_from(["module.", "_orig_mod.", "model.", "net.", "_forward_module."]), max_size=3
)


@given(st.lists(KEYS, max_size=3), PREFIXES)
def test_any_keys_around_and_any_prefix_before_the_names_give_the_same_weights(
    tmp_path_factory, keys, prefixes
):
    torch.manual_seed(3)
    saved = Net()
    content = prefixed(saved.state_dict(), "".join(prefixes))
    for key in keys:
        content = {key: content, "epoch": 1}
    file = tmp_path_factory.mktemp("checkpoint") / "a.pt"
    torch.save(content, file)
    net = Net()
    load_weights(net, file)
    assert same(net, saved)
