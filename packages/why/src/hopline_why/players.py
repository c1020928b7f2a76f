"""The players of a node: what its score may be without. Columns of its row, and edges at every hop.

An edge is absent as `if` removes it: all parallel edges between two nodes, and the same edges of the type
that has them reversed. At the first hop a player is a neighbour, and the neighbours that are not in the
sample are one more. Further away, a player is all edges into one node along one edge type. Where these are
too many, players of a hop and an edge type are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.engine.model import Model
from hopline.errors import BadRequest, RequestTooLarge
from hopline.sampling import BlockBuffers
from hopline.sampling.keyed import NO_CUT
from hopline.types import ContextId, IdArray
from hopline_why.shapley import MOST_PLAYERS

#: Edges in the lists of one node's players: some milliseconds, and the room for them.
MOST_EDGES = 100_000

#: Edge type and destination: the list of in-neighbours that has the edges.
Place = tuple[str, int]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Players that the caller makes one.

    Attributes:
        columns: names of columns of the node, or `feature[0]` and so on where they have no names.
        neighbors: ids of neighbours at the first hop.
    """

    columns: list[str] = []
    neighbors: list[ContextId] = []


@dataclass(slots=True)
class Player:
    """One player.

    Attributes:
        size: columns, or entries of lists that it owns.
        hop, edge_type: of edges; "" for a group of several types.
        nodes: of one neighbour its id; of edges into one node the id of that node.
    """

    name: str
    kind: Literal["columns", "edges"]
    size: int = 0
    hop: int = 0
    edge_type: str = ""
    nodes: tuple[ContextId, ...] = ()


@dataclass(slots=True)
class Players:
    """All players, and what belongs to each.

    Attributes:
        columns: int64 [d], the player of each column of the node's row.
        lists: neighbours, the player of each (-1: always there) and positions in the graph, int64 [E].
    """

    found: list[Player]
    columns: IdArray
    lists: dict[Place, tuple[IdArray, IdArray, IdArray]]


def column_names(model: Model, node_type: str) -> list[str]:
    """Names of the columns of a node's row."""
    schema = model.graph.schema.node_types[node_type]
    return list(schema.feature_names) or [f"feature[{at}]" for at in range(schema.feature_dim)]


def players_of(
    model: Model, node: int, *, most: int, with_columns: bool, groups: Mapping[str, Group]
) -> Players:
    """The players of a node of the type that the model answers.

    Args:
        node: global id.
        most: players that there should be at most; each edge type at each hop has at least one.
        with_columns: columns are players too.
        groups: of the caller; all other columns and neighbours are players as always.

    Raises:
        BadRequest: a group has an unknown or repeated member; more players than a coalition can have.
        RequestTooLarge: lists of more than `MOST_EDGES` edges.
    """
    edges, name = _Edges(model), model.spec.head.node_type
    edges.read(node)
    found = _Found(column_names(model, name) if with_columns else [], edges.items)
    for title, group in groups.items():
        found.add_group(title, group)
    found.add_others(most, named=bool(model.graph.schema.node_types[name].feature_names))
    if len(found.players) > MOST_PLAYERS:
        raise BadRequest(f"{len(found.players)} players; there may be {MOST_PLAYERS} at most: group some")
    lists, of_item = {}, np.append(found.of_item, -1)  # the last one: entries without an item
    for place, (neighbors, items, positions) in edges.lists.items():
        lists[place] = neighbors, of_item[items], positions
        for number, count in enumerate(np.bincount(of_item[items] + 1).tolist()[1:]):
            found.players[number].size += count
    return Players(found.players, found.of_column, lists)


class _Found:
    """Makes players of columns and of items, the finest players of edges.

    Attributes:
        of_column, of_item: int64, the player of each; -1: none yet.
    """

    def __init__(self, columns: list[str], items: list[Player]) -> None:
        self._columns, self._items = columns, items
        self.players: list[Player] = []
        self.of_column, self.of_item = np.full(len(columns), -1), np.full(len(items), -1)

    def add_group(self, title: str, group: Group) -> None:
        """Add a player of the caller's."""
        where = f"groups.{title}"
        columns = [_member(self._columns, column, f"{where}.columns") for column in group.columns]
        senders = {
            k: item.nodes[0] for k, item in enumerate(self._items)
            if item.hop == 1 and item.nodes and item.nodes[0] in group.neighbors
        }  # fmt: skip
        if lost := {*group.neighbors} - {*senders.values()}:
            raise BadRequest(f"{where}.neighbors: {min(map(str, lost))} is no neighbour that is read")
        if bool(columns) == bool(senders):
            raise BadRequest(f"{where}: has either columns or neighbours")
        if (self.of_column[columns] >= 0).any() or (self.of_item[[*senders]] >= 0).any():
            raise BadRequest(f"{where}: a member is in another group too")
        self.of_column[columns] = self.of_item[[*senders]] = len(self.players)
        if columns:
            self.players.append(Player(title, "columns", len(columns)))
        else:
            types = {self._items[k].edge_type for k in senders}
            self.players.append(Player(title, "edges", 0, 1, types.pop() if len(types) == 1 else ""))

    def add_others(self, most: int, *, named: bool) -> None:
        """Add what is in no group: one by one from the node outwards, while there are at most `most`."""
        left = np.flatnonzero(self.of_column < 0)
        coarse: dict[tuple[int, str], list[int]] = {}
        for k in np.flatnonzero(self.of_item < 0).tolist():
            coarse.setdefault((self._items[k].hop, self._items[k].edge_type), []).append(k)
        total = len(self.players) + len(coarse) + (len(left) > 0)
        if named and len(left) <= most // 2 and total - 1 + len(left) <= most:
            total += len(left) - (len(left) > 0)
            for column in left.tolist():
                self.of_column[column] = len(self.players)
                self.players.append(Player(self._columns[column], "columns", 1))
        elif len(left):
            self.of_column[left] = len(self.players)
            title = "columns" if named else "features"
            title = title if len(left) == len(self._columns) else f"other {title}"
            self.players.append(Player(title, "columns", len(left)))
        for (hop, key), members in sorted(coarse.items()):
            if total - 1 + len(members) <= most:
                total += len(members) - 1
                self.of_item[members] = len(self.players) + np.arange(len(members))
                self.players += [self._items[k] for k in members]
            else:
                self.of_item[members] = len(self.players)
                self.players.append(Player(f"{key}, hop {hop}", "edges", 0, hop, key))


def _member(names: list[str], wanted: str, where: str) -> int:
    if wanted not in names:
        raise BadRequest(f"{where}: {wanted!r} is none of {', '.join(names[:20]) or 'no columns'}")
    return names.index(wanted)


@dataclass(slots=True)
class _Edges:
    """The lists that the answer about a node reads, each entry with its item: the finest players.

    Attributes:
        lists: neighbours, items (-1: none yet) and positions. num_edges: of all.
    """

    model: Model
    items: list[Player] = field(default_factory=list)
    lists: dict[Place, tuple[IdArray, IdArray, IdArray]] = field(default_factory=dict)
    num_edges: int = 0

    def read(self, node: int) -> None:
        """Give each entry of the lists that are read an item, hop by hop."""
        for hop, places in self._walk(node).items():
            for (key, dst), read in sorted(places.items()):
                self._add(hop, key, dst, read)
        for key in self.model.spec.types_nonempty:
            gone = sum(
                int((items >= 0).sum()) for (name, _), (_, items, _) in self.lists.items() if name == key
            )
            if gone >= self.model.graph.edges[key].num_edges:
                raise BadRequest(
                    f"without the players {key!r} has no edges; the model takes another branch then"
                )

    def _walk(self, node: int) -> dict[int, dict[Place, NDArray[np.int64]]]:
        """Hop -> the lists that are first read there, with the neighbours that any layer reads of them."""
        model, hops = self.model, dict[int, dict[Place, Any]]()
        frontier: dict[str, IdArray] = {model.spec.head.node_type: np.array([node])}
        first: dict[Place, int] = {}
        for hop in range(1, model.num_hops + 1):
            below: dict[str, list[IdArray]] = {}
            for name, ids in frontier.items():
                level = model.levels[model.num_hops + 1 - hop][name]
                for relation in level.relations.values():
                    block = relation.sampler.sample(
                        ids, BlockBuffers(), NO_CUT, relation.sampler.bound(ids)
                    )
                    for dst, read in zip(
                        ids.tolist(), np.split(block.neighbors.copy(), block.offsets[1:-1]), strict=True
                    ):
                        place = relation.key, dst
                        own = hops.setdefault(first.setdefault(place, hop), {})
                        own[place] = np.concatenate([own.get(place, read[:0]), read])
                    below.setdefault(relation.source, []).append(block.neighbors.copy())
                if level.reads_self:
                    below.setdefault(name, []).append(ids)
            frontier = {name: np.unique(np.concatenate(parts)) for name, parts in below.items()}
        return hops

    def _list(self, key: str, dst: int) -> tuple[IdArray, IdArray, IdArray]:
        place = key, dst
        if place not in self.lists:
            adjacency, ids = self.model.graph.edges[key], np.array([dst])
            start, count = adjacency.starts(ids).item(), adjacency.degree(ids).item()
            self.num_edges += count
            if self.num_edges > MOST_EDGES:
                raise RequestTooLarge(
                    f"the lists of neighbours that the answer reads have more than {MOST_EDGES:,} edges; "
                    "reasons of such a node are not computed"
                )
            positions = np.arange(start, start + count)
            neighbors = np.asarray(adjacency.indices[start : start + count], np.int64)
            self.lists[place] = neighbors, np.full(count, -1), positions
        return self.lists[place]

    def _add(self, hop: int, key: str, dst: int, read: IdArray) -> None:
        """Give the entries of a list that have no item theirs, and the same edges in other lists."""
        neighbors, items, _ = self._list(key, dst)
        left = np.flatnonzero(items < 0)
        if not len(left):
            return
        edge = self.model.graph.edges[key]
        if hop > 1:
            (into,) = self._names(edge.dst, np.array([dst]))
            items[left] = len(self.items)
            self.items.append(Player(f"{key} into {into}", "edges", 0, hop, key, (into,)))
        else:
            senders = np.unique(read[np.isin(read, neighbors[left])])
            at = np.searchsorted(senders, neighbors[left]).clip(max=max(len(senders) - 1, 0))
            is_read = senders[at] == neighbors[left] if len(senders) else np.zeros(len(left), np.bool_)
            items[left[is_read]] = len(self.items) + at[is_read]
            for sender in self._names(edge.src, senders):
                self.items.append(Player(f"{key} from {sender}", "edges", 0, hop, key, (sender,)))
            if not is_read.all():
                items[left[~is_read]] = len(self.items)
                self.items.append(Player(f"{key}, not in the sample", "edges", 0, hop, key))
        for other, ends in self._partners(key):
            for neighbor, item in {*zip(neighbors[left].tolist(), items[left].tolist(), strict=True)}:
                source, target = (dst, neighbor) if ends else (neighbor, dst)
                own_neighbors, own_items, _ = self._list(other, target)
                own_items[(own_neighbors == source) & (own_items < 0)] = item

    def _partners(self, key: str) -> list[tuple[str, bool]]:
        """Other edge types with the same edges, and whether they have them reversed."""
        types = self.model.graph.schema.edge_types
        own = types[key].reverse_of or key
        same = [name for name, each in types.items() if name == own or each.reverse_of == own]
        is_turned = key != own
        return [
            (name, (name != own) != is_turned)
            for name in same
            if name != key and name in self.model.spec.fanouts
        ]

    def _names(self, node_type: str, ids: IdArray) -> list[ContextId]:
        found: list[ContextId] = np.asarray(self.model.graph.nodes[node_type].ids.external(ids)).tolist()
        return found
