"""A pipeline that cannot be served is refused when it is loaded, and told where it is wrong."""

import importlib.metadata

import pytest

from hopline.answering.limits import ModelLimits
from hopline.config.schema import Config
from hopline.errors import ArtifactError, ModelNotReady, PipelineInvalid
from hopline.models.local_repository import LocalRepository
from hopline.observe.metrics import Metrics
from hopline_pipelines import load_pipeline
from hopline_pipelines.offline import Offline
from hopline_pipelines.spec import parse_pipeline, read_pipeline
from packages.pipelines.tests.rig import Rig, gnn, trees
from packages.pipelines.tests.test_run import FRAUD, ROUTE, ensemble
from tests.fake_version import FakeVersion


def test_a_kind_whose_package_is_missing_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "pipeline.toml").write_text("")
    with pytest.raises(ArtifactError, match=r"m/1 is a pipeline model, .*: pip install"):
        Offline(LocalRepository(tmp_path)).describe("m", None)


def refused(text, *models, says, name="fraud"):
    known = models or (gnn(), trees(), gnn("europe"), gnn("large"), gnn("world"), link(), gnn("plain"))
    with pytest.raises(PipelineInvalid) as caught:
        Rig(text, *known, *(gnn(each) for each in "abc"), name=name)
    assert says in str(caught.value)
    return str(caught.value)


def link():
    return FakeVersion("link", "link", {}, {"probabilities": ("FP32", ())}, lambda request: {})


def steps(*tables, outputs='score = "b.x"', inputs='columns = { amount = "FP32" }'):
    return (
        f"[inputs]\n{inputs}\n"
        + "\n".join(f"[[step]]\n{each}" for each in tables)
        + f"\n[outputs]\n{outputs}"
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        # the file
        ("[inputs]", "[inputs", "not valid TOML"),
        ("nodes = true", 'nodes = "yes"', "inputs.nodes: Expected `bool`, got `str`"),
        ("nodes = true", "nodes = true\nedges = true", "unknown field `edges`"),
        ('kind = "rules"', 'kind = "rule"', "step 'decision', kind: Invalid value 'rule'"),
        ('id = "trees"', 'id = "trees"\nspeed = 1', "step 'trees': Object contains unknown field `speed`"),
        ('default = "allow"', "", "step 'decision': Object missing required field `default`"),
        ("[inputs]", 'name = "x"\n[inputs]', "name is the folder's name"),
        # names
        ('id = "gnn"', 'id = "trees"', "step 'trees': two steps have this id"),
        ('id = "gnn"', 'id = "input"', "this id means something else"),
        ('id = "gnn"', 'id = "g-n"', "an id is a name of letters"),
        ('id = "gnn"', 'id = "in"', "an id is a name of letters"),
        ("gnn.embedding", "gmn.embedding", "step 'trees', columns.emb_*: gmn.embedding: there is no step"),
        ("gnn.embedding", "gmn.embedding", "did you mean 'gnn'?"),
        ("gnn.embedding", "gnn.embeding", "step 'gnn' has no output 'embeding'; did you mean 'embedding'?"),
        ("attributes.country", "attributes.land", "no attribute 'land' is declared; there are country"),
        ('"decision.decision"', '"decision.verdict"', "output 'decision'"),
        ("[outputs]", '[outputs]\nmissing = "trees.label"', "'missing' tells which rows are null"),
        ("[inputs]", 'default_outputs = ["scores"]\n[inputs]', "no output 'scores'; did you mean 'score'?"),
        # models
        ('model = "gnn"', 'model = "fraud"', "is this pipeline"),
        ('model = "gnn"', 'model = "none"', "step 'gnn': no model 'none'; there are: gnn, trees"),
        ('model = "gnn"', 'model = "link"', "step 'gnn': nodes: model 'link' takes pairs, no nodes"),
        ('model = "gnn"', 'model = "trees"', "nodes: model 'trees' takes columns, no nodes"),
        ('nodes = "input.nodes"', "", "step 'gnn': nodes: model 'gnn' needs them"),
        ('nodes = "input.nodes"', 'nodes = "input.amount"', "'input.amount' is FP32 [n]; ids of 'gnn'"),
        ('nodes = "input.nodes"', 'nodes = "input.nodes"\noutputs = ["x"]', "model 'gnn' has no 'x'"),
        ('nodes = "input.nodes"', 'nodes = "input.nodes"\noutputs = ["label"]', "has no 'label'"),
        ('nodes = "input.nodes"', 'nodes = "input.nodes"\ntimeout_ms = 0', "timeout_ms: 0.0 is"),
        ('model = "trees"', 'model = "trees"\nfill = 0', "fill: model 'trees' takes no nodes"),
        # columns
        ('"*" = "input.columns", ', "", "model 'trees' needs 'amount', which nothing feeds"),
        ('"emb_*"', '"em_*"', "columns.em_0: model 'trees' has no such column; did you mean 'emb_0'?"),
        ('"emb_*"', '"emb_*_*"', "more than one *"),
        ('"emb_*" = "gnn.embedding"', '"emb_*" = "gnn.probabilities"', "is FP32 [n]; a value [n, d]"),
        ('"emb_*" = "gnn.embedding"', 'emb_0 = "gnn.embedding"', "is FP32 [n, 3], a column is [n]"),
        ('"*" = "input.columns"', 'amount = "attributes.country"', "is one text, model 'trees' wants FP32"),
        ('"*" = "input.columns"', '"*" = "input.amount"', 'write "input.columns"'),
        ('"*" = "input.columns"', '"*" = "gnn.columns"', "step 'gnn' is no transform"),
        ('"*" = "input.columns"', 'amount = ["input.amount"]', "one expression is needed, not a list"),
        ('"*" = "input.columns"', '"*" = "input.columns", "amoun*" = "gnn.embedding"', "no such column"),
        ('amount = "FP32"', 'amount = "BYTES"', "is BYTES [n], model 'trees' wants FP32"),
        ('amount = "FP32"', 'amount = "FLOAT"', "unknown datatype 'FLOAT'"),
        ('amount = "FP32"', 'amount = { type = "FP32", default = "x" }', "default: column"),
        ('amount = "FP32"', 'amount = "FP32"\nage = "FP32"', "inputs.columns: nothing reads 'age'"),
        ('amount = "FP32"', 'amount = "FP32"\nas_of = "FP32"', "'as_of' means something else"),
        ('default = "DE"', "default = 1", "default: attribute 'country' is 1; a string is needed"),
        ("[inputs.attributes]", '[inputs.attributes]\nage = "number"', "nothing reads 'age'"),
        # rules
        ("trees.probabilities > 0.82", "trees.probabilities", "column 1: 'or' takes conditions"),
        ('0.60 <= trees.probabilities <= 0.82"', 'trees.probabilities"', "rule 2: 'trees."),
        ('0.60 <= trees.probabilities <= 0.82"', 'gnn.embedding > 1"', "is a truth [n, 3]; a condition"),
        ('then = "step_up"', "then = 2", "results are of different kinds"),
        ("trees.probabilities >", "trees.probabilities[0] >", "has no columns"),
    ],
)  # fmt: skip
def test_a_wrong_file_says_where(old, new, says):
    assert old in FRAUD
    refused(FRAUD.replace(old, new), says=says)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('then = "large"', 'then = "huge"', "step 'chosen': there is no step 'huge'"),
        ('default = "world"', 'default = "moon"', "there is no step 'moon'"),
        ('model = "large"', 'model = "other"', "no output of the same name, type and shape"),
        ("chosen.probabilities", "chosen.label", "step 'chosen' has no output 'label'"),
        ("input.amount > 100", "input.amount", "rule 2: 'input.amount' is a number [n]"),
        ("input.amount > 100", "chosen.probabilities > 1", "chosen → chosen"),
    ],
)
def test_a_wrong_route_says_where(old, new, says):
    other = FakeVersion("other", "node", {}, {"vector": ("FP32", (2,))}, lambda request: {})
    refused(
        ROUTE.replace(old, new), gnn("europe"), gnn("large"), gnn("world"), other, gnn("gnn"), says=says
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ensemble().replace('["a", "b", "c"]', '["a", "a", "a", "b", "c"]'), "two steps or more"),
        (ensemble().replace('["a", "b", "c"]', '["a", "a", "b", "c"]'), "each once"),
        (ensemble().replace('["a", "b", "c"]', '["a", "b", "c", "d"]'), "there is no step 'd'"),
        (
            ensemble().replace('output = "probabilities"', 'output = "label"'),
            "member 'a' has no output 'label'",
        ),
        (ensemble(combine="weighted"), "weights: one for each member"),
        (ensemble(extra="weights = [1, 2, 3]"), "weights: one for each member"),
        (ensemble(combine="weighted", extra="weights = [1, 2]"), "weights: one for each member"),
        (ensemble(combine="weighted", extra="weights = [0, 0, 0]"), "not all 0"),
        (ensemble("4"), 'require: "all", "any" or 1 to 3, not 4'),
        (ensemble("0"), "not 0"),
        (ensemble(combine="middle"), "Invalid enum value 'middle'"),
    ],
)
def test_a_wrong_ensemble_says_where(text, says):
    refused(text, says=says)


def test_members_must_agree_in_type_and_shape():
    other = FakeVersion("c", "node", {}, {"probabilities": ("FP32", (2,))}, lambda request: {})
    with pytest.raises(PipelineInvalid, match=r"differs: a FP32 \[n\], b FP32 \[n\], c FP32 \[n, 2\]"):
        Rig(ensemble(), gnn("a"), gnn("b"), other)


def test_a_cycle_is_refused_with_its_path():
    text = steps(
        'id = "a"\nkind = "transform"\ncolumns = { x = "c.x + input.amount" }',
        'id = "b"\nkind = "transform"\ncolumns = { x = "a.x" }',
        'id = "c"\nkind = "transform"\ncolumns = { x = "b.x" }',
    )
    refused(text, says="the steps go in a circle: a → c → b → a (each reads the next)")
    itself = steps('id = "b"\nkind = "transform"\ncolumns = { x = "b.x" }')
    refused(itself, says="b → b")


def test_a_step_that_nothing_comes_from_is_refused():
    text = steps(
        'id = "a"\nkind = "transform"\ncolumns = { x = "input.amount" }',
        'id = "b"\nkind = "transform"\ncolumns = { x = "input.amount" }',
        'id = "c"\nkind = "transform"\ncolumns = { x = "a.x" }',
    )
    said = refused(text, says="step 'a': no output comes from it; read it or remove it")
    assert "step 'c'" in said


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("nodes = true\npairs = true", "nodes or pairs, not both"),
        ("", "at least one of nodes, pairs and columns"),
        (
            'nodes = true\ncolumns = { amount = "FP32" }',
            "nodes are declared, but no step reads input.nodes",
        ),
        (
            'pairs = true\ncolumns = { amount = "FP32" }',
            "pairs are declared, but no step reads input.pairs",
        ),
    ],
)
def test_inputs_that_make_no_sense(inputs, says):
    step = 'id = "b"\nkind = "transform"\ncolumns = { x = "input.amount" }'
    refused(steps(step, inputs=inputs), says=says)


def test_everything_that_is_wrong_is_reported_together():
    text = FRAUD.replace("trees.probabilities > 0.82", "trees.risk > 0.82").replace(
        '"*" = "input.columns", ', ""
    )
    said = refused(text.replace('"gnn"\nnodes', '"plain"\nnodes'), says="which nothing feeds")
    assert said.startswith("pipeline fraud/1: ")
    other = FRAUD.replace("gnn.embedding", "gnn.vector").replace(
        "[inputs]", 'default_outputs = ["x"]\n[inputs]'
    )
    other = other.replace('id = "gnn"', 'id = "gnx"')
    said = refused(other, says="there is no step 'gnn'")
    assert "there is no output 'x'" in said


def test_too_many_steps():
    many = [f'id = "s{i}"\nkind = "transform"\ncolumns = {{ x = "input.amount" }}' for i in range(65)]
    refused(steps(*many, outputs='score = "s0.x"'), says="65 steps; at most 64")


def test_a_folder_is_read_and_named_after_itself(tmp_path):
    folder = tmp_path / "fraud" / "7"
    folder.mkdir(parents=True)
    with pytest.raises(PipelineInvalid, match=r"pipeline\.toml: cannot be read"):
        read_pipeline(folder)
    (folder / "pipeline.toml").write_text(FRAUD)
    spec = read_pipeline(folder)
    assert (spec.name, spec.version) == ("fraud", "7")
    assert spec.models == (("trees", None), ("gnn", None))
    models = {"gnn": gnn(), "trees": trees()}
    metrics = Metrics()
    made = load_pipeline(folder, "fraud", "7@abc", lambda name, _: models[name], Config(), metrics)
    assert (made.name, made.version, made.graph_version) == ("fraud", "7@abc", "graph-a")
    (folder / "pipeline.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_pipeline(folder / "pipeline.toml")


def test_a_model_that_is_not_ready_is_named():
    def resolve(model, version):
        raise ModelNotReady(f"{model} is being loaded")

    spec = parse_pipeline(FRAUD, "fraud", "1")
    from hopline_pipelines import PipelineVersion

    with pytest.raises(PipelineInvalid, match="step 'gnn': gnn is being loaded"):
        PipelineVersion(spec, resolve, Config(), Metrics().model("fraud", "1"))


def test_a_pipeline_has_no_process_of_its_own():
    with pytest.raises(PipelineInvalid, match="isolate the models that it calls"):
        Rig(FRAUD, gnn(), trees(), limits=ModelLimits(isolate=True))


def test_a_pipeline_caches_no_answers():
    with pytest.raises(PipelineInvalid, match=r"cache_bytes: .* set cache_bytes for those models"):
        Rig(FRAUD, gnn(), trees(), limits=ModelLimits(cache_bytes=1))


def test_what_transports_get():
    info = Rig(FRAUD, gnn(), trees()).pipeline.info(("1",))
    assert (info.kind, info.id_kind, info.graph_version) == ("pipeline", "int", "graph-a")
    assert [(t.name, t.datatype, t.shape, t.optional) for t in info.inputs] == [
        ("node_ids", "INT64", (-1,), False),
        ("as_of", "INT64", (1,), True),
        ("amount", "FP32", (-1,), False),
    ]
    assert [(t.name, t.datatype, t.shape) for t in info.outputs] == [
        ("score", "FP32", (-1,)),
        ("decision", "BYTES", (-1,)),
    ]
    assert info.default_outputs == ("score", "decision")
    assert info.properties["models"] == ["gnn", "trees"]
    assert info.properties["attributes"] == {"country": "string"}
