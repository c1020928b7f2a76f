"""Training of students on tiny graphs."""

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline_compress.distill.settings import Settings
from hopline_compress.distill.train import train_student

torch = pytest.importorskip("torch")
SHORT = Settings(hidden=16, epochs=60, patience=15, structure=False, dropout=0.2)


def separable(num_rows: int = 120, dim: int = 6):
    """Two clouds, a teacher that is nearly sure, and their labels."""
    chance = np.random.default_rng(1)
    labels = np.arange(num_rows) % 2
    x = chance.normal(size=(num_rows, dim)).astype(np.float32) + 4 * labels[:, None].astype(np.float32)
    soft = np.full((num_rows, 2), 0.1, np.float32)
    soft[np.arange(num_rows), labels] = 0.9
    rows = np.arange(num_rows)
    return x, soft, labels, rows[:80], rows[80:]


def test_student_learns_what_can_be_separated():
    x, soft, labels, fit, valid = separable()
    trained = train_student(x, soft, labels, fit, valid, SHORT)
    assert trained.judged_by == "labels"
    assert trained.score == 1
    answers = trained.probabilities(x)
    assert (answers[valid].argmax(1) == labels[valid]).all()
    np.testing.assert_allclose(answers.sum(1), 1, atol=1e-5)


def test_without_labels_the_teacher_judges():
    x, soft, labels, fit, valid = separable()
    trained = train_student(x, soft, np.full_like(labels, -1), fit, valid, SHORT)
    assert (trained.judged_by, trained.score) == ("teacher", 1)


def test_one_seed_is_one_student_whatever_was_drawn_before():
    x, soft, labels, fit, valid = separable()
    settings = Settings(hidden=8, epochs=10, batch=32, structure=False)
    first = train_student(x, soft, labels, fit, valid, settings)
    torch.rand(7)
    before = torch.get_rng_state()
    second = train_student(x, soft, labels, fit, valid, settings)
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(first.probabilities(x), second.probabilities(x))
    assert first.history == second.history
    other = train_student(
        x, soft, labels, fit, valid, Settings(hidden=8, epochs=10, structure=False, seed=1)
    )
    assert (other.probabilities(x) != first.probabilities(x)).any()


def test_training_stops_when_validation_gets_no_better_and_keeps_the_best():
    x, soft, labels, fit, valid = separable()
    told = []
    # The validation rows say the opposite, so that learning more scores less.
    labels = labels.copy()
    labels[valid] = 1 - labels[valid]
    settings = Settings(hidden=16, epochs=200, patience=5, structure=False, dropout=0.0)
    trained = train_student(x, soft, labels, fit, valid, settings, advance=lambda *now: told.append(now))
    assert len(trained.history) == trained.best_epoch + 1 + 5
    assert len(trained.history) < 200
    assert trained.score == max(trained.history) == trained.history[trained.best_epoch]
    assert told == [(epoch + 1, 200, score) for epoch, score in enumerate(trained.history)]


def test_labels_of_other_rows_change_nothing():
    x, soft, labels, fit, valid = separable()
    settings = Settings(hidden=8, epochs=10, structure=False, label_weight=0.5)
    part, rest = fit[:40], fit[40:]
    twisted = labels.copy()
    twisted[rest] = 1 - twisted[rest]
    first = train_student(x, soft, labels, part, valid, settings)
    second = train_student(x, soft, twisted, part, valid, settings)
    np.testing.assert_array_equal(first.probabilities(x), second.probabilities(x))


def test_labels_can_outweigh_the_teacher():
    x, soft, labels, fit, valid = separable()
    wrong = soft[:, ::-1].copy()
    settings = Settings(hidden=16, epochs=60, structure=False, label_weight=1.0)
    trained = train_student(x, wrong, labels, fit, valid, settings)
    assert (trained.probabilities(x)[valid].argmax(1) == labels[valid]).all()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_student_of_reduced_features_takes_features_as_they_are(layers):
    x, soft, labels, fit, valid = separable(dim=20)
    structure = x[:, :3].copy()
    settings = Settings(hidden=8, layers=layers, epochs=30, width=4)
    trained = train_student(x, soft, labels, fit, valid, settings, structure=structure)
    found = trained.probabilities(np.concatenate([x, structure], axis=1))
    # The module that is handed back scores what the one that was trained scored.
    assert float((found[valid].argmax(1) == labels[valid]).mean()) == pytest.approx(trained.score)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: (a[0][:5], *a[1:]), "5 rows of features, 120 of soft labels and 120 labels"),
        (lambda a: (*a[:3], a[3][:0], a[4]), "fit_rows is empty"),
        (lambda a: (*a[:4], a[4][:0]), "valid_rows is empty"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change, told):
    with pytest.raises(BadRequest, match=told):
        train_student(*change(separable()), SHORT)


def test_labels_that_choose_the_epoch_are_not_learned_from():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 5)).astype(np.float32)
    soft = np.full((60, 3), 1 / 3, np.float32)
    labels = rng.integers(0, 3, 60)
    everyone, valid = np.arange(60), np.arange(40, 60)
    settings = Settings(structure=False, label_weight=1.0, epochs=1, width=0)
    answers = []
    for shift in (0, 1):
        told = labels.copy()
        told[valid] = (told[valid] + shift) % 3
        trained = train_student(x, soft, told, everyone, valid, settings)
        answers.append(trained.probabilities(x))
    assert np.array_equal(*answers)
