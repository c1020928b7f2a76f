"""The same of the engine: models in stages, and what becomes of logits."""

from __future__ import annotations

import numpy as np

from hopline.engine import (
    answer,
    attention,
    fused_plan,
    inline,
    interner,
    level,
    model,
    outputs,
    overlay,
    overlay_states,
    plan,
    stage,
    state_cache,
)
from tests.packaging.faults import after, fault

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

    def wrong(own, own_rows, c, w, out, p, rows_of, rows, offsets, *rest):
        first = offsets[0]
        right(own, own_rows, c, w, out, p, rows_of, *without_last(rows[first:], offsets - first), *rest)

    patch.setattr(stage, "gather_reduce", wrong)


@fault("engine", "gcn")
def degrees_are_off_by_one(patch):
    """Of the nodes themselves: one over its root is a factor of a coefficient."""

    def wrong(_, *args):
        *_, num_eligible, out, out_self = args
        offsets = args[-8]
        degree = num_eligible + 1.0
        factor = np.sqrt(degree / (degree + 1))
        out *= np.repeat(factor, np.diff(offsets)).astype(np.float32)
        out_self *= (factor * factor).astype(np.float32)

    after(patch, level, "gcn_edges", wrong)


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


def attends(patch, change):
    """Have `change(arguments)` change what the kernel of attention gets; arguments by name."""
    right = attention.attend
    code = right.py_func.__code__
    names = code.co_varnames[: code.co_argcount]

    def wrong(*args):
        given = dict(zip(names, args, strict=True))
        change(given)
        right(*given.values())

    patch.setattr(attention, "attend", wrong)


@fault("engine", "gat")
def attention_runs_over_the_padding(patch):
    """Each list of neighbours is followed by row 0, as an entry of padding would be."""

    def change(given):
        rows, offsets = given["rows"], given["offsets"]
        given["rows"] = np.insert(rows[: offsets[-1]], offsets[1:], 0)
        given["offsets"] = offsets + np.arange(len(offsets))
        if len(given["is_self"]):
            given["is_self"] = np.insert(given["is_self"][: offsets[-1]], offsets[1:], False)

    attends(patch, change)


@fault("engine", "gatv2")
def existing_self_loops_are_counted_twice(patch):
    attends(patch, lambda given: given.update(is_self=np.zeros(len(given["rows"]), np.bool_)))


@fault("engine", "transformer")
def attention_skips_the_last_neighbour(patch):
    def change(given):
        first = given["offsets"][0]
        rows, offsets = without_last(given["rows"][first:], given["offsets"] - first)
        given.update(rows=rows, offsets=offsets)

    attends(patch, change)


@fault("engine", "gatv2")
def attention_reads_the_query_of_another_node(patch):
    attends(patch, lambda given: given.update(query_rows=given["query_rows"][::-1].copy()))


@fault("engine", "attended")
def attention_reads_attributes_of_another_edge(patch):
    attends(patch, lambda given: given.update(attr=given["attr"][::-1].copy()))


@fault("engine", "sage")
def repeated_ids_get_the_newest_row(patch):
    def wrong(rows, self, *_):
        newest = np.maximum.accumulate(rows)
        rows[:] = newest
        return rows

    after(patch, interner.Interner, "add", wrong)


@fault("engine", "gcn")
def level_below_is_read_by_another_row_on_the_way_down(patch):
    def wrong(found, need):
        if need.own_rows is not None and len(need.compute) > 1:
            need.own_rows = need.own_rows[::-1].copy()
        return found

    after(patch, plan, "_number", wrong)


@fault("engine", "few")
def fused_plan_samples_one_neighbour_less(patch):
    def wrong(result, self, k, *_):
        self._frames[k, fused_plan.FANOUT] -= 1
        return result

    after(patch, fused_plan.FusedPlan, "_fill", wrong)


@fault("engine", "sage")
def fused_plan_divides_no_mean(patch):
    def wrong(result, self, k, *_):
        self._frames[k, fused_plan.MEAN] = 0
        return result

    after(patch, fused_plan.FusedPlan, "_fill", wrong)


@fault("engine", "few")
def fused_plan_answers_a_batch_in_reverse(patch):
    after(patch, fused_plan.FusedPlan, "run", lambda rows, *_: rows[::-1])


@fault("engine", "sage")
def engine_answers_a_batch_in_reverse(patch):
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


# --- the engine with a state cache ---


@fault("engine", "gcn")
def cached_rows_are_those_of_another_node(patch):
    right = state_cache.StateCache.write
    patch.setattr(
        state_cache.StateCache, "write", lambda self, ids, rows: right(self, np.roll(ids, 1), rows)
    )


@fault("engine", "gcn")
def cache_answers_what_was_asked_for_before(patch):
    def wrong(missing, self, ids, out):
        held = np.setdiff1d(np.arange(len(ids)), missing)
        out[held] = out[held[::-1]]
        return missing

    after(patch, state_cache.StateCache, "read", wrong)


# --- the engine, nodes that requests describe ---


@fault("engine", "gat")
def unseen_nodes_lose_their_last_neighbour(patch):
    def wrong(block, *_):
        (kept, block.offsets) = without_last(np.arange(block.num_edges), block.offsets)
        for each in (block.neighbors, block.positions):
            each[: len(kept)] = each[kept]
        block.num_edges = len(kept)
        return block

    after(patch, overlay_states.OverlayStates, "_sample", wrong)


@fault("engine", "few")
def references_among_unseen_nodes_lead_to_the_first(patch):
    def wrong(resolved, *_):
        resolved[0][resolved[0] >= overlay.ADDED] = overlay.ADDED
        return resolved

    after(patch, inline, "_resolve", wrong)


@fault("engine", "gcn_of_weighted")
def unseen_nodes_read_weights_that_the_model_does_not(patch):
    right = overlay.Lists.degrees
    patch.setattr(overlay.Lists, "degrees", lambda self, _, loops: right(self, True, loops))


@fault("engine", "gine")
def unseen_nodes_read_edge_attributes_in_reverse(patch):
    def wrong(values, nodes, key, incoming, lists, what, *_):
        return values[::-1].copy() if what == "edge_attr" else values

    after(patch, inline, "_edge_values", wrong)


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
    def shifted(found, *_):
        return {name: np.roll(rows, 1, axis=1) if rows.ndim == 2 else rows for name, rows in found.items()}

    after(patch, outputs, "named_outputs", shifted)


@fault("post-processing", "link")
def sides_of_a_pair_are_swapped(patch):
    right = model.Model.logits
    patch.setattr(model.Model, "logits", lambda self, *states: right(self, *states[::-1]))
