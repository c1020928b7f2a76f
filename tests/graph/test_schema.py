import numpy as np

from hopline.graph import EdgeTable, EdgeTypeSchema, Graph, GraphSchema, NodeTable, NodeTypeSchema
from tests.graphs import hetero_graph


def schema(*, nodes=None, edges=()):
    return GraphSchema(
        nodes or {"node": NodeTypeSchema(2, feature_names=("a", "b"))}, {edge.key: edge for edge in edges}
    )


def test_a_graph_fits_the_model_packaged_for_it():
    assert hetero_graph().schema.differences(hetero_graph(1).schema) == []


def test_hash_is_equal_for_equal_schemas_only():
    assert hetero_graph().schema.hash == hetero_graph(1).schema.hash
    assert schema().hash != schema(nodes={"node": NodeTypeSchema(3)}).hash


def test_every_difference_is_named():
    edge = EdgeTypeSchema("node", "to", "node", attr_dim=2, has_time=True, has_weight=True)
    model = schema(
        nodes={"node": NodeTypeSchema(2), "shop": NodeTypeSchema(1)},
        edges=[edge, EdgeTypeSchema("node", "buys", "shop")],
    )
    graph = schema(
        nodes={"node": NodeTypeSchema(3)}, edges=[EdgeTypeSchema("node", "to", "node", attr_dim=1)]
    )
    assert model.differences(graph) == [
        "node type 'node' has 3 features; the model was packaged for 2",
        "node type 'shop' is missing; the graph has 'node'",
        "edge type 'node__to__node' has 1 edge attributes; the model was packaged for 2",
        "edge type 'node__to__node' has no edge times; the model was packaged with them",
        "edge type 'node__to__node' has no edge weights; the model was packaged with them",
        "edge type 'node__buys__shop' is missing; the graph has 'node__to__node'",
    ]


def test_swapped_feature_columns_are_a_difference():
    swapped = schema(nodes={"node": NodeTypeSchema(2, feature_names=("b", "a"))})
    assert schema().differences(swapped) == [
        "node type 'node' has other features: column 0 is 'b', not 'a', column 1 is 'a', not 'b'"
    ]
    assert schema().differences(schema(nodes={"node": NodeTypeSchema(2)})) == []


def test_what_a_model_never_reads_is_no_difference():
    richer = Graph.from_tables(
        {"node": NodeTable(np.ones((2, 2)), ids=["x", "y"]), "shop": NodeTable(num_nodes=1)},
        {("node", "to", "node"): EdgeTable([["x"], ["y"]], attr=[1.0], time=[1], weight=[1.0])},
        feature_dtype="float16",
    )
    plain = Graph.from_edges([[0], [1]], np.ones((2, 2)))
    assert plain.schema.differences(richer.schema) == []


def test_columns_that_are_missing_or_further_are_named():
    def schema(*names):
        return GraphSchema({"node": NodeTypeSchema(len(names), feature_names=names)}, {})

    assert schema("age", "risk").differences(schema("age", "risk", "extra")) == [
        "node type 'node' has 3 features; the model was packaged for 2 (further: 'extra')"
    ]
    assert schema("age", "risk").differences(schema("age")) == [
        "node type 'node' has 1 features; the model was packaged for 2 (missing: 'risk')"
    ]
