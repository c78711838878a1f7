"""Output syntaxes: found in chat templates, chosen by name, carried through the contract."""

from dataclasses import replace

import pytest
from ignition_fixtures import opened

from helios_dod.contract.errors import ContractError
from helios_dod.contract.frontend import prepare_frontend
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.errors import UserError
from helios_dod.frontend.output.families.catalog import CATALOG
from helios_dod.frontend.output.families.thinking import ended_by
from helios_dod.frontend.output.syntax import OutputSyntax, openers_of
from helios_dod.frontend.output.wire import selectors, to_contract
from helios_dod.frontend.syntaxes import REASONING_NAMES, TOOL_NAMES, carries_reasoning, compose
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.recipes import prepare
from helios_dod.ignition.recipes.syntaxes import REASONING, TOOLS, detect
from helios_dod.server.bootstrap import declared_output

IM = "{{ '<|im_start|>' + message.role }}{% if tools %}"
TEMPLATES = {  # what matters of a family's template -> its tool syntax and reasoning syntax
    IM: (None, None),
    IM + '<tool_call>{"name": n, "arguments": a}</tool_call>': ("tagged_json", None),
    IM + '<think>{{ message.reasoning_content }}</think><tool_call>{"name", "arguments"}':
        ("tagged_json_lines", "think_tag_lines"),
    IM + "<tool_call><function=f><parameter=p>": ("function_tags", None),
    IM + "<think></think>reasoning_content<tool_call><function=f><parameter=p>":
        ("function_tag_lines", "think_tag_lines"),
    "[gMASK]<think></think>'\\n<tool_call>'<arg_key><arg_value>":
        ("argument_tag_lines", "think_tags"),
    "[gMASK]<think></think>'<tool_call>'<arg_key><arg_value>": ("argument_tags", "think_tags"),
    "<|start_header_id|>{% if tools %}{\"name\": n, \"parameters\": p}": ("bare_json", None),
    "<|start_header_id|>assistant": (None, None),
    "[INST]{% if tools %}[TOOL_CALLS]": ("named_json", None),
    "<|start|>assistant<|channel|>analysis<|message|>": ("channel_frames", None),
    "<|start|><|message|><atem:function_calls>": ("recipient_frames", None),
    "{{ '<｜Assistant｜>' }}</think><｜DSML｜tool_calls>": ("dsml_tool_calls", "think_tags"),
    "{% set mark = '｜DSML｜' %}</think><{{ mark }}function_calls>{{ message.tool_calls }}":
        ("dsml_function_calls", "think_tags"),
    "</think><｜DSML｜ calls>{{ message.tool_calls }}": ("dsml_spaced", "think_tags"),
    "<|im_system|>tool_declare<|im_middle|>": ("identified_json", None),
    "<|im_assistant|><think></think><|tool_calls_section_begin|><|tool_call_argument_begin|>":
        ("identified_json", "think_tags"),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_show_their_syntax(template: str) -> None:
    tool, reasoning = TEMPLATES[template]
    found = detect(template)
    assert (found.tool if found else None) == (CATALOG[tool].tool if tool else None)
    think = CATALOG[reasoning].think if reasoning else None
    if found and think:
        think = ended_by(think, *openers_of(found.tool))
    assert (found.think if found else None) == think
    if found and "<|im_start|>" in template:
        assert found.envelope.opener == "<|im_start|>assistant"


def test_every_named_syntax_exists() -> None:
    assert {name for _, name in TOOLS} <= set(TOOL_NAMES)
    assert {name for _, name in REASONING} <= set(REASONING_NAMES)


def declared(frontend: contract.FrontendContract) -> OutputSyntax | None:
    """What a server reads of it."""
    model = contract.ModelContract(vocabulary=2**30, input_vocabulary=2**30, frontend=frontend)
    return declared_output(prepare_frontend(model))


@pytest.mark.parametrize("tool", [*TOOL_NAMES, "none"])
@pytest.mark.parametrize("reasoning", [*REASONING_NAMES, "none", None])
def test_the_contract_carries_every_pair(tool: str, reasoning: str | None) -> None:
    if tool != "none" and carries_reasoning(CATALOG[tool]) and reasoning not in ("none", None):
        with pytest.raises(UserError, match="--reasoning-syntax"):
            compose(tool, reasoning)
        return
    syntax = compose(tool, reasoning)
    frontend = contract.FrontendContract()
    if syntax is None:
        frontend.tool_syntax = contract.TOOL_NONE
        frontend.reasoning_syntax = contract.REASONING_NONE
    else:
        names = selectors(syntax)
        frontend.tool_syntax = contract.ToolSyntax.Value(names[0])
        frontend.reasoning_syntax = contract.ReasoningSyntax.Value(names[1])
        to_contract(syntax, frontend.output)
    assert declared(frontend) == syntax
    frontend.tool_syntax = (contract.PARAMETER_TAGS if syntax is None or syntax.tool is None
                            else contract.TOOL_NONE)
    with pytest.raises(ContractError, match=r"output\.tool|tool_syntax"):
        declared(frontend)


def test_recipes_declare_the_template_s_syntax() -> None:
    checkpoint = opened("qwen2")
    for template, (tool, reasoning) in TEMPLATES.items():
        with_template = replace(checkpoint, text=replace(checkpoint.text, chat_template=template))
        frontend = prepare(with_template, Options(lanes=2, packed=(16,))).contract.model.frontend
        assert declared(frontend) == detect(template)
        assert (frontend.tool_syntax == contract.TOOL_NONE) == (tool is None)
        if tool is None and reasoning is None:
            assert not frontend.HasField("output")
    chosen = prepare(checkpoint, Options(
        lanes=2, packed=(16,), tool_syntax="bare_json", reasoning_syntax="think_tags"))
    output = declared(chosen.contract.model.frontend)
    assert output and output.tool == CATALOG["bare_json"].tool and output.think


def test_a_person_s_choice_wins() -> None:
    template = next(text for text, names in TEMPLATES.items() if names[0] == "tagged_json_lines")
    assert detect(template, "none", "none") is None
    chosen = detect(template, "function_tags")
    assert chosen and chosen.tool == CATALOG["function_tags"].tool
    assert chosen.think == ended_by(CATALOG["think_tag_lines"].think, "<tool_call>")
    kept = compose("none", None, detect(template))
    assert kept and kept.tool is None and kept.think == CATALOG["think_tag_lines"].think
    for option, names in (("--tool-syntax", ("nothing", None)),
                          ("--reasoning-syntax", (None, "bare_json"))):
        with pytest.raises(UserError, match=option):
            compose(*names)
