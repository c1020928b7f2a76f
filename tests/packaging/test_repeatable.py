"""Modules whose answers depend on the time, the place or the call are refused with the source's name."""

import contextvars
import cProfile
import dataclasses
import datetime
import decimal
import functools
import gc
import inspect
import io
import itertools
import linecache
import locale
import logging
import mmap
import multiprocessing
import operator
import os
import platform
import posix
import random
import resource
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
import warnings
from collections import OrderedDict, defaultdict
from ctypes import CDLL
from datetime import date
from datetime import datetime as moment
from pathlib import Path
from sys import argv
from time import time as now
from time import tzname

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import NotServable, PackagingError
from hopline.graph import Graph
from hopline.packaging.reference import shared_copy
from hopline.packaging.watch import watched
from hopline.types import ScoreRequest
from tests.packaging.graphs import homogeneous

START = time.time()
COUNTS = [0]
GENERATOR = np.random.default_rng(0)
CLOCK, LOCAL = time.time, time.localtime
DAY, LOGGER = "today", logging.getLogger("model")
DATABASE = sqlite3.connect(":memory:")
FOLDER = os.path.dirname(__file__)
STEPS = (float(step > 5000) for step in itertools.count())
PAGES, CONTEXT = io.BytesIO(), contextvars.ContextVar("calls", default=0)
TICK, TICKS, TIMES = functools.partial(time.time), iter(time.time, None), defaultdict(time.time)
PLACES, LIBRARY = mmap.mmap(-1, 8), CDLL(None)
MACHINE = platform.node(), tempfile.gettempdir()  # Python keeps them


MADE = map(lambda step: float(step > 5000), itertools.count())  # noqa: C417


class Day(datetime.date):
    pass


@functools.cache
def twice(number):
    return 2 * number


def is_up():
    try:
        return bool(urllib.request.urlopen("http://127.0.0.1:1").read())
    except OSError:
        return False


class Model(nn.Module):
    """`middle(self, h)` between two convolutions; state in buffers and attributes."""

    def __init__(self, middle, **state):
        super().__init__()
        self.first, self.last = pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 3)
        self.middle = middle
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x, edge_index):
        return self.last(self.middle(self, self.first(x, edge_index).relu()), edge_index)


def package(model, repository, **options):
    options = {"name": "m", "fanouts": [-1, -1], "task": "multiclass", **options}
    return hopline.package(model, homogeneous(), repository, **options)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("middle", "source"),
    [
        (lambda _, h: h + (time.time() - START) / 3600, "time.time at test_repeatable"),
        (lambda _, h: h + (now() - START) / 3600, "time.time"),
        (lambda _, h: h + CLOCK() / 1e9, "time.time"),
        (lambda model, h: h + model.clock() / 1e9, "time.time"),
        (lambda _, h: h * (time.perf_counter_ns() % 1000), "time.perf_counter_ns"),
        (lambda _, h: h + time.localtime().tm_hour, "time.localtime"),
        (lambda _, h: h + float(time.strftime("%Y")), "time.strftime"),
        (lambda _, h: h + date.today().toordinal() % 7, "date.today"),
        (lambda _, h: h * (2 if moment.now().hour < 12 else 1), "datetime.now"),
        (lambda _, h: h + datetime.datetime.now(tz=datetime.UTC).month, "datetime.now"),
        (lambda _, h: h + float(np.datetime64("now").astype(int) % 100), "datetime64"),
        (lambda _, h: h + float(np.array([DAY], "M8[D]").astype(int)[0] % 100), "of now"),
        (lambda _, h: h + pd.Timestamp(DAY).dayofyear, "of now"),
        (lambda _, h: h + pd.Period.now("D").dayofyear, "of now"),
        (lambda _, h: h + pd.date_range(end="today", periods=2)[-1].dayofyear, "of now"),
        (lambda _, h: h + uuid.uuid1().time % 100, "generate_time"),
        (lambda _, h: h + os.times().elapsed % 100, "os.times"),
        (lambda _, h: h + logging.makeLogRecord({}).created % 60, "time.time"),
        (lambda _, h: h + Day.today().toordinal() % 7, "date.today"),
        (lambda _, h: h + functools.partial(time.time)() % 60, "time.time"),
        (lambda _, h: h + next(map(time.gmtime, [None])).tm_hour, "time.gmtime"),
        (lambda _, h: h + next(map(LOCAL, [None])).tm_hour, "time.localtime"),
        (lambda _, h: h + operator.methodcaller("__call__")(time.time) % 60, "time.time"),
        (lambda _, h: h + TICK() % 60, "time.time"),
        (lambda _, h: h + next(TICKS) % 60, "time.time"),
        (lambda _, h: h + TIMES["now"] % 60, "time.time"),
        (lambda model, h: h + model.tick() % 60, "time.time"),
        (lambda _, h, tick=TICK: h + tick() % 60, "time.time"),
    ],
    ids=[
        "time", "imported", "global", "attribute", "counter", "localtime", "text", "date", "half a day",
        "datetime", "numpy", "array", "pandas", "period", "range", "uuid", "times", "record", "subclass",
        "partial", "map", "map of a global", "method", "global partial", "iterator", "default of a dict",
        "attribute partial", "default argument",
    ],
)  # fmt: skip
def test_a_clock_that_answers_depend_on_is_refused(middle, source, tmp_path):
    with pytest.raises(NotServable, match=f"reads the clock .*{source}.*freeze"):
        package(Model(middle, clock=time.time, tick=TICK), tmp_path)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("middle", "source"),
    [
        (lambda _, h: h * float(os.environ.get("SCALE", "1")), "os._Environ.__getitem__"),
        (lambda _, h: h + os.getpid() % 100, "os.getpid"),
        (lambda _, h: h + len(os.getcwd()), "os.getcwd"),
        (lambda _, h: h * (1 + len(os.environ)), "os.environ"),
        (lambda _, h: h * torch.get_num_threads(), "get_num_threads"),
        (lambda _, h: h * os.cpu_count(), "os.cpu_count"),
        (lambda _, h: h * (1 if h.is_contiguous() else 2), r"how it runs \(is_contiguous"),
        (lambda _, h: h * h.stride(1), r"how it runs \(stride"),
        (lambda _, h: h + h._version, r"how it runs \(_version"),
        (lambda _, h: h * (2 if h.is_leaf else 1), r"how it runs \(is_leaf"),
        (lambda _, h: h * (h.data_ptr() % 64 + 1), r"how it runs \(data_ptr"),
        (lambda _, h: h * (2 if torch.is_grad_enabled() else 1), r"how it runs \(torch.is_grad_enabled"),
        (lambda _, h: h * (1 + torch.is_inference_mode_enabled()), "torch.is_inference_mode_enabled"),
        (lambda _, h: h + torch.ones(8, dtype=torch.get_default_dtype()), "torch.get_default_dtype"),
        (lambda _, h: h * (1 + torch.is_autocast_enabled()), "torch.is_autocast_enabled"),
        (lambda _, h: h * (1 + torch.is_anomaly_enabled()), "torch.is_anomaly_enabled"),
        (lambda _, h: h * (1 + torch.are_deterministic_algorithms_enabled()), "deterministic"),
        (lambda _, h: h * (1 + (torch.get_float32_matmul_precision() == "high")), "float32_matmul"),
        (lambda _, h: h + uuid.uuid4().int % 100, "random bytes .*os.urandom"),
        (lambda _, h: h + secrets.randbelow(100), "random bytes .*os.urandom"),
        (lambda _, h: h + random.SystemRandom().random(), "random bytes .*os.urandom"),
        (lambda _, h: h + DATABASE.execute("SELECT 1").fetchone()[0], "sqlite3.Connection.execute"),
        (lambda _, h: h * (2 if is_up() else 1), "environment .*urlopen"),
        (lambda _, h: h + subprocess.run(["true"]).returncode, "environment .*subprocess.run"),
        (lambda _, h: h * len(threading.current_thread().name), "_thread.get_ident"),
        (lambda _, h: h + resource.getrusage(0).ru_maxrss % 7, "resource.getrusage"),
        (lambda _, h: h + len(socket.gethostname()), "gethostname"),
        (lambda _, h: h + torch.initial_seed() % 7, "torch.random.initial_seed"),
        (lambda _, h: h + len(sys.argv), "sys.argv"),
        (lambda _, h: h + len(argv), "sys.argv"),
        (lambda _, h: h + len(platform.node()), "platform.node"),
        (lambda _, h: h + len(tempfile.gettempdir()), "tempfile.gettempdir"),
        (lambda _, h: h + len(locale.localeconv()), "locale.localeconv"),
        (lambda _, h: h + time.timezone, "time.timezone"),
        (lambda _, h: h + len(tzname[0]), "time.tzname"),
        (lambda _, h: h + moment.fromtimestamp(0).hour, "datetime.fromtimestamp"),
        (lambda _, h: h + moment(2020, 1, 1).timestamp() % 7, "datetime.timestamp"),
        (lambda _, h: h + moment(2020, 1, 1).astimezone().hour, "datetime.astimezone"),
        (lambda _, h: h + twice(2) + twice.cache_info().hits % 2, "cache_info"),
        (lambda _, h: h + id(Model) % 7, "builtins.id"),
        (lambda _, h: h + sum(map(hash, "ab")) % 7, "builtins.hash"),
        (lambda _, h: h + sys.getrefcount(None) % 7, "sys.getrefcount"),
        (lambda _, h: h + len(multiprocessing.current_process().name), "current_process"),
        (lambda _, h: h + LIBRARY.getppid() % 7, "ctypes.CDLL"),
        (lambda _, h: h + PLACES[0], "mmap.mmap"),
        (lambda _, h: h * len(posix.environ), "posix.environ"),
        (lambda _, h: h + np.fromfile(__file__, "u1", 1)[0], "a file .*fromfile"),
        (lambda _, h: h + torch.from_file(__file__, size=1, dtype=torch.uint8), "a file .*from_file"),
        (lambda _, h: h + len(inspect.stack()) % 2, "how it runs .*inspect.stack"),
        (lambda _, h: h + sys._getframe(1).f_lineno % 2, "how it runs .*_getframe"),
        (lambda _, h: h * (1 + torch.backends.mkldnn.enabled), "how it runs .*mkldnn.enabled"),
        (lambda _, h: h * (1 + torch.backends.cuda.matmul.allow_tf32), "how it runs .*cuda.matmul"),
        (lambda _, h: h * (1 + LOGGER.isEnabledFor(logging.DEBUG)), "environment .*a logger's level"),
        (lambda _, h: h * LOGGER.getEffectiveLevel(), "environment .*a logger's level"),
        (lambda _, h: h * decimal.getcontext().prec, r"environment .*decimal.getcontext\(\)"),
        (lambda _, h: h * len(warnings.filters), "environment .*warnings.filters"),
        (lambda _, h: h + CONTEXT.get(), "environment .*ContextVar.get"),
    ],
    ids=[
        "variable", "process", "folder", "variables", "threads", "processors", "layout", "strides",
        "versions", "leaf", "pointer", "gradients", "inference",
        "dtype", "autocast", "anomaly", "deterministic", "precision", "uuid", "secrets",
        "system random", "database", "address", "program", "thread", "usage", "host", "seed", "arguments",
        "imported arguments", "host of Python", "folder of files", "language", "time zone", "its name",
        "hour of a time", "local time", "local hour", "calls", "place in memory", "hash by map", "counts",
        "process of Python", "library", "shared memory", "variables of the system", "bytes of a file",
        "tensor of a file", "stack", "frame", "kernels", "precision of kernels", "logger", "level",
        "decimal", "filters of warnings", "context variable",
    ],
)  # fmt: skip
def test_a_place_that_answers_depend_on_is_refused(middle, source, tmp_path):
    with pytest.raises(NotServable, match=f"forward reads .*{source}.*freeze"):
        package(Model(middle), tmp_path)


def remembers(model, h):
    model.memory.mul_(0.9).add_(0.1)
    return h + model.memory


def evolves(model, h):
    model.w = h.new_ones(8) if model.w is None else model.w * 1.001
    return h * model.w


def first_mean(model, h):
    model.mean = h.mean(0) if model.mean is None else model.mean
    return h - model.mean


def late(model, h):
    model.step += 1
    return h * 2 if model.step > 100 else h


def trains(model, h):
    model.first.lin_l.weight.data.mul_(0.999)
    return h


def counts(_, h):
    COUNTS[0] += 1
    return h + COUNTS[0]


def class_counts(_, h):
    Model.calls = getattr(Model, "calls", 0) + 1
    return h + Model.calls


def counts_nodes(model, h):
    model.seen += h.size(0)
    return h


def remembers_calls(model, h):
    model.history.append(1)
    return h


def default(_, h, cache={}):  # noqa: B006
    cache["calls"] = cache.get("calls", 0) + 1
    return h * cache["calls"]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("middle", "state", "name"),
    [
        (remembers, {"memory": torch.zeros(8)}, "buffer 'memory'"),
        (evolves, {"w": None}, r"attribute 'w' \(self.w\)"),
        (first_mean, {"mean": None}, "attribute 'mean'"),
        (late, {"step": 0}, "attribute 'step'"),
        (trains, {}, "parameter 'first.lin_l.weight'"),
        (lambda model, h: h * model.rng.random(), {"rng": np.random.default_rng(1)}, "attribute 'rng'"),
        (lambda _, h: h * GENERATOR.random(), {}, "global '.*GENERATOR'"),
        (counts, {}, "global '.*COUNTS'"),
        (class_counts, {}, "class attribute 'Model.calls'"),
        (default, {}, "attribute 'middle'"),
        (counts_nodes, {"seen": torch.zeros(1)}, "buffer 'seen'"),
        (remembers_calls, {"history": []}, "attribute 'history'"),
        (lambda _, h: h + next(STEPS), {}, "global .*STEPS"),
        (lambda _, h: h + (PAGES.write(b"a") > 1), {}, "PAGES"),
        (lambda _, h: h if CONTEXT.set(counts(_, 0)) else h * 2, {}, "CONTEXT"),
    ],
)  # fmt: skip
def test_state_that_answers_depend_on_is_refused(middle, state, name, tmp_path):
    with pytest.raises(NotServable, match=f"keeps state between calls: forward changes .*{name}"):
        package(Model(middle, **state), tmp_path)


CENTRES = {}
KEPT_ROWS = []
CENTRE = None


def global_dict(_, h):
    return h - CENTRES.setdefault("mean", h.mean(0))


def global_list(_, h):
    KEPT_ROWS.extend([] if KEPT_ROWS else [h[0].clone()])
    return h - KEPT_ROWS[0]


def global_tensor(_, h):
    global CENTRE
    CENTRE = h[0].clone() if CENTRE is None else CENTRE
    return h - CENTRE


class Cache:
    row = None
    rows = {}  # noqa: RUF012


def attribute_of_a_class(_, h):
    Cache.row = h[0].clone() if Cache.row is None else Cache.row
    return h - Cache.row


def dict_of_a_class(_, h):
    return h - Cache.rows.setdefault(0, h[0].clone())


def default_argument(_, h, cache={}):  # noqa: B006
    return h - cache.setdefault(0, h[0].clone())


def attribute_of_a_function(_, h):
    if not hasattr(attribute_of_a_function, "row"):
        attribute_of_a_function.row = h[0].clone()
    return h - attribute_of_a_function.row


LAST = []


@functools.cache
def cached_row(_):
    return LAST[0][0].clone()


def cached_function(_, h):
    LAST[:] = [h]
    return h - cached_row(h.shape[1])


@pytest.mark.parametrize(
    "middle",
    [
        global_dict,
        global_list,
        global_tensor,
        attribute_of_a_class,
        dict_of_a_class,
        default_argument,
        attribute_of_a_function,
        cached_function,
    ],
    ids=lambda middle: middle.__name__,
)
def test_a_cache_that_the_first_input_fills_is_refused_though_it_was_filled_before(middle, tmp_path):
    model = Model(middle)
    with torch.no_grad():
        model(torch.randn(4, 6), torch.tensor([[0, 1], [1, 2]]))  # as training did
    with pytest.raises(NotServable, match=r"fills a cache, .*the first request would decide"):
        package(model, tmp_path)


@functools.cache
def today():
    return datetime.date.today().toordinal()


def test_a_clock_that_a_cached_function_read_before_is_refused(tmp_path):
    today()  # as training did
    with pytest.raises(NotServable, match=r"forward reads the clock \(.*date\.today at"):
        package(Model(lambda _, h: h + today()), tmp_path)


CONSTANTS = {}


@functools.cache
def ramp(width):
    return torch.linspace(0, 1, width)


def test_cached_constants_are_served_and_stay_as_they_were(tmp_path):
    def middle(_, h):
        return h * CONSTANTS.setdefault("two", torch.tensor(2.0)) + ramp(h.shape[1])

    package(Model(middle), tmp_path)
    assert list(CONSTANTS) == ["two"]


class Memory(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell, self.h = nn.GRUCell(width, width), None

    def forward(self, x):
        known = self.h is not None and self.h.shape == x.shape
        self.h = self.cell(x, self.h if known else torch.zeros_like(x))
        return self.h


def test_state_of_an_inner_module_and_of_a_head_is_named(tmp_path):
    inner = Model(lambda model, h: model.memory(h))
    inner.memory = Memory(8)
    with pytest.raises(NotServable, match=r"attribute 'memory\.h'"):
        package(inner, tmp_path)
    with pytest.raises(NotServable, match=r"attribute 'head\.h'"):
        package(Model(lambda _, h: h), tmp_path, head=Memory(3))


def logs(_, h):
    logging.getLogger("model").warning("called")
    return h


def keeps_for_inspection(model, h):
    model.attention = h * 2
    return h


@dataclasses.dataclass(frozen=True)
class Key:
    name: str


def keyed(_, h):
    return {Key("h"): h}[Key("h")]


def logs_if_it_is_on(_, h):
    if LOGGER.isEnabledFor(logging.DEBUG) or LOGGER.getEffectiveLevel() < logging.INFO:
        LOGGER.debug("rows: %d", len(h))
    return h


def counts_in_decimal(_, h):
    cents = decimal.Decimal("1234567890.123").quantize(decimal.Decimal("0.01"))
    assert decimal.getcontext().divide(cents, 2)
    decimal.getcontext().prec = 40
    with warnings.catch_warnings(), torch.backends.cudnn.flags(enabled=False):
        warnings.simplefilter("ignore")
        return h * float(decimal.Decimal("1.1") / 3) * (2 if torch.backends.mps.is_available() else 1)


def has_constants_of_the_standard_library(_, h):
    if h.size(1) > sys.maxsize or sys.version_info < (3, 11):
        print("wide", file=sys.stderr)
    by = functools.partial(sorted, key=len)(["ab", "c"])
    return h * len(by) + twice(2) + sys.float_info.epsilon + len(f"{Key('h')}")


def clock_of_training(model, h):
    started = time.time() if model.training else 0.0
    return h if not model.training else h * (time.time() - started)


def measures(model, h):
    model.history.append(time.time())
    return h


def is_weekday(_, h):
    return h * 2 if datetime.datetime.now(tz=datetime.UTC).weekday() < 5 else h * 3


def debugs(_, h):
    return h if os.getenv("HOPLINE_TEST_DEBUG") != "print" else h.clone()


@pytest.mark.parametrize("middle", [measures, is_weekday, debugs])
def test_clocks_and_settings_are_refused_whatever_answers_do_with_them(middle, tmp_path):
    with pytest.raises(NotServable, match=r"forward reads the (clock|environment)"):
        package(Model(middle, history=[]), tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "middle",
    [
        logs, keyed, keeps_for_inspection, has_constants_of_the_standard_library, clock_of_training,
        logs_if_it_is_on, counts_in_decimal,
    ],
)  # fmt: skip
def test_what_has_no_effect_on_answers_is_served(middle, tmp_path):
    report = package(Model(middle), tmp_path)
    assert all(note.startswith("called as") for note in report.notes)


def test_records_of_a_library_s_logging_are_not_the_user_s(tmp_path):
    """Ray's records read the clock once more."""
    code = "def record(*args, **more):\n    time.time_ns()\n    return logging.LogRecord(*args, **more)"
    space = {"time": time, "logging": logging}
    exec(compile(code, f"{Path(np.__file__).parent}/log.py", "exec"), space)
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(space["record"])
    try:
        package(Model(logs), tmp_path)
    finally:
        logging.setLogRecordFactory(before)


def test_flags_that_a_library_reads_are_not_the_user_s(tmp_path):
    """Kernels of attention are chosen so."""
    code = (
        "def twice(h):\n    return h * 2 if torch.backends.mkldnn.enabled and CONTEXT.get() == 0 else h + h"
    )
    space = {"torch": torch, "CONTEXT": contextvars.ContextVar("calls", default=0)}
    exec(compile(code, f"{Path(np.__file__).parent}/twice.py", "exec"), space)
    package(Model(lambda _, h: space["twice"](h)), tmp_path)


def test_answers_that_depend_on_requires_grad_are_refused(tmp_path):
    with pytest.raises(NotServable, match="requires_grad"):
        package(Model(lambda model, h: h * (2 + model.last.lin_l.weight.requires_grad)), tmp_path)


def draws_for_rows_that_the_sample_lacks(_, h):
    return h + (h > 1e6) * torch.rand_like(h)


def draws_a_constant(_, h):
    return h + (h > 1e6) * torch.rand(1)


def draws_a_number(_, h):
    return h + (h > 1e6) * float(torch.rand(1))


def draws_from_numpy(_, h):
    return h + (h > 1e6) * np.random.random()


RARE = 5e-4


class Leaf(nn.Module):
    def forward(self, h):
        return h + (torch.rand(()) > 1 - RARE)


def fills_a_tensor(_, h):
    drawn = torch.zeros(1)
    drawn.uniform_()
    return h + (drawn > 1 - RARE)


def draws_for_nothing(_, h):
    torch.rand(1)
    return h


def corrupts_a_copy(model, h):
    return (h, h[torch.randperm(h.size(0))])[0]


@pytest.mark.sample(14)
@pytest.mark.parametrize(
    "middle",
    [
        draws_for_rows_that_the_sample_lacks,
        draws_a_constant,
        draws_a_number,
        draws_from_numpy,
        fills_a_tensor,
        draws_for_nothing,
        corrupts_a_copy,
        lambda _, h: h * 0 if random.random() < RARE else h,
        lambda _, h: h + float(np.random.rand() > 1 - RARE),
        lambda _, h: h + (torch.rand(()) > 1 - RARE),
        lambda _, h: h + (torch.rand(()) > 1 - RARE).float(),
        lambda _, h: h * 0 if torch.rand(()) > 1 - RARE else h,
        lambda _, h: h * 0 if torch.rand(1).item() > 1 - RARE else h,
        lambda _, h: h * 0 if torch.randint(0, 3000, (1,)).tolist()[0] == 0 else h,
        lambda _, h: h * 2 if torch.randperm(10_000)[0] == 0 else h,
        lambda _, h: h + (torch.empty(()).exponential_() > 9),
        lambda _, h: h + (torch.distributions.Normal(0.0, 1.0).sample() > 5),
        lambda model, h: model.leaf(h),
        lambda model, h: h * 0 if model.python.random() < RARE else h,
        lambda model, h: h * 0 if model.numpy.random() < RARE else h,
        lambda model, h: h + (torch.rand((), generator=model.torch) > 1 - RARE),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_numbers_are_refused_though_no_answer_compared_shows_them(middle, seed, tmp_path):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = Model(middle)
    model.leaf, model.python, model.numpy = Leaf(), random.Random(0), np.random.default_rng(0)
    model.torch = torch.Generator()
    with pytest.raises(NotServable, match=r"draws random numbers .*whether"):
        package(model, tmp_path)


@pytest.mark.parametrize("fresh", [random.Random, np.random.default_rng])
def test_generators_that_a_call_seeds_from_the_system_are_refused(fresh, tmp_path):
    with pytest.raises(NotServable, match="reads random bytes"):
        package(Model(lambda _, h: h * 0 if fresh().random() < RARE else h), tmp_path)


def test_a_generator_of_torch_that_a_call_seeds_from_the_system_is_refused(tmp_path):
    def middle(_, h):
        generator = torch.Generator()
        generator.seed()
        return h + (torch.rand((), generator=generator) > 1 - RARE)

    with pytest.raises(NotServable, match=r"reads random bytes \(torch.Generator.seed at"):
        package(Model(middle), tmp_path)


def test_random_numbers_that_a_head_reads_are_refused(tmp_path):
    with pytest.raises(NotServable, match=r"draws random numbers .*whether"):
        package(Model(lambda _, h: h), tmp_path, head=Leaf())


@pytest.mark.release
@pytest.mark.parametrize(
    "day",
    [
        lambda: pd.date_range("2020-01-01", periods=2)[-1].dayofyear,
        lambda: pd.to_datetime("2020-01-02").dayofyear,
        lambda: (pd.Timestamp("2020-03-01") - pd.Timestamp("2020-01-01")).days,
    ],
)
def test_a_fixed_date_is_a_constant(day, tmp_path):
    report = package(Model(lambda _, h: h + 0.01 * day()), tmp_path)
    assert len(report.notes) == 1


def first_byte(path):
    with open(path, "rb") as file:
        return file.read(1)[0]


@pytest.mark.parametrize(
    ("middle", "source"),
    [
        (lambda model, h: h - torch.load(model.path), "torch.serialization.load"),
        (lambda _, h: h + first_byte("/dev/urandom"), "io.open"),
        (lambda _, h: h + len(Path("/proc/uptime").read_text()), "io.open"),
        (lambda model, h: h + os.stat(model.path).st_mtime % 60, "os.stat"),
    ],
    ids=["tensor", "device", "process", "time of a file"],
)
def test_what_forward_reads_from_a_file_is_refused(middle, source, tmp_path):
    torch.save(torch.zeros(8), tmp_path / "mean.pt")
    with pytest.raises(
        NotServable, match=rf"reads a file \({source}.*Read it in __init__, and keep a buffer"
    ):
        package(Model(middle, path=str(tmp_path / "mean.pt")), tmp_path / "models")


def test_lines_of_an_open_file_are_refused(tmp_path, monkeypatch):
    with open(__file__) as lines:
        monkeypatch.setitem(globals(), "CLOCK", lines)
        with pytest.raises(NotServable, match=r"reads a file \(_io.TextIOWrapper"):
            package(Model(lambda _, h: h + len(next(CLOCK))), tmp_path)


def draws_by_default(_, h, generator=torch.Generator()):  # noqa: B008
    return h + (torch.rand((), generator=generator) > 1 - RARE)


class Mixers:
    static, of_class = staticmethod(draws_by_default), classmethod(draws_by_default)


@pytest.mark.parametrize(
    ("middle", "state"),
    [
        (draws_by_default, {}),
        (lambda _, h: Mixers.static(None, h), {}),
        (lambda _, h: Mixers.of_class(h), {}),
        (lambda model, h: h + (model.draw() > 1 - RARE), "draw"),
        (lambda _, h: h + next(MADE), {}),
    ],
    ids=["function", "static method", "class method", "partial", "map"],
)
def test_a_generator_that_a_function_keeps_is_refused(middle, state, tmp_path):
    kept = {"draw": functools.partial(torch.rand, (), generator=torch.Generator())}
    with pytest.raises(NotServable, match=r"keeps state between calls"):
        package(Model(middle, **(state and kept)), tmp_path)


def test_hashes_of_text_are_those_of_one_process(tmp_path):
    with pytest.raises(NotServable, match=r"reads the environment \(builtins\.hash at test_repeatable\.py"):
        package(Model(lambda _, h: h * (1 + hash("fraud") % 1009)), tmp_path)


TEXTS = ("alpha", "beta", "gamma", "delta")


def literal(_, h):
    for place, text in enumerate({"alpha", "beta", "gamma", "delta"}):
        h = h * (1 + place * len(text))
    return h


def named(_, h):
    texts = set(TEXTS) - {"alpha"}
    return h * len(next(iter(texts)))


def attribute(model, h):
    return h * len(next(iter(model.texts)))


def comprehension(_, h):
    return h * next(len(text) for text in {text.upper() for text in TEXTS})


KINDS = {"alpha", "beta", "gamma"}


def of_the_module(_, h):
    return h * next(len(kind) for kind in KINDS)


def by_length(_, h):
    return h * ord(sorted(KINDS, key=len)[-1][0])


def longest(_, h):
    return h * ord(max(KINDS, key=len)[0])


def as_text(_, h):
    return h * str(KINDS).index("beta")


def unpacked(_, h):
    first, *_rest = KINDS
    return h * ord(first[0])


def formatted(_, h):
    return h * f"{KINDS}".index("beta")


#: The source of such a function is a part of an expression.
LAMBDAS = {
    "next": lambda model, h: h * len(next(iter(model.texts))),
    "numbered": lambda _, h: h * {kind: place for place, kind in enumerate(KINDS)}["beta"],
    "reduced": lambda _, h: h * functools.reduce(lambda a, b: a / 2 + len(b), KINDS, 0.0),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "middle",
    [
        literal,
        named,
        attribute,
        comprehension,
        of_the_module,
        by_length,
        longest,
        as_text,
        unpacked,
        formatted,
        *LAMBDAS.values(),
    ],
)
def test_the_order_of_a_set_of_texts_is_that_of_one_process(middle, tmp_path):
    model = Model(middle)
    model.texts = frozenset(TEXTS)
    with pytest.raises(NotServable, match=r"order of a set .*test_repeatable\.py.*sorted"):
        package(model, tmp_path)


def no_order(model, h):
    texts = set(TEXTS)
    texts.add("beta")
    for text in sorted(texts):
        h = h * (1 + len(text) * (text in {"beta", "gamma"}))
    for number in {1, 2}:
        h = h + number
    return h * len(texts) * max(len(text) for text in model.texts)


def test_a_set_whose_order_nothing_reads_is_served(tmp_path):
    model = Model(no_order)
    model.texts = frozenset(TEXTS)
    package(model, tmp_path)


def test_a_copy_for_one_call_shares_parameters_and_nothing_that_a_call_may_change():
    model = Model(lambda _, h: h, kept=OrderedDict())
    model.first.same, model.last.same = model.kept, []
    copied = shared_copy(model)
    pairs = zip(copied.parameters(), model.parameters(), strict=True)
    assert all(one is other for one, other in pairs)
    copied.first.register_forward_hook(print)
    copied.kept["a"] = copied.last.same
    copied.last.same.append(1)
    assert (dict(model.first._forward_hooks), model.kept, model.last.same) == ({}, {}, [])
    assert copied.first.same is copied.kept


def test_the_caller_s_module_world_and_generators_are_as_before(tmp_path):
    def keeps(model, h):
        model.seen = h.sum()
        return h

    model = Model(keeps, seen=torch.zeros(1))
    np.random.seed(5)
    states = np.random.get_state()[1].copy(), random.getstate()
    package(model, tmp_path)
    assert model.seen.item() == 0
    assert (np.random.get_state()[1] == states[0]).all()
    assert random.getstate() == states[1]
    assert time.time is CLOCK
    assert moment is datetime.datetime


def test_readings_of_libraries_are_not_the_user_s():
    with watched() as seen:
        torch.nn.functional.relu(torch.ones(2))
        time.time()
    assert list(seen.readings.values()) == ["the clock"]


@pytest.mark.parametrize("written_in", ["C", "Python"])
def test_a_profiler_of_the_caller_goes_on_after_a_module_was_watched(written_in):
    python_calls = []
    profiler = cProfile.Profile()
    if written_in == "C":
        profiler.enable()
    else:
        sys.setprofile(lambda frame, event, _: python_calls.append(frame.f_code.co_name))
    try:
        with watched():
            now()
        called_afterwards()
    finally:
        profiler.disable()
        sys.setprofile(None)
    profiler.create_stats()
    calls = python_calls if written_in == "Python" else [name for _, _, name in profiler.stats]
    assert "called_afterwards" in calls


def called_afterwards():
    return COUNTS


class Saturated(nn.Module):
    """Its last layer answers 0 for every row, whatever comes before."""

    def __init__(self, middle):
        super().__init__()
        self.inner = Model(middle)
        with torch.no_grad():
            self.inner.last.lin_l.bias.fill_(-1e3)

    def forward(self, x, edge_index):
        return self.inner(x, edge_index).clamp(min=0)


@pytest.mark.parametrize(
    "middle",
    [
        lambda _, h: h + random.Random().random(),
        lambda _, h: h + (time.time() - START) / 3600,
        lambda _, h: h * len(os.getcwd()),
        lambda _, h: h + torch.rand(h.shape),
    ],
    ids=["random", "clock", "folder", "torch"],
)
def test_a_difference_that_an_activation_hides_is_found(middle, tmp_path):
    with pytest.raises(NotServable):
        package(Saturated(middle), tmp_path, task="regression")


def test_a_clock_that_changes_answers_by_a_millionth_is_refused(tmp_path):
    with pytest.raises(NotServable, match=r"datetime\.today|date\.today"):
        package(Model(lambda _, h: h + date.today().toordinal() * 1e-9), tmp_path)


class Begun(nn.Module):
    """What __init__ makes of a set, read by forward."""

    def __init__(self, factor):
        super().__init__()
        self.conv, self.factor = pyg.SAGEConv(6, 3), factor

    def forward(self, x, edge_index):
        return self.conv(x * self.factor(self), edge_index)


class First(Begun):
    def __init__(self, factor):
        super().__init__(factor)
        self.kept = list(set(TEXTS))[0]  # noqa: RUF015


class Listed(Begun):
    def __init__(this, factor):
        super().__init__(factor)
        texts = list({"alpha", "beta", "gamma", "delta"})
        this.kept = texts


class Appended(Begun):
    def __init__(self, factor):
        super().__init__(factor)
        self.kept = []
        for text in {"alpha", "beta", "gamma", "delta"}:
            self.kept.append(text)


def by_letter(model):
    return float(len(model.kept[0])) + ord(model.kept[0][0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("module", [First, Listed, Appended])
def test_the_order_of_a_set_that_init_read_is_that_of_the_module_which_is_packaged(module, tmp_path):
    package(module(by_letter), tmp_path, fanouts=[-1])


class Typed(nn.Module):
    """Looks integers up; floating-point numbers go through a layer."""

    def __init__(self, reads):
        super().__init__()
        self.table, self.lin, self.conv = nn.Embedding(9, 4), nn.Linear(1, 4), pyg.GATConv(4, 3, edge_dim=4)
        self.reads = reads

    def forward(self, x, edge_index, edge_attr):
        return self.conv(*self.reads(self, x, edge_index, edge_attr))

    def of(self, codes):
        return self.table(codes[:, 0]) if codes.dtype == torch.int64 else self.lin(codes)


def whole_numbers():
    rng = np.random.default_rng(0)
    x, attr = rng.integers(0, 9, (40, 1)), rng.integers(0, 9, (160, 1))
    edges = torch.from_numpy(rng.integers(0, 40, (2, 160)))
    data = Data(x=torch.from_numpy(x), edge_index=edges, edge_attr=torch.from_numpy(attr))
    return hopline.Graph.from_pyg(data)


@pytest.mark.parametrize(
    ("reads", "named"),
    [
        (lambda model, x, e, a: (model.of(x), e, model.lin(a.float())), "features of 'node'"),
        (lambda model, x, e, a: (model.lin(x.float()), e, model.of(a)), "edge_attr of 'node__to__node'"),
    ],
)
def test_a_branch_on_the_dtype_of_whole_numbers_is_refused(reads, named, tmp_path):
    """A graph gives float32; the module may have been trained with integers."""
    with pytest.raises(NotServable, match=rf"int64 than for the {named} .*x\.long\(\)"):
        hopline.package(Typed(reads), whole_numbers(), tmp_path, name="m", fanouts=[-1], task="multiclass")


@pytest.mark.parametrize(
    ("reads", "dtype"),
    [
        (lambda x: (x - 4).float(), "uint8"),  # wraps around
        (lambda x: x.float() * (2 + (x.dtype == torch.float64)), "float64"),
        (lambda x: x.float() * x.element_size(), "int64"),
        (lambda x: ((x + 0.1) * 1e6).frac().float(), "float64"),
    ],
)
def test_other_dtypes_of_the_same_numbers_are_tried(reads, dtype, tmp_path):
    model = Typed(lambda model, x, e, a: (model.lin(reads(x)), e, model.lin(a.float())))
    with pytest.raises(NotServable, match=f"otherwise for {dtype} than for "):
        hopline.package(model, whole_numbers(), tmp_path, name="m", fanouts=[-1], task="multiclass")


@pytest.mark.release
@pytest.mark.parametrize(
    "reads",
    [
        lambda model, x, e, a: (model.table(x[:, 0].long()), e, model.table(a.long()[:, 0])),
        lambda model, x, e, a: (model.lin(x), e, model.lin(a)),  # fails for integers: trained with float32
    ],
)
def test_whole_numbers_that_a_module_converts_itself_are_served(reads, tmp_path):
    hopline.package(Typed(reads), whole_numbers(), tmp_path, name="m", fanouts=[-1], task="multiclass")


@pytest.mark.parametrize(
    "reads",
    [
        lambda a: a if a.dim() == 2 else a.unsqueeze(1) * 2,
        lambda a: a.mean(-1).expand(len(a)).unsqueeze(1),
        lambda a: a.softmax(-1).view(-1, 1) * 50,
    ],
)
def test_answers_that_change_with_the_shape_of_a_single_column_are_refused(reads, tmp_path):
    """Data has edge_attr [E]; a graph gives [E, 1]."""
    model = Typed(lambda model, x, e, a: (model.lin(x), e, model.lin(reads(a))))
    with pytest.raises(NotServable, match=r"shape \[n\] than for the edge_attr of 'node__to__node'"):
        hopline.package(model, whole_numbers(), tmp_path, name="m", fanouts=[-1], task="multiclass")


@pytest.mark.release
def test_a_column_whose_shape_a_module_makes_itself_is_served(tmp_path):
    model = Typed(lambda model, x, e, a: (model.lin(x), e, model.lin(a.view(-1, 1))))
    hopline.package(model, whole_numbers(), tmp_path, name="m", fanouts=[-1], task="multiclass")


class InOrder(nn.Module):
    """Reads the order in which the types of a graph come."""

    def __init__(self, reads):
        super().__init__()
        self.lins = nn.ModuleDict({name: nn.Linear(4, 6) for name in ("b_user", "a_item")})
        self.convs = nn.ModuleList([pyg.SAGEConv(6, 3), pyg.SAGEConv(6, 3)])
        self.reads = reads

    def forward(self, x_dict, edge_index_dict):
        h = {name: lin(x_dict[name]) for name, lin in self.lins.items()}
        return sum(self.reads(self.convs, x_dict, h, edge_index_dict))


def by_place(convs, x_dict, h, edges):
    for conv, (key, edge_index) in zip(convs, edges.items(), strict=True):
        if key[2] == "b_user":
            yield conv((h[key[0]], h["b_user"]), edge_index)


def by_number_of_type(convs, x_dict, h, edges):
    for n, name in enumerate(x_dict):
        if name == "b_user":
            yield convs[0]((h["a_item"], h[name] * (n + 1)), edges["a_item", "to", "b_user"])


def by_name(convs, x_dict, h, edges):
    for key in sorted(edges):
        if key[2] == "b_user":
            yield convs[0]((h[key[0]], h["b_user"]), edges[key])


def two_types():
    data, draws = HeteroData(), torch.Generator().manual_seed(3)
    data["b_user"].x, data["a_item"].x = torch.randn(40, 4), torch.randn(30, 4)
    for src, dst in (("b_user", "a_item"), ("a_item", "b_user")):
        ends = [torch.randint(0, len(data[name].x), (90,), generator=draws) for name in (src, dst)]
        data[src, "to", dst].edge_index = torch.stack(ends)
    return Graph.from_pyg(data)


@pytest.mark.parametrize("reads", [by_place, by_number_of_type])
def test_answers_that_depend_on_the_order_of_types_are_refused(reads, tmp_path):
    with pytest.raises(NotServable, match="order of the types in x_dict or edge_index_dict"):
        package_types(reads, tmp_path)


def test_types_that_are_read_by_their_names_are_served(tmp_path):
    package_types(by_name, tmp_path)


def package_types(reads, folder):
    options = {"fanouts": [-1], "task": "multiclass", "target": "b_user"}
    hopline.package(InOrder(reads), two_types(), folder, name="m", **options)


class ReadsItself(nn.Module):
    """A function that `__init__` makes keeps the module which the caller has, in training mode."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 3)
        self.scale = lambda x: x * 3.0 if self.training else x

    def forward(self, x, edge_index):
        return self.scale(self.conv(x, edge_index))


class LosesAnAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.factor = pyg.SAGEConv(6, 3), 2.5

    def __getstate__(self):
        return {**vars(self), "factor": 1.0}

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) * self.factor


def data():
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 40, (2, 160), generator=generator).unique(dim=1)
    return Data(x=torch.randn(40, 6, generator=generator), edge_index=edges)


def assert_served_as(report, graph, wanted):
    served = load_model(report.path, report.spec, graph)
    (found,) = Answerer(served, ("embedding",), 99).answer([ScoreRequest("m", nodes=list(range(40)))])
    np.testing.assert_allclose(found.outputs["embedding"], wanted.detach(), atol=1e-5)


def test_a_function_that_keeps_the_module_finds_it_in_eval_mode(tmp_path):
    known, module = data(), ReadsItself().train()
    graph = Graph.from_pyg(known)
    report = hopline.package(module, graph, tmp_path, name="m", fanouts=[-1], task="embedding")
    assert module.training
    assert_served_as(report, graph, module.eval()(known.x, known.edge_index))


def test_a_copy_that_answers_otherwise_than_the_module_is_refused(tmp_path):
    graph = Graph.from_pyg(data())
    with pytest.raises(PackagingError, match=r"a copy of the module is packaged.*answers otherwise"):
        hopline.package(LosesAnAttribute(), graph, tmp_path, name="m", fanouts=[-1], task="embedding")


@pytest.mark.parametrize(("make", "name"), [(pyg.GCNConv, "_cached_edge_index"), (pyg.SGConv, "_cached_x")])
def test_values_that_a_convolution_cached_are_dropped_with_a_note(make, name, tmp_path):
    known = data()
    conv, graph = make(6, 3, cached=True), Graph.from_pyg(known)
    conv(known.x, known.edge_index[:, ::2])
    cached = getattr(conv, name)
    report = hopline.package(conv, graph, tmp_path, name="m", fanouts=[-1], task="embedding")
    assert any(f"{name} has cached values of the edges that it saw first" in note for note in report.notes)
    assert getattr(conv, name) is cached
    fresh = make(6, 3)
    fresh.load_state_dict(conv.state_dict())
    assert_served_as(report, graph, fresh(known.x, known.edge_index))


def test_a_collection_of_garbage_that_reads_the_clock_is_not_the_model():
    def callback(phase, info):
        time.perf_counter()

    gc.callbacks.append(callback)
    try:
        with watched() as seen:
            cycles = [[] for _ in range(10_000)]
            for each in cycles:
                each.append(each)
    finally:
        gc.callbacks.remove(callback)
    assert not seen.readings
    assert gc.isenabled()


WITHOUT_FILE = """
import os, random, time, datetime
import torch
from torch import nn
from torch_geometric import nn as pyg

class Typed(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 3)

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        {line}
        return self.last(h, edge_index)
"""


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("h = h + time.time() % 60 / 60", "time.time"),
        ("h = h + datetime.datetime.now().timestamp() % 60", "datetime.now"),
        ("h = h + len(os.environ.get('REGION', 'eu'))", "os._Environ.__getitem__"),
        ("h = h + os.getpid() / 1e7", "os.getpid"),
        ("h = h + hash('abc') % 97 / 1e4", "hash"),
        ("h = h + 0.001 * (next(iter({'a', 'b', 'c'})) == 'a')", "the order of a set"),
        ("h = h * 2 if len(x) > 50_000 else h", "number of nodes or edges: len"),
        ("Typed.calls += 1; h = h * (1 + Typed.calls // 100_000)", "calls"),
    ],
)
@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<ipython-input-3-0a1b2c3d4e5f>"])
def test_code_without_a_file_is_the_users(tmp_path, file, line, source):
    code = WITHOUT_FILE.format(line=line)
    if "ipython" in file:
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    space = {"__name__": "__main__"}
    exec(compile(code, file, "exec"), space)
    with pytest.raises(NotServable, match=source):
        package(space["Typed"]().eval(), tmp_path)


def test_a_dataclass_as_a_key_and_sorted_sets_of_typed_code_are_served(tmp_path):
    line = "h = h * len({Key(1): 2}) * (sorted({'a', 'b'})[0] == 'a')"
    code = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Key:\n    a: int\n"
    code += WITHOUT_FILE.format(line=line)
    linecache.cache["<typed>"] = (len(code), None, code.splitlines(True), "<typed>")
    space = {"__name__": "__main__"}
    exec(compile(code, "<typed>", "exec"), space)
    package(space["Typed"]().eval(), tmp_path)
