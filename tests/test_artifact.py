"""Whatever can be written as model.json can be read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.artifact import FORMAT_VERSION, Head, ModelSpec, Stage, read_artifact, read_spec, write_spec
from hopline.errors import ArtifactCorrupted, ArtifactError, PackagingError
from hopline_tabular.spec import Column, TabularSpec

GRAPH = ModelSpec(
    name="risk",
    version="1",
    task="binary",
    num_layers=1,
    graph_schema={},
    fanouts={"node__to__node": (5,)},
    head=Head("node", 1),
    levels=({"node": Stage(4)},),
)
TABLE = TabularSpec("price", "1", "regression", (Column("amount", "float"),), ("logits",), 1)


def read(spec, folder):
    """The artifact of a folder, of the same kind as a spec."""
    return read_artifact(folder, type(spec), "tabular" if spec is TABLE else "graph")


@pytest.mark.parametrize(
    ("spec", "field", "value", "message"),
    [
        (GRAPH, "task", "classification", "task: 'classification' is not one of multiclass, binary"),
        (GRAPH, "sampling", "random", "sampling: 'random' is not one of uniform, recent, weighted"),
        (TABLE, "task", "multilabel", "task: 'multilabel' is not one of binary, multiclass, regression"),
        (GRAPH, "classes", (0, 1), r"risk/1: cannot be written: .*str.*classes"),
        (GRAPH, "salt", "seven", r"risk/1: cannot be written: .*int.*salt"),
        (GRAPH, "fanouts", {"e": (2.5,)}, r"risk/1: cannot be written: .*int.*fanouts"),
        (GRAPH, "max_degree", object(), r"risk/1: cannot be written: .*object"),
        (GRAPH, "head", Head("node", 1, kind="graph"), r"risk/1: cannot be written: .*graph.*head\.kind"),
    ],
)
def test_what_could_not_be_read_is_refused_and_nothing_is_written(tmp_path, spec, field, value, message):
    with pytest.raises(PackagingError, match=message):
        write_spec(tmp_path, msgspec.structs.replace(spec, **{field: value}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spec", [GRAPH, TABLE])
def test_a_newer_format_is_refused_before_what_only_it_has(tmp_path, spec):
    content = msgspec.to_builtins(spec) | {"format": FORMAT_VERSION + 1, "task": "of a newer version"}
    (tmp_path / "model.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(ArtifactError, match=rf"format {FORMAT_VERSION + 1} is newer.*upgrade hopline"):
        read(spec, tmp_path)


_TEXT = st.text(max_size=20)
_ANY = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXT, st.lists(_TEXT, max_size=3))


@given(
    st.sampled_from([GRAPH, TABLE]),
    st.sampled_from(["task", "sampling", "classes", "parity", "version", "file", "kind"]),
    _ANY,
)
def test_whatever_is_written_can_be_read(tmp_path_factory, spec, field, value):
    if not hasattr(spec, field):
        return
    folder = tmp_path_factory.mktemp("version")
    (folder / "model.onnx").write_bytes(b"")
    try:
        written = write_spec(folder, msgspec.structs.replace(spec, **{field: value}))
    except PackagingError:
        assert not (folder / "model.json").exists()
        return
    assert msgspec.json.encode(read(spec, folder)) == msgspec.json.encode(written)


def test_a_file_that_is_not_there_cannot_be_named(tmp_path):
    with pytest.raises(PackagingError, match=r"price/1: cannot be written: no file .*model\.onnx"):
        write_spec(tmp_path, TABLE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["head.onnx", "1.onnx"])
def test_files_without_a_hash_are_refused(tmp_path, name):
    for each in ("head.onnx", "1.onnx"):
        (tmp_path / each).write_bytes(b"{}")
    head, levels = Head("node", 1, file="head.onnx"), ({"node": Stage(4)}, {"node": Stage(4, "1.onnx")})
    write_spec(tmp_path, msgspec.structs.replace(GRAPH, head=head, levels=levels))
    content = msgspec.json.decode((tmp_path / "model.json").read_bytes())
    del content["files"][name]
    (tmp_path / "model.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(ArtifactCorrupted, match=f"{name}: this model reads it"):
        read_spec(tmp_path, verify=False)


def test_a_model_says_its_runtime():
    assert GRAPH.runtime == "onnx"


def test_a_model_that_an_earlier_version_packaged_whole_is_refused_with_the_remedy(tmp_path):
    content = msgspec.to_builtins(GRAPH) | {
        "levels": [],
        "whole_file": "whole.pt2",
        "why_whole": "it mixes",
    }
    for runtime in ("torch", "onnx"):  # "onnx" is what earlier versions wrote for a split model
        (tmp_path / "model.json").write_bytes(msgspec.json.encode(content | {"runtime": runtime}))
        if runtime == "onnx":
            assert read_spec(tmp_path).name == GRAPH.name
            continue
        with pytest.raises(ArtifactError, match=r"packaged whole by an earlier Hopline.*Package it again"):
            read_spec(tmp_path)
