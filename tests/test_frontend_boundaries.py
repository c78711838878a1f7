"""Where other prompts may part from a conversation: endpoints in tokens, by the core's rules."""

import json
from typing import Any

import pytest
import text_tables
from test_frontend_images import SMALL, TEMPLATE, chat_of, sighted, syntax_of
from test_frontend_preparation import assets_of

from helios_dod.frontend.boundaries import Boundary, Constraint, boundary_places
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.requests import ChatRequest, decode_chat
from helios_dod.limits import BOUNDARIES_MAX

ALWAYS, WITHOUT_TOOLS, IF_PREFIX = Constraint
TURNS = [("system", "Be brief."), ("user", "Hi <|im_end|> there"), ("assistant", "Hello"),
         ("user", "More ")]
STRICT = ("{% if messages[-1].role == 'system' %}{{ raise_exception('no question') }}{% endif %}"
          "{% for m in messages %}<|im_start|>{{ m.role }}\n"
          "{{ m.content if loop.last or m.role != 'assistant' else 'said' }}<|im_end|>\n"
          "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

__all__ = ["sighted"]  # a fixture


def conversation(**fields: Any) -> ChatRequest:
    messages = [{"role": role, "content": text} for role, text in TURNS]
    return decode_chat(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def preparer_of(*rules: Boundary, template: str | None = None, **fields: Any) -> Preparer:
    given = () if template is None else (template,)
    return Preparer(assets_of(text_tables.byte_level(), *given, boundaries=rules, **fields))


def test_endpoints_are_those_of_the_rendered_beginnings() -> None:
    every = Boundary(("system", "user", "assistant"), IF_PREFIX)
    preparer = preparer_of(every, add_bos=True, bos=0)
    prepared = preparer.prepare(conversation(n=2), 1000)
    ids = prepared.prompt.tolist()
    wanted = []
    for count in range(1, len(TURNS) + 1):
        alone = conversation(add_generation_prompt=False)
        alone.messages = alone.messages[:count]
        part = preparer.prompt_tokens(alone).tolist()
        assert ids[:len(part)] == part
        wanted.append(len(part))
    assert prepared.submissions[0].boundaries == prepared.submissions[1].boundaries == tuple(wanted)
    plain = preparer_of().prepare(conversation(), 1000)
    assert plain.submissions[0].boundaries == ()


def test_what_is_no_beginning_is_no_boundary() -> None:
    """A template that refuses some messages, or shows them otherwise with others behind them."""
    preparer = preparer_of(Boundary(("system", "assistant", "user"), ALWAYS), template=STRICT)
    (submission,) = preparer.prepare(conversation(), 1000).submissions
    alone = conversation(add_generation_prompt=False)
    whole = len(preparer.prompt_tokens(alone))
    alone.messages = alone.messages[:2]
    assert submission.boundaries == (len(preparer.prompt_tokens(alone)), whole)


def test_which_messages_make_boundaries() -> None:
    rules = (Boundary(("system",), WITHOUT_TOOLS), Boundary(("user",), IF_PREFIX))
    roles = [role for role, _ in TURNS]
    assert boundary_places(roles, rules, tools=False) == [1, 2, 4]
    assert boundary_places(roles, rules, tools=True) == [2, 4]
    many = boundary_places(["user", "assistant"] * 40, rules, tools=False)
    assert len(many) == BOUNDARIES_MAX and many[:2] == [1, 51] and many[-1] == 79


@pytest.mark.parametrize("cut, tokens", [("", 0), ("<|im_start|>", 1), ("<|im_st", None)])
def test_beginnings_that_end_inside_a_token(cut: str, tokens: int | None) -> None:
    encoder = preparer_of().encoder
    ids, counts = encoder.encode_parted("<|im_start|>user", [cut])
    assert ids == encoder.encode("<|im_start|>user")
    assert counts == ([] if tokens is None else [tokens])


def test_boundaries_behind_an_image(sighted: text_tables.Sample) -> None:
    """They count the features, and none lies inside a span."""
    feature = sighted.tokenizer.token_to_id("<|image|>")
    image = syntax_of(SMALL, feature_token=feature, placeholder_token=feature,
                      tokens=frozenset({feature}), reserved=frozenset({feature}))
    preparer = Preparer(assets_of(sighted, TEMPLATE, image=image, image_encoder=True,
                                  boundaries=(Boundary(("user",), ALWAYS),)))
    prepared = preparer.prepare(chat_of("See ", (16, 24), " this"), 1000)
    (submission,) = prepared.submissions
    (end,) = submission.boundaries
    ids = prepared.prompt.tolist()
    assert submission.spans[0][1] < end
    assert ids[end] == sighted.tokenizer.token_to_id("<|im_start|>") and end < len(ids)
