"""The sizes of a model, and with them the names and shapes of its weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from hopline.errors import ConfigError

#: The neighbours that a node attends to in a layer: its callers, or its callees.
Direction = Literal["callers", "callees"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model; all but the first five have defaults.

    Attributes:
        d_in: columns of a node's present inputs `x`.
        d_temporal: columns of a node's temporal row `h`, what its window says; 0 = none.
        d_edge: columns of an edge's present inputs `e`, which attention reads; 0 = none.
        n_node_targets: numbers to reconstruct for each node.
        n_edge_targets: numbers to reconstruct for each edge.
        hidden: width of a layer; heads times a multiple of 16, and a multiple of 32.
        heads: attention heads.
        layers: attention layers, at least 1.
        d_out: width of an embedding `z`.
        d_edge_temporal: columns of an edge's temporal row `g`, which only the edge decoder reads; 0 = none.
        d_decoder: width of the decoders' hidden layer.
        directions: for each layer the neighbours of a node; () = callees and callers in turn, so that a
            caller gets information about the services that it waits for.
        edge_layers: number of layers, from the first, that read `e`; this doubles the time of attention.
        shared: whether source and target rows of a layer use the same weights, except for the temporal
            term, as PyG's `share_weights`: half the products of a pass.
        own_inputs: whether a node's own `x` is an input of the node's embedding. False: only its temporal
            row and its neighbours are (its `x` still influences the attention weights).

    Raises:
        ConfigError: sizes that do not fit each other.
    """

    d_in: int
    d_temporal: int
    d_edge: int
    n_node_targets: int
    n_edge_targets: int
    hidden: int = 128
    heads: int = 4
    layers: int = 2
    d_out: int = 32
    d_edge_temporal: int = 0
    d_decoder: int = 32
    directions: tuple[Direction, ...] = ()
    edge_layers: int = 1
    shared: bool = True
    own_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("d_in", "hidden", "heads", "layers", "d_out", "d_decoder"):
            if getattr(self, name) < 1:
                raise ConfigError(f"the model's {name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "d_temporal",
            "d_edge",
            "n_node_targets",
            "n_edge_targets",
            "d_edge_temporal",
            "edge_layers",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"the model's {name} must not be negative, it is {getattr(self, name)}")
        if self.hidden % (16 * self.heads) or self.hidden % 32:
            raise ConfigError(
                f"the model's hidden width {self.hidden} must be {self.heads} heads times a multiple "
                "of 16, and a multiple of 32"
            )
        if self.directions and len(self.directions) != self.layers:
            raise ConfigError(
                f"the model has {self.layers} layers, but directions for {len(self.directions)}"
            )
        if unknown := set(self.directions) - {"callers", "callees"}:
            raise ConfigError(
                f"the directions of a layer are callers or callees, not {', '.join(sorted(unknown))}"
            )

    @property
    def listens(self) -> tuple[Direction, ...]:
        """The neighbours of a node in each layer."""
        if self.directions:
            return self.directions
        turns: tuple[Direction, ...] = ("callees", "callers")
        return tuple(turns[layer % 2] for layer in range(self.layers))

    def width(self, layer: int) -> int:
        """Columns of the state that a layer reads."""
        return self.d_in if layer == 0 else self.hidden

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shape of each weight by its name; matrices are [out, in], as `torch.nn.Linear` has them."""
        hidden, out, inner = self.hidden, self.d_out, self.d_decoder
        found: dict[str, tuple[int, ...]] = {}
        for layer in range(self.layers):
            at = f"layers.{layer}."
            found |= {
                at + "source.weight": (hidden, self.width(layer)),
                at + "source.bias": (hidden,),
                at + "target.weight": (hidden, self.width(layer)),
                at + "target.bias": (hidden,),
                at + "temporal.weight": (hidden, self.d_temporal),
                at + "edge.weight": (hidden, self.d_edge if layer < self.edge_layers else 0),
                at + "attention": (self.heads, hidden // self.heads),
                at + "bias": (hidden,),
            }
        found |= {
            "own.weight": (hidden, self.d_in),
            "own_temporal.weight": (hidden, self.d_temporal),
            "out.weight": (out, hidden),
            "out.bias": (out,),
            "link.weight": (out, out),
            "link.bias": (1,),
            "nodes.hidden.weight": (inner, out),
            "nodes.hidden.bias": (inner,),
            "nodes.out.weight": (self.n_node_targets, inner),
            "nodes.out.bias": (self.n_node_targets,),
            "edges.caller.weight": (inner, out),
            "edges.callee.weight": (inner, out),
            "edges.temporal.weight": (inner, self.d_edge_temporal),
            "edges.hidden.bias": (inner,),
            "edges.out.weight": (self.n_edge_targets, inner),
            "edges.out.bias": (self.n_edge_targets,),
        }
        if not self.own_inputs:
            del found["own.weight"]
        if self.shared:
            for layer in range(self.layers):
                del found[f"layers.{layer}.target.weight"], found[f"layers.{layer}.target.bias"]
        return found

    def to_meta(self) -> dict[str, Any]:
        """The sizes as a JSON object."""
        return asdict(self) | {"directions": list(self.directions)}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> ModelShape:
        """The shape of `to_meta`.

        Raises:
            ConfigError: a key is missing or unknown, or sizes do not fit each other.
        """
        names = {field.name for field in fields(cls)}
        if set(meta) != names:
            raise ConfigError(f"a model's sizes are {sorted(names)}, not {sorted(meta)}")
        return cls(**(meta | {"directions": tuple(meta["directions"])}))
