"""The program of sizes and its padding, on the processor; recordings where there is a GPU."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric import nn as pyg

from hopline.runtimes.cuda_graphs import (
    SIZES,
    RecordedProgram,
    on_gpu,
    padded,
    size_for,
)

SLOTS = ["features:node", "edge_index:node__to__node", "edge_weight:node__to__node"]


def made_up(num_nodes, num_edges):
    generator = torch.Generator().manual_seed(num_nodes)
    return [
        torch.randn(num_nodes, 6, generator=generator),
        torch.randint(0, num_nodes, (2, num_edges), generator=generator),
        torch.rand(num_edges, generator=generator) + 0.5,
    ]


EXAMPLES = made_up(3, 2)


class Nodes(nn.Module):
    """Answers the seed's own row, with edges between other nodes in nothing of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = pyg.GraphConv(6, 8), pyg.GraphConv(8, 3)

    def forward(self, seed, x, edge_index, edge_weight):
        h = self.b(self.a(x, edge_index, edge_weight).relu(), edge_index, edge_weight)
        return h.index_select(0, seed)


def replayed(program, inputs):
    """What a recording does, without a GPU: the same addresses, run again."""

    def replay():
        with torch.no_grad():
            return program(*inputs)

    return replay


@given(st.integers(0, 3000), st.integers(0, 6000))
@settings(max_examples=60, deadline=None)
def test_the_rung_is_the_lowest_that_holds_the_graph_and_a_node_more(num_nodes, num_edges):
    tensors = [torch.empty(num_nodes, 6), torch.empty(2, num_edges), torch.empty(num_edges)]
    fitting = [size for size in SIZES if num_nodes < size and num_edges <= 2 * size]
    assert size_for(SLOTS, tensors) == (fitting[0] if fitting else None)


@given(st.integers(1, 40), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_padding_keeps_the_graph_and_connects_only_what_nobody_requests(num_nodes, num_edges):
    tensors = made_up(num_nodes, num_edges)
    size = size_for(SLOTS, tensors)
    x, edge_index, weight = padded(SLOTS, tensors, size)
    assert (x.shape, edge_index.shape, weight.shape) == ((size, 6), (2, 2 * size), (2 * size,))
    assert torch.equal(x[:num_nodes], tensors[0])
    assert torch.equal(edge_index[:, :num_edges], tensors[1])
    assert not x[num_nodes:].any()
    assert (edge_index[:, num_edges:] == size - 1).all()
    assert size - 1 >= num_nodes


def test_small_graphs_run_from_recordings_and_answer_the_same():
    model = Nodes().eval()
    with torch.no_grad():
        program = RecordedProgram(model, SLOTS, EXAMPLES, replayed)
        assert sorted(program.recorded) == list(SIZES)
        # a smaller graph after a larger one finds nothing of it
        for num_nodes, num_edges in ((60, 110), (3, 2), (1, 0), (300, 700), (4000, 9000)):
            tensors = made_up(num_nodes, num_edges)
            seed = torch.tensor([num_nodes // 2])
            np.testing.assert_allclose(program(seed, *tensors), model(seed, *tensors), atol=1e-5)


def test_a_program_that_wants_two_edges_is_recorded():
    # torch.export treats sizes of 0 and 1 as constants, and writes the demand into the program
    class Wanting(Nodes):
        def forward(self, seed, x, edge_index, edge_weight):
            if edge_index.shape[1] < 2 or len(x) < 2:
                raise RuntimeError("Runtime assertion failed for expression u1 >= 2")
            return super().forward(seed, x, edge_index, edge_weight)

    with torch.no_grad():
        assert RecordedProgram(Wanting(), SLOTS, EXAMPLES, replayed).recorded.keys() == {*SIZES}


def test_what_cannot_be_recorded_runs_as_it_is(caplog):
    def refuses(program, inputs):
        raise RuntimeError("operation not permitted when stream is capturing")

    with torch.no_grad():
        program = RecordedProgram(Nodes(), SLOTS, EXAMPLES, refuses)
        tensors = made_up(9, 12)
        assert program(torch.tensor([0]), *tensors).shape == (1, 3)
    assert program.recorded == {}
    assert "not permitted" in caplog.text


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def exported():
    model = Nodes().eval()
    example = (torch.tensor([3]), *made_up(9, 12))
    rows, columns = {0: torch.export.Dim.DYNAMIC}, {1: torch.export.Dim.DYNAMIC}
    shapes = ({0: torch.export.Dim.STATIC}, rows, columns, rows)
    return model, torch.export.export(model, example, dynamic_shapes=shapes)


@on_a_gpu
def test_recordings_on_a_gpu_answer_what_the_processor_answers():
    model, whole = exported()
    program = on_gpu(whole, SLOTS)
    assert sorted(program.recorded) == list(SIZES)
    with torch.no_grad():
        for num_nodes, num_edges in ((3, 2), (60, 110), (4000, 9000)):
            tensors = made_up(num_nodes, num_edges)
            seed = torch.tensor([num_nodes - 1])
            np.testing.assert_allclose(program(seed, *tensors), model(seed, *tensors), atol=1e-4)


@on_a_gpu
def test_a_model_is_loaded_while_other_threads_use_the_gpu():
    ends, errors = threading.Event(), []

    def allocate():
        held = torch.cuda.Stream()
        with torch.cuda.stream(held):
            while not ends.is_set():
                try:
                    torch.ones(1 << 20, device="cuda").sum().item()
                    torch.cuda.empty_cache()  # so that the next round asks the driver for memory
                except RuntimeError as error:
                    errors.append(error)

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        programs = [on_gpu(exported()[1], SLOTS) for _ in range(3)]
    finally:
        ends.set()
        thread.join()
    assert errors == []
    assert [sorted(program.recorded) for program in programs] == [list(SIZES)] * 3
