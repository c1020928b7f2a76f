"""How random modules end: what they answer from the last `h` [n, {w}], and for which task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class End:
    """The last lines; `out` is [n, {c}] before them.

    Attributes:
        answers: as of `benchmarks.zoo_phases.verdict.Answers`.
        head: a module of its own over the answer, given to `package` as `head=`.
        pick: an expression over `answer`: what is compared, where the module answers several values.
    """

    task: str
    columns: int
    lines: str
    answers: str = "logits"
    pick: str = ""
    head: str = ""


#: Ends that must be served.
PLAIN_ENDS = {
    "multiclass": End("multiclass", 3, "return out"),
    "binary": End("binary", 1, "return out"),
    "binary squeeze(-1)": End("binary", 1, "return out.squeeze(-1)"),
    "binary view(-1)": End("binary", 1, "return out.view(-1)"),
    "multilabel": End("multilabel", 4, "return out"),
    "regression": End("regression", 1, "return out"),
    "regression of two": End("regression", 2, "return out"),
    "embedding": End("embedding", 4, "return out"),
    "sigmoid": End("binary", 1, "return torch.sigmoid(out)", "probabilities"),
    "sigmoid of labels": End("multilabel", 3, "return out.sigmoid()", "probabilities"),
    "softmax": End("multiclass", 3, "return F.softmax(out, dim=-1)", "probabilities"),
    "log_softmax": End("multiclass", 3, "return F.log_softmax(out, dim=1)", "log_probabilities"),
}
#: Ends that must be served rightly or refused.
OTHER_ENDS = {
    "sigmoid squeeze(-1)": End("binary", 1, "return torch.sigmoid(out).squeeze(-1)", "probabilities"),
    "squeeze sigmoid": End("binary", 1, "return torch.sigmoid(out.squeeze(-1))", "probabilities"),
    "sigmoid view(-1)": End("binary", 1, "return torch.sigmoid(out).view(-1)", "probabilities"),
    "sigmoid flatten": End("binary", 1, "return out.sigmoid().flatten()", "probabilities"),
    "sigmoid column": End("binary", 1, "return torch.sigmoid(out)[:, 0]", "probabilities"),
    "sigmoid of a column": End("binary", 1, "return torch.sigmoid(out[:, 0])", "probabilities"),
    "squeeze()": End("binary", 1, "return out.squeeze()"),
    "sigmoid squeeze()": End("binary", 1, "return out.sigmoid().squeeze()", "probabilities"),
    "sigmoid clamp": End("binary", 1, "return torch.sigmoid(out).clamp(1e-6, 1 - 1e-6)", "probabilities"),
    "sigmoid narrow clamp": End("binary", 1, "return torch.sigmoid(out).clamp(0.3, 0.7)", "probabilities"),
    "one minus sigmoid": End("binary", 1, "return 1 - torch.sigmoid(out)", "probabilities"),
    "sigmoid of minus": End("binary", 1, "return torch.sigmoid(-out)", "probabilities"),
    "sigmoid_": End("binary", 1, "out.sigmoid_()\nreturn out", "probabilities"),
    "sigmoid twice": End("binary", 1, "return torch.sigmoid(torch.sigmoid(out))", "probabilities"),
    "sigmoid of a quotient": End("binary", 1, "return torch.sigmoid(out / 0.5)", "probabilities"),
    "softmax of two, second": End("binary", 2, "return F.softmax(out, dim=1)[:, 1]", "probabilities"),
    "softmax of two, [..., 1]": End("binary", 2, "return out.softmax(-1)[..., 1]", "probabilities"),
    "softmax of two, slice": End("binary", 2, "return out.softmax(-1)[:, 1:]", "probabilities"),
    "exp of log_softmax": End("multiclass", 3, "return F.log_softmax(out, 1).exp()", "probabilities"),
    "exp of second log_softmax": End(
        "binary", 2, "return F.log_softmax(out, 1)[:, 1].exp()", "probabilities"
    ),
    "softmax over temperature": End("multiclass", 3, "return F.softmax(out / 2, 1)", "probabilities"),
    "softmax in two lines": End(
        "multiclass", 3, "out = out.exp()\nreturn out / out.sum(1, keepdim=True)", "probabilities"
    ),
    "softmax of rows": End("multiclass", 3, "return F.softmax(out, dim=0)", "probabilities"),
    "softmax with noise floor": End(
        "multiclass", 3, "return (out.softmax(1) + 0.1) / 1.3", "probabilities"
    ),
    "softmax by position": End("multiclass", 3, "return torch.softmax(out, -1)", "probabilities"),
    "softmax of labels": End("multilabel", 3, "return F.softmax(out, dim=1)", "probabilities"),
    "softmax dtype": End("multiclass", 3, "return F.softmax(out, 1, dtype=torch.float64)", "probabilities"),
    "logsigmoid": End("multilabel", 3, "return F.logsigmoid(out)", "log_probabilities"),
    "mean of sigmoids": End("binary", 2, "return torch.sigmoid(out).mean(1)", "probabilities"),
    "sigmoid of regression": End("regression", 1, "return torch.sigmoid(out)"),
    "softmax of embedding": End("embedding", 4, "return out.softmax(1)"),
    "five stars": End("regression", 1, "return 1 + 4 * torch.sigmoid(out).view(-1)"),
    "clamp": End("regression", 1, "return out.clamp(min=0)"),
    "exp": End("regression", 1, "return out.exp().squeeze(-1)"),
    "relu_": End("regression", 1, "F.relu_(out)\nreturn out"),
    "normalized embedding": End("embedding", 4, "return F.normalize(out, dim=-1)"),
    "normalized over nodes": End("embedding", 4, "return F.normalize(out, dim=0)"),
    "logits of a slice": End("multiclass", 4, "return out[:, :3]"),
    "double": End("multiclass", 3, "return out.double()"),
    "half": End("multiclass", 3, "return out.half()"),
    "tuple": End("multiclass", 3, "return out, h", pick="answer[0]"),
    "tuple of one": End("multiclass", 3, "return (out,)", pick="answer[0]"),
    "dict": End("multiclass", 3, "return {'logits': out, 'embedding': h}", pick="answer['logits']"),
    "list": End("multiclass", 3, "return [out]", pick="answer[0]"),
    "three dimensions": End("multiclass", 3, "return out.unsqueeze(1)"),
    "transposed": End("multiclass", 3, "return out.t()"),
    "rows reversed": End("multiclass", 3, "return out.flip(0)"),
    "half of the rows": End("multiclass", 3, "return out[: out.size(0) // 2]"),
    "without a row": End("multiclass", 3, "return out[1:]"),
    "rows twice": End("multiclass", 3, "return torch.cat([out, out])"),
    "minus mean": End("multiclass", 3, "return out - out.mean(0)"),
    "log of sigmoid": End("binary", 1, "p = torch.sigmoid(out)\nreturn torch.log(p / (1 - p))"),
    "sigmoid if not training": End(
        "binary", 1, "if not self.training:\n    out = torch.sigmoid(out)\nreturn out", "probabilities"
    ),
    "sigmoid then x": End("regression", 1, "return torch.sigmoid(out) + 0 * x[:, :1]"),
} | {
    f"head={name}": End(task, 8, "return out", answers, head=make)
    for name, task, answers, make in (
        ("Linear", "multiclass", "logits", "nn.Linear(8, 3)"),
        ("BatchNorm1d", "multiclass", "logits", "nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))"),
        ("ReLU in place", "multiclass", "logits", "nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 3))"),
        ("Dropout", "regression", "logits", "nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 2))"),
        ("Sigmoid", "binary", "probabilities", "nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())"),
        ("Softmax", "multiclass", "probabilities", "nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=-1))"),
        (
            "LogSoftmax",
            "multiclass",
            "log_probabilities",
            "nn.Sequential(nn.Linear(8, 3), nn.LogSoftmax(1))",
        ),
        (
            "Softmax over rows",
            "multiclass",
            "probabilities",
            "nn.Sequential(nn.Linear(8, 3), nn.Softmax(0))",
        ),
        ("Flatten", "binary", "logits", "nn.Sequential(nn.Linear(8, 1), nn.Flatten(0))"),
        (
            "BatchNorm1d without statistics",
            "multiclass",
            "logits",
            "nn.Sequential(nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))",
        ),
    )
}
#: {w} -> {c}; the first is the plain one.
HEADS = {
    "Linear": ("out = self.head(h)", "nn.Linear({w}, {c})"),
    "Sequential": (
        "out = self.head(h)",
        "nn.Sequential(nn.Linear({w}, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, {c}))",
    ),
    "Sequential in place": (
        "out = self.head(h)",
        "nn.Sequential(nn.BatchNorm1d({w}), nn.ReLU(inplace=True), nn.Linear({w}, {c}))",
    ),
    "pyg.MLP": ("out = self.head(h)", "pyg.MLP([{w}, 8, {c}])"),
    "skip of x": ("out = self.head(torch.cat([h, x], dim=-1))", "nn.Linear({w} + 6, {c})"),
}
