"""Kind 5 syntaxes: recipient frames with ATEM bodies, and channel frames with JSON bodies.

Sources: a checkpoint's response template and renderers of it; the Harmony format document.
"""

from helios_dod.frontend.output.families.tags import ATEM
from helios_dod.frontend.output.syntax import EnvelopeSyntax, FrameSyntax, OutputSyntax
from helios_dod.frontend.output.terms import Names

RECIPIENT_FRAMES = OutputSyntax(
    FrameSyntax(
        start="<|start|>", message="<|message|>", ends=("<|eom|>", "<|eot|>", "<|end_of_text|>"),
        role="assistant", recipient=" to=", reasoning_recipients=("self",),
        content_recipients=("user", "commentary"), doubled_names=True, bare_headers=True,
        body=ATEM),
    tokens=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>", "<|end_of_text|>"),
    envelope=EnvelopeSyntax("<|start|>assistant", ("<|eom|>", "<|eot|>")),
    unknown_names=Names.KEEP)

CHANNEL_FRAMES = OutputSyntax(
    FrameSyntax(
        start="<|start|>", message="<|message|>", ends=("<|end|>", "<|call|>", "<|return|>"),
        role="assistant", recipient=" to=", channel="<|channel|>", constrain="<|constrain|>",
        reasoning_channels=("analysis",), content_channels=("final", "commentary"),
        tool_prefix="functions."),
    tokens=("<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|channel|>",
            "<|constrain|>"),
    envelope=EnvelopeSyntax("<|start|>assistant", ("<|end|>", "<|call|>", "<|return|>")))
