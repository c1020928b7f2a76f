"""A user's own queries: what they become, and where a mistake in them is."""

import re
import time
from pathlib import Path

import pytest

from hopline.errors import ConfigError
from hopline_mesh.collect import Collector, Prometheus, queries_for
from packages.mesh.tests.collect.history import LE, History
from packages.mesh.tests.collect.test_real_prometheus import close, edge, node
from packages.mesh.tests.prometheus_server import prometheus

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
[labels]
service = ["app", "job"]
namespace = "ns"
caller = "client"
caller_namespace = "ns"
callee = "app"
callee_namespace = "ns"

[[node]]
column = "request_rate"
query = 'sum by (ns, app) (rate(http_requests_total[$window]))'

[[node]]
column = "error_share"
query = 'sum by (ns, app) (rate(http_requests_total{code=~"5..$$"}[$window]))'
per = "request_rate"

[[node]]
column = "p99_ms"
histogram = 'http_duration_seconds_bucket{app!="nobody"}'
quantile = 0.99
scale = 1000

[[node]]
column = "queue_depth"
query = 'max by (ns, pod) (queue_depth)'
pod = "pod"
combine = "max"
reveals = false

[[edge]]
column = "request_rate"
query = '''
sum by (ns, client, app) (
  rate(http_client_requests_total[$window])
)
'''
"""


def read(tmp_path, text, **options):
    file = tmp_path / "queries.toml"
    file.write_text(text)
    return queries_for("file", file, **options)


async def test_the_columns_are_filled_from_what_was_requested(tmp_path):
    history = History(int(time.time()))
    for code, rate in (("200", 3.0), ("500", 1.0)):
        history.counter("http_requests_total", rate, ns="shop", app="cart", code=code)
    history.histogram("http_duration_seconds", (1.0,), ns="shop", app="cart")
    history.histogram("http_duration_seconds", (0.5, 0, 0, 0, 0, 0, 0.5), ns="shop", app="slow")
    history.gauge("queue_depth", 5, ns="shop", pod="cart-0")
    history.gauge("queue_depth", 7, ns="shop", pod="cart-1")
    history.gauge("queue_depth", 9, ns="shop", pod="other-0")
    history.counter("http_client_requests_total", 2.0, ns="shop", client="web", app="cart")
    queries = read(tmp_path, GOOD)
    with prometheus(history.write(tmp_path)) as url:
        async with Prometheus(url) as client:
            snapshot = await Collector(client, queries).collect(time.time())
    snapshot.check()
    names = {snapshot.roster.name(slot) for slot in snapshot.nodes}
    assert names == {"shop/cart", "shop/web", "shop/slow"}
    cart = node(snapshot, "shop/cart")
    assert cart["request_rate"] == close(4.0)
    assert cart["error_share"] == close(0.25)
    assert cart["p99_ms"] == close(990.0)
    assert cart["queue_depth"] == 7.0
    assert node(snapshot, "shop/slow")["p99_ms"] == close(1000 * LE[-1])
    assert edge(snapshot, "shop/web", "shop/cart")["request_rate"] == close(2.0)
    said = {gap.what: gap.reason for gap in snapshot.gaps}
    assert list(said) == ["node.p99_ms"]
    assert "shop/slow" in said["node.p99_ms"]


def test_the_example_of_the_guide_is_right(tmp_path):
    page = (ROOT / "docs" / "collect.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    queries = read(tmp_path, example)
    assert queries.columns("node") == ("request_rate", "error_share", "p99_ms", "queue_depth")
    assert queries.columns("edge") == ("request_rate",)
    assert queries.by_pod


@pytest.mark.parametrize(
    ("column", "more", "combine"),
    [
        ("p99_ms", "", "max"),
        ("request_duration_p95_seconds", "", "max"),
        ("heap_share", "", "max"),
        ("error_share", 'per = "request_rate"', "sum"),
        ("memory_bytes", "", "sum"),
        ("cpu_seconds", "", "sum"),
    ],
)
def test_values_that_have_no_sum_are_combined_by_their_largest(tmp_path, column, more, combine):
    text = """
    [[node]]
    column = "request_rate"
    query = 'up'
    service = "app"

    [[node]]
    column = "{}"
    query = 'up'
    service = "app"
    {}
    """
    queries = read(tmp_path, text.format(column, more))
    assert queries.queries[1].combine == combine


def test_window_and_matchers_are_put_in(tmp_path):
    text = """
    [[node]]
    column = "cpu_cores"
    query = 'sum by (app) (rate(cpu_seconds_total{$matchers}[$window]))'
    service = "app"
    """
    queries = read(tmp_path, text, window_s=90, matchers='cluster="eu"')
    assert queries.queries[0].promql == 'sum by (app) (rate(cpu_seconds_total{cluster="eu"}[90s]))'
    assert queries_for("istio", matchers='cluster="eu"').queries[0].promql.count('cluster="eu"') == 1


def test_a_built_in_set_can_be_changed(tmp_path):
    text = """
    extends = ["istio", "containers"]
    without = ["node.connections", "edge.server_ms"]

    [[node]]
    column = "p99_ms"
    query = 'my_latency{}'
    service = "app"
    """
    queries = read(tmp_path, text)
    names = [query.name for query in queries.queries]
    assert "node.connections" not in names
    assert not any("server_ms" in name for name in names)
    assert next(q.promql for q in queries.queries if q.name == "node.p99_ms") == "my_latency{}"
    assert {"node.p50_ms", "node.cpu_cores", "edge.client_ms"} <= set(names)


def test_a_histogram_of_a_built_in_set_loses_one_quantile_and_keeps_the_check_of_the_other(tmp_path):
    for text in (
        'extends = "istio"\nwithout = ["node.p99_ms"]\n',
        'extends = "istio"\n[[node]]\ncolumn = "p99_ms"\nquery = "up{}"\nservice = "app"\n',
    ):
        queries = read(tmp_path, text).queries
        (check,) = (query for query in queries if query.of == "node" and query.ceiling_of)
        assert (check.name, check.ceiling_of) == ("node.p50_ms (last bucket)", (("p50_ms", 0.5),))
    queries = read(tmp_path, 'extends = "istio"\nwithout = ["node.p50_ms"]\n').queries
    (check,) = (query for query in queries if query.of == "node" and query.ceiling_of)
    assert check.ceiling_of == (("p99_ms", 0.99),)
    queries = read(tmp_path, 'extends = "istio"\nwithout = ["node.p50_ms", "node.p99_ms"]\n').queries
    assert not any(query.of == "node" and query.ceiling_of for query in queries)


ONE = '[[node]]\ncolumn = "cpu_cores"\nquery = "up{}"\nservice = "app"\n'


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "it has no queries"),
        ("[[node]\n", None, "not valid TOML"),
        (ONE + 'colunm = "x"\n', 5, "node.colunm: unknown key; did you mean 'column'?"),
        ('extend = "istio"\n' + ONE, 1, "extend: unknown key; did you mean 'extends'?"),
        ('extends = "envoy"\n' + ONE, 1, "must be a list of istio, linkerd, containers; got 'envoy'"),
        ('extends = [["istio"]]\n' + ONE, 1, "must be a list of istio, linkerd, containers"),
        (
            'extends = "istio"\nwithout = [["node.p50_ms"]]\n',
            2,
            "without: must be a list of extended columns",
        ),
        ('extends = "istio"\nwithout = ["node.request_rate"]\n', 2, "node.error_share needs node.request_"),
        ('extends = "istio"\nwithout = ["node.x"]\n', 2, "without: must be a list of extended columns"),
        ("[labels]\nsevice = 'app'\n" + ONE, 2, "labels.sevice: unknown key; did you mean 'service'?"),
        ('[node]\ncolumn = "x"\n', 1, "must be [[node]], once for each query"),
        ('[[node]]\nquery = "up"\nservice = "app"\n', 1, "column is missing"),
        ('[[node]]\ncolumn = "CPU"\nquery = "up"\nservice = "app"\n', 2, "'CPU' may have only a-z"),
        ('[[node]]\ncolumn = "cpu_cores"\nservice = "app"\n', 1, "query is missing"),
        (ONE.replace("up{}", " "), 3, "' ' is not text"),
        (ONE.replace("up{}", "rate(up[1m]"), 3, "'(' is not closed"),
        (ONE.replace("up{}", "rate(up[1m)"), 3, "')' has no opening bracket"),
        (ONE.replace("up{}", "up{a='b}"), 3, "has no end"),
        (ONE.replace("up{}", "rate(up[$windw])"), 3, "only $window and $matchers are known"),
        (ONE.replace('service = "app"\n', ""), 1, "service is missing: set the label with the name"),
        (ONE.replace('"app"', '"a-b"'), 4, "is not the name of a label"),
        (ONE + "scale = 0\n", 5, "0 is not a number above 0"),
        (ONE + "scale = true\n", 5, "True is not a number above 0"),
        (ONE + 'combine = "mean"\n', 5, "'mean' is neither sum nor max"),
        (ONE + 'reveals = "no"\n', 5, "is neither true nor false"),
        (ONE + 'per = "request_rate"\n', 5, "there is no query for node.request_rate"),
        (ONE + 'per = "cpu_cores"\n', 5, "is not another column"),
        (ONE + ONE, 6, "node.cpu_cores has two queries"),
        (ONE + "quantile = 0.5\n", 5, "allowed only with histogram"),
        (ONE + 'histogram = "x_bucket"\n', 5, "not allowed together with query or per"),
        (
            '[[node]]\ncolumn = "p99_ms"\nhistogram = "x"\nquantile = 0.99\nservice = "app"\n',
            3,
            "must be like",
        ),
        (
            '[[node]]\ncolumn = "p99_ms"\nhistogram = "x_bucket"\nquantile = 99\nservice = "app"\n',
            4,
            "99 is not a number between 0 and 1",
        ),
        (ONE + '[[edge]]\ncolumn = "request_rate"\nquery = "up"\ncallee = "x"\n', 5, "caller is missing"),
        (ONE + '[[edge]]\ncolumn = "x"\nquery = "up"\nservice = "x"\n', 8, "edge.service: unknown key"),
        ("node = 7\n", 1, "must be [[node]]"),
        (ONE + "reveals = false\n", None, "none of them reveals services"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, text, line, said):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    place = f"{tmp_path / 'queries.toml'}:"
    assert message.startswith(f"{place}{line}: " if line else place)
    assert said in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot be read: No such file"):
        queries_for("file", tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"bytes.toml: not UTF-8 text"):
        queries_for("file", tmp_path / "bytes.toml")
    with pytest.raises(ConfigError, match="query_file: not set"):
        queries_for("file")
    with pytest.raises(ConfigError, match="'consul' is not one of"):
        queries_for("consul")


@pytest.mark.parametrize("text", ['cluster="eu', "cluster=eu", 'a="b" c="d"', '}[1m]) or up{a="b"', ",,"])
def test_matchers_are_matchers(text):
    with pytest.raises(ConfigError, match="matchers: "):
        queries_for("istio", matchers=text)


def test_a_window_has_to_be_one():
    with pytest.raises(ConfigError, match="too short"):
        queries_for("istio", window_s=0.0001)
    assert "[1500ms]" in queries_for("istio", window_s=1.5).queries[0].promql
