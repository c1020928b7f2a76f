"""`hopline mesh evaluate` on a folder that was drawn."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.errors import BadRequest, HoplineError
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.baselines.sigma import Sigma
from hopline_mesh.evaluate.record import write_folder
from hopline_mesh.incident import Verdict
from tests.evaluate.drawn import START, event, recording

USUAL = [9.0, 10.0, 11.0, 10.0] * 10


@pytest.fixture
def folder(tmp_path):
    """Forty usual minutes, then one fault that is labelled and one that is not."""
    values = [*USUAL, *[10.0] * 5, *[90.0] * 4, *[10.0] * 10, *[90.0] * 4, *[10.0] * 5]
    one = recording({"p99_ms": values}, train=len(USUAL), events=(event(44, service="a", kind="slow"),))
    write_folder(replace(one, name="drawn"), tmp_path / "mesh")
    return tmp_path / "mesh"


def run(*words):
    arguments = ["mesh", "evaluate", *map(str, words)]
    result = CliRunner().invoke(build_app(arguments), arguments)
    if isinstance(result.exception, HoplineError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_it_prints_a_line_for_each_detector_and_each_kind(folder):
    said = run(folder, "--detector", "maximum,static")
    assert "drawn: 40 snapshots to learn from, 28 to judge, 60 s each" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["maximum", "1/1", "1", "2.14", "2.0", "100%", "100%"] in [line[:7] for line in lines]
    assert ["static", "0/1", "0", "0.00", "–", "–", "–"] in [line[:7] for line in lines]
    assert ["slow", "1/1", "2.0", "100%", "100%"] in lines


def test_json_has_all_of_it(folder):
    told = json.loads(run(folder, "--detector", "sigma", "--json"))
    assert (told["name"], told["snapshots"], told["grace_s"]) == ("drawn", [40, 28], 120.0)
    scores = told["detectors"][0]["scores"]
    assert (scores["found"], scores["events"], scores["false_episodes"]) == (1, 1, 1)
    outcome = scores["outcomes"][0]
    assert (outcome["rank"], outcome["minutes"], outcome["event"]["kind"]) == (1, 2.0, "slow")
    assert scores["false"][0]["first"]["suspects"][0]["service"] == "a"


def test_grace_is_told_and_used(folder):
    told = json.loads(run(folder, "--detector", "maximum", "--json", "--grace", "3600"))
    scores = told["detectors"][0]["scores"]
    assert (told["grace_s"], scores["false_episodes"]) == (3600.0, 0)


def test_training_can_be_chosen(folder):
    told = json.loads(
        run(folder, "--detector", "maximum", "--train", f"{START + 600}..{START + 1200}", "--json")
    )
    assert told["snapshots"] == [10, 58]
    assert [period["start_s"] - START for period in told["train"]] == [600.0]
    assert told["detectors"][0]["scores"]["found"] == 1


def test_events_in_the_training_are_told(folder):
    words = (folder, "--detector", "maximum", "--train", f"{START}..{START + 3000}")
    assert "1 events begin in the training" in run(*words)
    assert json.loads(run(*words, "--json"))["events_in_training"] == 1


class Shy:
    """A detector that says nothing at first."""

    def fit(self, snapshots, contexts):
        self.seen = 0

    def step(self, snapshot, context):
        self.seen += 1
        return Verdict(
            snapshot.time_s, "learning" if self.seen < 6 else "blind" if self.seen < 8 else "normal", 0.0
        )


def test_intervals_that_were_not_judged_are_told(folder, monkeypatch):
    monkeypatch.setattr("hopline_mesh.tagae.Tagae", Shy)
    assert "tagae did not judge 7 intervals" in run(folder)
    assert json.loads(run(folder, "--json"))["detectors"][0]["unjudged"] == 7


def test_the_report_has_a_drawing_of_each(folder, tmp_path):
    run(folder, "--detector", "maximum,static", "--report", tmp_path / "report")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "report.json",
        "maximum.svg",
        "static.svg",
    }
    told = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [one["detector"] for one in told["detectors"]] == ["maximum", "static"]
    drawing = ElementTree.parse(tmp_path / "report" / "maximum.svg")
    titles = [title.text for title in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert any("slow a" in title and "detected after 2.0 min" in title for title in titles)
    fills = [rect.get("fill") for rect in drawing.iter("{http://www.w3.org/2000/svg}rect")]
    assert fills.count("#ee6677") == 2  # the legend, and one false incident
    texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "1 of 1 events detected, 1 false incidents in 0.5 h" in texts


def test_hostile_names_do_no_harm(tmp_path):
    name = "<b>[red]\x1b[31m\x07\n&'\""
    values = [*USUAL, *[10.0] * 5, *[90.0] * 4, *[10.0] * 5]
    one = recording({"p99_ms": values}, train=len(USUAL), events=(event(44, service="a", kind=name),))
    write_folder(replace(one, name=name), tmp_path / "mesh")
    said = run(tmp_path / "mesh", "--detector", "maximum", "--report", tmp_path / "report")
    assert "[red]" in said
    assert "\x1b" not in said
    drawing = ElementTree.parse(tmp_path / "report" / "maximum.svg")
    titles = [title.text for title in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert any("<b>[red]\ufffd[31m\ufffd\ufffd&'\"" in title for title in titles)


def test_all_detectors_run(folder, monkeypatch):
    monkeypatch.setattr("hopline_mesh.tagae.Tagae", Sigma)  # training takes its time
    monkeypatch.setattr("hopline_mesh.evaluate.baselines.untrained.make", lambda recording: Sigma())
    told = json.loads(run(folder, "--detector", "all", "--json"))
    assert [one["detector"] for one in told["detectors"]] == [
        "tagae",
        "static",
        "percentile",
        "sigma",
        "maximum",
        "isolation_forest",
        "pca",
        "untrained",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--detector", "statik"], "--detector statik: unknown; choose from tagae, static"),
        (["--detector", ","], "--detector none: unknown; choose from"),
        (["--grace", "-1"], "--grace -1: must be at least 0"),
        (["--train", "noon"], r"--train noon: must be A\.\.B"),
        (["--train", "1700000600..1700000000"], "must be A..B, two times"),
        (
            ["--train", "1800000000..1800000600"],
            "no snapshot is in this period; the recording is from 2023-",
        ),
        (["--train", "1600000000..1800000600"], "no snapshot is left for the test"),
    ],
)
def test_a_bad_option_is_named(folder, words, said):
    with pytest.raises(BadRequest, match=said):
        run(folder, *words)


def test_a_report_is_not_written_over_a_file(folder):
    with pytest.raises(BadRequest, match="is a file; give a folder"):
        run(folder, "--report", folder / "nodes.csv")


def test_a_bad_folder_is_named(tmp_path):
    with pytest.raises(SnapshotInvalid, match="no such folder"):
        run(tmp_path / "nowhere")
