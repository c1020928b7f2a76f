"""Faults that a programmer could write, each planted by replacing a function of the code that serves.

A plant takes pytest's `monkeypatch`. Compiled kernels are replaced where Python calls them.
"""

from __future__ import annotations

import copy
import dataclasses
import types

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch_geometric.nn import TransformerConv

from hopline.artifact import StageInput
from hopline.packaging import (
    arguments,
    edges,
    export,
    forwards,
    job,
    lower,
    packager,
    proxy,
    regions,
    split,
    stage_code,
    trace,
)
from hopline.packaging.dense import (
    aggregate,
    attend,
    base,
    groups,
)

FAULTS = {}


def fault(family, planted_in):
    """Register a plant: the family of faults, the model of the test that runs the faulty code."""

    def register(plant):
        FAULTS[plant.__name__] = (family, plant, planted_in)
        return plant

    return register


def after(patch, owner, name, change):
    """Have `change(result, *args)` answer in place of what `owner.name(*args)` answers."""
    right = getattr(owner, name)

    def wrong(*args, **kwargs):
        result = right(*args, **kwargs)
        return change(result, *args, **kwargs)

    patch.setattr(owner, name, wrong)


# --- what the arguments of forward receive: the same code calls the module that is compared with ---


def change_argument(patch, role, change):
    """Have `change(value)` be what arguments of this role receive."""
    right = arguments.Binding._value

    def wrong(self, name, asked, *rest):
        value = right(self, name, asked, *rest)
        return change(value) if asked == role else value

    patch.setattr(arguments.Binding, "_value", wrong)


def rotated(values):
    """Each key with the value of the next one."""
    return dict(zip(values, [*list(values.values())[1:], *list(values.values())[:1]], strict=True))


@fault("arguments", "attributed_types")
def edge_attributes_are_those_of_another_edge_type(patch):
    change_argument(patch, "edge_attr", rotated)


@fault("arguments", "equal_types")
def features_are_those_of_another_node_type(patch):
    change_argument(patch, "features", rotated)


@fault("arguments", "sage")
def edge_index_is_reversed(patch):
    change_argument(patch, "edge_index", lambda edges: edges.flip(0))


@fault("arguments", "rgcn")
def relations_of_the_module_are_numbered_from_the_last(patch):
    def wrong(slots, *_):
        return slots | {"edge_type:*": 2 - slots["edge_type:*"]}

    after(patch, arguments.Binding, "slots", wrong)


# --- tracing ---


@fault("tracing", "in_place")
def change_in_place_is_dropped(patch):
    patch.setattr(trace, "without_changes", lambda module: None)


@fault("tracing", "item_set")
def assignment_to_columns_is_dropped(patch):
    patch.setattr("hopline.packaging.trace.set_item", lambda tensor, index, value: tensor.clone())


@fault("tracing", "branch")
def branch_on_a_width_goes_the_other_way(patch):
    after(patch, proxy.RunningTracer, "to_bool", lambda decided, *_: not decided)


@fault("tracing", "batch_norm")
def module_is_traced_in_training_mode(patch):
    patch.setattr(packager, "eval_copy", lambda module: copy.deepcopy(module).train())


@fault("tracing", "adjacency")
def weights_of_an_adjacency_are_lost(patch):
    patch.setattr(trace._Tracer, "_with_weights", lambda self, conv, args, kwargs: kwargs)


@fault("tracing", "stacked")
def stack_over_columns_is_reduced_over_the_wrong_dimension(patch):
    def wrong(module):
        for node in module.graph.nodes:
            if node.target is torch.stack:
                node.kwargs = {"dim": 1}
                for user in list(node.users):
                    user.kwargs = {"dim": 2}

    patch.setattr(trace, "_stack_by_column", wrong)


# --- dense convolutions ---


@fault("dense", "graph_conv")
def mean_instead_of_sum(patch):
    patch.setitem(regions.REDUCTIONS, regions.aggr.SumAggregation, "mean")


def without_bias(_, traced, node, found):
    for conv in found.values():
        if isinstance(conv, lower.LoweredConv):
            conv.dense.bias = None


@fault("dense", "lifted")
def bias_of_a_map_that_runs_below_is_dropped(patch):
    after(patch, lower, "_commute", without_bias)


@fault("dense", "gcn")
def map_that_runs_after_a_reduction_is_the_one_before_transposed(patch):
    right = lower.linear
    patch.setattr(lower, "linear", lambda weight: right(weight.flip(0)))


@fault("dense", "gcn")
def added_self_loop_is_lost(patch):
    patch.setattr(regions, "_norm", lambda weight, edges: ("gcn_noself", False))


@fault("dense", "graph_conv")
def edge_weight_is_ignored(patch):
    after(
        patch,
        regions,
        "StageInput",
        lambda need, *_, **__: StageInput("", "reduce", need.edge_type, reduce=need.reduce),
    )


@fault("dense", "gat")
def heads_are_added_instead_of_averaged(patch):
    after(patch, attend.Attending, "joined", lambda out, self, *_: out if self.concat else self.heads * out)


@fault("dense", "gat")
def attention_vector_of_another_head(patch):
    right = attend._fold
    patch.setattr(attend, "_fold", lambda weight, attention: right(weight, attention.roll(1, 1)))


@fault("dense", "transformer")
def attention_is_not_scaled(patch):
    patch.setattr(attend, "math", types.SimpleNamespace(sqrt=lambda _: 1.0))


@fault("dense", "transformer_projected")
def keys_and_values_are_swapped(patch):
    def wrong(result, call):
        first, columns = result.prepare_source, call.conv.out_channels
        result.prepare_source = base.linear(first.weight.roll(columns, 0), first.bias.roll(columns, 0))
        return result

    after(patch, attend, "transformer", wrong)
    patch.setitem(attend.BUILDERS, TransformerConv, attend.transformer)


@fault("dense", "transformer")
def values_are_projected_as_keys(patch):
    right = attend.transformer

    def wrong(call):
        swapped = copy.deepcopy(call.conv)
        swapped.lin_value = swapped.lin_key
        return right(dataclasses.replace(call, conv=swapped))

    patch.setitem(attend.BUILDERS, TransformerConv, wrong)


@fault("dense", "transformer")
def bias_of_values_is_added_where_there_is_no_neighbour(patch):
    right = attend.Values.forward
    patch.setattr(
        attend.Values,
        "forward",
        lambda self, attended, count=None: right(
            self, attended, None if count is None else torch.ones_like(count)
        ),
    )


@fault("dense", "gat_projected")
def projected_attention_vector_of_another_head(patch):
    right = attend._fold
    patch.setattr(attend, "_fold", lambda weight, attention: right(weight, attention.roll(1, 1)))


def with_nobodys(patch, owner_of, name):
    """Have a function over the edges of nodes count edges of no node as those of the first one."""
    right = getattr(owner_of, name)

    def wrong(rows, owner, nodes):
        return right(rows, torch.where(owner == len(nodes) - 1, 0, owner), nodes)

    patch.setattr(owner_of, name, wrong)


@fault("dense", "attended_by_code")
def attention_runs_over_edges_of_no_node(patch):
    with_nobodys(patch, groups, "softmax_of_edges")


@fault("dense", "attended_by_code")
def self_loops_are_left_in(patch):
    patch.setattr(groups, "without", lambda owner, is_self, nodes: owner)


@fault("dense", "attended_by_code")
def attributes_of_added_self_loops_are_those_of_an_edge(patch):
    patch.setattr(
        groups, "loop_attributes", lambda fill, rows, owner, nodes: rows[:1].expand(len(nodes), -1)
    )


@fault("dense", "attended2_by_code")
def added_self_loops_have_no_rows(patch):
    right = stage_code.EdgeCode._neighbours

    def wrong(self, value, edges):
        flat = self.stage.flat
        self.stage.flat = lambda *args: self.graph.call_function(torch.zeros_like, (flat(*args),))
        found = right(self, value, edges)
        del self.stage.flat
        return found

    patch.setattr(stage_code.EdgeCode, "_neighbours", wrong)


@fault("dense", "transformer_by_code")
def neighbours_are_in_another_order(patch):
    right = stage_code.EdgeCode._neighbours

    def wrong(self, *args):
        return self.graph.call_method("flip", (right(self, *args), 0))

    patch.setattr(stage_code.EdgeCode, "_neighbours", wrong)


@fault("dense", "gine")
def messages_of_no_node_are_added(patch):
    with_nobodys(patch, aggregate, "total")


@fault("dense", "gen")
def softmax_runs_over_edges_of_no_node(patch):
    with_nobodys(patch, aggregate, "total")


@fault("dense", "pna")
def maximum_forgets_the_first_edge(patch):
    right = aggregate.highest
    patch.setattr(aggregate, "highest", lambda rows, owner, nodes: right(rows[1:], owner[1:], nodes))


@fault("dense", "pna")
def variance_is_of_the_sample(patch):
    def wrong(rows, edges, module):
        return right(rows, edges, module) * (edges.count / (edges.count - 1).clamp(min=1))

    right = aggregate._var
    patch.setattr(aggregate, "_var", wrong)


@fault("dense", "pna")
def scalers_are_applied_in_another_order(patch):
    after(
        patch,
        aggregate.EdgeAggregation,
        "__init__",
        lambda _, self, *rest: self._scalers.reverse(),
    )


@fault("dense", "pna")
def degrees_are_at_least_eight(patch):
    right = aggregate.EdgeAggregation._scale
    patch.setattr(
        aggregate.EdgeAggregation,
        "_scale",
        lambda self, name, count: right(self, name, count.clamp(min=8)),
    )


@fault("dense", "pna")
def maps_of_rows_side_by_side_are_exchanged(patch):
    right = edges.linear
    patch.setattr(edges, "linear", lambda weight, bias: right(weight.flip(1), bias))


@fault("dense", "pna")
def the_bias_of_a_divided_map_is_added_twice(patch):
    right = edges.linear
    patch.setattr(edges, "linear", lambda weight, bias: right(weight, bias if bias is None else 2 * bias))


@fault("dense", "several")
def aggregations_are_in_another_order(patch):
    after(patch, aggregate.EdgeAggregation, "forward", lambda parts, *_: parts.flip(1))


@fault("dense", "rgcn")
def relations_are_in_another_order(patch):
    right = forwards.torch.cat
    wrong = types.SimpleNamespace(**{**vars(torch), "cat": lambda parts, dim: right(parts[::-1], dim)})
    patch.setattr(forwards, "torch", wrong)


@fault("dense", "hetero")
def conv_reads_another_edge_type_of_the_same_source(patch):
    def wrong(key):
        return {"paper__cites__paper": "author__writes__paper"}.get(key, key)

    def of_another(call, **_):
        return dataclasses.replace(call, edge_type=wrong(call.edge_type))

    after(patch, lower, "ConvCall", of_another)


# --- cutting into stages ---


@fault("stages", "lifted")
def own_columns_start_at_the_first(patch):
    patch.setattr(stage_code.StageCode, "span", lambda self, place, start, stop: (0, stop - start))


@fault("stages", "skip")
def skip_connection_is_read_from_the_wrong_level(patch):
    def wrong(_, self):
        if len(self.env) > 1:
            one, other = list(self.env)[:2]
            self.env[one], self.env[other] = self.env[other], self.env[one]

    after(patch, stage_code.StageCode, "_load_own", wrong)


@fault("stages", "skip")
def values_of_a_state_lie_in_reverse_order(patch):
    right = split.Splitter.columns

    def wrong(self, place, node):
        start, stop = right(self, place, node)
        return self.total(place) - stop, self.total(place) - start

    patch.setattr(split.Splitter, "columns", wrong)


# --- ONNX files ---


def change_weights(patch, change, name):
    """Have `change(array)` take the place of each matrix of the file called `name`."""

    def wrong(packed, module, inputs, widths, path):
        if path.name != name:
            return packed
        written = onnx.load(path)
        for tensor in written.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.ndim == 2:
                tensor.CopyFrom(numpy_helper.from_array(change(array.copy()), tensor.name))
        onnx.save(written, path)
        return packed

    after(patch, job, "export_stage", wrong)


@fault("files", "sage")
def weights_are_rounded_to_bfloat16(patch):
    change_weights(patch, lambda w: torch.from_numpy(w).bfloat16().float().numpy(), "1.node.onnx")


@fault("files", "sage")
def one_weight_is_off_by_a_thousandth(patch):
    def wrong(weight):
        weight.flat[3] += 1e-3
        return weight

    change_weights(patch, wrong, "2.node.onnx")


@fault("files", "sage")
def weight_of_a_gemm_is_transposed(patch):
    def wrong(found, *_):
        return found if found is None else (np.ascontiguousarray(found[0].T), found[1])

    after(patch, export, "_linear", wrong)


@fault("files", "sage")
def bias_of_a_packed_gemm_is_dropped(patch):
    right = export._replace
    patch.setattr(
        export,
        "_replace",
        lambda graph, old, weight, _: right(graph, old, weight, None),
    )


@fault("files", "sage")
def packed_inputs_are_in_another_order(patch):
    right = export._pack

    def wrong(graph, inputs):
        graph.inputs[:] = list(graph.inputs)[::-1]
        return right(graph, inputs)

    patch.setattr(export, "_pack", wrong)


# --- the module's own activation ---


@fault("activation", "sigmoid")
def activation_of_the_module_is_applied_again(patch):
    patch.setattr(job.heads, "logits_below", lambda traced, output, task: output)


@fault("activation", "clamped")
def inverse_of_the_activation_is_left_out(patch):
    patch.setattr(job, "ToLogits", lambda *outputs: torch.nn.Identity())


def fields(struct):
    """A dataclass with slots as a dict."""
    return {name: getattr(struct, name) for name in type(struct).__dataclass_fields__}
