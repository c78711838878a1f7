"""Requests of /v1/chat/completions: decoded strictly, each refusal naming the field.

Field names and meanings are those of OpenAI's API reference ("Create chat completion"), and of vLLM
for top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids,
include_stop_str_in_output, priority, cache_salt, documents, chat_template_kwargs,
include_reasoning, add_generation_prompt, continue_final_message and prompt_logprobs.
stop_token_sequences, return_token_ids, return_token_timestamps and deadline_ms are the contract's.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

import msgspec

from helios_dod.frontend.demands import ResponseFormat, StructuredOutputs
from helios_dod.frontend.half_pairs import half_pair
from helios_dod.frontend.parts import ContentPart, ImageURL, part_problem
from helios_dod.frontend.stop_fields import stop_problem
from helios_dod.limits import BIAS_MAX, STOP_IDS_MAX, STOP_SEQUENCES_MAX, TOP_LOGPROBS_MAX

BODY_BYTES_MAX = 8 << 20
MESSAGES_MAX = 4096
CHOICES_MAX = 128
PRIORITY_MAX = 1 << 20
METADATA_MAX = 16
DEADLINE_MS_MAX = 7 * 24 * 3_600_000
TOOLS_MAX = 1024
DOCUMENTS_MAX = 4096
CALLS_MAX = 1024  # tool calls of one message
TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")
OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt",
                 "continue_final_message", "reasoning_effort")
Salt = Annotated[str, msgspec.Meta(min_length=1)]  # requests with the same one share pages

# Inclusive bounds of numeric fields.
BOUNDS: dict[str, tuple[float, float]] = {
    "prompt_logprobs": (0, 0),  # the prompt's own tokens are scored, without alternatives
    "n": (1, CHOICES_MAX), "max_tokens": (1, 2**31 - 2), "max_completion_tokens": (1, 2**31 - 2),
    "min_tokens": (0, 2**31 - 2), "thinking_token_budget": (0, 2**31 - 2),
    "temperature": (0, 2), "top_p": (0, 1), "min_p": (0, 1),
    "top_k": (-1, 2**31 - 2), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100), "top_logprobs": (0, TOP_LOGPROBS_MAX),
    "seed": (-(2**63), 2**64 - 1), "priority": (-PRIORITY_MAX, PRIORITY_MAX),
    "deadline_ms": (1, DEADLINE_MS_MAX),
}


class RequestError(ValueError):
    """A request that cannot be served as it stands: the reason, the field, and OpenAI's code."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code

    def renamed(self, names: dict[str, str]) -> "RequestError":
        """The same about the field as another API calls it: all of its name, or its first part."""
        param = self.param or ""
        first = param if param in names else re.split(r"[.\[]", param)[0]
        if first not in names:
            return self
        text = str(self).replace(f"'{first}", f"'{names[first]}", 1)
        return RequestError(text, names[first] + param[len(first):], self.code)


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Refuses fields it does not declare."""


class CalledFunction(Strict):
    """What an earlier tool call called. arguments: JSON text of an object, or the object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Strict):
    """A tool call of an earlier assistant message."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class Function(Strict):
    """A function that the model may call. parameters: a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function


class Message(Strict):
    """One message. Fields typed None are OpenAI's, not supported here; null is accepted."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same under another server's name
    function_call: None = None
    audio: None = None
    annotations: list[Any] | None = None


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: usage so far on every chunk
    include_obfuscation: bool | None = None


class Generation(Strict):
    """What requests of chats and of completions share. Fields typed None are refused by name."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_token_sequences: list[list[int]] | None = None
    include_stop_str_in_output: bool | None = None
    priority: int | None = None
    cache_salt: Salt | None = None
    deadline_ms: int | None = None  # from its receipt; it then fails
    return_token_ids: bool | None = None
    return_token_timestamps: bool | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: None = None
    guided_whitespace_pattern: None = None
    user: str | None = None


class ChatRequest(Generation, kw_only=True):
    """The body of a chat completion request."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    thinking_token_budget: int | None = None  # tokens of reasoning; then it is closed
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    parallel_tool_calls: bool | None = None
    audio: None = None
    functions: None = None
    function_call: None = None
    prediction: None = None
    reasoning_effort: Literal[
        "none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    verbosity: None = None
    web_search_options: None = None
    prompt_cache_retention: None = None
    moderation: None = None


@dataclass(frozen=True)
class Shape:
    """A request body's type, decoded from JSON. structs: it and those nested in it."""

    decoder: msgspec.json.Decoder
    unsupported: frozenset[str]  # fields that are known and refused
    enums: dict[str, tuple[str, ...]]  # field -> the values that its type allows

    @classmethod
    def of(cls, *structs: Any) -> "Shape":
        """The shape of structs[0]."""
        fields = [info for struct in structs for info in msgspec.structs.fields(struct)]
        return cls(
            msgspec.json.Decoder(structs[0]),
            frozenset(info.name for info in fields if info.type is type(None)),
            {info.name: tuple(value for part in (info.type, *get_args(info.type))
                              if get_origin(part) is Literal for value in get_args(part))
             for info in fields})

    def decode(self, body: bytes) -> Any:
        """The body's struct. Raises RequestError naming what is wrong."""
        try:
            return self.decoder.decode(body)
        except msgspec.ValidationError as error:
            refuse_shape(str(error), self)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError("The request body is not valid JSON: "
                               f"{half_pair(body) or error}.", code="invalid_json") from None

    def convert(self, fields: dict[str, Any], names: dict[str, str]) -> Any:
        """The struct of fields that another API's request amounts to, checked as a chat request.

        names: of the struct's fields -> what the other API calls them. Raises RequestError."""
        try:
            try:
                request = msgspec.convert(fields, ChatRequest)
            except msgspec.ValidationError as error:
                refuse_shape(str(error), self)
            check_request(request)
        except RequestError as error:
            raise error.renamed(names) from None
        return request


CHAT = Shape.of(ChatRequest, Message, ImageURL)
PATH = re.compile(r" - at `\$\.?(.*)`$")
UNKNOWN = re.compile(r"^Object contains unknown field `(.*?)`")
ENUM = re.compile(r"^Invalid enum value (.*)$")
MISSING = re.compile(r"^Object missing required field `(.*?)`")


def decode_chat(body: bytes) -> ChatRequest:
    """A request from JSON, every field checked against its type and bounds. Raises RequestError."""
    request: ChatRequest = CHAT.decode(body)
    check_request(request)
    return request


def check_request(request: ChatRequest) -> None:
    """Everything that a field's type does not say. Raises RequestError."""
    check_numbers(request)
    check_lists(request)
    check_supported(request)
    check_observation(request)


def check_observation(request: ChatRequest) -> None:
    """What the fields that ask for token ids, times and scores need of each other."""
    if request.return_token_timestamps and not request.return_token_ids:
        raise RequestError("'return_token_timestamps' requires 'return_token_ids' to be true.",
                           "return_token_timestamps", "invalid_value")
    options = request.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise RequestError(
            "'stream_options.continuous_usage_stats' requires 'include_usage' to be true.",
            "stream_options.continuous_usage_stats", "invalid_value")


def refuse_shape(problem: str, shape: Shape) -> NoReturn:
    """Turns msgspec's words into an error that names the field."""
    found = PATH.search(problem)
    path, reason = (found[1], problem[: found.start()]) if found else ("", problem)
    path = path.replace("[...]", "")  # msgspec does not say which key of a map
    unknown, missing = UNKNOWN.match(reason), MISSING.match(reason)
    if unknown or missing:
        name = (unknown or missing)[1]  # type: ignore[index]
        path = f"{path}.{name}" if path else name
        if missing:
            raise RequestError(f"Missing required parameter: '{path}'.", path,
                               "missing_required_parameter")
        raise RequestError(f"Unrecognized request argument supplied: {path}.", path,
                           "unknown_parameter")
    if path.rsplit(".", 1)[-1] in shape.unsupported:
        raise RequestError(f"'{path}' is not supported.", path, "unsupported_parameter")
    value = ENUM.match(reason)
    if value and path.endswith("].type") and "content[" in path:
        raise RequestError(f"'{path}': only parts of text and image_url are supported. {reason}.",
                           path, "unsupported_value")
    allowed = shape.enums.get(path.rsplit(".", 1)[-1])
    if value and allowed:
        raise RequestError(f"'{path}' must be one of {', '.join(allowed)}, got {value[1]}.", path,
                           "invalid_value")
    if reason.endswith("out of range") and path in BOUNDS:  # the decoder does not say of what
        low, high = BOUNDS[path]
        raise RequestError(f"'{path}' must be between {low} and {high}, got a number too large to "
                           "be read.", path, "invalid_value")
    where = f"Invalid value for '{path}': " if path else "Invalid request: "
    raise RequestError(f"{where}{reason}.", path or None, "invalid_type")


def check_numbers(request: ChatRequest) -> None:
    """Bounds of every number, and NaN."""
    for name, (low, high) in BOUNDS.items():
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise RequestError(
                f"'{name}' must be between {low} and {high}, got {value}.", name, "invalid_value")
    if request.top_p == 0:
        raise RequestError("'top_p' must be greater than 0, got 0.", "top_p", "invalid_value")
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise RequestError(
            f"'max_tokens' is {both[0]} and 'max_completion_tokens' {both[1]}; give one.",
            "max_tokens", "invalid_value")
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("'top_logprobs' requires 'logprobs' to be true.", "top_logprobs",
                           "invalid_value")


def check_lists(request: ChatRequest) -> None:
    """Extents of lists and maps, and the values in them."""
    sizes: tuple[tuple[str, Any, int], ...] = (
        ("messages", request.messages, MESSAGES_MAX),
        ("logit_bias", request.logit_bias, BIAS_MAX),
        ("stop_token_ids", request.stop_token_ids, STOP_IDS_MAX),
        ("stop_token_sequences", request.stop_token_sequences, STOP_SEQUENCES_MAX),
        ("metadata", request.metadata, METADATA_MAX), ("tools", request.tools, TOOLS_MAX),
        ("documents", request.documents, DOCUMENTS_MAX))
    for name, value, high in sizes:
        if value is not None and len(value) > high:
            raise RequestError(f"'{name}' has {len(value)} entries; at most {high} are accepted.",
                               name, "invalid_value")
    for token, bias in (request.logit_bias or {}).items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise RequestError(f"'logit_bias': {token!r} is not a token id.", "logit_bias",
                               "invalid_value")
        if not -100 <= bias <= 100:
            raise RequestError(
                f"'logit_bias' of token {token} must be between -100 and 100, got {bias}.",
                "logit_bias", "invalid_value")


def check_stops(request: ChatRequest) -> None:
    """Extents of stops, and what they exclude."""
    found = stop_problem(request)
    if found is not None:
        raise RequestError(f"'{found[0]}' {found[1]}.", found[0], "invalid_value")


def check_supported(request: ChatRequest) -> None:
    """Values that are OpenAI's but not served here are refused by name."""
    def refuse(name: str, what: str) -> NoReturn:
        raise RequestError(f"'{name}': {what} not supported.", name, "unsupported_value")

    check_stops(request)
    if request.store:
        refuse("store", "stored completions are")
    if request.modalities not in (None, ["text"]):
        refuse("modalities", "modalities other than text are")
    check_tools(request)
    if not request.messages:
        raise RequestError("'messages' must hold at least one message.", "messages",
                           "invalid_value")
    check_messages(request)
    for name in OWN_VARIABLES:
        if name in (request.chat_template_kwargs or {}):
            raise RequestError(f"'chat_template_kwargs.{name}' is set by the server.",
                               f"chat_template_kwargs.{name}", "invalid_value")
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise RequestError("'continue_final_message' and 'add_generation_prompt' exclude each "
                               "other.", "continue_final_message", "invalid_value")
        if request.messages[-1].role != "assistant":
            raise RequestError("'continue_final_message' needs an assistant message at the end of "
                               "'messages'.", "continue_final_message", "invalid_value")


def chosen_tool(choice: str | dict[str, Any] | None) -> str | None:
    """The function that a tool choice names."""
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or choice.get("type") != "function" or not isinstance(
            function, dict) or not isinstance(function.get("name"), str):
        return None
    return str(function["name"])


def check_tools(request: ChatRequest) -> None:
    """Names of tools, and the choice among them."""
    choice = request.tool_choice
    named = chosen_tool(choice)
    if choice is not None and choice not in ("none", "auto", "required") and named is None:
        raise RequestError(
            f"'tool_choice' is {choice!r}; it must be 'none', 'auto', 'required' or a function.",
            "tool_choice", "invalid_value")
    declared = {tool.function.name for tool in request.tools or ()}
    if (named is not None or choice == "required") and not declared:
        raise RequestError("'tool_choice' asks for a call, but 'tools' declares none.",
                           "tool_choice", "invalid_value")
    if named is not None and named not in declared:
        raise RequestError(f"'tool_choice' names {named!r}, which 'tools' does not declare.",
                           "tool_choice", "invalid_value")
    seen = set()
    for i, tool in enumerate(request.tools or ()):
        field = f"tools[{i}].function"
        if not TOOL_NAME.fullmatch(tool.function.name):
            raise RequestError(
                f"'{field}.name' must be 1 to 256 letters, digits or _ . : / -, got "
                f"{tool.function.name!r}.", f"{field}.name", "invalid_value")
        if tool.function.name in seen:
            raise RequestError(f"'{field}.name': {tool.function.name!r} is declared twice.",
                               f"{field}.name", "invalid_value")
        seen.add(tool.function.name)
        kind = (tool.function.parameters or {}).get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise RequestError(
                f"'{field}.parameters.type' must be 'object', for a call's arguments are one; got "
                f"{kind!r:.200}.", f"{field}.parameters.type", "invalid_value")


def check_messages(request: ChatRequest) -> None:
    """What a message of each role must and must not have."""
    for i, message in enumerate(request.messages):
        field = f"messages[{i}]"
        if message.role != "assistant":
            if message.content is None:
                raise RequestError(f"'{field}.content' must be a string or parts, got null.",
                                   f"{field}.content", "invalid_value")
            for name in ("tool_calls", "reasoning_content", "reasoning"):
                if getattr(message, name) is not None:
                    raise RequestError(f"'{field}.{name}' belongs to assistant messages.",
                                       f"{field}.{name}", "invalid_value")
        if isinstance(message.content, list):
            found = part_problem(message.role, message.content)
            if found is not None:
                at = f"{field}.content{found[0]}"
                raise RequestError(f"'{at}' {found[1]}.", at, found[2])
        calls = message.tool_calls or []
        if len(calls) > CALLS_MAX:
            raise RequestError(f"'{field}.tool_calls' has {len(calls)} entries; at most "
                               f"{CALLS_MAX} are accepted.", f"{field}.tool_calls",
                               "invalid_value")
