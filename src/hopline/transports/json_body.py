"""Decoding of JSON bodies with errors that say what is wrong, where, and what would be right.

msgspec reports the expected type and the place. This file adds: the known fields and values, a list where
one value was sent, text that is not UTF-8, and repeated names, of which any JSON reader would silently use
one.
"""

from __future__ import annotations

import codecs
import difflib
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from hopline.errors import MAX_QUOTED, BadRequest, quoted
from hopline.json_faults import may_repeat, syntax
from turnserve.compression import PIECE_BYTES

BodyT = TypeVar("BodyT")

#: Precedes the place at the end of msgspec's message; a place contains no text of the caller.
_AT = " - at `"
#: Charsets in which ASCII's bytes are other characters.
_NOT_ASCII = re.compile(r"utf-?(16|32|7)|ucs|iso-10646|ebcdic", re.IGNORECASE)
_CHARSET = re.compile(rb'(?<![^\s;,])charset\s*=\s*"?([^\s";,]*)', re.IGNORECASE)
#: The field of the body that a place is in, or that a message without a place names.
_TOP = re.compile(r"(?:key in )?\$\.(\w+)")
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(\w+)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
#: Characters of a wrong value that a message shows.
_SHOWN = 60
#: Digits of an integer; Python refuses more, since the time of reading grows with the square.
_MAX_DIGITS = 4300


def decode_body(
    body: bytes | memoryview,
    decode: Callable[[bytes | memoryview], BodyT],
    kind: Any,
    what: str = "the body",
    example: str = '{"nodes": [42]}',
) -> BodyT:
    """Decode JSON of a type.

    Args:
        body: UTF-8; may have a byte order mark, which RFC 8259 lets a reader ignore.
        decode: decode method of a msgspec decoder of the type.
        kind: the type.
        what: what is read, for messages.
        example: a valid value, for messages.

    Raises:
        BadRequest: not JSON (with the position), an unknown field or a wrong type (with its path).
    """
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        text = named_place(explained(str(error), bytes(body), kind), bytes(body))
        if "`$" not in text and "field" not in text:
            text = f"{text}; send {example}"
        raise BadRequest(text, _param(str(error))) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        sent = bytes(body)
        if sent.startswith(codecs.BOM_UTF8):
            rest = sent[len(codecs.BOM_UTF8) :]
            if rest.startswith(codecs.BOM_UTF8):
                raise BadRequest(f"{what} has several byte order marks; send one at most") from None
            return decode_body(rest, decode, kind, what, example)
        if not sent or sent.isspace():  # without a copy, unlike strip
            raise BadRequest(f"{what} is empty; send JSON such as {example}") from None
        if sent.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in sent[:2]:
            raise BadRequest(f"{what} is UTF-16 or UTF-32; send JSON as UTF-8 (RFC 8259, 8.1)") from None
        if isinstance(error, UnicodeDecodeError):
            raise BadRequest(f"{what} is not UTF-8 (RFC 8259, 8.1): {error}") from None
        if isinstance(error, RecursionError):
            raise BadRequest(f"{what} is nested too deeply") from None
        if not isinstance(error, msgspec.DecodeError):
            raise BadRequest(f"{what} has an integer of more than {_MAX_DIGITS} digits") from None
        raise BadRequest(f"{what} is not valid JSON: {syntax(error, sent)}") from None


def check_charset(content_type: bytes, body: bytes) -> None:
    """Refuse text with a declared charset other than UTF-8, unless it is of ASCII's bytes in both.

    Raises: BadRequest: that, or several charsets, of which a reader would silently take one.
    """
    found = [charset.decode("latin-1") for charset in _CHARSET.findall(content_type)]
    if len(found) > 1:
        raise BadRequest(f"content-type has charset {quoted(', '.join(found))}; send one charset, once")
    if not found or found[0].lower() in ("utf-8", "utf8", "us-ascii", "ascii"):
        return
    if body.isascii() and not _NOT_ASCII.match(found[0]):
        return
    raise BadRequest(f"content-type has charset {quoted(found[0])}; send JSON as UTF-8 (RFC 8259, 8.1)")


def _param(text: str) -> str | None:
    """The field of the body that msgspec's message is about."""
    _, at, path = text.rpartition(_AT)
    found = _TOP.match(path) if at else _FIELD.fullmatch(text)
    return found[1] if found else None


def explained(text: str, body: bytes, kind: Any) -> str:
    """Return msgspec's message with a hint about what would be right."""
    problem, at, path = text.rpartition(_AT) if text.endswith("`") else ("", "", "")
    path = path.removesuffix("`").removeprefix("key in ")
    if not at or not path.startswith("$"):
        problem, path = text, "$"
    if len(problem) > MAX_QUOTED:  # it contains the caller's value
        text = f"{problem[:MAX_QUOTED]}…{text[len(problem) :]}"
    if "unknown field" in problem:
        fields = _fields(_at(kind, path))
        named = problem.rpartition("unknown field `")[2].rstrip("`")
        similar = difflib.get_close_matches(named[:_SHOWN], fields, 1)
        hint = f" (did you mean {similar[0]!r}?)" if similar else ""
        return f"{text}{hint}; known fields are {', '.join(fields)}" if fields else text
    if problem.startswith("Invalid enum value"):
        words = [word for each in _at(kind, path) for word in getattr(each, "values", ())]
        return f"{text}; known are {', '.join(map(repr, words))}" if words else text
    if "array" in problem.partition(", got ")[0] and any(
        hasattr(each, "item_type") for each in _at(kind, path)
    ):
        value = _value(body, path) if len(body) <= PIECE_BYTES else None
        is_one = isinstance(value, str | int | float) and not isinstance(value, bool)
        shown = json.dumps([value], ensure_ascii=False) if is_one else ""
        return f"{text}; expected a list" + (f": {shown}" if 0 < len(shown) <= _SHOWN else "")
    if problem.startswith(("Expected `int` <= 92", "Expected `int` >= -92")):
        return f'{text}; an id of more than 64 bits is a string: "9223372036854775808"'
    if problem.startswith("Expected `int | str") and problem.endswith("got `float`"):
        return f"{text}; an id is an integer without decimal point and exponent, or a string"
    return text


def named_place(text: str, body: bytes) -> str:
    """Replace [...] in msgspec's message by the name of the column, edge type or attribute."""
    path, dots, rest = text.rpartition(_AT)[2].partition("[...]")
    found = _value(body, path) if dots and len(body) <= PIECE_BYTES else None
    if not isinstance(found, dict):  # a larger body would be decoded for long
        return text
    for name, value in found.items():
        if "Expected `array`" in text:
            is_bad = not isinstance(value, list)
        else:
            items = value if rest.startswith("[") and isinstance(value, list) else [value]
            is_bad = any(map(_is_no_scalar, items))
        if is_bad:
            return text.replace("[...]", f"[{quoted(name)}]", 1)
    return text


def _is_no_scalar(value: Any) -> bool:
    return isinstance(value, list | dict) or (isinstance(value, int) and not -(2**63) <= value < 2**63)


def refuse_repeated(body: bytes, num_names: int = 1) -> None:
    """Refuse JSON in which an object repeats a name, since readers silently use the last value.

    Args:
        body: the body, decoded before.
        num_names: number of decoded names; if it is too low, the check is only slower.

    Raises: BadRequest: with the name.
    """
    if may_repeat(body, num_names):
        from hopline.transports import json_scan  # late: serverless functions start without Numba

        json_scan.refuse_repeated(body, json_scan.count(body).num_names)


def _at(kind: Any, path: str) -> list[Any]:
    """Return msgspec's descriptions of the types that are valid at a place."""
    found = _options(msgspec.inspect.type_info(kind))
    for step in _STEP.finditer(path):
        inner: list[Any] = []
        for each in found:
            if isinstance(each, msgspec.inspect.StructType):
                inner += [field.type for field in each.fields if field.encode_name == step[1]]
            elif isinstance(each, msgspec.inspect.TupleType) and (step[2] or "").isdigit():
                inner += each.item_types[int(step[2]) : int(step[2]) + 1]
            elif isinstance(each, msgspec.inspect.DictType):
                inner.append(each.value_type)
            elif hasattr(each, "item_type"):
                inner.append(each.item_type)
        found = [option for each in inner for option in _options(each)]
    return found


def _options(kind: Any) -> list[Any]:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _options(kind.type)
    return list(kind.types) if isinstance(kind, msgspec.inspect.UnionType) else [kind]


def _fields(kinds: list[Any]) -> list[str]:
    structs = (kind for kind in kinds if isinstance(kind, msgspec.inspect.StructType))
    return [field.encode_name for kind in structs for field in kind.fields]


def _value(body: bytes, path: str) -> Any:
    try:
        found: Any = msgspec.json.decode(body)
        for step in _STEP.finditer(path):
            found = found[step[1]] if step[1] else found[int(step[2])]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError):
        return None
    return found
