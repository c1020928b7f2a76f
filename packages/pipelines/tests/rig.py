"""Models that are arithmetic on node ids and columns, and a pipeline over them."""

import asyncio

import numpy as np

from hopline.config.schema import Config
from hopline.errors import HoplineError, ModelNotFound
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest
from hopline_pipelines.spec import parse_pipeline
from hopline_pipelines.version import PipelineVersion
from tests.fake_version import FakeVersion, hand_in

EMBEDDING_DIM = 3


def embedding(nodes):
    ids = np.asarray(nodes, np.float32)
    return np.stack([ids, ids / 2, -ids], axis=1)


def gnn(name="gnn", unknown=frozenset(), **kwargs):
    """Node ids -> embedding [n, 3], probabilities [n] = id / 100."""

    def answer(request):
        ids = np.asarray(request.nodes, np.float32)
        return {"embedding": embedding(request.nodes), "probabilities": ids / np.float32(100)}

    outputs = {"embedding": ("FP32", (EMBEDDING_DIM,)), "probabilities": ("FP32", ())}
    fake = FakeVersion(name, "node", {}, outputs, answer, graph_version="graph-a", **kwargs)
    fake.unknown = unknown
    return fake


def trees(name="trees", columns=("amount", "emb_0", "emb_1", "emb_2"), scale=1.0, **kwargs):
    """Columns -> probabilities [n] = their sum times `scale`, label [n]."""

    def answer(request):
        total = np.sum([request.columns[each] for each in columns], axis=0, dtype=np.float32)
        scores = total * np.float32(scale)
        return {"probabilities": scores, "label": (scores > 0).astype(np.int64)}

    inputs = dict.fromkeys(columns, "FP32")
    outputs = {"probabilities": ("FP32", ()), "label": ("INT64", ())}
    return FakeVersion(name, "tabular", inputs, outputs, answer, **kwargs)


class Rig:
    """A pipeline over models that the test holds; `told` is what the recorder got."""

    def __init__(self, text, *models, name="fraud", **kwargs):
        self.models = {model.name: model for model in models}
        self.told = []
        self.metrics = Metrics()
        spec = parse_pipeline(text, name, "1")
        config = kwargs.pop("config", Config())
        self.pipeline = PipelineVersion(
            spec, self.resolve, config, self.metrics.model(name, "1"), [self], **kwargs
        )

    def resolve(self, model, version):
        if model not in self.models:
            raise ModelNotFound(f"no model {model!r}; there are: {', '.join(self.models)}")
        return self.models[model]

    def record(self, ran):
        self.told.append(ran)

    def ask(self, **kwargs):
        """A future of the outcome, an error or a result, and the ticket."""
        future = asyncio.get_running_loop().create_future()
        request = ScoreRequest(self.pipeline.name, **kwargs)
        return future, hand_in(self.pipeline, request, future.set_result)

    async def score(self, **kwargs):
        future, _ = self.ask(**kwargs)
        outcome = await asyncio.wait_for(future, 5)
        if isinstance(outcome, HoplineError):
            raise outcome
        return outcome

    def count(self, outcome):
        return self.metrics.requests("fraud", "1", outcome).value
