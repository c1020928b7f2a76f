"""Labels of nodes: one reader for all jobs, of files as programs write them."""

import numpy as np
import pytest

from hopline.errors import BadRequest, NodeNotFound
from hopline.graph import IdIndex
from hopline_compress.labels import read_labels

NAMES = ["n0", "a,b", 'q"x', "010", "é"]
NUMBERS = [10, 20, 30]
CLASSES = ("low", "mid", "high")


def labels_of(path, content, ids=NAMES, classes=CLASSES):
    path.write_bytes(content.encode())
    labels = read_labels(path, IdIndex.build(ids, "ids"), classes, 3)
    return {ids[row]: label for row, label in enumerate(labels.tolist()) if label >= 0}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("n0,1\n010,2\n", {"n0": 1, "010": 2}),
        ("id,label\nn0,1\n", {"n0": 1}),
        ("node,y\nn0,1\n", {"n0": 1}),
        ("\ufeffid,class\r\nn0,low\r\n\r\n010, high \r\n", {"n0": 0, "010": 2}),
        ('"a,b","1"\n"q""x",mid\n', {"a,b": 1, 'q"x': 1}),
        ("n0,-1\né,2\n", {"é": 2}),
        ("n0,1\nn0,mid\n", {"n0": 1}),
    ],
)
def test_labels_as_programs_write_them(tmp_path, content, expected):
    assert labels_of(tmp_path / "labels.csv", content) == expected


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        ("n0,1\n010,2\nn0,2\n", BadRequest, "node 'n0' has the classes 1 and 2; list each node once"),
        ("n0,1\nn0,-1\n", BadRequest, "node 'n0' has the classes 1 and -1"),
        ("n0\n", BadRequest, "line 1: 1 columns; expected id,class"),
        ("n0,1\n010,01\n", BadRequest, "line 2: class '01' is unknown"),
        ("n0,1\n010,+1\n", BadRequest, r"line 2: class '\+1' is unknown"),
        ("n0,1\n010,\u0661\n", BadRequest, "line 2: class '\u0661' is unknown"),
        ("n0,1\n10,1\n", NodeNotFound, "no nodes '10'"),
        ("", BadRequest, "no node has a class"),
    ],
)
def test_labels_that_do_not_fit(tmp_path, content, error, match):
    with pytest.raises(error, match=match):
        labels_of(tmp_path / "labels.csv", content)


def test_integer_ids_and_arrays(tmp_path):
    assert labels_of(tmp_path / "labels.csv", "id,label\n20,1\n", NUMBERS) == {20: 1}
    with pytest.raises(BadRequest, match="line 2: '020' is not an integer id"):
        labels_of(tmp_path / "labels.csv", "10,1\n020,1\n", NUMBERS)
    np.save(tmp_path / "labels.npy", np.array([0, -1, 2]))
    index = IdIndex.build(NUMBERS, "ids")
    assert read_labels(tmp_path / "labels.npy", index, (), 3).tolist() == [0, -1, 2]
    with pytest.raises(BadRequest, match="classes 2 are unknown; the model has 0 to 1"):
        read_labels(tmp_path / "labels.npy", index, (), 2)
