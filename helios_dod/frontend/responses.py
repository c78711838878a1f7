"""Requests of /v1/responses as chat requests. Nothing is stored: each request is whole.

Field names and meanings are those of OpenAI's API reference ("Create a model response")."""

from typing import Any, Literal, NoReturn

from helios_dod.frontend.requests import CHAT, ChatRequest, RequestError, Salt, Shape, Strict

ITEMS_MAX = 4096
INCLUDED = "message.output_text.logprobs"
STATELESS = "responses are not stored; send the whole conversation as 'input'"
CHAT_NAMES = {  # of chat requests -> where the same stands in a response request
    "messages": "input", "max_completion_tokens": "max_output_tokens", "max_tokens":
    "max_output_tokens", "response_format": "text.format", "reasoning_effort": "reasoning.effort"}
ITEM_FIELDS = {  # type of an input item -> fields that it needs
    "message": ("role", "content"), "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"), "reasoning": ()}


class Part(Strict):
    """A part of an item's content."""

    type: str
    text: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "high"] | None = None  # of an image
    file_id: None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Item(Strict):
    """An input item; which fields it needs depends on its type."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: None = None


class FunctionTool(Strict):
    """A function that the model may call."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Reasoning(Strict):
    """How much to reason."""

    effort: str | None = None
    summary: None = None
    generate_summary: None = None


class TextOptions(Strict):
    """The answer's form."""

    format: dict[str, Any] | None = None
    verbosity: None = None


class ResponseStreamOptions(Strict):
    """Options of a streamed answer."""

    include_obfuscation: bool | None = None


class ResponseRequest(Strict):
    """The body of a response request. Fields typed None are refused by name."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    priority: int | None = None
    cache_salt: Salt | None = None
    deadline_ms: int | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    max_tool_calls: None = None
    prompt_cache_retention: None = None


RESPONSE = Shape.of(ResponseRequest, Item, Part, Reasoning, TextOptions)
SAME = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "metadata", "user",
        "safety_identifier", "prompt_cache_key", "service_tier", "priority", "cache_salt",
        "deadline_ms")


def refuse(field: str, problem: str, code: str = "invalid_value") -> NoReturn:
    """Raises RequestError for a field."""
    raise RequestError(f"'{field}' {problem}.", field, code)


def decode_response(body: bytes) -> tuple[ResponseRequest, ChatRequest]:
    """A request from JSON, and the chat request that it amounts to. Raises RequestError."""
    request: ResponseRequest = RESPONSE.decode(body)
    for name in ("store", "background"):
        if getattr(request, name):
            refuse(name, f"is not supported: {STATELESS}", "unsupported_value")
    for name in request.include or ():
        if name != INCLUDED:
            refuse("include", f"supports {INCLUDED!r} only, got {name!r}", "unsupported_value")
    scored = bool(request.include)
    if request.top_logprobs and not scored:
        refuse("top_logprobs", f"needs {INCLUDED!r} in 'include'")
    fields: dict[str, Any] = {name: getattr(request, name) for name in SAME}
    fields.update(
        messages=messages_of(request), max_completion_tokens=request.max_output_tokens,
        logprobs=scored or None, top_logprobs=request.top_logprobs if scored else None,
        tools=[tool_of(tool, i) for i, tool in enumerate(request.tools or ())] or None,
        tool_choice=choice_of(request.tool_choice))
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if request.text is not None and request.text.format is not None:
        fields["response_format"] = format_of(request.text.format)
    return request, CHAT.convert(fields, names_of(request))


def names_of(request: ResponseRequest) -> dict[str, str]:
    """CHAT_NAMES and, of every tool, where its fields stand: not in a function."""
    return CHAT_NAMES | {
        f"tools[{i}].function.{name}": f"tools[{i}].{name}"
        for i in range(len(request.tools or ()))
        for name in ("name", "parameters", "parameters.type")}


def tool_of(tool: FunctionTool, index: int) -> dict[str, Any]:
    """A tool in chat's form."""
    if tool.type != "function":
        refuse(f"tools[{index}].type", f"must be 'function', got {tool.type!r}",
               "unsupported_value")
    function = {name: getattr(tool, name) for name in ("description", "parameters", "strict")}
    return {"type": "function", "function": {"name": tool.name or "", **function}}


def choice_of(choice: Any) -> Any:
    """A tool choice in chat's form."""
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def format_of(given: dict[str, Any]) -> dict[str, Any]:
    """A text format in chat's form."""
    if given.get("type") != "json_schema":
        return given
    rest = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": rest}


def messages_of(request: ResponseRequest) -> list[dict[str, Any]]:
    """Input items as chat messages; calls and reasoning join the assistant message they are of."""
    messages: list[dict[str, Any]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*messages, {"role": "user", "content": request.input}]
    if len(request.input) > ITEMS_MAX:
        refuse("input", f"has {len(request.input)} items; at most {ITEMS_MAX} are accepted")
    open_turn: dict[str, Any] | None = None  # an assistant message that later items may join
    for i, item in enumerate(request.input):
        field, kind = f"input[{i}]", item.type or "message"
        if kind not in ITEM_FIELDS:
            refuse(f"{field}.type", f"is none of {', '.join(ITEM_FIELDS)}, got {kind!r}",
                   "unsupported_value")
        for name in ITEM_FIELDS[kind]:
            if getattr(item, name) is None:
                raise RequestError(f"Missing required parameter: '{field}.{name}'.",
                                   f"{field}.{name}", "missing_required_parameter")
        if kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id,
                             "content": content_of(item.output, f"{field}.output")})
            open_turn = None
        elif kind == "message" and item.role != "assistant":
            messages.append({"role": item.role,
                             "content": content_of(item.content, f"{field}.content")})
            open_turn = None
        else:
            if open_turn is None or (kind == "message" and open_turn["content"] is not None) or (
                    kind == "reasoning" and (open_turn["content"] is not None
                                             or "tool_calls" in open_turn)):
                open_turn = {"role": "assistant", "content": None}
                messages.append(open_turn)
            join(open_turn, item, kind, field)
    return messages


def join(turn: dict[str, Any], item: Item, kind: str, field: str) -> None:
    """Adds an assistant item to its message."""
    if kind == "message":
        turn["content"] = text_of(item.content, f"{field}.content")
    elif kind == "reasoning":
        turn["reasoning_content"] = text_of(item.content or item.summary or "", field)
    else:
        turn.setdefault("tool_calls", []).append({
            "id": item.call_id, "type": "function",
            "function": {"name": item.name, "arguments": item.arguments}})


def content_of(content: str | list[Part] | None, field: str) -> str | list[dict[str, Any]]:
    """Parts in chat's form: parts where an image is among them, else text."""
    if not isinstance(content, list) or all(part.type != "input_image" for part in content):
        return text_of(content, field)
    parts: list[dict[str, Any]] = []
    for i, part in enumerate(content):
        if part.type != "input_image":
            parts.append({"type": "text", "text": text_of([part], field)})
            continue
        if part.image_url is None:
            raise RequestError(f"Missing required parameter: '{field}[{i}].image_url'.",
                               f"{field}[{i}].image_url", "missing_required_parameter")
        parts.append({"type": "image_url", "image_url": {"url": part.image_url}})
    return parts


def text_of(content: str | list[Part] | None, field: str) -> str:
    """The text of parts, joined by newlines."""
    if content is None or isinstance(content, str):
        return content or ""
    for i, part in enumerate(content):
        if part.type not in ("input_text", "output_text", "text", "reasoning_text", "summary_text"):
            refuse(f"{field}[{i}].type", f"must be a kind of text, got {part.type!r}",
                   "unsupported_value")
        if part.text is None:
            raise RequestError(f"Missing required parameter: '{field}[{i}].text'.",
                               f"{field}[{i}].text", "missing_required_parameter")
    return "\n".join(part.text or "" for part in content)
