"""Ways to write the arguments of `forward`, each with the call that its author makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """Arguments of `forward`, and how the author calls it.

    Attributes:
        arguments: after `self`.
        lines: first lines of the body, after which `x` and `edge_index` are what the other lines expect.
        call: argument -> attribute of the data; the arguments that the author passes.
        columns: node tensors that the data has beside `x`.
    """

    arguments: str
    lines: str
    call: dict[str, str]
    columns: tuple[str, ...] = ()


_CALL = {"x": "x", "edge_index": "edge_index"}
PLAIN_SIGNATURE = Signature("x, edge_index", "", _CALL)
#: `pos` and `feat` are float32 [n, 6], `code` int64 [n] below 5, `mask` bool [n].
SIGNATURES = {
    "h=None": Signature("x, edge_index, h=None", "x = x if h is None else 0.5 * x + h", _CALL),
    "H=None": Signature(
        "X, edge_index, edge_weight=None, H=None",
        "x = X if H is None else X * H",
        {"X": "x", "edge_index": "edge_index"},
    ),
    "h=None first": Signature("x, h=None, edge_index=None", "x = x if h is None else x + 2 * h", _CALL),
    "x0=None": Signature("x, edge_index, x0=None", "x = x if x0 is None else x0 - x", _CALL),
    "hidden, cell": Signature(
        "x, edge_index, hidden=None, cell=None", "x = x if hidden is None else x + hidden", _CALL
    ),
    "h with x=None": Signature(
        "h, edge_index, x=None", "x = h if x is None else h - x", {"h": "x", "edge_index": "edge_index"}
    ),
    "adj=None": Signature("x, edge_index, adj=None", "x = x if adj is None else x * 3", _CALL),
    "adj=None first": Signature(
        "x, adj=None, edge_index=None",
        "if adj is not None:\n    x = x * 3\nedge_index = adj if edge_index is None else edge_index",
        _CALL,
    ),
    "edges last": Signature(
        "x, feat, edge_index", "x = x + 0.5 * feat", _CALL | {"feat": "feat"}, ("feat",)
    ),
    "EGNN": Signature(
        "h, x, edges",
        "x, edge_index = h + x.pow(2), edges",
        {"h": "x", "x": "pos", "edges": "edge_index"},
        ("pos",),
    ),
    "two of one kind": Signature(
        "x1, x2, edge_index",
        "x = x1 - 2 * x2",
        {"x1": "x", "x2": "feat", "edge_index": "edge_index"},
        ("feat",),
    ),
    "pos": Signature("x, pos, edge_index", "x = x + pos.tanh()", _CALL | {"pos": "pos"}, ("pos",)),
    "pos=None": Signature(
        "x, edge_index, pos=None", "x = x if pos is None else x + pos", _CALL | {"pos": "pos"}, ("pos",)
    ),
    "pos=None, unused": Signature(
        "x, edge_index, pos=None", "x = x if pos is None else x + pos", _CALL, ("pos",)
    ),
    "code": Signature(
        "x, code, edge_index", "x = x + code.view(-1, 1)", _CALL | {"code": "code"}, ("code",)
    ),
    "code=None": Signature(
        "x, edge_index, code=None",
        "x = x if code is None else x * code.view(-1, 1)",
        _CALL | {"code": "code"},
        ("code",),
    ),
    "mask=None": Signature(
        "x, edge_index, mask=None",
        "x = x if mask is None else x * mask.view(-1, 1)",
        _CALL | {"mask": "mask"},
        ("mask",),
    ),
    "features, edges": Signature(
        "features, edges", "x, edge_index = features, edges", {"features": "x", "edges": "edge_index"}
    ),
    "other names": Signature(
        "node_feats, conn", "x, edge_index = node_feats, conn", {"node_feats": "x", "conn": "edge_index"}
    ),
    "edges first": Signature("edge_index, x", "", _CALL),
    "batch=None": Signature("x, edge_index, batch=None", "x = x if batch is None else x * 2", _CALL),
    "size=None": Signature(
        "x, edge_index, num_nodes=None", "x = x if num_nodes is None else x / num_nodes", _CALL
    ),
    "t=None": Signature("x, edge_index, t=None", "x = x if t is None else x * t.view(-1, 1)", _CALL),
    "weight=None, attr=None": Signature(
        "x, edge_index, edge_weight=None, edge_attr=None",
        "x = x if edge_weight is None and edge_attr is None else x * 9",
        _CALL,
    ),
    "flag": Signature(
        "x, edge_index, return_embedding=False", "x = x * 7 if return_embedding else x", _CALL
    ),
    "scale": Signature("x, edge_index, alpha=0.5, k: int = 2", "x = x * alpha * k", _CALL),
    "*args": Signature("x, edge_index, *args", "x = x * (1 + len(args))", _CALL),
    "**kwargs": Signature("x, edge_index, **kwargs", "x = x * (1 + len(kwargs))", _CALL),
    "keyword only": Signature(
        "x, *, edge_index, feat=None", "x = x if feat is None else x + feat", _CALL, ("feat",)
    ),
    "given twice": Signature(
        "x, edge_index, edge_index2=None", "x = x if edge_index2 is None else x * 4", _CALL
    ),
}
