"""Series of a column by pod whose pod has no known owner: reported, and no partial sum is a measurement."""

import math

import pytest

from hopline_mesh.collect import Collector, Query, QuerySet
from hopline_mesh.collect.containers import owner_queries
from hopline_mesh.collect.probe import probe
from hopline_mesh.collect.query import Labels
from packages.mesh.tests.collect.fake import NOW, SERVICE, Fake, client_of, collector_of, named, vector
from packages.mesh.tests.collect.test_collector import column, reasons, taken

POD = Labels(("pod",), ("namespace",), pod=True)
QUERIES = QuerySet(
    "by pod",
    (
        Query("node", "request_rate", "rates", SERVICE),
        Query("node", "cpu_cores", "cores", POD, reveals=False),
        Query("node", "error_share", "lost", POD, per="request_rate", reveals=False),
    ),
)
#: Not of the characters that Kubernetes uses: no owner can be read from such a name.
ODD = ("alpha-5d8c7f9b4-abcdf", "alpha-5d8c7f9b4-aeiou")
OF_POD = owner_queries()[1]


def pods(*names, namespace="shop", value="2"):
    return [({"pod": name, "namespace": namespace}, value) for name in names]


def owned(name, kind="ReplicaSet", owner="alpha-5d8c7f9b4", namespace="shop"):
    return ({"pod": name, "namespace": namespace, "owner_kind": kind, "owner_name": owner}, "1")


async def snapshot_of(*cores, rates=("alpha", "beta"), **answers):
    fake = Fake(rates=vector(*named(*rates)), cores=vector(*cores), **answers)
    return await taken(fake, queries=QUERIES)


async def test_a_pod_without_a_known_owner_is_a_gap_with_the_number_an_example_and_what_to_do():
    snapshot = await snapshot_of(*pods(*ODD), *pods("beta-0"))
    (said,) = reasons(snapshot, "node.cpu_cores")
    assert said.startswith("2 series have a pod without a known owner, such as shop/alpha-5d8c7f9b4-a")
    assert "kube_pod_owner" in said
    found = column(snapshot, "cpu_cores")
    assert math.isnan(found["alpha"])
    assert found["beta"] == 2.0


async def test_a_sum_over_some_pods_of_a_service_is_not_measured():
    known = owned(ODD[0])
    snapshot = await snapshot_of(*pods(*ODD), *pods("beta-0"), **{OF_POD: vector(known)})
    (said,) = reasons(snapshot, "node.cpu_cores")
    assert said.startswith(f"1 series has a pod without a known owner, such as shop/{ODD[1]}")
    assert "shop/alpha is not measured" in said
    found = column(snapshot, "cpu_cores")
    assert math.isnan(found["alpha"]), "half of its pods are no measurement of it"
    assert found["beta"] == 2.0


async def test_a_share_over_some_pods_is_not_measured_and_not_zero():
    lost = vector(*pods("alpha-0", *ODD, "beta-0", value="0.5"))
    snapshot = await snapshot_of(*pods("alpha-0", "beta-0"), lost=lost)
    found = column(snapshot, "error_share")
    assert math.isnan(found["alpha"])
    assert found["beta"] == 0.5
    assert column(snapshot, "cpu_cores")["alpha"] == 2.0, "a column of which nothing is missing"


async def test_the_service_with_the_longest_name_may_own_the_pod():
    rates = ("alpha", "alpha-api", "beta")
    snapshot = await snapshot_of(
        *pods("alpha-0", "alpha-api-0", "alpha-api-7f9b4-abcdf", "beta-0"), rates=rates
    )
    found = column(snapshot, "cpu_cores")
    assert math.isnan(found["alpha-api"])
    assert (found["alpha"], found["beta"]) == (2.0, 2.0)


@pytest.mark.parametrize(
    "others",
    [
        pods("etcd-abcde-abcde-a", namespace="kube-system"),  # no service of the mesh is there
        pods("other-7d9f8b6c5d-x2x4z", "job-0"),  # owners that are not of the mesh
        pods("alpha", "beta"),  # pods without a template: the name is that of the service
    ],
    ids=["another namespace", "owners by name", "the service itself"],
)
async def test_pods_that_are_not_of_the_mesh_are_no_gap(others):
    snapshot = await snapshot_of(*pods("alpha-0", "beta-0"), *others)
    assert reasons(snapshot, "node.cpu_cores") == []
    assert set(column(snapshot, "cpu_cores")) == {"alpha", "beta"}
    assert not any(math.isnan(value) for value in column(snapshot, "cpu_cores").values())


@pytest.mark.parametrize("kind", ["<none>", ""])
async def test_a_pod_that_is_known_to_have_no_owner_is_no_gap(kind):
    bare = owned("alpha-debug", kind, kind)
    if not kind:
        bare = ({"pod": "alpha-debug", "namespace": "shop"}, "1")  # Prometheus drops empty labels
    snapshot = await snapshot_of(*pods("alpha-0", "alpha-debug", "beta-0"), **{OF_POD: vector(bare)})
    assert reasons(snapshot, "node.cpu_cores") == []
    assert column(snapshot, "cpu_cores")["alpha"] == 2.0


async def test_namespaces_that_are_not_watched_are_no_gap():
    fake = Fake(
        rates=vector(*named("alpha")), cores=vector(*pods("alpha-0"), *pods(*ODD, namespace="test"))
    )
    snapshot = await taken(fake, queries=QUERIES, exclude_namespaces=("test",))
    assert reasons(snapshot, "node.cpu_cores") == []


async def test_the_gap_ends_when_the_owner_is_known():
    fake = Fake(rates=vector(*named("alpha")), cores=vector(*pods(*ODD)))
    one = collector_of(fake, queries=QUERIES)
    for number in range(2):  # the second interval has the labels in its cache
        snapshot = await one.collect(NOW + 15 * number)
        assert reasons(snapshot, "node.cpu_cores")[0].startswith("2 series have a pod")
    fake.answers[OF_POD] = vector(*(owned(name) for name in ODD))
    # The owners came with series that were already looked up: still no sum of a part.
    assert math.isnan(column(await one.collect(NOW + 30), "cpu_cores")["alpha"])
    snapshot = await one.collect(NOW + 45)
    assert reasons(snapshot, "node.cpu_cores") == []
    assert column(snapshot, "cpu_cores")["alpha"] == 4.0
    (report,) = (query for query in one.report.queries if query.name == "node.cpu_cores")
    assert (report.matched, report.reason) == (2, "")


async def test_the_report_of_a_query_has_the_whole_reason():
    long = "a-name-of-a-workload-that-is-as-long-as-they-get-" + "x" * 14
    fake = Fake(rates=vector(*named(long)), cores=vector(*pods(f"{long}-5d8c7f9b4-abcdf")))
    one = collector_of(fake, queries=QUERIES)
    snapshot = await one.collect(NOW)
    (said,) = reasons(snapshot, "node.cpu_cores")
    (report,) = (query for query in one.report.queries if query.name == "node.cpu_cores")
    assert "kube_pod_owner" in report.reason
    assert report.reason.startswith(said)


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (pods(*ODD), "2 series have a pod without a known owner, such as shop/alpha-5d8c7f9b4-a"),
        (pods("other-0"), "the owners of its pods are other names"),
        (pods("coredns-0", namespace="kube-system"), "the owners of its pods are other names"),
        (pods("alpha-0"), ""),
    ],
)
async def test_a_probe_explains_why_a_column_by_pod_is_empty(cores, said):
    client = client_of(Fake(rates=vector(*named("alpha"), time_s=NOW), cores=vector(*cores)))
    found = await probe(client, Collector(client, QUERIES), QUERIES, NOW, 60.0)
    (report,) = (query for query in found.report.queries if query.name == "node.cpu_cores")
    explained = found.hints.get(report.name) or report.reason
    assert said in explained
    assert bool(explained) == bool(said)
