"""Argument text to JSON text. Numbers and documents pass as written, never through floats."""

import ast
import json
import re
from json.encoder import encode_basestring
from typing import Any, NoReturn

import msgspec

from helios_dod.frontend.output.schemas import Admitted, is_member

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
INTEGER = re.compile(r"([+-]?)0*([0-9]+)").fullmatch
PYTHON_MAX = 4096  # characters of a sequence in Python's spelling
ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[0-9a-fA-F]{4})?|u[0-9a-fA-F]{4}|[^u])", re.S)
LONG_NUMBER = re.compile("[0-9]{4301}").search  # more digits than Python reads as an integer
POWER_MAX = 5  # characters of an exponent that is read
ESCAPE_LONGEST = 12  # a surrogate pair
TYPE_OF_FIRST = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean",
                 "n": "null"}


def quote(text: str) -> str:
    """A JSON string."""
    return encode_basestring(text)


def document_of(text: str) -> str | None:
    """The text without blanks around it if it is one JSON document, else None."""
    bare = text.strip(" \t\r\n")
    try:
        msgspec.json.decode(bare.encode("utf-8", "replace"), type=msgspec.Raw)
    except (ValueError, RecursionError):
        return None
    return bare


def is_object(text: str) -> bool:
    """Whether the text is one JSON object as Python decodes it, without NaN and Infinity.

    Nearly all are told without making their values."""
    if keys_of(text) is not None and not LONG_NUMBER(text):
        return True
    try:
        return isinstance(json.loads(text, parse_constant=refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def refuse_constant(word: str) -> NoReturn:
    """NaN and Infinity are no JSON."""
    raise ValueError(word)


def escape_cut(text: str) -> int:
    """Length of the part of JSON text that ends in no unfinished escape.

    The text begins outside an escape. A high surrogate waits for its low one."""
    at = text.find("\\")
    while at >= 0:
        match = ESCAPE.match(text, at)
        left = len(text) - at
        if match is None:
            if left < 6 and re.fullmatch(r"\\(?:u[0-9a-fA-F]{0,3})?", text[at:]):
                return at
            end = at + 1
        else:
            end = match.end()
            waits = end - at == 6 and text[at + 2] in "dD" and text[at + 3] in "89abAB"
            if waits and re.fullmatch(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?", text[end:]):
                return at
        at = text.find("\\", end)
    return len(text)


def python_document(text: str) -> str | None:
    """JSON of a list or dict in Python's spelling, or None."""
    if len(text) > PYTHON_MAX or text[:1] not in ("[", "{"):
        return None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def scalar(text: str, admitted: Admitted, python_literals: bool) -> str | None:
    """JSON of a null, boolean or number that is admitted, or None.

    A sign and leading zeros are taken off a number only where no string is admitted."""
    types = admitted.types
    if "null" in types and (text == "null" or (python_literals and text == "None")):
        return "null"
    if "boolean" in types and (text in ("true", "false")
                               or (python_literals and text in ("True", "False"))):
        return text.lower()
    if types & {"integer", "number"}:
        if NUMBER(text) and ("number" in types or is_integral(text)):
            return text
        match = INTEGER(text) if "string" not in types else None
        if match:
            return ("-" if match[1] == "-" else "") + match[2]
    return None


def is_integral(text: str) -> bool:
    """Whether a JSON number is a whole one, as 3, 3.0 and 2.5e1 are."""
    digits, _, power = text.lower().partition("e")
    fraction = digits.partition(".")[2].rstrip("0")
    return len(power) <= POWER_MAX and len(fraction) <= int(power or 0)


def is_listed(document: str, members: tuple[Any, ...]) -> bool:
    """Whether a JSON document is one of the values; none is that Python cannot read."""
    try:
        return is_member(json.loads(document), members)
    except (ValueError, RecursionError):  # digits, or nesting that only just passed before
        return False


def document_type(document: str) -> str:
    """The JSON type of a document."""
    return TYPE_OF_FIRST.get(document[:1], "number")


def is_admitted(document: str, admitted: Admitted) -> bool:
    """Whether a JSON document's type, and its value where values are listed, are admitted."""
    name = document_type(document)
    if name not in admitted.types and not (
            name == "number" and "integer" in admitted.types and is_integral(document)):
        return False
    return admitted.members is None or is_listed(document, admitted.members)


def by_schema(text: str, admitted: Admitted, json_first: bool, python_literals: bool) -> str:
    """JSON of an argument's text under a schema; a text that has no admitted type is a string."""
    bare = text.strip(" \t\r\n")
    if "string" in admitted.types and admitted.types != {"string"}:
        if admitted.members is not None and text in admitted.members:
            return quote(text)
        if not json_first and admitted.members is None:
            plain = "null" in admitted.types and scalar(
                bare, Admitted(frozenset({"null"})), python_literals)
            return plain or quote(text)
    elif "string" in admitted.types:
        return quote(text)
    found = scalar(bare, admitted, python_literals)
    if found is not None and (admitted.members is None or is_admitted(found, admitted)):
        return found
    document = document_of(text)
    if document is not None and is_admitted(document, admitted):
        return document
    if json_first and document is not None and document_type(document) == "string":
        inner = json.loads(document)
        found = scalar(inner.strip(), admitted, python_literals)
        if found is not None and (admitted.members is None or is_admitted(found, admitted)):
            return found
    if python_literals and admitted.types & {"object", "array"}:
        spelled = python_document(bare)
        if spelled is not None and document_type(spelled) in admitted.types:
            return spelled
    return quote(text)


def json_or_text(text: str) -> str:
    """The JSON document that the text is, else a string of it."""
    document = document_of(text)
    return quote(text) if document is None else document


def keys_of(document: str) -> frozenset[str] | None:
    """Keys of a JSON object, None for another document. No value is made."""
    try:
        return frozenset(msgspec.json.decode(document, type=dict[str, msgspec.Raw]))
    except (ValueError, RecursionError):
        return None
