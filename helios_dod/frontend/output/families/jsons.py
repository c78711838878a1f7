"""Kind 4 syntaxes: JSON between markers. Sources: the chat templates and their format guides."""

from dataclasses import replace

from helios_dod.frontend.output.families.thinking import (
    IM_ENVELOPE,
    IM_TOKENS,
    THINK,
    THINK_BRACKETS,
    THINK_LINES,
    ended_by,
)
from helios_dod.frontend.output.syntax import EnvelopeSyntax, JsonSyntax, OutputSyntax
from helios_dod.frontend.output.terms import CallIds, NamePlace

TAGGED = JsonSyntax(NamePlace.OBJECT, open="<tool_call>", close="</tool_call>")
TAGGED_JSON = OutputSyntax(
    TAGGED, ended_by(THINK, "<tool_call>"),
    tokens=("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>",
            "</tool_response>"),
    dropped=IM_TOKENS, envelope=IM_ENVELOPE)
TAGGED_JSON_LINES = replace(TAGGED_JSON, tool=replace(TAGGED, lead="\n"),
                            think=ended_by(THINK_LINES, "<tool_call>"))

BARE_JSON = OutputSyntax(
    JsonSyntax(NamePlace.OBJECT, absorbed=("<|python_tag|>",), arguments_required=True),
    tokens=("<|python_tag|>",), dropped=("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>"),
    envelope=EnvelopeSyntax("<|start_header_id|>assistant<|end_header_id|>",
                            ("<|eot_id|>", "<|eom_id|>", "<|start_header_id|>")))

NAMED_JSON = OutputSyntax(
    JsonSyntax(NamePlace.BEFORE, open="[TOOL_CALLS]", name_end="[ARGS]", id_open="[CALL_ID]"),
    ended_by(THINK_BRACKETS, "[TOOL_CALLS]"),
    tokens=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"), dropped=("</s>",),
    envelope=EnvelopeSyntax("[/INST]", ("</s>", "[/TOOL_RESULTS]", "[/INST]")),
    call_ids=CallIds.SHORT)

IDENTIFIED_JSON = OutputSyntax(
    JsonSyntax(
        NamePlace.IDENTIFIER, open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>", item_open="<|tool_call_begin|>",
        item_close="<|tool_call_end|>", name_end="<|tool_call_argument_begin|>",
        name_prefix="functions."),
    ended_by(THINK, "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    tokens=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
            "<|tool_call_end|>", "<|tool_call_argument_begin|>", "<think>", "</think>"),
    dropped=("<|im_end|>", "[EOS]"),
    envelope=EnvelopeSyntax("<|im_assistant|>assistant<|im_middle|>", ("<|im_end|>",)),
    call_ids=CallIds.GENERATED)
