"""What the first output token is part of, from the prompt's last tokens."""

from collections.abc import Sequence

from helios_dod.frontend.output.marks import Bound
from helios_dod.frontend.output.syntax import ElementSyntax, FrameSyntax
from helios_dod.frontend.output.terms import Start

TAIL_MAX = 1 << 14  # tokens of the prompt that are read, from the end


def start_state(bound: Bound, tokens: Sequence[int], table: Sequence[bytes]) -> Start:
    """The start state after a prompt. tokens: its ids; table: their bytes.

    Only what follows the last end of a message, in an open assistant envelope, can open
    reasoning."""
    parts: list[str] = []
    boundary = ""
    single = boundaries_of(bound, table)
    for token in reversed(tokens[-TAIL_MAX:]):
        if token in single:
            boundary = single[token]
            break
        data = table[token] if token < len(table) else b""  # an image's sentinel has no text
        parts.append(bound.symbols.get(token) or data.decode("latin-1"))
    tail = "".join(reversed(parts))
    spelled = [] if single else [  # a tokenizer without such tokens
        (tail.rfind(bound.encode(text)), text) for text in texts_of(bound)]
    at, text = max(spelled, default=(-1, ""))
    if at >= 0:
        boundary, tail = text, tail[at + len(bound.encode(text)):]
    return state_of(bound, boundary, tail)


def texts_of(bound: Bound) -> set[str]:
    """What parts messages."""
    envelope, tool = bound.syntax.envelope, bound.syntax.tool
    texts = {*envelope.boundaries, envelope.opener}
    if isinstance(tool, FrameSyntax):
        texts.add(tool.start)
    return texts - {""}


def boundaries_of(bound: Bound, table: Sequence[bytes]) -> dict[int, str]:
    """Token id -> text of the tokens that part messages."""
    if bound.boundaries is None:
        wanted = {text.encode(): text for text in texts_of(bound)}
        bound.boundaries = {i: wanted[data] for i, data in enumerate(table) if data in wanted}
    return bound.boundaries


def state_of(bound: Bound, boundary: str, tail: str) -> Start:
    """The state after `tail`, which follows `boundary` (empty: none was found)."""
    syntax = bound.syntax
    if isinstance(syntax.tool, ElementSyntax):
        return element_state(bound, syntax.tool, tail)
    if isinstance(syntax.tool, FrameSyntax):
        return frame_state(bound, syntax.tool, boundary, tail)
    opener = bound.encode(syntax.envelope.opener)
    role = opener.removeprefix(bound.encode(boundary)) if boundary else ""
    begins = boundary and syntax.envelope.opener.startswith(boundary)
    if begins and not tail.startswith(role):
        return Start.CONTENT  # another role's message
    if syntax.think is None:
        return Start.CONTENT
    opened = tail.rfind(bound.encode(syntax.think.open))
    closed = tail.rfind(bound.encode(syntax.think.close))
    return Start.REASONING if opened > closed else Start.CONTENT


def element_state(bound: Bound, syntax: ElementSyntax, tail: str) -> Start:
    """The channel that is open at the end of an element stream."""
    states = ((syntax.think, Start.REASONING), (syntax.response, Start.RESPONSE))
    last, state = -1, Start.CONTENT
    for name, meaning in states:
        opened = tail.rfind(bound.encode(syntax.open + name + syntax.separator))
        closed = tail.rfind(bound.encode(syntax.close + name + syntax.separator))
        if opened > max(last, closed):
            last, state = opened, meaning
    return state


def frame_state(bound: Bound, syntax: FrameSyntax, boundary: str, tail: str) -> Start:
    """Header, or the body that the prompt's last frame opened."""
    header, message, _ = tail.partition(bound.encode(syntax.message))
    if not message:
        return Start.HEADER
    text = bound.text_of(header)
    recipient = text.partition(syntax.recipient.strip())[2].split()
    channel = text.partition(syntax.channel)[2].split() if syntax.channel else []
    if (recipient and recipient[0] in syntax.reasoning_recipients) or (
            channel and channel[0] in syntax.reasoning_channels):
        return Start.REASONING
    return Start.CONTENT
