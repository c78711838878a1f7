"""Messages, tools and variables as chat templates take them.

They have the shape that Hugging Face's `apply_chat_template` documents: content as text, or as
parts beside an image, tool calls with arguments as objects, tools as OpenAI's JSON.
"""

from typing import Any

import msgspec

from helios_dod.frontend.output.syntax import ThinkSyntax
from helios_dod.frontend.requests import ChatRequest, Message, RequestError, Tool, ToolCall

THINKING_SWITCHES = ("enable_thinking", "thinking")
EFFORT_NAMES = ("reasoning_effort", "thinking_effort")
REASONING_KEYS = ("reasoning_content", "thinking")  # where templates look for reasoning


def plain_messages(request: ChatRequest, think: ThinkSyntax | None = None) -> list[dict[str, Any]]:
    """The messages: text parts joined by newlines, but parts beside an image; developer as system.
    think: reasoning tags that an earlier answer may carry in its content. Raises RequestError."""
    return [plain_message(message, f"messages[{i}]", think)
            for i, message in enumerate(request.messages)]


def plain_message(message: Message, field: str, think: ThinkSyntax | None) -> dict[str, Any]:
    """One message. field: its place in the request."""
    content: Any = message.content
    if isinstance(content, list):
        if any(part.image_url is not None for part in content):
            content = [{"type": "image"} if part.text is None else
                       {"type": "text", "text": part.text} for part in content]
        else:
            content = "\n".join(part.text or "" for part in content)
    role = "system" if message.role == "developer" else message.role
    entry: dict[str, Any] = {"role": role, "content": content or ""}
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            entry[name] = value
    if role != "assistant":
        return entry
    reasoning = message.reasoning_content
    reasoning = message.reasoning if reasoning is None else reasoning
    if reasoning is None and think is not None:
        reasoning, entry["content"] = without_reasoning(entry["content"], think)
    if reasoning:
        entry |= dict.fromkeys(REASONING_KEYS, reasoning)
    if message.tool_calls:
        entry["tool_calls"] = [plain_call(call, f"{field}.tool_calls[{i}]")
                               for i, call in enumerate(message.tool_calls)]
    return entry


def without_reasoning(content: str, think: ThinkSyntax) -> tuple[str | None, str]:
    """Reasoning that an answer's text begins with, and the rest.

    Tags in messages are text, so a template cannot part them: it is done here."""
    head, closed, rest = content.partition(think.close)
    if not closed or not head.lstrip().startswith(think.open):
        return None, content
    return head.lstrip().removeprefix(think.open).strip("\n"), rest.lstrip("\n")


def plain_call(call: ToolCall, field: str) -> dict[str, Any]:
    """One tool call, its arguments parsed."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        field = f"{field}.function.arguments"
        try:
            arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"'{field}' is not valid JSON: {error}.", field,
                               "invalid_value") from None
        if not isinstance(arguments, dict):
            raise RequestError(f"'{field}' must be a JSON object.", field, "invalid_value")
    entry = {"type": "function",
             "function": {"name": call.function.name, "arguments": arguments or {}}}
    return entry if call.id is None else {"id": call.id, **entry}


def plain_tool(tool: Tool) -> dict[str, Any]:
    """One tool as OpenAI's JSON, without what was not given."""
    function: dict[str, Any] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def template_variables(request: ChatRequest, known: set[str]) -> dict[str, Any]:
    """What the request says to the template beside messages, tools and documents.

    known: variables that the template uses. Raises RequestError for what it would not see."""
    given = request.chat_template_kwargs or {}
    for name in given:
        if name not in known:
            raise RequestError(
                f"'chat_template_kwargs.{name}': this model's chat template does not use it.",
                f"chat_template_kwargs.{name}", "unsupported_value")
    variables = effort_variables(request.reasoning_effort, known) | given
    if request.tool_choice is not None:
        variables["tool_choice"] = request.tool_choice
    return variables


def effort_variables(effort: str | None, known: set[str]) -> dict[str, Any]:
    """How a template is told to reason; no effort is a switch where it has one."""
    if effort is None:
        return {}
    switches, efforts = known & set(THINKING_SWITCHES), known & set(EFFORT_NAMES)
    if effort == "none" and switches:
        return dict.fromkeys(switches, False)
    if not efforts:
        raise RequestError(
            f"'reasoning_effort': this model's chat template does not use {effort!r}.",
            "reasoning_effort", "unsupported_value")
    return dict.fromkeys(efforts, effort)
