"""What a watch tells of itself."""

from prometheus_client.parser import text_string_to_metric_families

from hopline_mesh.changes import Context
from hopline_mesh.collect import CollectReport, QueryReport
from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.out.metrics import MeshMetrics
from hopline_mesh.simulate import MeshPlan, simulate


def values(metrics):
    """(name, labels in their order) -> value."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name.removeprefix("hopline_mesh_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_question_to_prometheus_is_reported():
    metrics = MeshMetrics()
    good = QueryReport("node.p99_ms", "ok", "", 0.2, 30, 20)
    late = QueryReport("edge.client_ms", "late", "no answer", 3.0)
    for queries in ([good, late], [good]):
        metrics.collected(CollectReport(tuple(queries), left_out=7, ahead_s=0.0))
    found = values(metrics)
    assert found["queries_total", "node.p99_ms", "ok"] == 2
    assert found["queries_total", "edge.client_ms", "late"] == 1
    assert (found["query_seconds", "node.p99_ms"], found["query_series", "node.p99_ms"]) == (0.2, 20)
    assert found["query_seconds", "edge.client_ms"] == 3.0
    assert found["left_out",] == 7


def test_thresholds_are_those_of_the_detector_that_judges():
    metrics = MeshMetrics()
    detector = MeshDetector(neighbours=False)
    metrics.thresholds = lambda: detector.thresholds
    assert not [name for name, *_ in values(metrics) if name == "threshold"]
    snapshots = [snapshot for snapshot, _ in simulate(MeshPlan(services=4, hours=40 * 15 / 3600), 2)]
    detector.fit(snapshots, [Context()] * len(snapshots))
    found = {column[0]: value for (name, *column), value in values(metrics).items() if name == "threshold"}
    schema = snapshots[0].schema
    assert set(found) == {
        *(f"node.{name}" for name in schema.node_features),
        *(f"edge.{name}" for name in schema.edge_features),
        "edge.calls_per_request",
    }
    assert all(value > 1 for value in found.values())


def test_metrics_can_be_read_while_a_detector_begins(monkeypatch):
    metrics, seen = MeshMetrics(), []
    detector = MeshDetector(neighbours=False)
    metrics.thresholds = lambda: detector.thresholds

    class Looked(SeriesTable):
        def __init__(self, *parts, **named):
            seen.append(values(metrics))
            super().__init__(*parts, **named)

    monkeypatch.setattr("hopline_mesh.detect.detector.SeriesTable", Looked)
    (snapshot, context), *_ = simulate(MeshPlan(services=4, hours=15 / 3600), 2)
    detector.step(snapshot, context)
    assert len(seen) == 2
