"""Log lines for machines: one object each, with the request that they are about."""

import io
import json
import logging

import pytest

from hopline.config.reader import load_config
from hopline.observe.logs import JsonFormatter, configure_logs
from hopline.transports.failure import as_hopline_error


@pytest.fixture
def lines(monkeypatch):
    """What was logged, line by line."""
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    packages = ("hopline", "built_on_it")
    loggers = [logging.getLogger(name) for name in packages]
    before = [(list(each.handlers), each.level, each.propagate) for each in loggers]
    configure_logs(load_config(overrides={"log.format": "json"}).log, packages)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers, each.level, each.propagate = handlers, level, propagate


def test_an_unexpected_failure_is_logged_with_its_request(lines):
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError as error:
        told = as_hopline_error(error, "r-42")
    (line,) = lines()
    assert line["request_id"] == "r-42"
    assert line["level"] == "error"
    assert "ZeroDivisionError: a bug" in line["traceback"]
    assert "r-42" in str(told)


def test_a_line_that_is_about_no_request_names_none(lines):
    logging.getLogger("hopline.service").info("serving %s", "risk")
    (line,) = lines()
    assert line["message"] == "serving risk"
    assert "request_id" not in line


def test_each_named_package_logs_alike(lines):
    packages = ("hopline", "built_on_it")
    for package in packages:
        logging.getLogger(f"{package}.part").info("from %s", package)
        logging.getLogger(f"{package}.part").debug("below the level")
    assert [line["message"] for line in lines()] == [f"from {package}" for package in packages]


def test_odd_messages_stay_one_line():
    record = logging.LogRecord("hopline", logging.INFO, "", 0, 'two\nlines "and" quotes', None, None)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["message"] == 'two\nlines "and" quotes'
