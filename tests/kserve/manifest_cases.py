"""The manifests for KServe, checked with the models of its package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kserve import models

SERVER = Path(__file__).resolve().parents[2] / "deploy" / "server"
KSERVE = ("servingruntime.yaml", "inferenceservice.yaml")


@pytest.mark.parametrize("name", KSERVE)
def test_kserves_own_models_take_its_objects(name: str) -> None:
    models.check(yaml.safe_load((SERVER / "kserve" / name).read_text()))


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("servingruntime.yaml", ("spec", "multiModels"), True, "multiModels: no such field"),
        ("servingruntime.yaml", ("spec", "containers"), None, "None is not a list"),
        ("servingruntime.yaml", ("spec", "supportedModelFormats", 0, "priority"), "1", "'1' is not a int"),
        ("inferenceservice.yaml", ("spec", "predictor"), {"minReplica": 2}, "minReplica: no such field"),
        ("inferenceservice.yaml", ("spec",), {}, "`predictor`, must not be"),
    ],
)
def test_kserves_models_would_find_a_mistake(
    name: str, path: tuple[Any, ...], value: Any, message: str
) -> None:
    body = yaml.safe_load((SERVER / "kserve" / name).read_text())
    part = body
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        models.check(body)
