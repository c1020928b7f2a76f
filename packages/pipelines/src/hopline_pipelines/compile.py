"""From a parsed expression to a function over a run's values, with every type checked on the way.

An expression may have: numbers, texts, `True`, `False`; `owner.name` and `owner["name"]`, for a wide value
`owner.name[2]`; `+ - * / %` and signs; `< <= > >= == !=`, chained as in mathematics; `in` and `not in` a
list of constants; `and`, `or`, `not`; the functions of `functions.py`. It computes for all rows together;
where only attributes are read, once for the request.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.errors import PipelineInvalid
from hopline.types import AnyArray
from hopline_pipelines.expression import Parsed, Reference, reference_of
from hopline_pipelines.functions import Mismatch, Term, alike, call
from hopline_pipelines.values import Values, ValueType, type_of_array


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that can be computed.

    Attributes:
        text: as written.
        type: of its result.
        of: computes it: an array where `type.by_row`, else a Python value.
    """

    text: str
    type: ValueType
    of: Callable[[Values], Any]

    def rows(self, values: Values) -> AnyArray:
        """Its result, for every row."""
        found = self.of(values)
        if self.type.by_row:
            return found  # type: ignore[no-any-return]
        return _spread(found, values.num_rows)


#: What a reference means: its type, and how a run's values hold it.
Resolve = Callable[[Reference], tuple[ValueType, Callable[[Values], Any]]]


def typed(parsed: Parsed, resolve: Resolve, sample: Values) -> Expression:
    """Check an expression and make it ready.

    Args:
        resolve: raises Mismatch for a name that there is not.
        sample: made-up values, with which it is tried.

    Raises:
        PipelineInvalid: what does not fit, with its column.
    """
    term = _Typer(parsed, resolve).term(parsed.tree)
    try:
        with np.errstate(all="ignore"):
            found = term.of(sample)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise PipelineInvalid(f"{parsed.text!r} cannot be computed: {error}") from None
    if term.by_row:
        return Expression(parsed.text, type_of_array(found), term.of)
    datatype = type_of_array(_spread(found, 1)).datatype
    return Expression(parsed.text, ValueType(datatype, (), False), term.of)


class _Typer:
    def __init__(self, parsed: Parsed, resolve: Resolve) -> None:
        self._parsed = parsed
        self._resolve = resolve

    def term(self, node: ast.expr) -> Term:
        reference = reference_of(node)
        try:
            if reference is not None:
                kind, of = self._resolve(reference)
                return Term(kind.kind, kind.dims, kind.by_row, of)
            match node:
                case ast.Constant():
                    return _constant(node.value)
                case ast.BinOp():
                    return self._arithmetic(node)
                case ast.UnaryOp():
                    return self._unary(node)
                case ast.Compare():
                    return self._compare(node)
                case ast.BoolOp():
                    return self._logic(node)
                case ast.Subscript():
                    return self._column(node)
                case ast.Call():
                    return self._call(node)
                case ast.Name():
                    raise Mismatch(f"{node.id!r} alone names nothing; write input.{node.id}")
        except Mismatch as error:
            self._parsed.refuse(node, str(error))
        return self._parsed.refuse(
            node, f"{_WORDS.get(type(node), type(node).__name__)} cannot be written here"
        )

    def _arithmetic(self, node: ast.BinOp) -> Term:
        sign, scalars, arrays = _ARITHMETIC.get(type(node.op), ("", None, None))
        if scalars is None or arrays is None:
            raise Mismatch(f"no such operator here; there are {_OPERATORS}")
        left, right = self.term(node.left), self.term(node.right)
        dims, by_row = alike((left, right), "number", sign)
        return Term("number", dims, by_row, _two(arrays if by_row else scalars, left.of, right.of))

    def _unary(self, node: ast.UnaryOp) -> Term:
        term = self.term(node.operand)
        of = term.of
        if isinstance(node.op, ast.Not):
            alike((term,), "truth", "not")
            negate = np.logical_not if term.by_row else operator.not_
            return term._replace(of=lambda values: negate(of(values)))
        alike((term,), "number", "a sign")
        if isinstance(node.op, ast.USub):
            return term._replace(of=lambda values: -of(values))
        if isinstance(node.op, ast.UAdd):
            return term
        raise Mismatch(f"no such operator here; there are {_OPERATORS}")

    def _compare(self, node: ast.Compare) -> Term:
        parts: list[Term] = []
        left = node.left
        for sign, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(sign, ast.In | ast.NotIn):
                parts.append(self._among(left, right, isinstance(sign, ast.NotIn)))
            else:
                parts.append(self._pair(sign, self.term(left), self.term(right)))
            left = right
        return parts[0] if len(parts) == 1 else _all(parts, is_and=True)

    def _pair(self, sign: ast.cmpop, left: Term, right: Term) -> Term:
        if type(sign) not in _COMPARISONS:
            raise Mismatch("'is' compares nothing here; write ==")
        text, compare = _COMPARISONS[type(sign)]
        dims, by_row = alike((left, right), None if text in ("==", "!=") else "number", text)
        return Term("truth", dims, by_row, _two(compare, left.of, right.of))

    def _among(self, left: ast.expr, right: ast.expr, negated: bool) -> Term:
        term = self.term(left)
        if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
            raise Mismatch("'in' takes a list of constants, such as ['DE', 'FR']")
        constants = [self._literal(each) for each in right.elts]
        alike((term, *map(_constant, constants)), None, "'in'")
        of, known = term.of, frozenset(constants)
        if not term.by_row:
            return Term("truth", (), False, lambda values: (of(values) in known) is not negated)
        if term.kind == "text":
            return Term("truth", term.dims, True, lambda values: _texts_among(of(values), known, negated))
        listed = np.array(constants)
        return Term("truth", term.dims, True, lambda values: _among_numbers(of(values), listed, negated))

    def _literal(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            _constant(node.value)
            return node.value
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and isinstance(node.operand, ast.Constant)
            and _constant(node.operand.value).kind == "number"
        ):
            return -node.operand.value  # type: ignore[operator]
        raise Mismatch("'in' takes a list of constants, such as ['DE', 'FR']")

    def _logic(self, node: ast.BoolOp) -> Term:
        return _all([self.term(each) for each in node.values], isinstance(node.op, ast.And))

    def _column(self, node: ast.Subscript) -> Term:
        term = self.term(node.value)
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(at, int) or isinstance(at, bool):
            raise Mismatch("[] takes the number of a column, or a name in quotes")
        if not term.by_row or len(term.dims) != 1:
            raise Mismatch("[number] takes a column of a value [n, d]; this one has no columns")
        if term.dims[0] >= 0 and at >= term.dims[0]:
            raise Mismatch(f"column {at} of a value that has {term.dims[0]}, counted from 0")
        of = term.of
        return Term(term.kind, (), True, lambda values: of(values)[:, at])

    def _call(self, node: ast.Call) -> Term:
        if not isinstance(node.func, ast.Name):
            raise Mismatch("only functions of the table can be called, by their name")
        if node.keywords:
            raise Mismatch(f"{node.func.id}() takes no named values")
        return call(node.func.id, [self.term(each) for each in node.args])


def _constant(value: Any) -> Term:
    if isinstance(value, bool):
        return Term("truth", (), False, lambda values: value)
    if isinstance(value, int | float):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise Mismatch("an integer beyond 64 bits")
        return Term("number", (), False, lambda values: value)
    if isinstance(value, str):
        return Term("text", (), False, lambda values: value)
    raise Mismatch(f"{value!r} is no number, text, True or False")


def _all(terms: list[Term], is_and: bool) -> Term:
    """All or any of some conditions."""
    found = terms[0]
    for term in terms[1:]:
        dims, by_row = alike((found, term), "truth", "'and'" if is_and else "'or'")
        found = Term("truth", dims, by_row, _both(found.of, term.of, is_and, by_row))
    return found


def _both(
    first: Callable[[Values], Any], second: Callable[[Values], Any], is_and: bool, by_row: bool
) -> Callable[[Values], Any]:
    if by_row:
        return _two(np.logical_and if is_and else np.logical_or, first, second)
    if is_and:
        return lambda values: first(values) and second(values)
    return lambda values: first(values) or second(values)


def _two(
    function: Callable[[Any, Any], Any], first: Callable[[Values], Any], second: Callable[[Values], Any]
) -> Callable[[Values], Any]:
    return lambda values: function(first(values), second(values))


def _texts_among(texts: AnyArray, known: frozenset[Any], negated: bool) -> AnyArray:
    found = np.fromiter((text in known for text in texts.ravel()), np.bool_, texts.size)
    return (~found if negated else found).reshape(texts.shape)


def _among_numbers(numbers: AnyArray, listed: AnyArray, negated: bool) -> AnyArray:
    if numbers.dtype.kind == "f":
        listed = listed.astype(numbers.dtype)  # as == does: 0.1 is the nearest float32
    return np.isin(numbers, listed, invert=negated)


def _spread(value: Any, num_rows: int) -> AnyArray:
    return np.full(num_rows, value, object if isinstance(value, str) else None)


def _divide(left: Any, right: Any) -> Any:
    """Of Python numbers, as arrays do it: 1 / 0 is infinite."""
    return float(np.float64(left) / np.float64(right))


def _modulo(left: Any, right: Any) -> Any:
    """Of Python numbers; x % 0 is not a number, where arrays of integers have 0."""
    return left % right if right else float("nan")


_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    ast.Add: ("+", operator.add, np.add),
    ast.Sub: ("-", operator.sub, np.subtract),
    ast.Mult: ("*", operator.mul, np.multiply),
    ast.Div: ("/", _divide, np.true_divide),
    ast.Mod: ("%", _modulo, np.remainder),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_OPERATORS = "+ - * / %, comparisons, in, and, or, not"
_WORDS: dict[type[ast.expr], str] = {
    ast.IfExp: "if … else (use where(condition, yes, no))",
    ast.Attribute: "a name with more than one dot",
    ast.List: "a list",
    ast.Tuple: "a list",
    ast.Set: "a list",
    ast.Dict: "a dictionary",
    ast.Lambda: "a function",
    ast.ListComp: "a loop",
    ast.GeneratorExp: "a loop",
    ast.JoinedStr: "a formatted text",
    ast.NamedExpr: "an assignment",
}
