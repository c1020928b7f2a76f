"""`hopline mesh evaluate` on a folder that was drawn."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import msgspec
import pytest
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.errors import BadRequest, HoplineError
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.baselines import maximum, sigma, static
from hopline_mesh.incident import Verdict
from packages.mesh.tests.evaluate.drawn import START, event, recording
from packages.mesh.tests.evaluate.files import write_folder

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


def test_grace_is_reported_and_used(folder):
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


def test_events_in_the_training_are_reported(folder):
    words = (folder, "--detector", "maximum", "--train", f"{START}..{START + 3000}")
    assert "1 event in the training: detectors" in run(*words)
    assert json.loads(run(*words, "--json"))["events_in_training"] == 1


class Shy:
    """A detector that says nothing at first."""

    def __init__(self, settings, *, neighbours):
        pass

    def fit(self, snapshots, contexts):
        self.seen = 0

    def step(self, snapshot, context):
        self.seen += 1
        return Verdict(
            snapshot.time_s, "learning" if self.seen < 6 else "blind" if self.seen < 8 else "normal", 0.0
        )


def test_intervals_that_were_not_judged_are_reported(folder, monkeypatch):
    monkeypatch.setattr("hopline_mesh.detect.MeshDetector", Shy)
    assert "watch did not judge 7 intervals" in run(folder, "--detector", "watch")
    assert json.loads(run(folder, "--json", "--detector", "watch"))["detectors"][0]["unjudged"] == 7


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
    monkeypatch.setattr("hopline_mesh.detect.MeshDetector", lambda settings, neighbours: sigma())
    told = json.loads(run(folder, "--detector", "all", "--json"))
    assert [one["detector"] for one in told["detectors"]] == [
        "watch",
        "none",
        "static",
        "percentile",
        "sigma",
        "maximum",
        "robust",
        "isolation_forest",
        "pca",
    ]


def test_the_default_shows_what_the_neighbours_add(folder, monkeypatch):
    def made(settings, *, neighbours):
        return maximum() if neighbours else static()

    monkeypatch.setattr("hopline_mesh.detect.MeshDetector", made)
    said = run(folder)
    assert "the regression on neighbours changes: found +1 of 1, false +1" in said


def test_a_detector_that_fails_loses_no_results_of_others(folder, monkeypatch):
    class Broken(Shy):
        def fit(self, snapshots, contexts):
            raise ValueError("no column")

    monkeypatch.setattr("hopline_mesh.detect.MeshDetector", Broken)
    arguments = ["mesh", "evaluate", str(folder), "--detector", "maximum,watch,static"]
    result = CliRunner().invoke(build_app(arguments), arguments)
    assert result.exit_code == 1
    lines = [line.split()[:2] for line in result.output.splitlines()]
    assert ["maximum", "1/1"] in lines
    assert ["static", "0/1"] in lines
    assert "watch failed: ValueError: no column" in result.output


@pytest.mark.parametrize("detector", ["none", "watch"])
def test_call_paths_without_measurements_are_judged_by_their_services(folder, detector):
    lines = (folder / "edges.csv").read_text().splitlines()
    (folder / "edges.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    told = json.loads(run(folder, "--detector", detector, "--json"))
    assert told["failed"] == []
    assert told["detectors"][0]["scores"]["events"] == 1


def test_labels_outside_of_the_recording_are_named(folder):
    with (folder / "labels.csv").open("a") as file:
        file.write("2031-01-01T00:00:00Z,2031-01-01T00:05:00Z,a,,,late\n")
    said = run(folder, "--detector", "maximum")
    assert "outside of the recording, not counted: late a at 2031-01-01 00:00:00" in said
    assert "1/1" in said
    told = json.loads(run(folder, "--detector", "maximum", "--json"))
    assert [event["kind"] for event in told["events_outside"]] == ["late"]


def test_every_detector_waits_as_long(folder):
    for name in ("maximum", "none"):
        at_once = json.loads(run(folder, "--detector", name, "--min-duration", "240", "--json"))
        assert at_once["min_duration_s"] == 240.0
        minutes = at_once["detectors"][0]["scores"]["minutes_to_detect"]
        assert minutes in (None, 4.0)


def test_it_learns_from_one_folder_and_judges_another(folder, tmp_path):
    # The same services in another order, a week later; and a fault that is labelled.
    usual = recording({"p99_ms": [*USUAL, *[900.0] * 5, 10.0]}, train=1, events=(event(40, service="a"),))
    later = [replace(each, time_s=each.time_s + 7 * 86_400) for each in usual.snapshots]
    moved = replace(
        usual,
        snapshots=later,
        train=(),
        test=(),
        events=[msgspec.structs.replace(each, start_s=each.start_s + 7 * 86_400,
                                        end_s=each.end_s + 7 * 86_400) for each in usual.events],
    )  # fmt: skip
    write_folder(replace(moved, name="usual"), tmp_path / "usual")
    (tmp_path / "usual" / "mesh.toml").unlink()
    words = (folder, "--learn-from", tmp_path / "usual", "--detector", "maximum", "--json")
    told = json.loads(run(*words))
    assert told["snapshots"] == [40, 68]
    assert told["train"][0]["end_s"] <= told["test"][0]["start_s"]
    scores = told["detectors"][0]["scores"]
    assert (scores["found"], scores["events"], scores["false_episodes"]) == (1, 1, 1)


def test_two_folders_with_other_columns_are_refused(folder, tmp_path):
    other = recording({"p99_ms": USUAL, "cpu_cores": USUAL}, train=1)
    write_folder(other, tmp_path / "other")
    (tmp_path / "other" / "mesh.toml").write_text('name = "other"')
    with pytest.raises(SnapshotInvalid, match="only other has cpu_cores in its nodes"):
        run(folder, "--learn-from", tmp_path / "other", "--detector", "maximum")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--detector", "statik"],
            "--detector statik: unknown; choose from watch, none, static",
        ),
        (["--detector", ","], "--detector ',': unknown; choose from"),
        (["--grace", "-1"], "--grace -1: must be a number of seconds, at least 0"),
        (["--grace", "nan"], "--grace nan: must be a number of seconds"),
        (["--grace", "inf"], "--grace inf: must be a number of seconds"),
        (["--min-duration", "inf"], "--min-duration inf: must be at most 960, 16 intervals of 60 s"),
        (["--min-duration", "961"], "--min-duration 961: must be at most 960"),
        (["--interval", "30"], "was recorded every 60 s; give that or more"),
        (["--interval", "nan"], "was recorded every 60 s; give that or more"),
        (
            ["--interval", "1e308"],
            r"--interval 1e\+308: no interval of this length ends within the training",
        ),
        (
            ["--interval", "1e308", "--train", "1700000000..1700000600"],
            r"--interval 1e\+308: no interval of",
        ),
        (
            ["--interval", "100000"],
            "--interval 100000: no interval of this length ends within the training",
        ),
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


def test_a_report_that_cannot_be_written_is_named_before_the_judgement(folder):
    for report in ("/proc/x", folder / "nodes.csv" / "below"):
        with pytest.raises(BadRequest, match=f"--report {report} cannot be written: "):
            run(folder, "--detector", "sigma", "--report", report)


def test_results_are_printed_before_a_report_that_fails(folder, tmp_path):
    (tmp_path / "report" / "report.json").mkdir(parents=True)
    words = ["mesh", "evaluate", str(folder), "--detector", "sigma", "--report", str(tmp_path / "report")]
    done = CliRunner().invoke(build_app(words), words)
    assert isinstance(done.exception, BadRequest)
    assert "report cannot be written: " in str(done.exception)
    assert " sigma " in done.output


def test_a_bad_folder_is_named(tmp_path):
    with pytest.raises(SnapshotInvalid, match="no such folder"):
        run(tmp_path / "nowhere")


def test_a_fine_recording_is_averaged_to_the_interval_of_the_watch(tmp_path):
    slow = [10.0] * 300 + [90.0] * 180 + [10.0] * 120
    labelled = (event(20, minutes=3.0, service="a", kind="slow"),)
    one = recording({"p99_ms": [*USUAL * 30, *slow][:1800]}, train=900, interval_s=1.0, events=labelled)
    write_folder(replace(one, name="fine"), tmp_path)
    words = (tmp_path, "--detector", "maximum", "--grace", "600")
    assert (
        "60 snapshots to learn from, 60 to judge, 15 s each (averages; it was recorded every 1 s)"
        in run(*words)
    )
    told = json.loads(run(*words, "--json"))
    assert (told["interval_s"], told["recorded_interval_s"]) == (15.0, 1.0)
    assert told["detectors"][0]["scores"]["found"] == 1
    own = json.loads(run(*words, "--json", "--interval", "1", "--min-duration", "16"))
    assert (own["interval_s"], own["snapshots"]) == (1.0, [900, 900])
    assert json.loads(run(*words, "--json", "--interval", "60"))["snapshots"] == [15, 15]
    with pytest.raises(BadRequest, match="--min-duration 80: must be at most 16, 16 intervals of 1 s"):
        run(*words, "--interval", "1")


def test_events_that_were_not_recorded_count_nowhere_and_are_named(folder):
    lines = (folder / "nodes.csv").read_text().splitlines(keepends=True)
    hole = [str(START + 60 * minute) for minute in range(50, 56)]
    for name in ("nodes.csv", "edges.csv"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(each for each in lines if not each.startswith(tuple(hole))))
    with (folder / "labels.csv").open("a") as file:
        file.write(f"{START + 3060},{START + 3180},a,,,dark\n{START + 3960},{START + 4000},a,,,after\n")
    manifest = (folder / "mesh.toml").read_text().replace(str(START + 4080), str(START + 3900))
    (folder / "mesh.toml").write_text(manifest)
    said = run(folder, "--detector", "maximum")
    assert "in a hole of the recording, not counted: dark a at" in said
    assert "outside of training and test, not counted: after a at" in said
    assert "1/1" in said


def test_notes_of_a_recording_are_printed(folder):
    (folder / "changes.csv").write_text("start,service,kind\n2026-01-01,aa,scale\n")
    assert "changes: no row of the nodes has 'aa'" in run(folder, "--detector", "maximum")
    assert len(json.loads(run(folder, "--detector", "maximum", "--json"))["notes"]) == 1


@pytest.mark.parametrize("what", ["training", "test"])
def test_nothing_measured_is_an_error(folder, what):
    for name, keys in (("nodes.csv", 2), ("edges.csv", 3)):
        rows = [line.split(",") for line in (folder / name).read_text().splitlines()]
        for row in rows[1:]:
            if (float(row[0]) < START + 2400) == (what == "training"):
                row[keys:] = [""] * len(row[keys:])
        (folder / name).write_text("\n".join(map(",".join, rows)) + "\n")
    with pytest.raises(SnapshotInvalid, match=f"drawn: no value was measured in the {what}, 2023-"):
        run(folder, "--detector", "maximum")


def test_a_detector_that_judges_no_column_is_named(folder):
    nodes = (folder / "nodes.csv").read_text().replace("p99_ms", "heap_bytes")
    (folder / "nodes.csv").write_text(nodes)
    arguments = ["mesh", "evaluate", str(folder), "--detector", "maximum,static"]
    result = CliRunner().invoke(build_app(arguments), arguments)
    assert result.exit_code == 1
    assert "static failed: static can judge no column of this recording (heap_bytes, " in result.output
    assert "maximum failed" not in result.output


def test_the_same_folder_or_other_services_are_nothing_to_learn_from(folder, tmp_path):
    with pytest.raises(BadRequest, match="is the judged recording"):
        run(folder, "--learn-from", folder)
    other = tmp_path / "other"
    write_folder(recording({"p99_ms": USUAL}, train=20), other)
    for name in ("nodes.csv", "edges.csv"):
        text = (other / name).read_text().replace(",a,", ",x,").replace(",b,", ",y,")
        (other / name).write_text(text)
    with pytest.raises(SnapshotInvalid, match="have no service in common"):
        run(folder, "--learn-from", other)


def test_a_training_of_a_few_snapshots_is_refused(folder):
    with pytest.raises(
        SnapshotInvalid, match="drawn: 9 snapshots to learn from; a detector needs at least 10"
    ):
        run(folder, "--train", f"{START}..{START + 540}", "--detector", "maximum")
