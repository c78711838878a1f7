"""Kind 1 syntaxes: function tags, DSML in its three spellings, and ATEM (the body of frames).

Sources: the chat templates and encoders that write them. Function tags: a newline each side of a
value; with LINES also the newlines that templates write around reasoning and before calls. DSML:
`string` says whether a value is text; the block follows two newlines; tag names of the newest
spelling begin with a space.
"""

from dataclasses import replace

from helios_dod.frontend.output.families.thinking import (
    IM_ENVELOPE,
    IM_TOKENS,
    THINK,
    THINK_LINES,
    ended_by,
)
from helios_dod.frontend.output.syntax import EnvelopeSyntax, OutputSyntax, TagSyntax, ThinkSyntax
from helios_dod.frontend.output.terms import Orphan, Typing, Unions

FUNCTIONS = TagSyntax(
    wrapper_open="<tool_call>", wrapper_close="</tool_call>",
    invoke_open="<function=", invoke_close="</function>",
    parameter_open="<parameter=", parameter_close="</parameter>",
    typing=Typing.SCHEMA, edge_newlines=True, orphan=Orphan.AT_NAME, fences=True,
    python_literals=True, unions=Unions.TEXT)

MARK = "｜DSML｜"


def dsml(wrapper: str, invoke: str, parameter: str, *misspelled: str) -> TagSyntax:
    """DSML with its three tag names. misspelled: wrappers seen instead of its own, another
    version's among them."""
    return TagSyntax(
        wrapper_open=f"<{MARK}{wrapper}>", wrapper_close=f"</{MARK}{wrapper}>",
        invoke_open=f'<{MARK}{invoke} name="', invoke_close=f"</{MARK}{invoke}>",
        parameter_open=f'<{MARK}{parameter} name="', parameter_close=f"</{MARK}{parameter}>",
        typing=Typing.ATTRIBUTE, quoted=True, string_attribute="string", lead="\n\n",
        wrapper_misspelled=tuple(f"<{MARK}{word}>" for word in misspelled),
        orphan=Orphan.AT_END, json_body=True, malformed_is_text=True,
        unwrap=("arguments", "input"))


ATEM = TagSyntax(
    wrapper_open="<atem:function_calls>", wrapper_close="</atem:function_calls>",
    invoke_open='<atem:invoke name="', invoke_close="</atem:invoke>",
    parameter_open='<atem:parameter name="', parameter_close="</atem:parameter>",
    typing=Typing.SCHEMA_THEN_JSON, quoted=True, implicit_ends=False, confirm_close=True,
    unions=Unions.JSON_FIRST)

FUNCTION_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>",
                   "</tool_response>")
DSML_TOKENS = ("<think>", "</think>", MARK)
DSML_DROPPED = ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
                "<｜System｜>")
DSML_ENVELOPE = EnvelopeSyntax("<｜Assistant｜>", ("<｜end▁of▁sentence｜>", "<｜User｜>"))


def function_tags(think: ThinkSyntax, lead: str) -> OutputSyntax:
    """Function tags with think tags beside them."""
    return OutputSyntax(
        replace(FUNCTIONS, lead=lead), ended_by(think, "<tool_call>"), FUNCTION_TOKENS, IM_TOKENS,
        IM_ENVELOPE)


def dsml_output(tool: TagSyntax) -> OutputSyntax:
    """DSML with think tags beside it."""
    return OutputSyntax(tool, ended_by(THINK, tool.wrapper_open), DSML_TOKENS, DSML_DROPPED,
                        DSML_ENVELOPE)


FUNCTION_TAGS = function_tags(THINK, "")
FUNCTION_TAG_LINES = function_tags(THINK_LINES, "\n\n")
DSML_FUNCTION_CALLS = dsml_output(
    dsml("function_calls", "invoke", "parameter", "functioncalls", "tool_calls"))
DSML_TOOL_CALLS = dsml_output(
    dsml("tool_calls", "invoke", "parameter", "toolcalls", "function_calls"))
DSML_SPACED = dsml_output(dsml(" calls", " invoke", " parameter"))
