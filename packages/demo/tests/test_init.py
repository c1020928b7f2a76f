"""`hopline init`: each kind of project leads to a served answer by one command, with the user's columns."""

import re
import runpy
import subprocess
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from hopline import cli
from hopline.errors import BadRequest, GraphError
from hopline_demo import shop


def init(*words):
    words = ("init", *map(str, words))
    return CliRunner().invoke(cli.build_app(words), words)


def run(folder, *words):
    command = [sys.executable, *(words or ("run.py", "--epochs", "3"))]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("recommender", r"served: \[\('g\d+', 0\.\d+\)"),
        ("fraud", r"served: \{'probabilities': 0\.\d+, 'label': [01]\}"),  # the next test's kind
        ("relational", r"served: \{'logits': \[-?\d"),
    ],
)
def test_a_project_of_generated_tables_prints_a_served_answer(kind, answer, tmp_path):
    assert init(kind, "--out", tmp_path / "shop").exit_code == 0
    done = run(tmp_path / "shop")
    assert done.returncode == 0, done.stderr
    assert re.search(answer, done.stdout), done.stdout
    assert re.search(r"trained: .* on \d+ later (rows|pairs)", done.stdout)


def test_files_of_the_user_are_read_where_they_are_and_the_client_has_their_columns(tmp_path):
    files = shop.write("fraud", tmp_path / "mine", rows=600)
    payments = pd.read_csv(files["payment"]).rename(columns={"amount": "Betrag in €"})
    payments["note"] = None
    payments["tags"] = [None if row % 7 == 3 else ["gift", f"c{row % 3}"] for row in range(len(payments))]
    payments["emb"] = [[row / 8, 1.5] for row in range(len(payments))]
    payments.to_parquet(tmp_path / "mine" / "payments.parquet")
    done = init(
        "fraud", f"konto={files['account']}", f"merchant={files['merchant']}",
        f"payment={tmp_path / 'mine' / 'payments.parquet'}", "--out", tmp_path / "shop",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "shop" / "data").exists()
    client = runpy.run_path(str(tmp_path / "shop" / "client.py"))
    lists = {"tags": ["gift", "c0"], "emb": [0.0, 1.5]}
    assert client["COLUMNS"] == {"Betrag in €": payments["Betrag in €"][0], **lists}
    assert client["NEIGHBORS"] == {
        "konto__rev_account__payment": [payments["account"][0]],
        "merchant__rev_merchant__payment": [payments["merchant"][0]],
    }
    tested = run(tmp_path / "shop", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout


def test_what_no_project_can_be_made_of_is_refused(tmp_path):
    files = shop.write("relational", tmp_path, rows=600)
    words = [f"{name}={path}" for name, path in files.items()]
    names = "".join(f"{row},name {row}\n" for row in range(600))
    (tmp_path / "person.csv").write_text(f"id,name\n{names}")
    words.append(f"person={tmp_path / 'person.csv'}")
    (tmp_path / "there").mkdir()
    for options, kind, message in (
        ((), GraphError, "no column of a table with a key is a label by its name: --label TABLE.COLUMN"),
        (("--label", "order.days"), GraphError, "--label order.days: no such column"),
        (("--label", "order.delivery_days"), GraphError, "is a number: hopline init relational"),
        (("--label", "customer.country"), GraphError, "is text"),
        (("--label", "person.name"), GraphError, "person.name is text"),  # described as left out
        (("--out", tmp_path / "there"), BadRequest, "there exists; name a new folder"),
    ):
        out = () if "--out" in options else ("--out", tmp_path / f"shop{abs(hash(options))}")
        done = init("fraud", *words, *out, *options)
        assert isinstance(done.exception, kind), done.output
        assert message in str(done.exception)
        assert "--out" in options or not list(tmp_path.glob("shop*")), "the corrected command has the name"
    pairs = [f"{name}={path}" for name, path in shop.write("recommender", tmp_path, rows=600).items()]
    done = init("relational", *pairs, "--label", "buys.at", "--out", tmp_path / "pairs")
    assert "--label buys.at: no column has another value in each row" in str(done.exception)
    assert "read and edit" not in done.output
    done = init("recommender", *words, "--out", tmp_path / "pairs")
    assert "no table without a key is between two other tables" in str(done.exception)
