"""The words of output parsing: enums of syntax data, and the events that a parser gives."""

from enum import IntEnum

import msgspec


class Typing(IntEnum):
    """Where an argument's type comes from."""

    ATTRIBUTE = 1  # an attribute beside the value
    SCHEMA = 2  # the tool's schema alone; without one every value is a string
    SCHEMA_THEN_JSON = 3  # the schema; without one JSON, else text
    JSON = 4  # arguments are JSON already


class Unions(IntEnum):
    """What text means for a schema that admits strings and other types."""

    TEXT = 1  # a string, except null where null is admitted
    JSON_FIRST = 2  # the JSON value if it has an admitted type, else a string


class Start(IntEnum):
    """What the first output token is part of."""

    CONTENT = 1
    REASONING = 2
    RESPONSE = 3  # an element stream's answer channel
    HEADER = 4  # a frame's header


class Orphan(IntEnum):
    """What a call without its wrapper is."""

    TEXT = 1
    AT_NAME = 2  # a call once its name is complete and declared
    AT_END = 3  # a call once all of it is complete and its name declared


class NamePlace(IntEnum):
    """Where marked JSON has the tool's name."""

    OBJECT = 1  # in the object, beside the arguments
    BEFORE = 2  # before the arguments object, or in objects of an array
    IDENTIFIER = 3  # in a call id before the arguments


class CallIds(IntEnum):
    """How call ids are made."""

    PREFIXED = 1  # call_ and 24 letters or digits
    SHORT = 2  # 9 letters or digits
    GENERATED = 3  # the id that the model wrote; PREFIXED where it wrote none


class Names(IntEnum):
    """What happens to a call of a tool that the request does not declare."""

    DROP = 1
    KEEP = 2


class Finish(IntEnum):
    """Why the output ended."""

    STOP = 1  # an end token, a stop token or a stop string
    LENGTH = 2
    CANCELLED = 3


# Kinds of event.
CONTENT, REASONING, BEGIN, ARGUMENTS, END, INCOMPLETE = 1, 2, 3, 4, 5, 6
RAW = 7  # no event: JSON text of ARGUMENTS that passes as written

BLANKS = " \t\r\n"  # of symbols: other white space has bytes that are parts of characters
NAME_MAX = 1024  # symbols of a tool or argument name
HEADER_MAX = 4096  # symbols of a tag's or frame's header
BLANK_MAX = 256  # characters of blank text that may wait for what follows it


class Event(msgspec.Struct, frozen=True, gc=False):
    """One thing the parser learned.

    CONTENT, REASONING: text. BEGIN: a call's index, id and name (text). ARGUMENTS: a fragment of
    the JSON text of call `index`. END: the call is finished. INCOMPLETE: it never will be."""

    kind: int
    text: str = ""
    index: int = -1
    id: str = ""


def is_blank(symbols: str) -> bool:
    """Whether symbols are nothing but BLANKS."""
    return not symbols.strip(BLANKS)


def blank_count(symbols: str) -> int:
    """Blanks at the beginning."""
    return len(symbols) - len(symbols.lstrip(BLANKS))
