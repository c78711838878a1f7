"""Which output syntax a chat template shows, as data: texts that it must hold, first match wins.

Source: the chat templates of the families named beside each row. What is named is a syntax of
`frontend.output.families.catalog`.
"""

from dataclasses import replace

from helios_dod.frontend.output.syntax import EnvelopeSyntax, OutputSyntax
from helios_dod.frontend.syntaxes import NONE, carries_reasoning, compose

TOOLS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<atem:function_calls>",), "recipient_frames"),
    (("<|channel|>", "<|start|>", "<|message|>"), "channel_frames"),  # gpt-oss
    (("<|open|>", "<|close|>", "<|sep|>"), "xtml"),  # Kimi K3
    (("｜DSML｜", "function_calls>"), "dsml_function_calls"),  # DeepSeek V3.2
    (("｜DSML｜", " calls>"), "dsml_spaced"),  # DeepSeek V4.1
    (("｜DSML｜", "tool_calls>"), "dsml_tool_calls"),  # DeepSeek V4
    (("\\n<tool_call>", "<arg_key>", "<arg_value>"), "argument_tag_lines"),  # GLM 4.5, 4.6
    (("<tool_call>", "<arg_key>", "<arg_value>"), "argument_tags"),  # GLM 4.7 and later
    (("<tool_call>", "<function=", "<parameter=", "<think>"), "function_tag_lines"),  # Qwen3.5
    (("<tool_call>", "<function=", "<parameter="), "function_tags"),  # Qwen3-Coder
    (("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"), "identified_json"),  # Kimi
    (("<|im_middle|>", "tool_declare"), "identified_json"),  # Kimi K2
    (("<tool_call>", "arguments", "<think>", "reasoning_content"), "tagged_json_lines"),  # Qwen3
    (("<tool_call>", "arguments"), "tagged_json"),  # Hermes, Qwen2.5
    (("[TOOL_CALLS]",), "named_json"),  # Mistral
    (("<|start_header_id|>", "tools", "parameters"), "bare_json"),  # Llama 3
)
REASONING: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<think>", "</think>", "<|im_start|>", "reasoning_content"), "think_tag_lines"),  # Qwen3
    (("</think>",), "think_tags"),  # DeepSeek, GLM and others
)
ENVELOPES: tuple[tuple[str, EnvelopeSyntax], ...] = (  # text of the template -> its turns
    ("<|im_start|>", EnvelopeSyntax("<|im_start|>assistant", ("<|im_end|>", "<|im_start|>"))),
    ("<|start_header_id|>", EnvelopeSyntax(
        "<|start_header_id|>assistant<|end_header_id|>",
        ("<|eot_id|>", "<|eom_id|>", "<|start_header_id|>"))),
    ("<｜Assistant｜>", EnvelopeSyntax("<｜Assistant｜>", ("<｜end▁of▁sentence｜>", "<｜User｜>"))),
)


def found(template: str, rows: tuple[tuple[tuple[str, ...], str], ...]) -> str:
    """The first row all of whose texts the template holds; `none` if there is no such row."""
    return next((name for texts, name in rows if all(text in template for text in texts)), NONE)


def detect(template: str, tool: str | None = None,
           reasoning: str | None = None) -> OutputSyntax | None:
    """The syntax that a chat template writes, None if it writes only text. tool, reasoning: names
    that a person chose instead. Raises UserError where they do not fit."""
    chosen = compose(found(template, TOOLS) if tool is None else tool, None)
    if reasoning is None and not (chosen and carries_reasoning(chosen)):
        reasoning = found(template, REASONING)
    syntax = compose(None, reasoning, chosen)
    if syntax is None or carries_reasoning(syntax):
        return syntax
    for text, envelope in ENVELOPES:
        if text in template:
            return replace(syntax, envelope=envelope)
    return syntax
