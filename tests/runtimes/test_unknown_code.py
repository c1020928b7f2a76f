"""Explanations of codes that a table lacks: the code, the table's entries, and where the code is."""

import pytest
import torch
from torch import nn

from hopline.runtimes.unknown_code import UnknownCode, unknown_code


class Tables(nn.Module):
    """Looks `x` up; only an index counts from the end."""

    def __init__(self, look_up):
        super().__init__()
        self.emb, self.look_up = nn.Embedding(12, 2), look_up

    def forward(self, seed, x):
        return self.look_up(self.emb, x).index_select(0, seed)


def explained(look_up, x):
    rows = torch.tensor(x)
    program = torch.export.export(
        Tables(look_up), (torch.tensor([0]), torch.zeros(rows.shape)), strict=False
    ).module()
    given = (torch.tensor([0]), rows)
    with pytest.raises((IndexError, RuntimeError)) as info:
        program(*given)
    return unknown_code(info.value, program, given, {"features:node": rows.numpy()})


@pytest.mark.parametrize(
    ("look_up", "x", "place"),
    [
        (lambda emb, x: emb(x[:, 1].long()), [[0.0, 3.0], [0.0, -2.0]], (-2, 1, 1)),
        (lambda emb, x: emb.weight[x[:, 0].long()], [[-1.0, 3.0], [12.5, 0.0]], (12, 1, 0)),
        (lambda emb, x: emb(x[:, 1:].long()).sum(1), [[9.0, 3.0, 1.0], [9.0, 0.0, 40.0]], (40, 1, 2)),
        (lambda emb, x: emb((x[:, 0] + 20).long()), [[1.0], [2.0]], (21, -1, -1)),  # of no column
    ],
    ids=["embedding", "index", "two codes of a node", "computed"],
)
def test_a_code_is_found_with_its_place(look_up, x, place):
    found = explained(look_up, x)
    assert (found.code, found.row, found.column) == place
    assert found.num_entries == 12


def test_other_errors_are_not_about_codes():
    assert unknown_code(RuntimeError("no memory"), None, (), {}) is None
    other = unknown_code(RuntimeError("index out of bounds: 0 <= tmp3 < 12L"), object(), (), {})
    assert isinstance(other, UnknownCode)
    assert "without an entry" in str(other)
