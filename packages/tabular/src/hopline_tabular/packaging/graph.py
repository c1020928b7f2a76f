"""An ONNX graph under construction, and columns as references into its tensors.

Transformers pick, reorder and join columns far more often than they compute: until a value is computed,
columns are only references. `OnnxGraph.matrix` builds a tensor of them with the fewest nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper

#: Read by ONNX Runtime 1.14 and later.
OPSET = 18
ML_OPSET = 3
IR_VERSION = 9

Kind = Literal["number", "string"]


@dataclass(frozen=True, slots=True)
class Ref:
    """One column.

    Attributes:
        tensor: of the graph, [n, width]; float64 for numbers.
        position: in the tensor.
        kind: what the tensor holds.
        origin: the model's input column that these values come from, if only absent ones were replaced.
    """

    tensor: str
    position: int
    kind: Kind
    origin: str | None = None


class OnnxGraph:
    """Nodes and constants of a graph whose inputs are `numbers` and `strings`.

    Attributes:
        widths: tensor -> its columns, for tensors that references name.
        closed: input column -> the only values that some encoder accepts.
        nones: input columns whose absent values were None in training, not NaN.
        used: input columns that something is computed from.
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.nones: set[str] = set()
        self.widths: dict[str, int] = {}
        self.closed: dict[str, tuple[Any, ...]] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._names = count()

    def inputs(self, columns: Sequence[tuple[str, Kind]], absent: Collection[str] = ()) -> tuple[Ref, ...]:
        """Declare the inputs: the references of the estimator's columns, in their order.

        Args:
            absent: columns that nothing is computed from, which requests do not have.
        """
        refs = []
        for kind, name, dtype in (
            ("number", "numbers", TensorProto.DOUBLE),
            ("string", "strings", TensorProto.STRING),
        ):
            width = sum(1 for column, of_kind in columns if of_kind == kind and column not in absent)
            if width:
                self._inputs.append(helper.make_tensor_value_info(name, dtype, ["n", width]))
                self.widths[name] = width
        next_position = {"number": count(), "string": count()}
        for column, kind in columns:
            if column in absent:
                refs.append(Ref("absent", 0, kind, column))
                continue
            tensor = "numbers" if kind == "number" else "strings"
            refs.append(Ref(tensor, next(next_position[kind]), kind, column))
        return tuple(refs)

    def node(self, op: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        """Add a node of one output; return its name."""
        output = f"{op.lower()}_{next(self._names)}"
        self._nodes.append(
            helper.make_node(op, list(inputs), [output], name=output, domain=domain, **attributes)
        )
        return output

    def const(self, values: Any, dtype: Any = np.float64) -> str:
        """Add a constant; return its name."""
        name = f"const_{next(self._names)}"
        array = np.asarray(values, dtype=dtype)
        if array.dtype == object:
            array = array.astype(str)
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def columns(self, tensor: str, width: int, kind: Kind = "number") -> tuple[Ref, ...]:
        """References of a computed tensor [n, width]."""
        self.widths[tensor] = width
        return tuple(Ref(tensor, position, kind) for position in range(width))

    def matrix(self, refs: Sequence[Ref]) -> str:
        """The tensor [n, len(refs)] of some columns of one kind."""
        assert refs
        self.used.update(ref.origin for ref in refs if ref.origin is not None)
        pieces: list[str] = []
        start = 0
        while start < len(refs):
            end = start
            while end < len(refs) and refs[end].tensor == refs[start].tensor:
                end += 1
            tensor, positions = refs[start].tensor, [ref.position for ref in refs[start:end]]
            if positions != list(range(self.widths[tensor])):
                tensor = self.node("Gather", [tensor, self.const(positions, np.int64)], axis=1)
            pieces.append(tensor)
            start = end
        return pieces[0] if len(pieces) == 1 else self.node("Concat", pieces, axis=1)

    def embed(self, model: onnx.ModelProto, x: str, output: int = 0) -> str:
        """Add another model's nodes, whose only input is `x`; return the name of one of its outputs."""
        prefixed = compose.add_prefix(model, f"m{next(self._names)}_")
        graph = prefixed.graph
        given = graph.input[0].name
        for node in graph.node:
            for place, name in enumerate(node.input):
                if name == given:
                    node.input[place] = x
        self._nodes.extend(graph.node)
        self._constants.extend(graph.initializer)
        return str(graph.output[output].name)

    def model(self, output: str, dtype: int, shape: Sequence[Any], name: str) -> onnx.ModelProto:
        """The graph up to one tensor, under the name `name`, without unneeded nodes."""
        needed, nodes = {output}, []
        for node in reversed(self._nodes):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(node.input)
        nodes.reverse()
        nodes.append(helper.make_node("Identity", [output], [name], name=name))
        graph = helper.make_graph(
            nodes,
            "table",
            [item for item in self._inputs if item.name in needed],
            [helper.make_tensor_value_info(name, dtype, list(shape))],
            [item for item in self._constants if item.name in needed],
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="hopline"
        )
