"""Inputs of the Open Inference Protocol that do not belong together are refused with what does."""

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline.transports.oip import request_from_tensors
from hopline.transports.tensors import tensor_from_array

IDS, ROWS = np.array([4, 7]), np.ones((2, 3), np.float32)


def asked(parameters=None, **inputs):
    tensors = [tensor_from_array(name, array) for name, array in inputs.items()]
    return request_from_tensors("m", "", tensors, (), parameters or {}, "", None, None)


@pytest.mark.parametrize(
    ("inputs", "parameters", "message"),
    [
        ({"node_ids": IDS, "src_ids": IDS, "dst_ids": IDS}, {}, "either 'node_ids' or 'src_ids' and 'dst"),
        ({"src_ids": IDS}, {}, "'dst_ids' is missing; pairs need 'src_ids' and 'dst_ids'"),
        ({"src_ids": IDS, "dst_ids": IDS[:1]}, {}, "'src_ids' has 2 ids and 'dst_ids' has 1"),
        ({"features": ROWS, "neighbors": IDS}, {}, "also needs input 'neighbor_counts'"),
        ({"features": ROWS, "neighbors": IDS, "neighbor_counts": IDS}, {}, "add up to the 2 ids"),
        ({"features": ROWS}, {"inline": '[{"features": [1, 2, 3]}]'}, "both in inputs and in parameter"),
        ({"node_ids": IDS, "as_of": IDS[:1]}, {"as_of": 5}, "both an input and a parameter"),
        ({"node_ids": IDS, "as_of": IDS}, {}, "'as_of' has 2 values; expected one"),
        ({"node_ids": IDS}, {"as_of": True}, "as_of must be a number or text, not True"),
    ],
)  # fmt: skip
def test_inputs_that_exclude_or_need_each_other_are_named(inputs, parameters, message):
    with pytest.raises(BadRequest, match=message):
        asked(parameters, **inputs)


def test_a_repeated_input_is_named():
    tensor = tensor_from_array("node_ids", IDS)
    with pytest.raises(BadRequest, match="an input is repeated: 'node_ids, node_ids'"):
        request_from_tensors("m", "", [tensor, tensor], (), {}, "", None, None)
