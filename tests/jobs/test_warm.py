"""What `hopline warm` compiles is what servers call, and is of kernels that are there."""

import json
import os
import subprocess
import sys

import pytest

from hopline.graph import Graph
from hopline.jobs import kernels
from hopline.jobs.kernels import Signature, all_signatures, compile_all, numba_type, signatures
from packages.serverless.tests.conftest import packaged  # noqa: F401

RENEW = "run the suite, then scripts/record_signatures.py"

SERVE = """
import asyncio, json, sys
import numpy as np
from hopline.config.reader import load_config
from hopline.jobs.kernels import kernels
from hopline.service import Service
from hopline.types import ScoreRequest

async def main():
    service = Service(load_config(overrides=json.loads(sys.argv[1])))
    await service.start()
    for nodes in (["n1"], [f"n{i}" for i in range(60)]):
        asked = asyncio.get_running_loop().create_future()
        service.submit(ScoreRequest("sage", nodes), asked.set_result)
        assert "label" in (await asked).outputs
    await service.close()

asyncio.run(main())
loaded = set(sys.modules)
called = [
    (module, name, list(map(str, signature)))
    for module, name, dispatcher in kernels()
    if module in loaded
    for signature in dispatcher.signatures
]
print(json.dumps(called))
"""


def test_every_signature_is_of_a_kernel_that_is_there_and_has_a_type_for_each_argument():
    """Of packages too."""
    packages = {each.module.partition(".")[0] for each in all_signatures()}
    assert {"hopline", "hopline_stores"} <= packages
    there = {
        (module, name): dispatcher
        for package in packages
        for module, name, dispatcher in kernels.kernels(package)
    }
    for module, name, types in all_signatures():
        assert (module, name) in there, RENEW
        assert there[module, name].py_func.__code__.co_argcount == len(types), (module, name, RENEW)
        assert [str(numba_type(each)) for each in types] == list(types)


def test_a_kernel_that_is_gone_or_takes_other_arguments_is_left_out():
    told = []
    wanted = [
        Signature("hopline.memory.sieve", "nobody", ("int64",)),
        Signature("hopline.memory.sieve", "place", ("int64",)),
        Signature("hopline.memory.sieve", "place", ("what is this",)),
    ]
    assert compile_all(wanted, lambda done, name: told.append((done, name))) == {"gone": 3}
    assert told[0] == (0, "hopline.memory.sieve.nobody")
    assert told[-1] == (3, "")


def test_what_is_compiled_once_is_there_the_next_time(tmp_path):
    code = """
from hopline.jobs.kernels import Signature, compile_all
wanted = Signature("hopline.graph.hash_table", "range_find", ("int64", "array(int64, 1d, C)"))
print(dict(compile_all([wanted])))
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def run():
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run() == "{'compiled': 1}"
    assert run() == "{'there': 1}"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("memory", "dtype"),
    [("mapped", "float32"), ("huge", "float16"), ("mapped", "bfloat16"), ("mapped", "int8")],
)
def test_a_server_calls_only_what_is_compiled_ahead(packaged, tmp_path, memory, dtype):  # noqa: F811
    graph = Graph.open(packaged / "graph").with_features_as(dtype).save(tmp_path / "graph")
    overrides = {
        "graph.path": str(graph.path),
        "graph.memory": memory,
        "models.repository": str(packaged / "models"),
        "models.names": "sage",
        "models.state": str(tmp_path / "state"),
    }
    words = [sys.executable, "-c", SERVE, json.dumps(overrides)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recorded = set(signatures())
    called = [Signature(module, name, tuple(types)) for module, name, types in json.loads(done.stdout)]
    assert called
    assert [
        each for each in called if each not in recorded and None not in map(numba_type, each.types)
    ] == []
