"""`hopline graph build --graph-column`: a data set of many graphs from files."""

from typer.testing import CliRunner

from hopline.commands.graph import app
from hopline.graph import Graph


def test_a_column_of_graphs_makes_a_data_set_of_many(tmp_path):
    """
    m1: a -> b      m2: c, without an edge
    """
    atoms, bonds = tmp_path / "atoms.csv", tmp_path / "bonds.csv"
    atoms.write_text("id,molecule,mass\na,m1,12\nb,m1,1\nc,m2,16\n")
    bonds.write_text("src,dst\na,b\n")
    given = [
        "--features",
        str(atoms),
        "--id",
        "id",
        "--graph-column",
        "molecule",
        "--out",
        str(tmp_path / "g"),
    ]
    result = CliRunner().invoke(app, ["build", str(bonds), *given])
    assert result.exit_code == 0, result.output
    graph = Graph.open(tmp_path / "g")
    assert graph.nodes["node"].features.tolist() == [[12], [1], [16]]
    assert graph.schema.memberships == {"node": "node__in__graph"}
    members = graph.edges["node__in__graph"]
    first, second = graph.nodes["graph"].ids.lookup(["m1", "m2"]).tolist()
    lists = [members.indices[members.indptr[g] : members.indptr[g + 1]].tolist() for g in (first, second)]
    assert lists == [graph.nodes["node"].ids.lookup(ids).tolist() for ids in (["a", "b"], ["c"])]
