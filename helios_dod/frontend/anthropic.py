"""Requests of /v1/messages as chat requests. Field names and meanings are those of Anthropic's
API reference ("Create a message", "Count tokens")."""

from typing import Any, Literal, NoReturn

import msgspec

from helios_dod.frontend.requests import CHAT, ChatRequest, RequestError, Salt, Shape, Strict

CHAT_NAMES = {"stop": "stop_sequences", "max_completion_tokens": "max_tokens",
              "thinking_token_budget": "thinking.budget_tokens"}
TOOL_FIELDS = {"name": "name", "parameters": "input_schema",
               "parameters.type": "input_schema.type"}  # of a chat's function -> of a tool
SHOWN = ("text", "image")  # types of blocks that a message itself shows
BLOCK_FIELDS = {  # type of a content block -> the field that it needs
    "text": "text", "image": "source", "tool_use": "name", "tool_result": "tool_use_id",
    "thinking": "thinking"}


class Source(Strict):
    """Where an image is."""

    type: Literal["base64", "url"]
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(Strict):
    """A content block; which fields it needs depends on its type."""

    type: str
    text: str | None = None
    source: Source | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None  # pages are cached whatever it says
    citations: None = None


class Turn(Strict):
    """One message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class ToolDeclaration(Strict):
    """A tool that the model may use."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(Strict):
    """Whether and which tool must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether to reason before the answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: None = None


class Metadata(Strict):
    """About the request."""

    user_id: str | None = None


class MessageRequest(Strict):
    """The body of a message request. Fields typed None are refused by name."""

    model: str
    messages: list[Turn]
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[ToolDeclaration] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    priority: int | None = None
    cache_salt: Salt | None = None
    deadline_ms: int | None = None
    container: None = None
    context_management: None = None
    mcp_servers: None = None
    output_config: None = None
    output_format: None = None
    inference_geo: None = None


MESSAGE = Shape.of(MessageRequest, Block, Source, Turn, ToolDeclaration, ToolChoice, Thinking)
SAME = ("model", "stream", "temperature", "top_p", "top_k", "priority", "cache_salt", "deadline_ms")


def refuse(field: str, problem: str, code: str = "invalid_value") -> NoReturn:
    """Raises RequestError for a field."""
    raise RequestError(f"'{field}' {problem}.", field, code)


def missing(field: str) -> NoReturn:
    """Raises RequestError for a field that is not there."""
    raise RequestError(f"Missing required parameter: '{field}'.", field,
                       "missing_required_parameter")


def decode_message(body: bytes, counting: bool = False) -> tuple[MessageRequest, ChatRequest]:
    """A request from JSON, and the chat request that it amounts to. counting: of count_tokens,
    which needs no max_tokens. Raises RequestError."""
    request: MessageRequest = MESSAGE.decode(body)
    if request.max_tokens is None and not counting:
        missing("max_tokens")
    if not request.messages:
        refuse("messages", "must hold at least one message")
    messages = []
    if request.system:
        messages.append({"role": "system", "content": text_of(request.system, "system")})
    for i, turn in enumerate(request.messages):
        messages += messages_of(turn, f"messages[{i}]")
    fields: dict[str, Any] = {name: getattr(request, name) for name in SAME}
    fields.update(
        messages=messages, max_completion_tokens=request.max_tokens,
        stop=request.stop_sequences or None,
        tools=[tool_of(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())] or None)
    if request.thinking is not None:
        fields["thinking_token_budget"] = request.thinking.budget_tokens
    choice = request.tool_choice
    if choice is not None:
        fields["tool_choice"] = choice_of(choice)
        if choice.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
    try:
        return request, CHAT.convert(fields, CHAT_NAMES)
    except RequestError as error:
        raise error.renamed(places(request)) from None


def tool_of(tool: ToolDeclaration, field: str) -> dict[str, Any]:
    """A tool in chat's form."""
    if tool.type not in (None, "custom"):
        refuse(f"{field}.type", f"must be 'custom', got {tool.type!r}", "unsupported_value")
    return {"type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
        "strict": tool.strict}}


def choice_of(choice: ToolChoice) -> Any:
    """A tool choice in chat's form."""
    if choice.type == "tool":
        if choice.name is None:
            missing("tool_choice.name")
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def text_of(content: str | list[Block] | None, field: str) -> str:
    """The text of text blocks, joined by newlines."""
    if content is None or isinstance(content, str):
        return content or ""
    for i, block in enumerate(content):
        if block.type != "text":
            refuse(f"{field}[{i}].type", f"must be 'text', got {block.type!r}",
                   "unsupported_value")
        if block.text is None:
            missing(f"{field}[{i}].text")
    return "\n".join(block.text or "" for block in content)


def content_of(content: str | list[Block] | None, field: str) -> str | list[dict[str, Any]]:
    """Text and image blocks in chat's form: parts where an image is among them, else text."""
    if not isinstance(content, list) or all(block.type != "image" for block in content):
        return text_of(content, field)
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        if block.type == "image":
            parts.append({"type": "image_url",
                          "image_url": {"url": url_of(block.source, f"{field}[{i}].source")}})
        else:
            parts.append({"type": "text", "text": text_of([block], f"{field}[{i}]")})
    return parts


def url_of(source: Source | None, field: str) -> str:
    """An image's address."""
    if source is None:
        missing(field)
    for name in ("media_type", "data") if source.type == "base64" else ("url",):
        if getattr(source, name) is None:
            missing(f"{field}.{name}")
    if source.type == "base64":
        return f"data:{source.media_type};base64,{source.data}"
    return str(source.url)


def messages_of(turn: Turn, field: str) -> list[dict[str, Any]]:
    """Chat messages of one turn: results of tools come first, as chats have them."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, shown, calls, thoughts = [], [], [], []
    for i, block in enumerate(turn.content):
        at = f"{field}.content[{i}]"
        if block.type not in BLOCK_FIELDS:
            refuse(f"{at}.type", f"is none of {', '.join(BLOCK_FIELDS)}, got {block.type!r}",
                   "unsupported_value")
        if getattr(block, BLOCK_FIELDS[block.type]) is None:
            missing(f"{at}.{BLOCK_FIELDS[block.type]}")
        if (block.type in ("tool_result", "image")) if turn.role == "assistant" else (
                block.type in ("tool_use", "thinking")):
            refuse(f"{at}.type", f"{block.type!r} does not belong to the {turn.role}")
        if block.type in SHOWN:
            shown.append(block)
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append({"id": block.id, "type": "function", "function": {
                "name": block.name, "arguments": msgspec.json.encode(block.input or {}).decode()}})
        else:
            results.append({"role": "tool", "tool_call_id": block.tool_use_id,
                            "content": content_of(block.content, f"{at}.content")})
    content = content_of(shown, f"{field}.content")
    if turn.role == "user":
        asked = [{"role": "user", "content": content}] if shown or not results else []
        return [*results, *asked]
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def places(request: MessageRequest) -> dict[str, str]:
    """Where the chat request has an image, calls of tools or a tool's schema -> the field of the
    message request that they are from: a system text stands before all others there, and results
    of tools are messages of their own."""
    names = {f"tools[{i}].function.{name}": f"tools[{i}].{own}"
             for i in range(len(request.tools or ())) for name, own in TOOL_FIELDS.items()}
    count = 1 if request.system else 0
    for i, turn in enumerate(request.messages):
        field, blocks = f"messages[{i}].content", turn.content
        made = messages_of(turn, f"messages[{i}]")
        listed = list(enumerate(blocks if isinstance(blocks, list) else ()))
        sources = [f"{field}[{at}].content[{k}].source" for at, block in listed
                   if block.type == "tool_result" and isinstance(block.content, list)
                   for k, inner in enumerate(block.content) if inner.type == "image"]
        sources += [f"{field}[{at}].source" for at, block in listed if block.type == "image"]
        images = [f"messages[{count + k}].content[{j}].image_url" for k, message in enumerate(made)
                  if isinstance(message["content"], list)
                  for j, part in enumerate(message["content"]) if part["type"] == "image_url"]
        if turn.role == "assistant":
            names[f"messages[{count}].tool_calls"] = field
        names |= zip(images, sources, strict=True)
        count += len(made)
    return names
