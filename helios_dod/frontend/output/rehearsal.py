"""A syntax run once over its own delimiters, before it meets a model's output.

Marks are compiled when a state is first entered, so data that makes a parser may still fail in it.
"""

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from helios_dod.errors import UserError
from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.parser import Parser
from helios_dod.frontend.output.start import state_of, texts_of
from helios_dod.frontend.output.syntax import ElementSyntax, FrameSyntax
from helios_dod.frontend.output.terms import Start

STEPS = 256
FILLERS = ("a", " ", "\n", '{"a": 1}', "é")


def texts(record: Any) -> Iterator[str]:
    """Every text of a record, in the order of its fields."""
    if isinstance(record, str):
        yield from (record,) if record else ()
    elif isinstance(record, tuple):
        for part in record:
            yield from texts(part)
    elif is_dataclass(record):
        for field in fields(record):
            yield from texts(getattr(record, field.name))


def rehearse(bound: Bound) -> None:
    """Parses delimiters in their order, and in a fixed shuffled one, from every start. Raises
    UserError where the data makes no parser."""
    syntax, words = bound.syntax, [*texts(bound.syntax), *FILLERS]
    starts = [Start.CONTENT]
    if isinstance(syntax.tool, ElementSyntax | FrameSyntax):
        starts = list(Start)
    elif syntax.think is not None:
        starts.append(Start.REASONING)
    shuffled = random.Random(0).choices(words, k=STEPS)
    tokens = [(token, bound.bytes_of(symbols)) for token, symbols in bound.symbols.items()]
    try:
        for boundary in ("", *texts_of(bound)):
            state_of(bound, boundary, bound.encode("".join(words)))
        for start in starts:
            for order in (words, shuffled):
                parser = Parser(bound, start=start)
                for word in order:
                    parser.feed(-1, word.encode())
                for token, data in tokens[:STEPS]:
                    parser.feed(token, data)
                parser.finish()
    except AssertionError as error:
        raise UserError(f"output: delimiters that cannot be told apart: {error}") from None
    except Exception as error:  # patterns of the syntax's own texts: recursion, empty separators
        raise UserError(f"output: no parser can be made of it: {error}") from None
