"""A version whose int8 sums may overflow on this processor says so when it is loaded."""

import logging
from typing import Any

import pytest

from hopline.artifact import ModelSpec
from hopline.runtimes import processor
from hopline.runtimes.processor import has_vnni, warn_of_overflow, weight_bits_of


def version(parity: dict[str, Any]) -> ModelSpec:
    return ModelSpec("risk", "3", "binary", 0, {}, {}, Any, parity=parity)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx2 avx512_vnni", True), ("fpu avx_vnni", True), ("fpu avx2 avx512f", False), ("", False)],
)
def test_vnni_is_read_from_the_processors_flags(flags, expected, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    assert has_vnni(tmp_path / "cpuinfo") is expected
    assert not has_vnni(tmp_path / "absent")


@pytest.mark.parametrize(
    ("quantized", "bits"),
    [
        ({"to": "int8", "weight_bits": 7}, 7),
        ({"to": "int8", "weight_bits": 8}, 8),
        ({"to": "int8"}, 8),  # of before versions said so
        ({"to": "float16"}, None),
    ],
)
@pytest.mark.parametrize("overflows", [True, False])
def test_only_weights_of_8_bits_are_warned_of_and_only_where_they_overflow(
    quantized, bits, overflows, monkeypatch, caplog
):
    monkeypatch.setattr(processor, "adds_in_16_bits", lambda: overflows)
    spec = version({"max_abs_diff": 0.1, "quantized": quantized})
    assert weight_bits_of(spec) == bits
    with caplog.at_level(logging.WARNING):
        warn_of_overflow(spec)
        warn_of_overflow(version({}))
    assert ("'risk' version 3 has int8 weights of 8 bits" in caplog.text) == (overflows and bits == 8)
    assert len(caplog.records) == (overflows and bits == 8)
