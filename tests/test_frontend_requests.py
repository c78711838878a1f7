"""Decoding of requests under arbitrary input: a request or a named refusal, nothing else."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from helios_dod.frontend.messages import plain_messages
from helios_dod.frontend.requests import (
    BOUNDS,
    CHAT,
    ChatRequest,
    Message,
    RequestError,
    decode_chat,
)

NAMES = [*ChatRequest.__struct_fields__, *Message.__struct_fields__, "type", "text", "x"]
SCALARS = some.one_of(
    some.none(), some.booleans(), some.integers(), some.floats(allow_nan=False, width=32),
    some.text(max_size=8), some.sampled_from(["user", "system", "auto", "text", "none"]))
VALUES = some.recursive(
    SCALARS, lambda inner: some.lists(inner, max_size=4) | some.dictionaries(
        some.sampled_from(NAMES), inner, max_size=4), max_leaves=8)
MESSAGE = {"role": "user", "content": "x"}


def check(body: bytes) -> None:
    try:
        request = decode_chat(body)
        messages = plain_messages(request)
    except RequestError as error:
        assert str(error) and error.code
        return
    for name, (low, high) in BOUNDS.items():
        value = getattr(request, name)
        assert value is None or low <= value <= high
    assert messages
    for name in CHAT.unsupported:
        assert getattr(request, name, None) is None


@settings(max_examples=300, deadline=None)
@given(some.binary(max_size=64))
def test_any_bytes(body: bytes) -> None:
    check(body)


@settings(max_examples=600, deadline=None)
@given(some.dictionaries(some.sampled_from(NAMES), VALUES, max_size=6), some.booleans())
def test_any_object(fields: dict[str, Any], valid: bool) -> None:
    base = {"model": "m", "messages": [MESSAGE]} if valid else {}
    check(json.dumps({**base, **fields} if not valid else {**fields, **base}).encode())


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_bounds_are_inclusive_and_named(name: str) -> None:
    low, high = BOUNDS[name]
    fields = {"model": "m", "messages": [MESSAGE], "logprobs": True}
    for value in (low, high):
        if (name, value) != ("top_p", 0):
            assert getattr(decode_chat(json.dumps({**fields, name: value}).encode()), name) == value
    step = 1 if isinstance(low, int) and abs(high) > 100 else 0.5
    for value in (low - max(step, 1), high + max(step, 1)):
        with pytest.raises(RequestError, match=name) as caught:
            decode_chat(json.dumps({**fields, name: value}).encode())
        assert caught.value.param == name


@pytest.mark.parametrize(("fields", "param", "message"), [
    ({"service_tier": "flex"}, "service_tier", "one of auto, default, got 'flex'"),
    ({"messages": [MESSAGE, {"role": "boss", "content": "x"}]}, "messages[1].role",
     "one of system, developer, user, assistant, tool, got 'boss'"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "got null"),
    ({"logit_bias": {"5": "x"}}, "logit_bias", "Expected `float`, got `str`"),
])
def test_refusals_name_what_is_allowed(fields: dict[str, Any], param: str, message: str) -> None:
    body = {"model": "m", "messages": [MESSAGE], **fields}
    with pytest.raises(RequestError, match=message) as caught:
        decode_chat(json.dumps(body).encode())
    assert caught.value.param == param


@pytest.mark.parametrize("name", sorted(CHAT.unsupported))
def test_unsupported_fields_are_refused_by_name(name: str) -> None:
    in_message = name not in ChatRequest.__struct_fields__
    for value in ({}, "x", 1, []):
        fields: dict[str, Any] = {"model": "m", "messages": [dict(MESSAGE)]}
        (fields["messages"][0] if in_message else fields)[name] = value
        with pytest.raises(RequestError, match=f"{name}' is not supported"):
            decode_chat(json.dumps(fields).encode())


@pytest.mark.parametrize(("text", "said"), [
    ("\\ud800", "\\ud800 at byte 57"), ("\\\\ud800 \\ud83d\\ude00 \\udc00", "\\udc00 at byte 78"),
    ("\\ud800\\ud800", "\\ud800 at byte 57"), ("\\\\ud800 \\x", "invalid escape")])
def test_half_a_surrogate_pair_is_named(text: str, said: str) -> None:
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "{text}"}}]}}'
    with pytest.raises(RequestError, match=re.escape(said)) as caught:
        decode_chat(body.encode())
    assert ("surrogate pair" in str(caught.value)) == ("at byte" in said)
