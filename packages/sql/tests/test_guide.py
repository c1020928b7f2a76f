"""The guide from tables of a real PostgreSQL to a served answer, as it is written."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import csv

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.graph import Graph
from hopline.types import ScoreRequest
from hopline_demo import shop
from packages.sql.tests.postgres_server import postgres
from scripts.house import ROOT
from tests.docs.player import _serving

# PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
PAGE = ROOT / "docs" / "guides" / "graphs-from-databases.md"


def blocks(info):
    return re.findall(rf"^```{info}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def fill(database):
    """Rows for the guide's tables: 60 accounts, of which some have nulls, 12 merchants, 300 payments."""
    random = np.random.default_rng(0)
    statements = [each for each in blocks("sql")[0].split(";") if each.strip()]
    for row in range(60):
        country = "null" if row % 9 == 0 else f"'{random.choice(['DE', 'JP', 'FR'])}'"
        opened = "null" if row % 13 == 0 else f"'2023-0{row % 9 + 1}-01 10:00+02'"
        verified = "null" if row % 11 == 0 else str(bool(random.random() < 0.7)).lower()
        fraud = str(bool(random.random() < 0.3)).lower()
        statements.append(
            f"insert into accounts values ('a{row}', {country}, {random.lognormal(7, 1):.2f}, {opened}, "
            f"{verified}, {fraud})"
        )
    for row in range(12):
        code = random.choice(["5411", "0742"])
        statements.append(f"insert into merchants values ({row}, '{code}', {random.lognormal(9, 1)})")
    for _ in range(300):
        account, merchant = random.integers(60), random.integers(12)
        statements.append(f"insert into payments values ('a{account}', {merchant})")
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def typed(folder, command, database):
    """What a command of the guide prints."""
    (folder / "bin").mkdir()
    (folder / "bin" / "hopline").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hopline.cli "$@"\n')
    (folder / "bin" / "hopline").chmod(0o755)
    command = command.replace("postgres://reader@db/shop", database)
    paths = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.release
def test_one_command_leads_from_a_database_to_a_served_answer(tmp_path, monkeypatch):
    from adbc_driver_postgresql import dbapi

    (command,) = (each for each in blocks("sh") if each.startswith("hopline init"))
    assert command.count("\n") == 1
    with postgres() as database:
        with dbapi.connect(database) as connection, connection.cursor() as cursor:
            for name, file in shop.write("fraud", tmp_path / "csv", rows=900).items():
                cursor.adbc_ingest(f"{name}s", csv.read_csv(file), mode="create")
            connection.commit()
        said = typed(tmp_path, command, database)
    answer = re.search(r"^served: \{'probabilities': ([0-9.e-]+), 'label': [01]\}$", said, re.MULTILINE)
    assert answer, said
    monkeypatch.chdir(tmp_path / "fraud")
    graph, artifact = Graph.open("graph"), Path("models/fraud/1")
    model = load_model(artifact, read_spec(artifact), graph)
    (known,) = Answerer(model, ("probabilities",), 9).answer([ScoreRequest("fraud", nodes=[1])])
    # The client describes the first row as a new one, with the columns of the table.
    np.testing.assert_allclose(float(answer[1]), known.outputs["probabilities"][0], rtol=1e-5)
    assert {name: part.num_nodes for name, part in graph.nodes.items()} == {
        "accounts": 150, "merchants": 18, "payments": 900,
    }  # fmt: skip
    assert "is_fraud" not in graph.frame("payments")


@pytest.mark.release
def test_one_command_line_leads_from_tables_to_the_score_of_a_new_account(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "fraud.py").write_text(blocks("py")[0])
    _, line, request = blocks("sh")
    building, _, serving = line.rpartition("&&\n")
    with postgres() as database:
        fill(database)
        typed(tmp_path, building, database)
        monkeypatch.chdir(tmp_path)
        graph = Graph.open("graph")
        expected = by_hand(graph)
    assert serving.split()[:2] == ["hopline", "serve"]
    import httpx

    with _serving(serving.split()[2:]) as (url, _):
        body = re.search(r"-d '(.*)'", request, re.DOTALL)[1]
        answer = httpx.post(f"{url}/v1/models/risk/score", content=body)
        assert answer.status_code == 200, answer.text
        assert set(json.loads(body)["inline"][0]["columns"]) == {"country", "income", "opened", "verified"}
    np.testing.assert_allclose(answer.json()["outputs"]["probabilities"][0], expected, atol=1e-4)


def by_hand(graph):
    """The new account's probability by PyG, on what the transformers make of a frame of pandas."""
    spec = importlib.util.spec_from_file_location("fraud_of_the_guide", "fraud.py")
    fraud = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fraud)
    net = fraud.risk(graph).eval()
    opened = pd.Timestamp("2024-01-31T13:45:00Z").timestamp()
    new = pd.DataFrame({"country": ["JP"], "income": [1250.5], "opened": [opened], "verified": [np.nan]})
    rows = {"account": pd.concat([graph.frame("account"), new]), "merchant": graph.frame("merchant")}
    x = {name: torch.tensor(getattr(fraud, name)(graph).transform(rows[name])).float() for name in rows}
    edges = {}
    for pair in (fraud.PAYS, fraud.PAID_BY):
        lists = graph.edge(pair)
        ends = np.repeat(np.arange(len(lists.indptr) - 1), np.diff(lists.indptr))
        edges[pair] = torch.tensor(np.stack([lists.indices, ends]))
    edges[fraud.PAID_BY] = torch.cat([edges[fraud.PAID_BY], torch.tensor([[3, 7], [60, 60]])], dim=1)
    with torch.no_grad():
        return net(x, edges)[-1].sigmoid().item()
