"""A batch that is ended between two steps, whichever they are: it ends there, and the model stays whole."""

from types import SimpleNamespace

import numpy as np
import pytest

from hopline.engine.answer import Answerer
from hopline.engine.guard import Guard
from hopline.engine.tasks import default_outputs
from hopline.errors import DeadlineExceeded, RequestTooLarge
from hopline.scheduling.work import LargerThanPredicted
from hopline.types import ScoreRequest
from tests.engine import zoo

CASES = ("sage", "plain", "gcn", "gat", "hetero")
WAITING = SimpleNamespace(deadline=1.0, ended=False)
PATIENT = SimpleNamespace(deadline=float("inf"), ended=False)


class Clock:
    """Passes the deadline after so many looks."""

    def __init__(self, looks):
        self.left = looks
        self.looks = 0

    def __call__(self):
        self.looks += 1
        self.left -= 1
        return 0.0 if self.left >= 0 else 2.0


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return zoo.build(tmp_path_factory.mktemp("models"))


def asked(model, count=9):
    nodes = model.graph.nodes[model.spec.head.node_type]
    return ScoreRequest(model.spec.name, nodes=nodes.ids.external(np.arange(count)))


def answered(model, request):
    (outcome,) = Answerer(model, default_outputs(model.spec), 1000).answer([request])
    return outcome.outputs


@pytest.mark.parametrize("fanout", [-1, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_deadline_ends_a_batch_between_any_two_steps(cases, name, fanout):
    case = cases[name]
    model = case.model(caches=False, fanout=fanout)
    model._fused_plan = None  # one compiled call has no steps
    expected = answered(model, asked(model))
    clock = Clock(10**9)
    model.guard = Guard(clock=clock)
    model.guard.batch = [WAITING]
    answered(model, asked(model))
    steps = clock.looks
    assert steps >= 2 * model.num_hops
    for at in range(steps):
        model.guard = Guard(clock=Clock(at))
        model.guard.batch = [WAITING]
        with pytest.raises(DeadlineExceeded):
            answered(model, asked(model))
        model.guard.batch = ()
        for key, values in answered(model, asked(model)).items():
            assert values.tobytes() == expected[key].tobytes()


def test_a_batch_goes_on_while_anybody_waits():
    guard = Guard(clock=lambda: 0.5)
    guard.batch = [SimpleNamespace(deadline=0.1, ended=False), WAITING]
    guard.look()
    guard.batch = [SimpleNamespace(deadline=1.0, ended=True), SimpleNamespace(deadline=0.1, ended=False)]
    with pytest.raises(DeadlineExceeded):
        guard.look()


@pytest.mark.parametrize("name", CASES)
def test_rows_are_counted_before_they_are_read(cases, name):
    model = cases[name].model(caches=False, fanout=-1)
    model.guard = guard = Guard()
    guard.batch = [PATIENT]
    answered(model, asked(model))
    whole = guard.rows
    degrees = [edges.degree(np.arange(9)).sum() for edges in model.graph.edges.values()]
    assert whole > 9 + min(degrees)

    def larger(batch, rows):
        seen.append(rows)
        return LargerThanPredicted(rows) if rows > whole // 2 else None

    seen = []
    model.guard = Guard(some_rows=0, larger=larger)
    model.guard.batch = [PATIENT]
    with pytest.raises(LargerThanPredicted):
        answered(model, asked(model))
    assert seen == sorted(seen)
    assert whole // 2 < seen[-1] <= whole


def test_memory_is_requested_before_it_is_taken(cases, monkeypatch):
    monkeypatch.setattr("hopline.engine.plan.SOME_EDGES", 0)
    model = cases["sage"].model(caches=False, fanout=-1)
    model.guard = Guard(max_bytes=1000)
    model.guard.batch = [PATIENT]
    with pytest.raises(
        RequestTooLarge, match=r"neighbours at one layer.*limits.max_request_bytes.*--max-degree"
    ):
        answered(model, asked(model))
    model.guard = Guard(max_bytes=1000, larger=lambda batch, rows: LargerThanPredicted(rows))
    model.guard.batch = [PATIENT, PATIENT]
    with pytest.raises(LargerThanPredicted):  # each of them may fit alone
        answered(model, asked(model))
    model.guard.batch = ()
    assert answered(model, asked(model))
