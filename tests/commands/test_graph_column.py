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


def test_a_column_for_one_type_is_added_to_those_for_all(tmp_path):
    """What `*` keeps is kept whichever option refines it."""
    (tmp_path / "accounts.csv").write_text("id,mcc,age\na,0742,3\nb,5411,4\n")
    (tmp_path / "shops.csv").write_text("id,mcc,city\nx,7,P\ny,8,Q\n")
    (tmp_path / "pays.csv").write_text("src,dst\na,x\nb,y\n")

    def types(*columns):
        names = {"account": "accounts.csv", "shop": "shops.csv", "account:pays:shop": "pays.csv"}
        edges, features = [f"account:pays:shop={tmp_path / 'pays.csv'}"], []
        for name in ("account", "shop"):
            features += ["--features", f"{name}={tmp_path / names[name]}"]
        given = [text for column in columns for text in ("--column", column)]
        out = ["--out", str(tmp_path / "g"), "--overwrite"]
        result = CliRunner().invoke(app, ["build", *edges, *features, "--id", "id", *given, *out])
        assert result.exit_code == 0, result.output
        schema = Graph.open(tmp_path / "g").schema
        return {
            name: {each.name: each.type for each in schema.node_types[name].columns}
            for name in ("account", "shop")
        }

    account, shop = {"mcc": "text", "age": "integer"}, {"mcc": "integer", "city": "text"}
    assert types("*", "account=mcc:text", "shop=mcc") == {"account": account, "shop": shop}
    assert types("*", "account=mcc:text") == {"account": account, "shop": shop}
    assert types("account=*", "account=mcc:text", "shop=*") == {"account": account, "shop": shop}
    assert types("mcc:text", "account=*", "shop=city") == {
        "account": account,
        "shop": {"mcc": "text", "city": "text"},
    }
    assert types("mcc:integer", "account=mcc:text")["account"] == {"mcc": "text"}
    assert types("mcc:integer", "account=mcc:text")["shop"] == {"mcc": "integer"}
