"""JSON bodies held against a type: what is wrong, where, and what would be right.

msgspec says what it expected and at which place. Said here besides: the fields and words that there are,
lists where one value was sent, text that is not UTF-8, and repeated names, of which any JSON reader would
silently take one.
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
from hopline.repeated_names import may_repeat
from hopline.transports.share import PIECE_BYTES

BodyT = TypeVar("BodyT")

#: Before the place, at the end of what msgspec says; a place names nothing that its caller chose.
_AT = " - at `"
_CHARSET = re.compile(rb'(?<![^\s;,])charset\s*=\s*"?([^\s";,]*)', re.IGNORECASE)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
#: Characters of a wrong value that a message shows.
_SHOWN = 60
#: Digits of an integer; Python refuses more, since reading them takes the square of their time.
_MAX_DIGITS = 4300


def decode_body(
    body: bytes | memoryview,
    decode: Callable[[bytes | memoryview], BodyT],
    kind: Any,
    what: str = "the body",
    example: str = '{"nodes": [42]}',
) -> BodyT:
    """Read JSON of a type.

    Args:
        body: UTF-8, also with a byte order mark, which RFC 8259 lets a reader ignore.
        decode: of a msgspec decoder of the type.
        kind: the type.
        what: is read, for messages.
        example: of it.

    Raises:
        BadRequest: not JSON (with the position), an unknown field or a wrong type (with its path).
    """
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        text = explained(str(error), bytes(body), kind)
        raise BadRequest(text if "`$" in text or "field" in text else f"{text}; send {example}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        sent = bytes(body)
        if sent.startswith(codecs.BOM_UTF8):
            return decode_body(sent[len(codecs.BOM_UTF8) :], decode, kind, what, example)
        if not sent or sent.isspace():  # no copy, as strip makes
            raise BadRequest(f"{what} is empty; send JSON such as {example}") from None
        if sent.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in sent[:2]:
            raise BadRequest(f"{what} is UTF-16 or UTF-32; JSON is sent as UTF-8 (RFC 8259, 8.1)") from None
        if isinstance(error, UnicodeDecodeError):
            raise BadRequest(f"{what} is not UTF-8, as JSON is (RFC 8259, 8.1): {error}") from None
        if isinstance(error, RecursionError):
            raise BadRequest(f"{what} is nested too deep to be read") from None
        if not isinstance(error, msgspec.DecodeError):
            raise BadRequest(f"{what} has an integer of more than {_MAX_DIGITS} digits") from None
        raise BadRequest(f"{what} is not valid JSON: {error}") from None


def check_charset(content_type: bytes, body: bytes) -> None:
    """Refuse text that its sender says is not UTF-8, unless it is ASCII in any case.

    Raises: BadRequest: that, or several charsets, of which a reader would silently take one.
    """
    found = [charset.decode("latin-1") for charset in _CHARSET.findall(content_type)]
    if len(found) > 1:
        raise BadRequest(f"content-type says charset {quoted(', '.join(found))}; say one charset, once")
    if not found or found[0].lower() in ("utf-8", "utf8", "us-ascii", "ascii") or body.isascii():
        return
    raise BadRequest(f"content-type says charset {quoted(found[0])}; JSON is sent as UTF-8 (RFC 8259, 8.1)")


def explained(text: str, body: bytes, kind: Any) -> str:
    """msgspec's message, and what would be right."""
    said, at, path = text.rpartition(_AT) if text.endswith("`") else ("", "", "")
    path = path.removesuffix("`").removeprefix("key in ")
    if not at or not path.startswith("$"):
        said, path = text, "$"
    if len(said) > MAX_QUOTED:  # it shows what was sent
        text = f"{said[:MAX_QUOTED]}…{text[len(said) :]}"
    if "unknown field" in said:
        fields = _fields(_at(kind, path))
        named = said.rpartition("unknown field `")[2].rstrip("`")
        near = difflib.get_close_matches(named[:_SHOWN], fields, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return f"{text}{hint}; the fields are {', '.join(fields)}" if fields else text
    if said.startswith("Invalid enum value"):
        words = [word for each in _at(kind, path) for word in getattr(each, "values", ())]
        return f"{text}; known are {', '.join(map(repr, words))}" if words else text
    if "array" in said.partition(", got ")[0] and any(
        hasattr(each, "item_type") for each in _at(kind, path)
    ):
        value = _value(body, path) if len(body) <= PIECE_BYTES else None
        is_one = isinstance(value, str | int | float) and not isinstance(value, bool)
        shown = json.dumps([value], ensure_ascii=False) if is_one else ""
        return f"{text}; a list is needed" + (f": {shown}" if 0 < len(shown) <= _SHOWN else "")
    if said.startswith("Expected `int | str") and said.endswith("got `float`"):
        return f"{text}; an id is an integer without point and exponent, or a string"
    return text


def refuse_repeated(body: bytes, num_names: int = 1) -> None:
    """Refuse JSON in which an object has a name twice: readers take the last one, and say nothing.

    Args:
        body: that was decoded.
        num_names: names that were found in it; with fewer it is looked at more closely than it need be.

    Raises: BadRequest: names the field.
    """
    if may_repeat(body, num_names):
        from hopline.transports import json_scan  # compiled: a function starts without Numba

        json_scan.refuse_repeated(body, json_scan.count(body).num_names)


def _at(kind: Any, path: str) -> list[Any]:
    """What msgspec knows of the types that may stand at a place."""
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
    return [
        field.encode_name
        for kind in kinds
        if isinstance(kind, msgspec.inspect.StructType)
        for field in kind.fields
    ]


def _value(body: bytes, path: str) -> Any:
    try:
        found: Any = msgspec.json.decode(body)
        for step in _STEP.finditer(path):
            found = found[step[1]] if step[1] else found[int(step[2])]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError):
        return None
    return found
