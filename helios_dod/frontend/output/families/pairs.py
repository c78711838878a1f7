"""Kind 2 syntaxes: argument tags. Source: the chat templates that write them.

Newlines between tags are written by some of the templates and accepted always.
"""

from dataclasses import replace

from helios_dod.frontend.output.families.thinking import THINK, ended_by
from helios_dod.frontend.output.syntax import EnvelopeSyntax, OutputSyntax, PairSyntax

PAIRS = PairSyntax(
    call_open="<tool_call>", call_close="</tool_call>", key_open="<arg_key>",
    key_close="</arg_key>", value_open="<arg_value>", value_close="</arg_value>",
    python_literals=True)

ARGUMENT_TAGS = OutputSyntax(
    PAIRS, ended_by(THINK, "<tool_call>"),
    tokens=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
            "</arg_value>", "<think>", "</think>"),
    dropped=("<|user|>", "<|observation|>", "<|endoftext|>", "<|assistant|>", "<|system|>"),
    envelope=EnvelopeSyntax("<|assistant|>", ("<|user|>", "<|observation|>", "<|system|>")))
ARGUMENT_TAG_LINES = replace(ARGUMENT_TAGS, tool=replace(PAIRS, lead="\n"))
