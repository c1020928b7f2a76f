"""From Prometheus to snapshots: the queries, reading the responses, and missing data."""

from hopline_mesh.collect.collector import Collector
from hopline_mesh.collect.options import CollectOptions
from hopline_mesh.collect.prometheus import Prometheus
from hopline_mesh.collect.query import CollectReport, Query, QueryReport, QuerySet
from hopline_mesh.collect.query_file import queries_for

__all__ = [
    "CollectOptions",
    "CollectReport",
    "Collector",
    "Prometheus",
    "Query",
    "QueryReport",
    "QuerySet",
    "queries_for",
]
