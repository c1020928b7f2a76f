"""Faults that a programmer could write, each planted by replacing a function of the code that serves.

A plant takes pytest's `monkeypatch`. Compiled kernels are replaced where Python calls them.
"""

from __future__ import annotations

import copy
import types

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from hopline.engine import answer, chain, descent, ego, interner, level, model, outputs, stage
from hopline.packaging import lower, pack, packager, proxy, split, trace
from hopline.packaging.dense import base, gat, gatv2, gcn, gin, gine, graph, rgcn, sage, transformer

FAULTS = {}


def fault(family, planted_in, *, runtime="onnx"):
    """Register a plant: the family of faults, the model of the test that runs the faulty code."""

    def register(plant):
        FAULTS[plant.__name__] = (family, plant, planted_in, runtime)
        return plant

    return register


def after(patch, owner, name, change):
    """Have `change(result, *args)` answer in place of what `owner.name(*args)` answers."""
    right = getattr(owner, name)

    def wrong(*args, **kwargs):
        result = right(*args, **kwargs)
        return change(result, *args, **kwargs)

    patch.setattr(owner, name, wrong)


# --- tracing ---


@fault("tracing", "in_place")
def change_in_place_is_dropped(patch):
    patch.setattr(trace, "without_changes", lambda module, describe: None)


@fault("tracing", "item_set")
def assignment_to_columns_is_dropped(patch):
    patch.setattr("hopline.packaging.functional.set_item", lambda tensor, index, value: tensor.clone())


@fault("tracing", "branch")
def branch_on_a_width_goes_the_other_way(patch):
    after(patch, proxy.RunningTracer, "to_bool", lambda decided, *_: not decided)


@fault("tracing", "batch_norm")
def module_is_traced_in_training_mode(patch):
    patch.setattr(packager, "frozen_copy", lambda module: copy.deepcopy(module).train())


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
    patch.setitem(base._REDUCTIONS, base.aggr.SumAggregation, "mean")


@fault("dense", "sage")
def bias_is_dropped(patch):
    patch.setattr(sage, "as_linear", lambda module: base.linear(module.weight))


@fault("dense", "sage")
def root_weight_is_dropped(patch):
    after(patch, sage.DenseSAGE, "forward", lambda _, self, near, own=None: self.neighbour(near))


@fault("dense", "gcn")
def added_self_loop_is_lost(patch):
    after(
        patch,
        gcn,
        "Need",
        lambda need, *_, **__: base.Need("reduce", need.edge_type, "source", "gcn_noself"),
    )


@fault("dense", "graph_conv")
def edge_weight_is_ignored(patch):
    after(
        patch,
        lower,
        "ConvCall",
        lambda call, **_: base.ConvCall(**(fields(call) | {"has_edge_weight": False})),
    )


@fault("dense", "gat")
def attention_runs_over_the_padding(patch):
    right = gat.attend
    patch.setattr(gat, "attend", lambda s, v, mask, *loop: right(s, v, torch.ones_like(mask), *loop))


@fault("dense", "gat")
def heads_are_added_instead_of_averaged(patch):
    def wrong(out, self, *_):
        return out if self.concat else self.heads * (out - self.bias) + self.bias

    after(patch, gat.DenseGAT, "forward", wrong)


@fault("dense", "gat")
def attention_vector_of_another_head(patch):
    right = gat._fold
    patch.setattr(gat, "_fold", lambda weight, attention: right(weight, attention.roll(1, 1)))


@fault("dense", "gatv2")
def existing_self_loops_are_counted_twice(patch):
    right = gatv2.attend

    def wrong(scores, values, mask, loop_scores, loop_values):
        return right(scores, values, mask, loop_scores, 2 * loop_values)

    patch.setattr(gatv2, "attend", wrong)


@fault("dense", "transformer")
def attention_is_not_scaled(patch):
    patch.setattr(transformer, "math", types.SimpleNamespace(sqrt=lambda _: 1.0))


@fault("dense", "gin")
def epsilon_is_forgotten(patch):
    after(patch, gin.DenseGIN, "forward", lambda _, self, near, own=None: self.nn(near + own))


@fault("dense", "gine")
def messages_of_padding_are_added(patch):
    right = gine.total
    patch.setattr(
        gine, "total", lambda rows, mask: right(rows + (~mask).unsqueeze(-1).float(), mask | True)
    )


@fault("dense", "rgcn")
def relations_are_in_another_order(patch):
    after(patch, rgcn, "relation_weights", lambda weights, _: weights.flip(0))


@fault("dense", "hetero")
def conv_reads_another_edge_type_of_the_same_source(patch):
    def wrong(key, self):
        return {"paper__cites__paper": "author__writes__paper"}.get(key, key)

    right = base.ConvCall.edge_type.fget
    patch.setattr(base.ConvCall, "edge_type", property(lambda self: wrong(right(self), self)))


@fault("dense", "graph_conv")
def own_rows_are_multiplied_by_the_neighbours_weight(patch):
    after(
        patch, graph.DenseGraphConv, "__init__", lambda _, self, call: setattr(self, "own", self.neighbour)
    )


# --- cutting into stages ---


@fault("stages", "lifted")
def own_columns_start_at_the_first(patch):
    patch.setattr(split._Builder, "_range", lambda self, place, start, stop: (0, stop - start))


@fault("stages", "skip")
def skip_connection_is_read_from_the_wrong_level(patch):
    def wrong(_, self):
        if len(self.env) > 1:
            one, other = list(self.env)[:2]
            self.env[one], self.env[other] = self.env[other], self.env[one]

    after(patch, split._Builder, "_load_own", wrong)


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

    def wrong(_, module, inputs, widths, path):
        if path.name != name:
            return
        written = onnx.load(path)
        for tensor in written.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.ndim == 2:
                tensor.CopyFrom(numpy_helper.from_array(change(array.copy()), tensor.name))
        onnx.save(written, path)

    after(patch, packager, "export_stage", wrong)


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

    after(patch, pack, "_linear", wrong)


@fault("files", "sage")
def bias_of_a_packed_gemm_is_dropped(patch):
    right = pack._replace
    patch.setattr(
        pack,
        "_replace",
        lambda graph, names, old, root, weight, _: right(graph, names, old, root, weight, None),
    )


@fault("files", "sage")
def packed_inputs_are_in_another_order(patch):
    right = pack._merge
    patch.setattr(pack, "_merge", lambda graph, names: right(graph, names[::-1]))


# --- the engine, models in stages ---


def without_last(rows, offsets):
    """Edge lists without the last edge of each."""
    keep = np.ones(int(offsets[-1]), np.bool_)
    keep[offsets[1:][np.diff(offsets) > 0] - 1] = False
    kept = np.concatenate([[0], np.cumsum(np.maximum(np.diff(offsets) - 1, 0))])
    return rows[: offsets[-1]][keep], kept


@fault("engine", "sage")
def reduction_skips_the_last_neighbour(patch):
    right = stage.gather_reduce

    def wrong(own, own_rows, c, w, p, rows_of, rows, offsets, *rest):
        first = offsets[0]
        right(own, own_rows, c, w, p, rows_of, *without_last(rows[first:], offsets - first), *rest)

    patch.setattr(stage, "gather_reduce", wrong)


@fault("engine", "gcn")
def degrees_are_off_by_one(patch):
    def wrong(_, *args):
        args[-1][:] += 1

    after(patch, level, "weighted_degrees", wrong)


@fault("engine", "max")
def isolated_nodes_keep_the_row_of_an_earlier_call(patch):
    right = stage.reduce_max

    def wrong(rows_of, rows, offsets, column, width, out, place):
        before = out.copy()
        right(rows_of, rows, offsets, column, width, out, place)
        isolated = np.flatnonzero(np.diff(offsets) == 0)
        out[isolated] = before[isolated]

    patch.setattr(stage, "reduce_max", wrong)


@fault("engine", "gine")
def edge_attributes_are_read_from_the_start(patch):
    def wrong(view, self, rows_of, rows, nodes, block, as_of):
        view.attr = np.asarray(self.adjacency.attr)[: block.num_edges]
        return view

    after(patch, level.Relation, "view", wrong)


@fault("engine", "sage")
def repeated_ids_get_the_newest_row(patch):
    def wrong(rows, self, *_):
        newest = np.maximum.accumulate(rows)
        rows[:] = newest
        return rows

    after(patch, interner.Interner, "add", wrong)


@fault("engine", "gcn")
def level_below_is_read_by_another_row_on_the_way_down(patch):
    def wrong(found, self, need, as_of):
        if need.own_rows is not None and len(need.compute) > 1:
            need.own_rows = need.own_rows[: len(need.compute)][::-1].copy()
        return found

    after(patch, descent.Descent, "run", wrong)


@fault("engine", "sage")
def chain_divides_no_mean(patch):
    def wrong(result, self, k, *_):
        self._frames[k, chain.MEAN] = 0
        return result

    after(patch, chain.Chain, "_fill", wrong)


@fault("engine", "few")
def chain_samples_one_neighbour_less(patch):
    def wrong(result, self, k, *_):
        self._frames[k, chain.FANOUT] -= 1
        return result

    after(patch, chain.Chain, "_fill", wrong)


@fault("engine", "sage")
def chain_answers_a_batch_in_reverse(patch):
    after(patch, chain.Chain, "run", lambda rows, *_: rows[::-1])


@fault("engine", "sage")
def general_way_answers_a_batch_in_reverse(patch):
    after(
        patch, model, "execute", lambda found, *_, **__: {name: rows[::-1] for name, rows in found.items()}
    )


@fault("engine", "few")
def fanouts_are_read_from_the_input_side(patch):
    patch.setattr("hopline.artifact.ModelSpec.fanout", lambda self, key, at: self.fanouts[key][at - 1])


@fault("engine", "sage")
def answers_of_a_batch_go_to_the_wrong_request(patch):
    def wrong(results, self, requests):
        if results is not None and len(results) > 1:
            whole = np.concatenate([result.outputs["logits"] for result in results])
            for result in results:
                result.outputs["logits"] = whole[: len(result.outputs["logits"])]
        return results

    after(patch, answer.Answerer, "_answer_plain", wrong)


@fault("engine", "sage")
def requests_that_name_outputs_get_the_first_rows(patch):
    def wrong(found, self, names, node_type, ids, as_of):
        return {name: values[:1].repeat(len(values), 0) for name, values in found.items()}

    after(patch, answer.Answerer, "_outputs", wrong)


# --- the engine, models served whole ---


@fault("ego", "whole", runtime="torch")
def edges_beside_an_ego_graph_lead_to_the_seed(patch):
    def wrong(slots, *_):
        for name, edges in slots.items():
            if name.startswith("edge_index"):
                edges[:, -ego._FURTHER :] = np.arange(ego._FURTHER)
        return slots

    after(patch, ego.EgoModel, "_tensors", wrong)


@fault("ego", "whole", runtime="torch")
def edges_are_reversed(patch):
    def wrong(slots, *_):
        return {name: rows[::-1] if name.startswith("edge_index") else rows for name, rows in slots.items()}

    after(patch, ego.EgoModel, "_tensors", wrong)


@fault("ego", "whole", runtime="torch")
def ego_graph_has_one_hop_less(patch):
    def wrong(slots, self, node_type, seed, as_of):
        kept, self._samplers = self._samplers, self._samplers[:-1]
        try:
            return right(self, node_type, seed, as_of)
        finally:
            self._samplers = kept

    right = ego.EgoModel._slots
    after(patch, ego.EgoModel, "_slots", wrong)


@fault("ego", "whole", runtime="torch")
def edge_attributes_are_one_row_off(patch):
    def wrong(slots, *_):
        return {n: np.roll(rows, 1, 0) if n.startswith("edge_attr") else rows for n, rows in slots.items()}

    after(patch, ego.EgoModel, "_tensors", wrong)


@fault("ego", "fast_rgcn", runtime="torch")
def relations_are_numbered_from_the_last(patch):
    def wrong(slots, *_):
        return slots | {"edge_type:*": slots["edge_type:*"].max() - slots["edge_type:*"]}

    after(patch, ego.EgoModel, "_tensors", wrong)


# --- after the model ---


@fault("post-processing", "sage")
def softmax_runs_over_the_nodes(patch):
    def wrong(logits, out):
        powers = np.exp(logits - logits.max(0))
        out[:] = powers / powers.sum(0)

    patch.setattr(outputs, "softmax", wrong)


@fault("post-processing", "multilabel")
def sigmoid_is_applied_twice(patch):
    right = outputs.sigmoid

    def wrong(logits, out):
        right(logits, out)
        right(out.copy(), out)

    patch.setattr(outputs, "sigmoid", wrong)


@fault("post-processing", "multilabel")
def label_starts_at_a_probability_of_two_fifths(patch):
    patch.setattr(outputs, "labels", lambda task, logits: (logits >= np.log(0.4 / 0.6)).astype(np.int64))


@fault("post-processing", "sage")
def label_is_the_least_likely_class(patch):
    patch.setattr(outputs, "labels", lambda task, logits: logits.argmin(axis=1))


@fault("post-processing", "embedding")
def embedding_columns_are_shifted(patch):
    after(patch, model.Model, "_embedding", lambda rows, *_: np.roll(rows, 1, axis=1))


@fault("post-processing", "link")
def sides_of_a_pair_are_swapped(patch):
    right = model.Model.logits
    patch.setattr(model.Model, "logits", lambda self, *states: right(self, *states[::-1]))


@fault("activation", "sigmoid")
def activation_of_the_module_is_applied_again(patch):
    patch.setattr(packager, "logits_below", lambda traced, output, task: output)


@fault("activation", "sigmoid", runtime="torch")
def inverse_of_the_activation_is_left_out(patch):
    patch.setattr(packager, "ToLogits", lambda task: torch.nn.Identity())


def fields(struct):
    """A dataclass with slots as a dict."""
    return {name: getattr(struct, name) for name in type(struct).__dataclass_fields__}
