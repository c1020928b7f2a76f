"""What cannot be quantised, or not with what is given, is refused by name; nothing appears."""

import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hopline.artifact import read_spec, write_spec
from hopline.errors import ArtifactError, BadRequest, NodeNotFound, PackagingError, SchemaMismatch
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline_compress.quantize.run import QuantizeOptions, quantize
from hopline_tabular.spec import Column, TabularSpec
from packages.compress.tests.quantize.conftest import DIM, hubs

QUICK = QuantizeOptions(calibration=32, eval_nodes=64, max_drop=100.0)


@pytest.fixture
def refused(tmp_path):
    """Quantise into an empty place, and expect this error and nothing written."""

    def run(error, match, folder, graph, options=QUICK, **names):
        with pytest.raises(error, match=match):
            quantize(folder, graph, tmp_path / "written", options, **names)
        assert not (tmp_path / "written").exists()

    return run


def test_calibration_data_of_another_width(cases, refused):
    narrower = hubs(dim=DIM - 4)
    refused(SchemaMismatch, rf"sage/1 does not fit .*{DIM}", cases["sage"].folder, narrower)


def test_calibration_data_of_another_schema(cases, refused):
    rng = np.random.default_rng(0)
    users = NodeTable(rng.standard_normal((30, DIM)).astype(np.float32))
    edges = EdgeTable(rng.integers(0, 30, (2, 60)))
    graph = Graph.from_tables({"user": users}, {("user", "knows", "user"): edges})
    refused(SchemaMismatch, "does not fit graph .*'node'", cases["sage"].folder, graph)


def test_calibration_nodes_that_the_graph_does_not_have(cases, refused):
    options = replace(QUICK, nodes=["n1", "nobody", "n2"])
    refused(NodeNotFound, "nobody", cases["sage"].folder, cases["sage"].graph, options)


def test_rows_that_are_no_numbers(cases, refused):
    features = np.full((30, DIM), 3e38, np.float32)  # two of them are infinite
    names = [f"n{i}" for i in range(30)]
    graph = Graph.from_edges([names[:-1] * 3, names[1:] * 3], features, ids=names)
    refused(
        BadRequest, r"calibration data: input .* of 1\.node has .* not finite", cases["sage"].folder, graph
    )


def test_a_table_model(cases, refused, tmp_path):
    folder = tmp_path / "trees" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"x")
    columns = (Column("amount", "float"),)
    write_spec(folder, TabularSpec("trees", "1", "binary", columns, ("probabilities",), 2))
    refused(
        ArtifactError, "trees/1 is a tabular model; a graph model is needed", folder, cases["sage"].graph
    )


def test_a_version_that_is_quantised_already(cases, refused, tmp_path):
    case = cases["states"]
    done = quantize(case.folder, case.graph, tmp_path, QUICK)
    refused(PackagingError, "quantised already", tmp_path / "states" / done.new_version, case.graph)
    # Also where model.json does not say so.
    plain = shutil.copytree(done.path, tmp_path / "plain")
    write_spec(plain, msgspec.structs.replace(read_spec(plain), parity={}))
    refused(PackagingError, r"quantised already \(it has DequantizeLinear", plain, case.graph)


def test_no_layer_that_could_be_quantised(cases, refused):
    case = cases["states"]
    options = replace(QUICK, exclude=("1.node", "2.node"))
    refused(PackagingError, "no layer can be quantised: .*--exclude", case.folder, case.graph, options)


def test_a_layer_to_exclude_that_is_none(cases, refused):
    options = replace(QUICK, exclude=("3.node",))
    with_names = r"--exclude '3.node': no such layer; the layers are: 1\.node/"
    refused(BadRequest, with_names, cases["states"].folder, cases["states"].graph, options)


def test_a_version_that_exists_is_kept_unless_requested(cases, tmp_path):
    case = cases["states"]
    (tmp_path / "states" / "2").mkdir(parents=True)
    with pytest.raises(PackagingError, match="exists"):
        quantize(case.folder, case.graph, tmp_path, QUICK, new_version="2")
    assert not list((tmp_path / "states" / "2").iterdir())
    overwrite = replace(QUICK, overwrite=True)
    assert quantize(case.folder, case.graph, tmp_path, overwrite, new_version="2").new_version == "2"


def test_the_original_is_never_replaced(cases):
    case = cases["states"]
    overwrite = replace(QUICK, overwrite=True)
    with pytest.raises(PackagingError, match="the original itself"):
        quantize(case.folder, case.graph, case.repository, overwrite, new_version="1")


def test_labels_that_do_not_fit(cases, refused, tmp_path):
    options = replace(QUICK, labels=tmp_path / "labels.csv")
    options.labels.write_text("n1,2\nn2,40\n")
    case = cases["sage"]
    refused(BadRequest, "classes 40 are unknown; the model has 0 to 39", case.folder, case.graph, options)


def test_labels_for_a_model_that_has_none(cases, refused, tmp_path):
    case = cases["states"]
    options = replace(QUICK, labels=tmp_path / "labels.npy")
    match = "embedding of nodes; labels are for multiclass and binary"
    refused(BadRequest, match, case.folder, case.graph, options)
