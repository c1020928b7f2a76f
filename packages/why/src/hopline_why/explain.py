"""Reasons of one node's score: what each player added to it, and what would change the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from hopline.engine.answer import Answerer
from hopline.engine.edits import overlays_of
from hopline.engine.model import Model
from hopline.errors import BadRequest, HoplineError, NodeNotFound
from hopline.sampling.keyed import NO_CUT
from hopline.types import ContextId, ContextNode, EdgeEdit, Edit, ExternalId, FloatArray, ScoreRequest
from hopline_why import shapley
from hopline_why.flip import Scored, smallest_flip
from hopline_why.game import Game
from hopline_why.players import MOST_EDGES, Group, Player, column_names, players_of
from hopline_why.shapley import Values

#: Players up to which all coalitions are scored: 256 of them.
EXACT = 8
#: The same where the caller asks for exact values: 4,096.
MOST_EXACT = 12
#: Sets that are scored for a flip: all of up to three of 20 players.
_MOST_FLIPS = 1_500
#: Rows of which the medians are taken; of more, every so manieth.
_ROWS = 65_536


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The question: an output of a node, and how its reasons are computed.

    Attributes:
        output: of the model, `logits` or `probabilities` or such an output of a model with several.
        klass: number or name of a column of it; None: that of the answered label, the largest one.
        players: that there should be at most; see `players_of`.
        groups: name -> group of the caller's.
        background: column -> its value where it is absent; for columns that it lacks the graph's median.
        pairs: of orders that are drawn, each with its reverse.
        exact: all coalitions, of up to `MOST_EXACT` players.
        threshold: a score of at least this is one decision, and a smaller one is the other. None: no flip
            is searched.
        changeable: names of players that a flip may leave out; empty: all.
    """

    output: str = "logits"
    klass: int | str | None = None
    players: int = 20
    groups: dict[str, Group] = {}
    background: dict[str, float] = {}
    pairs: int = 4
    exact: bool = False
    threshold: float | None = None
    changeable: list[str] = []


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one player in a score.

    Attributes:
        value: its Shapley value, in the unit of the output. error: standard error of it, 0 if exact.
        size: columns, or entries of lists of neighbours.
        hop, edge_type, nodes: of edges: how far away; the neighbour, or the node that they lead into.
        given, absent: of a single column its value, and the one in its place.
    """

    name: str
    kind: Literal["columns", "edges"]
    value: float
    error: float
    size: int
    hop: int = 0
    edge_type: str = ""
    nodes: tuple[ContextId, ...] = ()
    given: float | None = None
    absent: float | None = None


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """A small set of players without which the decision is the other one.

    Attributes:
        without: their names. score: of the node without them, by a score request with `edits`.
        edits: "if" of that request.
        is_smallest: all smaller sets were scored, and none of them flips the decision.
    """

    without: tuple[str, ...]
    score: float
    is_smallest: bool
    edits: tuple[Edit, ...] = msgspec.field(name="if")


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Reasons of a score.

    Attributes:
        output, column: what is explained.
        score: of the node. background: with none of its players. The values of `reasons` sum up to the
            difference.
        absent: how columns are absent, in words.
        method: "exact", or "orders": means over drawn orders of the players.
        evaluations: coalitions that were scored.
        reasons: by size of their values, the largest first.
        flip: None if no threshold was given, or no set was found that flips the decision.
    """

    model: str
    version: str
    graph_version: str
    node: ContextId
    node_type: str
    output: str
    column: int
    score: float
    background: float
    absent: str
    method: Literal["exact", "orders"]
    evaluations: int
    reasons: tuple[Reason, ...]
    flip: Flip | None = None


class Explainer:
    """Explains scores of one model on one graph. The medians of columns are kept.

    Args:
        model: loaded, of node scores; one type's of `Model.by_type`.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._medians: FloatArray | None = None
        spec = model.spec
        if spec.head.kind != "node":
            raise BadRequest(f"{spec.name}/{spec.version} scores {spec.head.kind}s; reasons are of nodes")

    def explain(self, node: ExternalId, options: Options | None = None) -> Explanation:
        """Reasons of a node's score.

        Raises:
            NodeNotFound: the graph lacks the node.
            BadRequest, RequestTooLarge: what cannot be explained, as the message says.
        """
        options, model = options or Options(), self._model
        game, absent = self._game(node, options)
        found, column = game.players.found, self._column(game, options)
        count = len(found)

        def scored(coalitions: Any) -> Any:
            own, at = np.unique(coalitions, return_inverse=True)
            values = game.outputs(own, options.output).reshape(len(own), -1)[:, column]
            return np.asarray(values, np.float64)[at].reshape(coalitions.shape)

        is_exact = count <= (MOST_EXACT if options.exact else EXACT)
        if options.exact and not is_exact:
            raise BadRequest(
                f"{count} players; all coalitions are scored of at most {MOST_EXACT}: group them"
            )
        errors = np.zeros(count)
        if is_exact:
            every = scored(shapley.every(count))
            values, ends = shapley.exact(every), (every[0], every[-1])
        else:
            if options.pairs < 2:
                raise BadRequest("pairs: at least 2, for a standard error")
            head = model.spec.head
            key = f"{model.spec.salt}/{head.node_type}/{node!r}"
            drawn = shapley.orders(key, count, options.pairs)
            each = scored(shapley.coalitions_of(drawn))
            values, errors = shapley.sampled(drawn, each)
            ends = each[0, 0], each[0, -1]
        flip = self._flip(game, node, options, column, scored, values, float(ends[1]))
        order = np.lexsort((np.arange(count), -np.abs(values)))
        return Explanation(
            model=model.spec.name,
            version=model.spec.version,
            graph_version=model.graph.version,
            node=node,
            node_type=model.spec.head.node_type,
            output=options.output,
            column=column,
            score=float(ends[1]),
            background=float(ends[0]),
            absent=absent,
            method="exact" if is_exact else "orders",
            evaluations=game.evaluations,
            reasons=tuple(
                _reason(game, k, found[k], float(values[k]), float(errors[k])) for k in order.tolist()
            ),
            flip=flip,
        )

    def _flip(
        self, game: Game, node: ExternalId, options: Options, column: int, scored: Scored, values: Values,
        score: float,
    ) -> Flip | None:  # fmt: skip
        """The flip, scored by a request that has its edits."""
        names = [player.name for player in game.players.found]
        if lost := {*options.changeable} - {*names}:
            raise BadRequest(f"changeable: {min(lost)!r} is none of {', '.join(names)}")
        if options.threshold is None:
            return None
        changeable = [
            k for k, name in enumerate(names) if not options.changeable or name in options.changeable
        ]
        found = smallest_flip(scored, values, score, options.threshold, changeable, _MOST_FLIPS)
        if found is None:
            return None
        without, is_smallest = found
        edits = game.edits(int(shapley.full(len(names))) - sum(1 << player for player in without))
        model = self._model
        nodes: Any = [node]
        request = ScoreRequest(model.spec.name, nodes, outputs=(options.output,), edits=edits)
        (outcome,) = Answerer(model, (options.output,), MOST_EDGES).answer([request])
        if isinstance(outcome, HoplineError):
            raise outcome
        verified = float(outcome.outputs[options.output].reshape(1, -1)[0, column])
        assert (verified >= options.threshold) != (score >= options.threshold)
        return Flip(
            without=tuple(names[player] for player in without),
            score=verified,
            is_smallest=is_smallest,
            edits=edits,
        )

    def _game(self, node: ExternalId, options: Options) -> tuple[Game, str]:
        model = self._model
        name = model.spec.head.node_type
        nodes = model.graph.nodes[name]
        wanted: Any = [node]
        row = nodes.ids.lookup(wanted).item()
        if row < 0:
            raise NodeNotFound(f"{node!r} is not in graph {model.graph.version}", [node])
        with_columns, absent = True, ""
        if name in model.spec.embeddings or name in model.encoders:
            what = "learned rows" if name in model.spec.embeddings else "preprocessing"
            with_columns, absent = False, f"columns are no players: nodes of type {name!r} have {what}"
        elif model.graph.schema.node_types[name].has_time or nodes.history is not None:
            with_columns, absent = False, f"columns are no players: nodes of type {name!r} have times"
        elif not model.graph.schema.node_types[name].feature_dim:
            with_columns, absent = False, f"nodes of type {name!r} have no columns"
        self._refuse_what_if_refuses(node, row, with_columns)
        players = players_of(
            model, row, most=options.players, with_columns=with_columns, groups=options.groups
        )
        features = background = np.empty(0, np.float32)
        if options.background and not with_columns:
            raise BadRequest(f"background: {absent}")
        if with_columns:
            features = np.asarray(nodes.features[np.array([row])], np.float32)[0]
            background, absent = self._background(options.background)
        return Game(model, row, players, features, background), absent

    def _background(self, given: Mapping[str, float]) -> tuple[FloatArray, str]:
        """The row of absent columns, and what it is."""
        name = self._model.spec.head.node_type
        names, features = column_names(self._model, name), self._model.graph.nodes[name].features
        step = -(-len(features) // _ROWS)
        if self._medians is None:
            self._medians = np.median(np.asarray(features[::step], np.float32), axis=0).astype(np.float32)
        found = self._medians.copy()
        for column, value in given.items():
            if column not in names:
                raise BadRequest(f"background: {column!r} is no column of {name!r}")
            found[names.index(column)] = value
        if not np.isfinite(found).all():
            lost = names[int(np.flatnonzero(~np.isfinite(found))[0])]
            raise BadRequest(f"background: {lost!r} has no finite value or median; give one")
        rows = f"medians of {len(range(0, len(features), step)):,} nodes"
        both = f"{len(given)} given values, else " if given else ""
        return found, both + rows

    def _refuse_what_if_refuses(self, node: ExternalId, row: int, with_columns: bool) -> None:
        """Raise the error of a score request with edits of this kind, if there is one."""
        model, graph = self._model, self._model.graph
        name, edits = model.spec.head.node_type, list[Edit]()
        if with_columns:
            features = np.asarray(graph.nodes[name].features[np.array([row])], np.float32)[0].tolist()
            edits.append(Edit(set=ContextNode(id=node, type=name, features=features)))
        for key, each in graph.schema.own_edge_types.items():
            if each.dst == name and not model.is_stored and graph.edges[key].degree(np.array([row])):
                start = graph.edges[key].starts(np.array([row])).item()
                sender = np.asarray(graph.edges[key].indices[start : start + 1], np.int64)
                (source,) = np.asarray(graph.nodes[each.src].ids.external(sender)).tolist()
                edits.append(Edit(remove_edge=EdgeEdit(source, node, key)))
                break
        request = ScoreRequest(model.spec.name, edits=tuple(edits))
        overlays_of(model, request, MOST_EDGES, NO_CUT)

    def _column(self, game: Game, options: Options) -> int:
        """The column of the output that is explained."""
        model, spec = self._model, self._model.spec
        offered = {
            name: each for name, each in model.offers.items()
            if each.kind in ("logits", "probabilities") and each.task != "several"
        }  # fmt: skip
        if options.output not in offered:
            known = ", ".join(offered) or "none"
            raise BadRequest(f"output {options.output!r} has no reasons; those that have: {known}")
        name = spec.head.node_type
        states = model.final_states({name: np.array([game.node])})[name]
        (row,) = model.outputs((options.output,), states)[options.output]
        width = np.size(row)
        if isinstance(options.klass, str):
            classes: Sequence[str] = spec.classes if spec.task != "several" else ()
            if options.klass not in classes:
                raise BadRequest(f"class {options.klass!r} is none of {', '.join(classes) or 'no names'}")
            return classes.index(options.klass)
        if options.klass is None:
            return int(np.argmax(row)) if width > 1 else 0
        if not 0 <= options.klass < width:
            raise BadRequest(f"class {options.klass}: output {options.output!r} has {width} columns")
        return options.klass


def _reason(game: Game, number: int, player: Player, value: float, error: float) -> Reason:
    own = np.flatnonzero(game.players.columns == number)
    single = {}
    if len(own) == 1:
        single = {"given": float(game.row[own[0]]), "absent": float(game.background[own[0]])}
    return Reason(
        name=player.name, kind=player.kind, value=value, error=error, size=player.size, hop=player.hop,
        edge_type=player.edge_type, nodes=player.nodes, **single,
    )  # fmt: skip
