"""Think-tag reasoning. Source: the chat templates that write these tags."""

from dataclasses import replace

from helios_dod.frontend.output.syntax import (
    EnvelopeSyntax,
    OutputSyntax,
    TerminalMarkers,
    ThinkSyntax,
)

THINK = ThinkSyntax("<think>", "</think>")
THINK_LINES = ThinkSyntax("<think>", "</think>", open_newlines="\n", close_newlines="\n",
                          answer_newlines="\n\n")
THINK_BRACKETS = ThinkSyntax("[THINK]", "[/THINK]")


def ended_by(think: ThinkSyntax, *markers: str) -> ThinkSyntax:
    """Think tags beside a tool syntax whose openers end reasoning too."""
    return replace(think, terminals=TerminalMarkers(markers))


# Turns between <|im_start|>ROLE and <|im_end|>.
IM_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
IM_ENVELOPE = EnvelopeSyntax("<|im_start|>assistant", ("<|im_end|>", "<|im_start|>"))

THINK_TAGS = OutputSyntax(think=THINK, tokens=("<think>", "</think>"), dropped=IM_TOKENS,
                          envelope=IM_ENVELOPE)
THINK_TAG_LINES = OutputSyntax(think=THINK_LINES, tokens=("<think>", "</think>"),
                               dropped=IM_TOKENS, envelope=IM_ENVELOPE)
PLAIN_TEXT = OutputSyntax(tokens=("<think>", "</think>"), dropped=IM_TOKENS)
