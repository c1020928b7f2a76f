"""TOML that Python's parser does not refuse as such: by itself, and in every file that the server reads."""

import sys

import pytest

from hopline.answering.limits import read_limits
from hopline.config.reader import read_toml
from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.ingress.clients_file import read_clients
from hopline.toml import TOMLDecodeError, parse_toml
from hopline_brokers.address import Address
from hopline_pipelines.spec import read_pipeline
from hopline_slo.objectives import read_objectives

BAD = {
    "digits": ("x = " + "9" * 5000, "64 bits"),
    "beyond 64 bits": ("[a]\nx = [1, 9223372036854775808]", "a.x: .*64 bits"),
    "hexadecimal digits": ("x = 0x" + "f" * 5000, "x: .*64 bits"),
    "nesting": ("x = " + "[" * 20_000, "nested too deeply"),
    "nesting that is closed": ("x = " + "[" * 150 + "]" * 150, "nested too deeply"),
    "dotted keys": (".".join("a" * 3000) + " = 1", "nested too deeply"),
    "headers": ("[" + ".".join("a" * 3000) + "]", "nested too deeply"),
}
FILES = {
    "settings": read_toml,
    "objectives": read_objectives,
    "limits": lambda file: read_limits(file, Config()),
    "pipeline": read_pipeline,
    "clients": read_clients,
    "options": lambda file: Address.parse(f"kafka://h:1/t?options_file={file}", "s.t", ["kafka"]),
}


@pytest.mark.parametrize("case", BAD)
def test_what_the_parser_does_not_refuse_is_refused_as_no_toml(case):
    text, says = BAD[case]
    with pytest.raises(TOMLDecodeError, match=says) as caught:
        parse_toml(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("case", ["digits", "hexadecimal digits", "nesting", "dotted keys"])
@pytest.mark.parametrize("kind", FILES)
def test_every_file_is_named_by_its_own_error(tmp_path, kind, case):
    file = tmp_path / "some.toml"
    text, says = BAD[case]
    file.write_text(text)
    with pytest.raises(HoplineError, match=rf"some\.toml.*TOML: .*{says}"):
        FILES[kind](file)


def test_what_is_right_is_read():
    nested = "[" * 50 + "]" * 50
    tree = parse_toml(
        f"a = {-(2**63)}\nb.c = [{2**63 - 1}, 1.5e300]\nd = {nested}\nt = 2026-01-01T00:00:00Z"
    )
    assert (tree["a"], tree["b"]) == (-sys.maxsize - 1, {"c": [sys.maxsize, 1.5e300]})
    assert str(tree["d"]) == nested
