"""Rows that were computed before a graph changed: what still holds is looked up, and nobody can tell."""

import numpy as np
import pytest

from hopline.answering.lookup import DirectAnswers
from hopline.answering.precomputed_files import precomputed_rows
from hopline.config.schema import Config, PrecomputedConfig
from hopline.engine.answer import Answerer
from hopline.engine.precomputed_file import PrecomputedFile
from hopline.engine.tasks import default_outputs
from hopline.errors import PrecomputedFileError
from hopline.types import ScoreRequest
from tests.engine.test_live import Live
from tests.precomputed_files import write_table

NAMES = ["sage", "plain", "gcn", "gat", "mixed", "aggregated", "general", "hetero"]


def external(live, node_type):
    with live.view:
        nodes = live.view.nodes[node_type]
        found = nodes.ids.external(np.arange(nodes.num_nodes))
    return list(found) if nodes.ids.kind == "string" else np.asarray(found).tolist()


def answers(answerer, ids):
    with answerer.model.graph:
        (result,) = answerer.answer([ScoreRequest("m", nodes=ids)])
    return result


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_answers_with_precomputed_rows_are_those_of_a_fresh_build_after_any_changes(cases, tmp_path, name):
    live = Live(cases[name], seed=21)
    case = cases[name]
    path = write_table(tmp_path / "a.precomputed", case.folder, case.graph)
    model = live.model()
    spec = model.spec
    node_type, names = spec.head.node_type, default_outputs(spec)
    hybrid = Answerer(model, names, 1000)
    hybrid.rows = precomputed_rows([path], case.folder, spec, live.view, PrecomputedConfig())
    direct = DirectAnswers(hybrid.rows, model, name, "1", names, tuple(model.offers))
    looked_up = []
    for round_ in range(4):
        ids = external(live, node_type)
        fresh = live.fresh()
        (wanted,) = Answerer(fresh, names, 1000).answer([ScoreRequest("m", nodes=ids)])
        found = answers(hybrid, ids)
        for output in names:
            np.testing.assert_array_equal(found.outputs[output], wanted.outputs[output])
        at_once = 0
        for place, one in enumerate(ids):
            result = direct.answer(ScoreRequest("m", nodes=[one]), 0.0)
            if result is None:
                continue
            at_once += 1
            for output in names:
                np.testing.assert_array_equal(result.outputs[output][0], wanted.outputs[output][place])
        counts = dict(hybrid.row_counts)
        hybrid.row_counts.update(dict.fromkeys(counts, 0))
        assert counts["looked_up"] == at_once
        assert counts["new"] == round_
        assert sum(counts.values()) == len(ids)
        looked_up.append(at_once)
        live.change(2)
    assert looked_up[0] == len(external(live, node_type)) - 4
    assert looked_up == sorted(looked_up, reverse=True)
    assert looked_up[-1] < looked_up[0]
    direct.close()


def test_precomputed_rows_of_a_later_version_hold_for_earlier_changes(cases, tmp_path):
    live = Live(cases["sage"], seed=22)
    case = cases["sage"]
    live.change(6)
    path = write_table(
        tmp_path / "a.precomputed",
        case.folder,
        live.view.snapshot(),
        graph_version=f"{case.graph.version}+1",
    )
    model = live.model()
    (rows,) = precomputed_rows([path], case.folder, model.spec, live.view, PrecomputedConfig()).values()
    assert rows.good(np.arange(rows.num_rows)).all()
    live.change(6)
    good = rows.good(np.arange(rows.num_rows))
    fresh = live.fresh().final_states({"node": np.flatnonzero(good)})["node"]
    assert 0 < good.sum() < rows.num_rows
    np.testing.assert_array_equal(rows.states(np.flatnonzero(good)), fresh)


def test_a_precomputed_file_that_a_live_graph_cannot_check_is_refused(cases, tmp_path):
    case = cases["sage"]
    future = write_table(
        tmp_path / "a.precomputed", case.folder, case.graph, graph_version=f"{case.graph.version}+7"
    )
    other = write_table(tmp_path / "b.precomputed", case.folder, case.graph, graph_version="0" * 16)
    own = write_table(tmp_path / "c.precomputed", case.folder, case.graph)
    live, blind = Live(case, seed=23), Live(case, seed=23, num_levels=2)
    model = live.model()
    for path, graph in ((future, live.view), (other, live.view), (own, blind.view)):
        with pytest.raises(PrecomputedFileError, match="is served on"):
            precomputed_rows([path], case.folder, model.spec, graph, Config().precomputed)
    assert PrecomputedFile.open(own).header.plan.graph_version == live.view.version
