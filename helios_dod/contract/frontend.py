"""FrontendContract -> PreparedFrontend: token ids, syntax data, prefix boundaries, images."""

from typing import Any

from google.protobuf.message import Message

from helios_dod.contract.errors import require
from helios_dod.contract.images import prepare_image
from helios_dod.contract.prepared import (
    PreparedBoundary,
    PreparedFrontend,
    PreparedSyntax,
)
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.limits import EOS_MAX

ROLES = ("system", "developer", "user", "assistant", "tool")
LIST_MAX = 64
TEXT_NBYTES_MAX = 128  # of one delimiter
# Tool syntax -> the kind of OutputSyntax that carries its data.
TOOL_KINDS: dict[int, str | None] = {
    contract.TOOL_NONE: None, contract.PARAMETER_TAGS: "tags", contract.KEY_VALUE_TAGS: "pairs",
    contract.TYPED_ELEMENTS: "elements", contract.MARKED_JSON: "json",
    contract.FRAMED_CALLS: "frames",
}
# Fields of tool syntax data that hold openers of calls: what may end reasoning.
OPENERS = {"tags": ("wrapper_open",), "pairs": ("call_open",), "json": ("open", "item_open")}
NAME_MAX = 256  # of a template token's name and text


def prepare_frontend(model: contract.ModelContract) -> PreparedFrontend:
    """Raises ContractError."""
    frontend, field = model.frontend, "contract.model.frontend"
    require(model.HasField("frontend"), field, "a FrontendContract", "none")
    eos = tuple(frontend.eos_tokens)
    require(len(eos) <= EOS_MAX and len(set(eos)) == len(eos), f"{field}.eos_tokens",
            f"at most {EOS_MAX}, each once", len(eos))
    for i, token in enumerate(eos):
        require(token < model.vocabulary, f"{field}.eos_tokens[{i}]",
                f"below the vocabulary, {model.vocabulary}", token)
    if frontend.add_bos:
        require(frontend.bos_token < model.vocabulary, f"{field}.bos_token",
                f"below the vocabulary, {model.vocabulary}", frontend.bos_token)
    _check_template_tokens(frontend, f"{field}.template_tokens")
    _check_pairing(frontend, field)
    _check_output(frontend, f"{field}.output")
    return PreparedFrontend(
        tool_syntax=frontend.tool_syntax, reasoning_syntax=frontend.reasoning_syntax,
        text_decoding=frontend.text_decoding, strip_leading_space=frontend.strip_leading_space,
        eos_tokens=eos, bos_token=frontend.bos_token, add_bos=frontend.add_bos,
        template_tokens=tuple(sorted(frontend.template_tokens.items())),
        output=(_freeze(frontend.output, f"{field}.output")
                if frontend.HasField("output") else None),
        prefix_boundaries=_prepare_boundaries(frontend, f"{field}.prefix_boundaries"),
        image=prepare_image(model, f"{field}.image"))


def _check_template_tokens(frontend: contract.FrontendContract, field: str) -> None:
    """Names that a chat template can spell, and their texts."""
    tokens = frontend.template_tokens
    require(len(tokens) <= LIST_MAX, field, f"at most {LIST_MAX}", len(tokens))
    for name, text in tokens.items():
        require(name.isidentifier() and len(name) <= NAME_MAX, field,
                f"names that templates can spell, of at most {NAME_MAX} characters", name)
        require(len(text) <= NAME_MAX, f"{field}[{name}]", f"at most {NAME_MAX} characters",
                len(text))


def _check_pairing(frontend: contract.FrontendContract, field: str) -> None:
    """Two reasoning syntaxes are part of a tool parser that consumes whole elements or frames."""
    tool, reasoning = frontend.tool_syntax, frontend.reasoning_syntax
    for inside, parser in ((contract.THINK_ELEMENT, contract.TYPED_ELEMENTS),
                           (contract.REASONING_FRAMES, contract.FRAMED_CALLS)):
        names = contract.ReasoningSyntax.Name(inside), contract.ToolSyntax.Name(parser)
        if reasoning == inside:
            require(tool == parser, f"{field}.tool_syntax",
                    f"{names[1]}, which {names[0]} requires", contract.ToolSyntax.Name(tool))
        if tool == parser:
            require(reasoning == inside, f"{field}.reasoning_syntax",
                    f"{names[0]} with {names[1]}", contract.ReasoningSyntax.Name(reasoning))


def _check_output(frontend: contract.FrontendContract, field: str) -> None:
    """The data of exactly the selected syntaxes: a selector without its data parses nothing."""
    output = frontend.output  # reads as an empty message where it is absent
    kind = output.WhichOneof("tool")
    wanted = TOOL_KINDS[frontend.tool_syntax]
    require(kind == wanted, f"{field}.tool",
            f"{wanted or 'nothing'}, as {contract.ToolSyntax.Name(frontend.tool_syntax)} needs",
            kind or "nothing")
    thinks = frontend.reasoning_syntax == contract.THINK_TAGS
    require(output.HasField("think") == thinks, f"{field}.think",
            "think tags exactly for THINK_TAGS", "present" if output.HasField("think") else "none")
    if thinks:
        for name in ("open", "close"):
            require(bool(getattr(output.think, name)), f"{field}.think.{name}", "a delimiter", "")
        _check_terminals(output, f"{field}.think.terminals.markers")


def _check_terminals(output: contract.OutputSyntax, field: str) -> None:
    """What ends reasoning besides its closer is an opener of the declared tool syntax."""
    kind = output.WhichOneof("tool")
    tool = getattr(output, kind) if kind else None
    openers = [word for name in OPENERS.get(kind or "", ()) if (word := getattr(tool, name))]
    markers = list(output.think.terminals.markers)
    for i, marker in enumerate(markers):
        require(marker in openers and marker not in markers[:i], f"{field}[{i}]",
                f"an opener of the tool syntax, each once: {', '.join(openers) or 'none'}", marker)


def _check_text(value: Any, field: str) -> None:
    nbytes = len(value.encode()) if isinstance(value, str) else 0
    require(nbytes <= TEXT_NBYTES_MAX, field, f"at most {TEXT_NBYTES_MAX} bytes", nbytes)


def _freeze(message: Message, path: str) -> PreparedSyntax:
    """A message as plain values. Texts and lists are bounded here."""
    values: dict[str, Any] = {}
    present: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        value, place = getattr(message, field.name), f"{path}.{field.name}"
        if field.is_repeated:
            require(len(value) <= LIST_MAX, place, f"at most {LIST_MAX}", len(value))
        if field.message_type is not None:
            if field.is_repeated:
                value = tuple(_freeze(part, f"{place}[{i}]") for i, part in enumerate(value))
            else:
                if message.HasField(field.name):
                    present.add(field.name)
                value = _freeze(value, place)
        elif field.is_repeated:
            value = tuple(value)
            for i, part in enumerate(value):
                _check_text(part, f"{place}[{i}]")
        else:
            _check_text(value, place)
        values[field.name] = value
    choices = {part.name: message.WhichOneof(part.name) for part in message.DESCRIPTOR.oneofs}
    return PreparedSyntax(values, frozenset(present), choices)


def _prepare_boundaries(
    frontend: contract.FrontendContract, field: str,
) -> tuple[PreparedBoundary, ...]:
    made = []
    require(len(frontend.prefix_boundaries) <= LIST_MAX, field, f"at most {LIST_MAX}",
            len(frontend.prefix_boundaries))
    for i, boundary in enumerate(frontend.prefix_boundaries):
        roles = tuple(boundary.roles)
        require(bool(roles) and len(set(roles)) == len(roles), f"{field}[{i}].roles",
                "at least one role, each once", ", ".join(roles) or "none")
        for role in roles:
            require(role in ROLES, f"{field}[{i}].roles", " or ".join(ROLES), role)
        name = contract.RenderConstraint.Name(boundary.constraint).lower()
        made.append(PreparedBoundary(roles, name))
    return tuple(made)
