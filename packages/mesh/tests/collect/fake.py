"""A Prometheus that answers what a test wants, for what a real one cannot be made to do."""

import json
from urllib.parse import parse_qs

import httpx

from hopline_mesh.collect import CollectOptions, Collector, Prometheus, Query, QuerySet
from hopline_mesh.collect.query import Labels

NOW = 1_800_000_000.0
SERVICE = Labels(("app",), ("namespace",))
CALLER = Labels(("from",), ("namespace",))

QUERIES = QuerySet(
    "fake",
    (
        Query("node", "request_rate", "rates", SERVICE),
        Query("node", "error_share", "failures", SERVICE, per="request_rate"),
        Query("node", "p99_ms", "latencies", SERVICE, combine="max"),
        Query("edge", "request_rate", "paths", SERVICE, CALLER),
    ),
)


def vector(*series, time_s=NOW, **other):
    """The body of an answer: (labels, value) each."""
    result = [{"metric": labels, "value": [time_s, value]} for labels, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **other}


def named(*names, value="1"):
    return [({"app": name, "namespace": "shop"}, value) for name in names]


def paths(*pairs, value="1"):
    return [({"from": caller, "app": app, "namespace": "shop"}, value) for caller, app in pairs]


class Fake:
    """Answers by query; what is not set is empty. An answer may be an exception, a response or a body."""

    def __init__(self, **answers):
        self.answers = answers
        self.requests = []
        self.date = None

    async def __call__(self, request):
        self.requests.append(request)
        query = parse_qs(request.content.decode())["query"][0]
        answer = self.answers.get(query, vector())
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        headers = {"date": self.date} if self.date else {}
        if isinstance(answer, httpx.Response):
            return answer
        text = answer if isinstance(answer, (str, bytes)) else json.dumps(answer)
        return httpx.Response(200, content=text, headers=headers)

    def asked_s(self):
        """The moment that the last question was about."""
        return float(parse_qs(self.requests[-1].content.decode())["time"][0])


class Ticking:
    """A clock that never jumps, set by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def client_of(fake, **options):
    return Prometheus("http://prometheus:9090", transport=httpx.MockTransport(fake), **options)


class Steady(Collector):
    """Its steady clock goes with the times that it is given."""

    async def collect(self, now_s):
        self._steady.now = now_s
        return await super().collect(now_s)


def collector_of(fake, *, queries=QUERIES, steady=None, **options):
    kind = Collector if steady else Steady
    return kind(client_of(fake), queries, options=CollectOptions(**options), steady=steady or Ticking())
