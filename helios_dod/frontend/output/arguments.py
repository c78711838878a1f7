"""The arguments of one call whose values come one by one: they become a JSON object's text.

Strings go out as they come; a value that may be something else waits until it is complete.
"""

from helios_dod.frontend.output.output import Output
from helios_dod.frontend.output.schemas import UNKNOWN, Admitted, Constants
from helios_dod.frontend.output.terms import BLANKS, Typing, Unions
from helios_dod.frontend.output.values import (
    by_schema,
    document_of,
    document_type,
    json_or_text,
    quote,
)

STREAM, NULLABLE, WHOLE = 1, 2, 3
TEXT, DOCUMENT, SCHEMA = 1, 2, 3
NULLS = ("null", "None")
NULLABLE_MAX = 64  # symbols that may wait to be told from null
DECIDING_MAX = 4096  # characters of JSON that may select among alternatives of a schema


class Arguments:
    """Writes the arguments object of the call that `out` has open."""

    def __init__(self, out: Output, typing: Typing, unions: Unions = Unions.TEXT,
                 python_literals: bool = False, unwrap: tuple[str, ...] = ()) -> None:
        self.out, self.typing, self.unions = out, typing, unions
        self.python_literals, self.unwrap = python_literals, unwrap
        self.begin("")

    def begin(self, name: str) -> None:
        """A call of tool `name` has begun."""
        self.name = name
        self.count = 0
        self.how = 0  # of the value that is open; 0: none
        self.constants: Constants = ()  # values that select among alternatives of the schema
        # Key, JSON as its value and JSON as the arguments of what may be all arguments.
        self.wrapped: tuple[str, str, str] | None = None

    def open(self, key: str, attribute: str | None = None) -> None:
        """A value begins. attribute: "true" or "false" where the syntax says if it is text."""
        self.flush_wrapped()
        self.key = key
        self.parts: list[str] = []
        self.form, self.admitted = self.form_of(key, attribute)
        self.may_wrap = (self.count == 0 and key in self.unwrap and self.name in self.out.tools
                         and not self.out.tools.declares(self.name, key))
        if self.form == TEXT and not self.may_wrap:
            self.how = STREAM
        elif self.form == SCHEMA and self.is_nullable_text():
            self.how = NULLABLE
        else:
            self.how = WHOLE
        if self.how == STREAM:
            self.write_key(key)
            self.out.arguments('"')

    def form_of(self, key: str, attribute: str | None) -> tuple[int, Admitted]:
        """How the value becomes JSON, and what its schema admits."""
        if self.typing == Typing.ATTRIBUTE:
            return (TEXT if attribute == "true" else DOCUMENT), UNKNOWN
        admitted = self.out.tools.admitted(self.name, key, self.constants)
        if not admitted.known:
            return (TEXT if self.typing == Typing.SCHEMA else DOCUMENT), admitted
        if admitted.text_only:
            return TEXT, admitted
        may_be_text = "string" in admitted.types and admitted.members is None
        if may_be_text and self.unions == Unions.TEXT and "null" not in admitted.types:
            return TEXT, admitted
        return SCHEMA, admitted

    def is_nullable_text(self) -> bool:
        """Whether the value is text unless it is null, or quoted where unions read JSON."""
        if self.admitted.members is not None:
            return False
        types = self.admitted.types
        return types == {"string", "null"} or (
            self.unions == Unions.TEXT and {"string", "null"} <= types)

    def text(self, symbols: str) -> None:
        """More of the open value."""
        if self.how == STREAM:
            self.out.string(symbols)
            return
        self.parts.append(symbols)
        if self.how == NULLABLE:
            start = "".join(self.parts)
            bare = start.strip(BLANKS)
            quoted = bare.startswith('"') and self.unions == Unions.JSON_FIRST
            if bare and not quoted and not any(null.startswith(bare) for null in NULLS):
                self.stream(start)
            elif quoted or len(start) > NULLABLE_MAX:
                self.how = WHOLE

    def stream(self, start: str) -> None:
        """The open value turned out to be text."""
        self.how = STREAM
        self.write_key(self.key)
        self.out.arguments('"')
        self.out.string(start)

    def close(self) -> None:
        """The open value is complete."""
        if self.how == STREAM:
            self.out.settle_text()
            self.out.arguments('"')
        elif self.how:
            self.write_whole(self.out.bound.text_of("".join(self.parts)))
        if self.how and self.typing != Typing.ATTRIBUTE:
            self.decide()
        self.how = 0

    def decide(self) -> None:
        """The value just written may select among alternatives. Objects and arrays do not."""
        out = self.out
        if out.muted or self.wrapped or self.key not in out.tools.deciding(self.name):
            return
        value = "".join(out.written[self.value_at:])
        self.constants = tuple(pair for pair in self.constants if pair[0] != self.key)
        if len(value) <= DECIDING_MAX and value[:1] not in ("[", "{"):
            self.constants = tuple(sorted((*self.constants, (self.key, value))))

    def json_of(self, text: str) -> str:
        """JSON of a complete value."""
        if self.form == TEXT:
            return quote(text)
        if self.form == DOCUMENT:
            return json_or_text(text)
        return by_schema(text, self.admitted, self.unions == Unions.JSON_FIRST,
                         self.python_literals)

    def write_whole(self, text: str) -> None:
        """Writes a complete value, or keeps it if it may be all arguments."""
        document = self.whole(text) if self.may_wrap else None
        if document is not None:
            self.wrapped = (self.key, self.json_of(text), document)
            return
        self.write_key(self.key)
        self.out.arguments(self.json_of(text))

    def write_key(self, key: str) -> None:
        self.out.arguments(("{" if self.count == 0 else ", ") + quote(key) + ": ")
        self.count += 1
        self.value_at = len(self.out.written)

    def flush_wrapped(self) -> None:
        """What might have been all arguments is one of several."""
        if self.wrapped:
            (key, document, _), self.wrapped = self.wrapped, None
            self.write_key(key)
            self.out.arguments(document)

    def end(self) -> None:
        """All values are written: the object ends, `{}` without any."""
        if self.wrapped:
            self.out.arguments(self.wrapped[2])
            return
        self.out.arguments("}" if self.count else "{}")

    def whole(self, text: str) -> str | None:
        """The text if it is a JSON object, else None."""
        document = document_of(text)
        return document if document and document_type(document) == "object" else None


class RawText:
    """Arguments that are JSON text up to a delimiter: passed as written, without blanks around."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.started = False
        self.blanks: list[str] = []

    def begin(self) -> None:
        """The text of a call begins."""
        self.started = False
        self.blanks.clear()

    def text(self, symbols: str) -> None:
        """More of the text."""
        if not self.started:
            symbols = symbols.lstrip(BLANKS)
            if not symbols:
                return
            self.started = True
        body = symbols.rstrip(BLANKS)
        if body:
            self.out.raw("".join((*self.blanks, body)))
            self.blanks.clear()
        if len(body) < len(symbols):
            self.blanks.append(symbols[len(body):])

    def is_ready(self) -> bool:
        """Whether more text needs no look at blanks before it."""
        return self.started and not self.blanks

    def end(self) -> None:
        """The text is complete: `{}` if there was none."""
        if not self.started:
            self.out.arguments("{}")
        self.out.end_raw()
