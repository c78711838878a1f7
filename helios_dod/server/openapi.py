"""GET /openapi.json: the surface as it is, made from the request structs that decode it."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from helios_dod import __version__
from helios_dod.frontend.anthropic import MessageRequest
from helios_dod.frontend.completions import CompletionRequest
from helios_dod.frontend.requests import BOUNDS, ChatRequest
from helios_dod.frontend.responses import ResponseRequest
from helios_dod.server.tokens import AbortRequest, DetokenizeRequest, TokenizeRequest

REFERENCE = "#/components/schemas/{name}"
ERRORS = {
    400: "The request cannot be served as it stands; the error names the field",
    401: "An API key is required", 404: "No such path, model or live request",
    405: "The path exists, not for this method", 408: "The request body did not arrive",
    409: "The request was aborted by its id",
    415: "The body is not JSON by its Content-Type, or has a Content-Encoding",
    429: "Every permit is taken, or bodies that are being received fill their budget; see "
         "Retry-After",
    500: "The model, the device or the engine failed",
    503: "Starting, draining, failed, or the scheduler cannot take the request",
    504: "The request's own deadline passed",
}
COMMON = (400, 401, 404, 408, 415, 429, 500, 503)
GENERATING = (*COMMON, 409, 504)

TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}


def object_of(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object's schema; other members may follow."""
    return {"type": "object", "properties": {**required, **(optional or {})},
            "required": list(required)}


def array_of(items: dict[str, Any]) -> dict[str, Any]:
    """An array's schema."""
    return {"type": "array", "items": items}


def constant(value: str) -> dict[str, Any]:
    """A string that is always the same."""
    return {"type": "string", "const": value}


USAGE = object_of({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT})
OBSERVED = {"prompt_token_ids": array_of({}), "reused_prompt_tokens": COUNT,
            "performance": object_of({"ingress_ns": COUNT, "enqueue_ns": COUNT,
                                      "reused_prompt_tokens": COUNT}),
            "prompt_logprobs": array_of({})}
REASON = {"type": "string", "enum": ["stop", "length", "tool_calls"]}
STOPPED = {"stop_reason": {"type": ["string", "integer", "array"]}}  # the stop that ended it
MODEL = object_of({"id": TEXT, "object": constant("model"), "created": COUNT, "owned_by": TEXT,
                   "max_model_len": COUNT})
ANSWERS: dict[str, dict[str, Any]] = {
    "Error": object_of({"error": object_of({
        "message": TEXT, "type": TEXT, "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]}})}),
    "AnthropicError": object_of({"type": constant("error"), "error": object_of({
        "type": TEXT, "message": TEXT})}),
    "ChatCompletion": object_of({
        "id": TEXT, "object": constant("chat.completion"), "created": COUNT, "model": TEXT,
        "usage": USAGE, "choices": array_of(object_of({
            "index": COUNT, "finish_reason": REASON,
            "message": object_of({"role": constant("assistant"),
                                  "content": {"type": ["string", "null"]}})}, STOPPED))},
        OBSERVED),
    "Completion": object_of({
        "id": TEXT, "object": constant("text_completion"), "created": COUNT, "model": TEXT,
        "usage": USAGE, "choices": array_of(object_of({
            "index": COUNT, "finish_reason": REASON, "text": TEXT}, STOPPED))}, OBSERVED),
    "Response": object_of({
        "id": TEXT, "object": constant("response"), "created_at": COUNT, "model": TEXT,
        "status": {"type": "string", "enum": ["completed", "incomplete", "cancelled"]},
        "output": array_of({"type": "object"}), "store": {"type": "boolean", "const": False}}),
    "Message": object_of({
        "id": TEXT, "type": constant("message"), "role": constant("assistant"), "model": TEXT,
        "content": array_of({"type": "object"}),
        "stop_reason": {"type": "string",
                        "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "usage": object_of({"input_tokens": COUNT, "output_tokens": COUNT})}),
    "TokenCount": object_of({"input_tokens": COUNT}),
    "ModelList": object_of({"object": constant("list"), "data": array_of(MODEL)}),
    "Model": MODEL,
    "Aborted": object_of({"id": TEXT, "aborted": {"type": "boolean", "const": True}}),
    "Tokens": object_of({"count": COUNT, "max_model_len": COUNT, "tokens": array_of(COUNT)},
                        {"token_strs": array_of(TEXT)}),
    "Text": object_of({"prompt": TEXT}),
    "Status": object_of({"status": TEXT}),
    "Version": object_of({"version": TEXT}),
    "Live": object_of({"gauges": {"type": "object"}, "counters": {"type": "object"},
                       "frames": array_of({"type": "object"}),
                       "programs": array_of({"type": "object"}),
                       "requests": array_of({"type": "object"})}),
}


def reference(name: str) -> dict[str, str]:
    """A reference to a schema."""
    return {"$ref": REFERENCE.format(name=name)}


def operation(summary: str, answer: str | None, statuses: Iterable[int], *,
              request: type | None = None, streams: bool = False, error: str = "Error",
              parameter: str | None = None, media: str = "application/json",
              keyed: bool = True, served: bool = True) -> dict[str, Any]:
    """One operation. answer: the schema of its 200; None: text of `media`. served: it has one."""
    content: dict[str, Any] = {media: {"schema": TEXT if answer is None else reference(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": TEXT}
    done = {"200": {"description": "Done", "content": content}} if served else {}
    found: dict[str, Any] = {"summary": summary, "responses": done}
    for status in sorted(statuses):
        if status == 401 and not keyed:
            continue
        found["responses"][str(status)] = {
            "description": ERRORS[status],
            "content": {"application/json": {"schema": reference(error)}}}
    if request is not None:
        found["requestBody"] = {"required": True, "content": {
            "application/json": {"schema": reference(request.__name__)}}}
    if parameter is not None:
        found["parameters"] = [{"name": parameter, "in": "path", "required": True,
                                "schema": TEXT}]
    if not keyed:
        found["security"] = []
    return found


def paths() -> dict[str, Any]:
    """Every path and method."""
    anthropic = {"error": "AnthropicError"}
    return {
        "/v1/chat/completions": {"post": operation(
            "Answer a conversation", "ChatCompletion", GENERATING, request=ChatRequest,
            streams=True)},
        "/v1/completions": {"post": operation(
            "Continue texts", "Completion", GENERATING, request=CompletionRequest, streams=True)},
        "/v1/responses": {"post": operation(
            "Answer a conversation; nothing is stored", "Response", GENERATING,
            request=ResponseRequest, streams=True)},
        "/v1/responses/{response_id}": {
            method: operation("Not supported: responses are not stored", None, (401, 404),
                              parameter="response_id", served=False)
            for method in ("get", "delete")},
        "/v1/responses/{response_id}/cancel": {"post": operation(
            "End a live response", "Response", (401, 404, 503), parameter="response_id")},
        "/v1/messages": {"post": operation(
            "Answer a conversation", "Message", GENERATING, request=MessageRequest, streams=True,
            **anthropic)},  # type: ignore[arg-type]
        "/v1/messages/count_tokens": {"post": operation(
            "Count a conversation's tokens", "TokenCount", COMMON, request=MessageRequest,
            **anthropic)},  # type: ignore[arg-type]
        "/v1/models": {"get": operation("The served model and its aliases", "ModelList",
                                        (401, 503))},
        "/v1/models/{model}": {"get": operation("One model", "Model", (401, 404, 503),
                                                parameter="model")},
        "/v1/abort": {"post": operation("End a live request by its answer's id", "Aborted", COMMON,
                                        request=AbortRequest)},
        "/tokenize": {"post": operation("Token ids of a text or a conversation", "Tokens", COMMON,
                                        request=TokenizeRequest)},
        "/detokenize": {"post": operation("Text of token ids", "Text", COMMON,
                                          request=DetokenizeRequest)},
        "/health": {"get": operation("Whether the engine lives", "Status", (503,), keyed=False)},
        "/ready": {"get": operation("Whether every worker serves", "Status", (503,), keyed=False)},
        "/version": {"get": operation("The server's version", "Version", (), keyed=False)},
        "/metrics": {"get": operation("Prometheus metrics", None, (), media="text/plain",
                                      keyed=False)},
        "/live": {"get": operation("What the scheduler's tables say now", "Live", (401,))},
        "/openapi.json": {"get": operation("This document", "OpenApi", (), keyed=False)},
    }


def bounded(schemas: dict[str, Any], models: tuple[str, ...]) -> dict[str, Any]:
    """Puts the bounds that are checked beside the types that they are of, and models' names."""
    for struct in (ChatRequest, CompletionRequest, ResponseRequest, MessageRequest):
        if models:
            schemas[struct.__name__]["properties"]["model"]["enum"] = list(models)
        for name, field in schemas[struct.__name__]["properties"].items():
            checked = "max_completion_tokens" if name == "max_output_tokens" else name
            low, high = BOUNDS.get(checked, (None, None))
            if struct is CompletionRequest and name == "max_tokens":
                low = 0
            for part in field.get("anyOf", ()):
                if low is not None and part.get("type") in ("integer", "number"):
                    part.update(minimum=low, maximum=high)
    return schemas


@cache
def document(models: tuple[str, ...]) -> bytes:
    """The OpenAPI document, JSON. models: names that requests may give, if they are known."""
    structs = (ChatRequest, CompletionRequest, ResponseRequest, MessageRequest, TokenizeRequest,
               DetokenizeRequest, AbortRequest)
    _, schemas = msgspec.json.schema_components(structs, ref_template=REFERENCE)
    return msgspec.json.encode({
        "openapi": "3.1.0",
        "info": {"title": "Helios", "version": __version__, "description":
                 "Language models served from signed cores. Fields whose only type is null are "
                 "known and not supported."},
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths(),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"},
                                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
            "schemas": {**bounded(schemas, models), **ANSWERS, "OpenApi": {"type": "object"}}}})
