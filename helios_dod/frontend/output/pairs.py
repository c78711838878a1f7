"""Kind 2: calls with a key tag and a value tag an argument."""

from typing import TYPE_CHECKING

from helios_dod.frontend.output.arguments import STREAM, Arguments
from helios_dod.frontend.output.marks import with_lead
from helios_dod.frontend.output.states import Host, State
from helios_dod.frontend.output.syntax import PairSyntax
from helios_dod.frontend.output.terms import ARGUMENTS, BLANKS, NAME_MAX, blank_count

if TYPE_CHECKING:
    from helios_dod.frontend.output.parser import Parser

CALL, CALL_CLOSE, KEY, KEY_CLOSE, VALUE, VALUE_CLOSE, STRAY_CLOSE = 1, 2, 3, 4, 5, 6, 7


class PairCalls:
    """The part of a parser that reads key and value tags, from a call's opener to its closer."""

    def __init__(self, parser: "Parser", syntax: PairSyntax, host: Host) -> None:
        self.parser, self.syntax, self.host = parser, syntax, host
        self.out = parser.out
        self.arguments = Arguments(parser.out, syntax.typing, syntax.unions, syntax.python_literals)
        self.name: list[str] = []
        self.key: list[str] = []
        self.size = 0
        s, make = syntax, parser.bound.compiled
        marks = make("pairs", {s.call_open: CALL, s.call_close: CALL_CLOSE, s.key_open: KEY,
                               s.key_close: KEY_CLOSE, s.value_open: VALUE,
                               s.value_close: VALUE_CLOSE})
        close = make("pairs.value", {s.value_close: VALUE_CLOSE})
        self.in_name = State(marks, self.name_text, self.name_mark, self.end)
        self.between = State(marks, self.key_text, self.between_mark, self.end)
        self.in_key = State(marks, self.key_text, self.key_mark, self.end)
        self.after_key = State(marks, self.after_key_text, self.after_key_mark, self.end)
        self.in_value = State(close, self.value_text, self.value_mark, self.end)
        self.in_string = State(close, self.value_text, self.value_mark, self.end, ARGUMENTS)
        over = make("pairs.skip", {s.call_close: CALL_CLOSE, s.call_open: CALL})
        self.skip = State(over, self.ignore, self.skip_mark, self.end)
        self.stray = State(marks, self.ignore, self.stray_mark, self.end)

    def openers(self) -> dict[str, int]:
        """What begins a call in content."""
        words = dict.fromkeys(with_lead(self.syntax.call_open, self.syntax.lead), CALL)
        if self.parser.bound.is_token(self.syntax.call_close):
            words[self.syntax.call_close] = CALL_CLOSE
        return words

    def strays(self) -> dict[str, int]:
        """What is text in content, and the rest of a call behind one that broke."""
        s = self.syntax
        words = {s.key_open: KEY, s.key_close: KEY_CLOSE, s.value_open: VALUE,
                 s.value_close: VALUE_CLOSE}
        return words if self.parser.bound.is_token(s.call_close) else words | {
            s.call_close: STRAY_CLOSE}

    def begins(self) -> dict[str, int]:
        """What may begin a call in reasoning, and so end it."""
        return {self.syntax.call_open: CALL}

    def opened(self, meaning: int, word: str) -> None:
        """A call's opener came, or what belongs to none."""
        if meaning != CALL:
            if meaning in (KEY, VALUE):
                self.parser.state = self.stray
            return
        self.out.incomplete()
        self.name.clear()
        self.key.clear()
        self.size = 0
        self.parser.state = self.in_name

    def end(self, rest: str) -> None:
        """The output ended inside a call."""

    def ignore(self, symbols: str) -> None:
        """Text that is neither argument nor content."""

    # name

    def name_text(self, symbols: str) -> int | None:
        """A name ends at a newline; newlines before it are none of it."""
        if not self.name:
            blanks = blank_count(symbols)
            if blanks:
                return blanks
        line, newline, _ = symbols.partition("\n")
        self.name.append(line)
        self.size += len(line)
        if self.size > NAME_MAX:
            self.parser.state = self.skip
        elif newline:
            self.named()
            return len(line) + 1
        return None

    def named(self) -> bool:
        """The name is complete: the call begins, if the name is one."""
        name = self.parser.bound.text_of("".join(self.name)).strip()
        resolved = self.host.resolve(name)
        if not name or resolved is None:
            self.parser.state = self.skip
            return False
        self.out.begin(resolved)
        self.arguments.begin(resolved)
        self.key.clear()
        self.parser.state = self.between
        return True

    def name_mark(self, meaning: int, word: str) -> None:
        if meaning == CALL:
            self.opened(meaning, word)
        elif meaning == KEY_CLOSE:
            self.unglue()
        elif meaning == CALL_CLOSE and not self.name:
            self.host.leave()
        elif self.named():
            self.between_mark(meaning, word)

    def unglue(self) -> None:
        """The key's opener is missing: name and key were written as one."""
        name = self.parser.bound.text_of("".join(self.name)).strip()
        glued = self.out.tools.unglue(name)
        if glued is None:
            self.parser.state = self.skip
            return
        self.name = [glued[0].encode().decode("latin-1")]
        if self.named():
            self.key = [glued[1].encode().decode("latin-1")]
            self.parser.state = self.after_key

    # keys

    def key_text(self, symbols: str) -> None:
        self.size = len(symbols) + (self.size if self.key else 0)
        if self.size > NAME_MAX:
            self.parser.state = self.skip
            self.out.incomplete()
        else:
            self.key.append(symbols)

    def key_name(self) -> str:
        return self.parser.bound.text_of("".join(self.key)).strip()

    def between_mark(self, meaning: int, word: str) -> None:
        if meaning == CALL:
            self.opened(meaning, word)
        elif meaning == CALL_CLOSE:
            self.arguments.end()
            self.out.end()
            self.host.leave()
        elif meaning == KEY:
            self.key.clear()
            self.parser.state = self.in_key
        elif meaning in (KEY_CLOSE, VALUE) and self.key_name():
            self.key_mark(meaning, word)

    def key_mark(self, meaning: int, word: str) -> None:
        if meaning == KEY_CLOSE:
            self.parser.state = self.after_key
        elif meaning == VALUE:
            self.begin_value()
        elif meaning in (CALL, CALL_CLOSE):
            self.out.incomplete()
            if meaning == CALL:
                self.opened(meaning, word)
            else:
                self.host.leave()

    def after_key_text(self, symbols: str) -> int | None:
        """The value's opener is missing if text comes first."""
        bare = symbols.lstrip(BLANKS)
        if not bare:
            return None
        self.begin_value()
        return len(symbols) - len(bare)

    def after_key_mark(self, meaning: int, word: str) -> None:
        if meaning == VALUE:
            self.begin_value()
        elif meaning == VALUE_CLOSE:
            self.begin_value()
            self.value_mark(meaning, word)
        elif meaning == KEY:
            self.key.clear()
            self.parser.state = self.in_key
        elif meaning != KEY_CLOSE:
            self.key_mark(meaning, word)

    # values

    def begin_value(self) -> None:
        self.arguments.open(self.key_name())
        self.parser.state = self.value_state()

    def value_state(self) -> State:
        return self.in_string if self.arguments.how == STREAM else self.in_value

    def value_text(self, symbols: str) -> None:
        self.arguments.text(symbols)
        if self.parser.state is self.in_value:
            self.parser.state = self.value_state()

    def value_mark(self, meaning: int, word: str) -> None:
        self.arguments.close()
        self.key.clear()
        self.parser.state = self.between

    def stray_mark(self, meaning: int, word: str) -> None:
        """A key or value without a call is over at any closer."""
        if meaning == CALL:
            self.opened(meaning, word)
        elif meaning not in (KEY, VALUE):
            self.host.leave()

    def skip_mark(self, meaning: int, word: str) -> None:
        if meaning == CALL:
            self.opened(meaning, word)
        else:
            self.out.incomplete()
            self.host.leave()
