"""model.json says what it likes: a model is refused, or answers, and reads nothing but its own rows."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.artifact import read_spec
from hopline.engine.model import load_model
from hopline.errors import ArtifactCorrupted, ArtifactError, HoplineError
from tests.thorough import thorough

CASES = ("sage", "plain", "gcn", "gat", "mixed", "aggregated", "general", "hetero", "link")


def copied(case, to, change):
    folder = shutil.copytree(case.folder, to / "1")
    content = json.loads((folder / "model.json").read_bytes())
    change(content)
    content.pop("digest", None)  # the change is meant
    (folder / "model.json").write_text(json.dumps(content))
    return folder


def answer(folder, graph):
    model = load_model(folder, read_spec(folder), graph)
    head = model.spec.head.node_type
    return model.final_states({head: np.arange(graph.nodes[head].num_nodes)})


def stage_of(content, level=-1, node_type="node"):
    return content["levels"][level][node_type]


def input_of(content, kind, level=-1):
    return next(each for each in stage_of(content, level)["inputs"] if each["kind"] == kind)


WRONG = [
    ("gcn", lambda m: m["head"].update(node_type="other"), "node type 'other' is not in graph_schema"),
    ("gcn", lambda m: m["head"].update(embedding=[0, 10**6]), r"embedding \[0, 1000000\] are not within"),
    ("gcn", lambda m: m["fanouts"].update(other=[3, 4]), "edge type 'other' is not in graph_schema"),
    ("gcn", lambda m: m["fanouts"].update(node__to__node=[3]), "1 fanouts of .* for 2 layers"),
    ("gcn", lambda m: m["fanouts"].update(node__to__node=[3, -7]), r"fanouts .* are \[3, -7\]"),
    ("gcn", lambda m: m["fanouts"].clear(), "no fanouts of edge type 'node__to__node'"),
    ("gcn", lambda m: m["levels"].pop(), "2 levels for 2 layers"),
    ("gcn", lambda m: m.update(max_degree=0), "max_degree is 0"),
    ("gcn", lambda m: m.update(runtime="torch"), "packaged whole by an earlier Hopline"),
    ("gcn", lambda m: input_of(m, "reduce").update(columns=[0, 10**6]), "are not within"),
    ("gcn", lambda m: input_of(m, "reduce").update(columns=[-9, 2]), r"columns \[-9, 2\] are not within"),
    ("gcn", lambda m: input_of(m, "reduce").update(edge_type="x"), "edge type 'x' is not in graph_schema"),
    ("gcn", lambda m: stage_of(m, 1).update(state_dim=10**4), "differs from model.json"),
    ("sage", lambda m: stage_of(m, 1).update(state_dim=2**31), "state_dim is 2147483648, of 10"),
    ("sage", lambda m: stage_of(m, 0).update(state_dim=7), "state_dim is 7 of 6 features"),
    ("sage", lambda m: stage_of(m).pop("file"), "no file; only level 0 may have none"),
    ("sage", lambda m: stage_of(m)["inputs"].pop(), "differs from model.json"),
    ("gat", lambda m: input_of(m, "attend")["attention"].update(channels=10**4), "columns; gat of"),
    ("gat", lambda m: input_of(m, "attend")["attention"].update(heads=0), "0 heads"),
    ("gat", lambda m: input_of(m, "attend")["attention"].update(num_attr=9), "num_attr is 9"),
    ("gat", lambda m: input_of(m, "attend")["attention"].update(edge="AAA="), "edge has 2 bytes"),
    ("hetero", lambda m: m["head"].update(node_type="item"), "last level has no state|differs|columns"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "match"), WRONG)
def test_a_declaration_that_contradicts_the_model_is_refused(cases, tmp_path, name, change, match):
    folder = copied(cases[name], tmp_path, change)
    with pytest.raises(ArtifactError, match=match):
        answer(folder, cases[name].graph)


def leaves(value, place=()):
    """Places of all values in a JSON value."""
    yield place
    children = value.items() if isinstance(value, dict) else enumerate(value) if type(value) is list else ()
    for key, child in children:
        if key not in ("parity", "producer", "files", "name", "version", "digest"):
            yield from leaves(child, (*place, key))


OTHER = st.one_of(
    st.sampled_from(
        [-(2**63), -1, 0, 1, 2, 3, 5, 8, 16, 17, 2**31, 2**62, 0.5, True, None, "", "x", "user"]
    ),
    st.sampled_from(["item", "node", "node__to__node", "max", "gcn", "self", "features", [], {}, [0, 4]]),
    st.sampled_from(
        [[0, 10**6], [-4, 2], [3, 1], [5], "AAAA", "gat", "transformer", "binary", "embedding"]
    ),
)


@pytest.mark.parametrize("name", CASES)
def test_a_fanout_far_beyond_the_degrees_takes_all_neighbours(cases, tmp_path, name):
    def change(fanout):
        def changed(content):
            content["fanouts"] = {key: [fanout] * len(each) for key, each in content["fanouts"].items()}

        return answer(copied(cases[name], tmp_path / str(fanout), changed), cases[name].graph)

    all_of_them = change(-1)
    for fanout in (100_000, 2**31 - 1):
        for node_type, rows in change(fanout).items():
            np.testing.assert_allclose(rows, all_of_them[node_type], atol=1e-5)
    with pytest.raises(ArtifactError, match="-1 takes all neighbours"):
        change(2**31)


@settings(max_examples=thorough(62, 250), deadline=None)
@given(data=st.data(), name=st.sampled_from(CASES))
def test_any_changed_declaration_is_refused_or_answered(cases, tmp_path_factory, data, name):
    def change(content):
        places = [place for place in leaves(content) if place]
        *above, last = data.draw(st.sampled_from(places))
        for key in above:
            content = content[key]
        if data.draw(st.booleans()):
            content[last] = data.draw(OTHER)
        else:
            del content[last]

    folder = copied(cases[name], tmp_path_factory.mktemp("changed"), change)
    try:
        found = answer(folder, cases[name].graph)
    except HoplineError:
        return
    assert all(np.isfinite(rows).all() for rows in found.values())


@pytest.mark.parametrize("name", CASES)
def test_a_file_without_a_hash_is_refused(cases, tmp_path, name):
    for file in cases[name].folder.rglob("*.onnx"):
        at = file.relative_to(cases[name].folder).as_posix()
        folder = copied(cases[name], tmp_path / file.stem, lambda m, at=at: m["files"].pop(at))
        for verify in (True, False):
            with pytest.raises(ArtifactCorrupted, match=f"{at}: this model reads it, and .* no sha256"):
                read_spec(folder, verify=verify)
