"""Syntaxes as data: one record type a structural kind, and what is common to all.

A delimiter listed in `OutputSyntax.tokens` that the tokenizer encodes as one token is matched by
token id only; every other delimiter is matched by its bytes. Sources of the grammars are named in
the modules of `families`.
"""

from dataclasses import dataclass, replace

from helios_dod.frontend.output.terms import CallIds, NamePlace, Names, Orphan, Typing, Unions


@dataclass(frozen=True)
class TagSyntax:
    """Kind 1: an invocation tag with the tool's name, a tag for each parameter.

    An opener ends where the name begins; the tag then ends at '>'."""

    wrapper_open: str
    wrapper_close: str
    invoke_open: str
    invoke_close: str
    parameter_open: str
    parameter_close: str
    typing: Typing
    quoted: bool = False  # name and attributes are in double quotes
    string_attribute: str = ""  # Typing.ATTRIBUTE: "true" means text, else JSON
    edge_newlines: bool = False  # one newline after the opener and before the closer is markup
    implicit_ends: bool = True  # the next parameter, or the invocation's end, ends a value
    confirm_close: bool = False  # a closer counts only if markup follows
    lead: str = ""  # newlines that the template writes between content and the first call
    wrapper_misspelled: tuple[str, ...] = ()  # openers; '</' for '<' closes them
    orphan: Orphan = Orphan.TEXT
    json_body: bool = False  # an invocation's body may be one JSON object
    malformed_is_text: bool = False  # a malformed invocation and its block are content
    fences: bool = False  # calls inside Markdown fences are text
    unwrap: tuple[str, ...] = ()  # a single undeclared parameter so named holds all arguments
    python_literals: bool = False  # True, False, None and sequences as Python spells them
    unions: Unions = Unions.TEXT


@dataclass(frozen=True)
class PairSyntax:
    """Kind 2: a call tag with the tool's name, then a key tag and a value tag an argument."""

    call_open: str
    call_close: str
    key_open: str
    key_close: str
    value_open: str
    value_close: str
    typing: Typing = Typing.SCHEMA
    lead: str = ""
    python_literals: bool = False
    unions: Unions = Unions.JSON_FIRST


@dataclass(frozen=True)
class ElementSyntax:
    """Kind 3: open NAME attributes sep ... close NAME sep, with answer and tool channels."""

    open: str
    close: str
    separator: str
    message: str
    think: str
    response: str
    tools: str
    call: str
    argument: str
    json: str
    name_attribute: str
    key_attribute: str
    type_attribute: str
    string_type: str
    escapes: tuple[tuple[str, str], ...]  # attribute text -> character, in order of undoing


@dataclass(frozen=True)
class JsonSyntax:
    """Kind 4: markers around JSON."""

    place: NamePlace
    open: str = ""  # before a call or a section of calls; empty: a call begins at its brace
    close: str = ""
    item_open: str = ""  # NamePlace.IDENTIFIER
    item_close: str = ""
    name_end: str = ""  # between name and arguments
    id_open: str = ""  # NamePlace.BEFORE: between the name and an id
    absorbed: tuple[str, ...] = ()  # markers that carry nothing
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    arguments_required: bool = False
    name_prefix: str = ""  # before names in identifiers
    lead: str = ""


@dataclass(frozen=True)
class FrameSyntax:
    """Kind 5: start, a header with role, recipient and channel, message, body, end."""

    start: str
    message: str
    ends: tuple[str, ...]
    role: str
    recipient: str  # before a recipient's name
    channel: str = ""
    constrain: str = ""
    reasoning_recipients: tuple[str, ...] = ()
    content_recipients: tuple[str, ...] = ()
    reasoning_channels: tuple[str, ...] = ()
    content_channels: tuple[str, ...] = ()
    tool_prefix: str = ""  # recipients with it are tools; empty: every other recipient is one
    doubled_names: bool = False  # f.f means a declared f
    bare_headers: bool = False  # recipient and message without start, before a call, are a header
    body: TagSyntax | None = None  # None: a tool's body is its arguments


@dataclass(frozen=True)
class TerminalMarkers:
    """What ends reasoning without its closer: openers of the tool syntax that is declared."""

    markers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ThinkSyntax:
    """Reasoning between two tags. The newlines are wrapping that the template writes."""

    open: str
    close: str
    open_newlines: str = ""  # after the opener
    close_newlines: str = ""  # before the closer
    answer_newlines: str = ""  # after the closer
    terminals: TerminalMarkers = TerminalMarkers()


@dataclass(frozen=True)
class EnvelopeSyntax:
    """How a prompt opens the assistant's turn."""

    opener: str = ""  # the assistant's header; only what follows the last one counts
    boundaries: tuple[str, ...] = ()  # ends of messages and openers of other roles


ToolSyntax = TagSyntax | PairSyntax | ElementSyntax | JsonSyntax | FrameSyntax


@dataclass(frozen=True)
class OutputSyntax:
    """What a model's output is made of. tokens: delimiters that may be single tokens.

    dropped: end-of-turn tokens that are no text. Elements and frames carry their own reasoning;
    `think` is for the others."""

    tool: ToolSyntax | None = None
    think: ThinkSyntax | None = None
    tokens: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    envelope: EnvelopeSyntax = EnvelopeSyntax()
    call_ids: CallIds = CallIds.PREFIXED
    unknown_names: Names = Names.DROP


def openers_of(tool: ToolSyntax | None) -> tuple[str, ...]:
    """What may end reasoning that stands beside a tool syntax: the openers of its calls."""
    if isinstance(tool, TagSyntax):
        return (tool.wrapper_open,)
    if isinstance(tool, PairSyntax):
        return (tool.call_open,)
    if isinstance(tool, JsonSyntax):
        return tuple(word for word in (tool.open, tool.item_open) if word)
    return ()


def with_terminals(syntax: OutputSyntax) -> OutputSyntax:
    """The same syntax, whose reasoning ends at every opener of its tool syntax."""
    if syntax.think is None:
        return syntax
    markers = TerminalMarkers(openers_of(syntax.tool))
    return replace(syntax, think=replace(syntax.think, terminals=markers))
