"""The base of every error that a person can act on: one line, without a traceback."""

import re

SURROGATE = re.compile("[\ud800-\udfff]")  # in a str: half of a pair, which nothing encodes


def scalars(text: str) -> str:
    """A text that can be encoded: half surrogate pairs become U+FFFD."""
    return SURROGATE.sub("\ufffd", text)


def printable(text: str) -> str:
    """A text for a terminal: what it would obey, or hide, is shown as an escape."""
    return "".join(part if part.isprintable() or part in "\n\t" else
                   part.encode("unicode_escape").decode("ascii") for part in text)


class UserError(ValueError):
    """Names what is wrong (file, field, option), its limit and its value."""
