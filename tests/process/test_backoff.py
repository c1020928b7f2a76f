from hopline.process.backoff import Backoff


def test_pauses_double_up_to_the_longest():
    backoff = Backoff(0.1, 1.0)
    assert [round(backoff.failed(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_what_worked_begins_with_the_first_pause_again():
    backoff = Backoff(0.1, 1.0, steady_s=30.0)
    for _ in range(4):
        backoff.failed(worked_s=30.0)  # not long enough
    assert backoff.pause_s == 1.0
    assert backoff.failed(worked_s=30.1) == 0.1
    assert backoff.failed() == 0.2
    backoff.worked()
    assert backoff.failed() == 0.1
