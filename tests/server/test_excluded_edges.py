"""Edges that a model does not see because its package says so; a request may say otherwise."""

import httpx
import numpy as np
import pytest

import hopline
from hopline.server import DEFAULT_SERVICE
from tests.engine.test_scored_edges import World
from tests.packaged import package
from tests.servers import running

HOWS = ("none", "self", "reverse")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model whose training hid "reverse", and the answers of the engine to each form."""
    folder = tmp_path_factory.mktemp("excluded")
    world = World(folder / "other")
    graph = world.graph.save(folder / "graph")
    package(
        world.encoder, graph, folder / "models", name="payments", fanouts=[-1, -1], task="binary",
        target=("user", "shop"), head=world.head, exclude_seed_edges="reverse",
    )  # fmt: skip
    src, dst = world.ends[:, :20]
    rows = np.random.default_rng(0).normal(size=(20, 2)).astype("f4")
    edges = [
        {"from": f"u{a}", "to": int(b), "attr": row}
        for a, b, row in zip(src, dst, rows.tolist(), strict=True)
    ]
    wanted = {
        how: world.ask(world.edges(src, dst, rows), exclude_seed_edges=how).outputs["logits"]
        for how in HOWS
    }
    assert len({each.tobytes() for each in wanted.values()}) == 3
    return folder, edges, wanted


@pytest.mark.sample(1)
@pytest.mark.parametrize("isolate", [False, True])
def test_requests_that_do_not_say_are_answered_as_the_model_was_packaged(place, isolate):
    folder, edges, wanted = place
    (folder / "models" / "payments" / "serving.toml").write_text(
        f"isolate = {str(isolate).lower()}\ncache_bytes = 1000000\ncache_ttl_s = 600\n"
    )
    settings = {"graph__path": folder / "graph", "models__repository": folder / "models"}
    with running(DEFAULT_SERVICE, **settings) as server, hopline.Client(server.url) as client:
        for _ in range(2):  # the second time from the response cache
            for how in ("", *HOWS, ""):
                options = {"exclude_seed_edges": how} if how else {}
                found = client.score_edges("payments", edges, outputs=["logits"], **options)
                assert (found.outputs["logits"] == wanted[how or "reverse"]).all(), how
        (info,) = client.models()
        assert info.properties["exclude_seed_edges"] == "reverse"
        new = {"type": "user", "id": "new", "features": [1.0, 2.0, 3.0, 4.0]}
        own = {"from": "new", "to": 2, "attr": [0.5, 0.5]}
        mixed = client.score_edges("payments", [own, *edges], outputs=["logits"], context=[new])
        assert (mixed.outputs["logits"][1:] == wanted["reverse"]).all()
        body = {"edges": edges, "exclude_seed_edges": "both"}
        refused = httpx.post(f"{server.url}/v1/models/payments/score", json=body)
        assert refused.status_code == 400
        assert "exclude_seed_edges" in refused.text
