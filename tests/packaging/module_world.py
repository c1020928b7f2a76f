"""Lines of random modules whose answer depends on more than rows: earlier calls, the clock, out-edges."""

from __future__ import annotations

from tests.packaging.module_parts import Part

#: Lines whose answer depends on the calls before.
_MEMORIES = {
    "buffer of a mean": (
        "self.p{n}.mul_(0.9).add_(0.1 * h.mean(0))\nh = h + self.p{n}",
        "nn.Buffer(torch.zeros({w}))",
    ),
    "buffer assigned": (
        "self.p{n} = h.detach().mean(0) + self.p{n}\nh = h - self.p{n}",
        "nn.Buffer(torch.ones({w}))",
    ),
    "parameter copied into": (
        "self.p{n}.data.copy_(0.5 * self.p{n}.data + h.mean(0))\nh = h * self.p{n}",
        "nn.Parameter(torch.ones({w}))",
    ),
    "calls in a buffer": ("self.p{n} += 1\nh = h * self.p{n}.log1p()", "nn.Buffer(torch.zeros(()))"),
    "calls in a list": ("self.p{n}.append(1)\nh = h * len(self.p{n})", "[]"),
    "states in a list": (
        "h = h + (self.p{n}[-1] if self.p{n} else 0)\nself.p{n}.append(0.1 * h.mean(0))",
        "[]",
    ),
    "state in a dict": (
        "h = h + self.p{n}.get('h', 0)\nself.p{n}['h'] = h.mean(0).detach()",
        "{}",
    ),
    "hidden state of a GRU": (
        "self.h{n} = self.p{n}(h.mean(0, keepdim=True), getattr(self, 'h{n}', None))\nh = h + self.h{n}",
        "nn.GRUCell({w}, {w})",
    ),
    "weights evolve": (
        "self.p{n}.weight.data = self.p{n}.weight.data * 0.9\nh = self.p{n}(h)",
        "nn.Linear({w}, {w})",
    ),
    "momentum of another module": (
        "self.p{n}.train()\nh = self.p{n}(h)\nself.p{n}.eval()\nh = self.p{n}(h)",
        "nn.BatchNorm1d({w})",
    ),
    "attribute of the class": (
        "type(self).seen = getattr(type(self), 'seen', 0) + 1\nh = h * type(self).seen",
        "",
    ),
    "cache that the first call fills": ("h = h - CACHE.setdefault('row', h[0].clone())", ""),
    "global": ("global CALLS\nCALLS += 1\nh = h * CALLS", ""),
    "generator": ("h = h * next(self.p{n})", "iter(range(1, 10**9))"),
    "running mean in a number": (
        "self.p{n} = 0.9 * self.p{n} + 0.1 * float(h.mean())\nh = h - self.p{n}",
        "0.0",
    ),
    "branch after many calls": ("self.p{n} += 1\nh = h * 2 if self.p{n} > 50 else h", "0"),
    "random.Random of its own": ("h = h * (1 + self.p{n}.random())", "random.Random(0)"),
    "closed over": ("h = h * self.p{n}()", "counter()"),
}
#: Lines that keep something, and answer the same whatever was called before.
_KEPT = {
    "attention kept": ("self.attention{n} = h.detach().softmax(1)", ""),
    "calls counted": ("self.p{n} += 1", "nn.Buffer(torch.zeros((), dtype=torch.long))"),
    "rows logged": ("self.p{n}.append(len(h))", "[]"),
    "written, then read": ("self.now{n} = h * 2\nh = self.now{n} + 1", ""),
    "scratch in a dict": ("self.p{n}['h'] = h\nh = self.p{n}['h'].relu()", "{}"),
    "made at the first call": (
        "if self.p{n} is None:\n    self.p{n} = torch.ones({w})\nh = h + self.p{n}",
        "None",
    ),
}
STATE = {name: Part(lines, init, pure=False) for name, (lines, init) in _MEMORIES.items()} | {
    name: Part(lines, init) for name, (lines, init) in _KEPT.items()
}
_WORLD = {
    "time.time": "h = h + (time.time() - 1.7e9) * 1e-9",
    "age in days": "h = h + (time.time() - 1.7e9) / 86400 * 0.001",
    "time.time_ns": "h = h + (time.time_ns() % 1000) * 0.01",
    "monotonic": "h = h + time.monotonic() * 1e-6",
    "perf_counter": "h = h + (time.perf_counter() % 1)",
    "hour": "h = h * (1 + time.localtime().tm_hour)",
    "gmtime": "h = h * (1 + time.gmtime().tm_yday / 366)",
    "strftime": "h = h + int(time.strftime('%d')) * 0.01",
    "datetime.now": "h = h + datetime.datetime.now().timestamp() * 1e-10",
    "utc now": "h = h + datetime.datetime.now(datetime.UTC).hour",
    "date.today": "h = h + datetime.date.today().toordinal() * 1e-6",
    "weekday": "if datetime.date.today().weekday() < 5:\n    h = h * 2\nelse:\n    h = h * 3",
    "np.datetime64": "h = h + float(np.datetime64('now').astype('int64')) * 1e-10",
    "environment": "h = h * float(os.environ.get('SCALE', '2'))",
    "getenv": "h = h * float(os.getenv('SCALE') or 2)",
    "process": "h = h + os.getpid() * 1e-6",
    "folder": "h = h + len(os.getcwd()) * 0.01",
    "host": "h = h + len(socket.gethostname()) * 0.01",
    "os.urandom": "h = h + os.urandom(1)[0] * 0.01",
    "secrets": "h = h + secrets.randbelow(1000) * 0.001",
    "uuid": "h = h + uuid.uuid4().int % 997 * 0.001",
    "random.uniform": "h = h + random.uniform(0, 1)",
    "random.Random": "h = h + random.Random().random()",
    "default_rng": "h = h + float(np.random.default_rng().normal())",
    "generator of its own": "h = h + torch.rand(1, generator=self.p{n})",
    "id of an object": "h = h + (id(h) % 4096) * 1e-3",
}
_WORLD_INIT = {"generator of its own": "torch.Generator().manual_seed(3)"}
WORLD = {name: Part(lines, _WORLD_INIT.get(name, ""), pure=False) for name, lines in _WORLD.items()}

_DEGREES = {
    "out-degree": "h = h + degree(edge_index[0], h.size(0)).view(-1, 1) * 0.1",
    "log of out-degrees": "h = h * (1 + degree(edge_index[0], h.size(0)).log1p()).view(-1, 1)",
    "both degrees": (
        "d = degree(edge_index[0], h.size(0)) + degree(edge_index[1], h.size(0))\n"
        "h = h + d.view(-1, 1) * 0.1"
    ),
    "out-degree by scatter": (
        "d = scatter(torch.ones(edge_index.size(1)), edge_index[0], 0, h.size(0), reduce='sum')\n"
        "h = h * d.clamp(min=1).rsqrt().unsqueeze(1)"
    ),
    "out-degree by bincount": "h = h + torch.bincount(edge_index[0], minlength=len(h)).unsqueeze(1) * 0.1",
    "out-neighbours": "h = h + scatter(h[edge_index[1]], edge_index[0], 0, h.size(0), reduce='mean')",
    "reciprocal edges": (
        "back = torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)\n"
        "h = h * (1 + int(back.size(1) == edge_index.unique(dim=1).size(1)))"
    ),
}
#: On a graph of symmetric edges these are what in-degrees and in-neighbours are.
DEGREES = {name: Part(lines, hops=1) for name, lines in _DEGREES.items()}

#: Kind of part -> name -> part.
WORLD_TRICKS = {"state": STATE, "world": WORLD, "degrees": DEGREES}
