"""From request to submissions: prompts, BOS, defaults, limits, seeds."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import text_tables
from serve_fake import TEMPLATE
from text_tables import Sample

from helios_dod.edges import check_fits
from helios_dod.errors import UserError
from helios_dod.frontend.assets import Assets, Sampling
from helios_dod.frontend.preparation import Prepared, Preparer, choice_seed
from helios_dod.frontend.requests import RequestError, decode_chat
from helios_dod.limits import SMALL
from helios_dod.server.errors import InvalidRequest

CONTEXT = 1000


def assets_of(sample: Sample, template: str = TEMPLATE, **fields: Any) -> Assets:
    values: dict[str, Any] = {
        "served_id": "m", "aliases": (), "tokenizer_json": sample.tokenizer.to_str().encode(),
        "chat_template": template, "byte_table": sample.table,
        "strip_leading_space": sample.strip, "eos": (2,), "bos": 1, "add_bos": False,
        "vocabulary": len(sample.table), "input_vocabulary": len(sample.table),
        "context_tokens": CONTEXT,
        "sampling": Sampling(temperature=0.5, top_p=0.9, top_k=40, repetition_penalty=1.2),
        **fields}
    return Assets(**values)


def prepared(assets: Assets, context: int = CONTEXT, **fields: Any) -> Prepared:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **fields}
    return Preparer(assets).prepare(decode_chat(json.dumps(body).encode()), context)


@pytest.fixture(scope="module")
def assets() -> Assets:
    return assets_of(text_tables.byte_level())


def test_prompt_is_the_rendered_template(assets: Assets) -> None:
    tokenizer = text_tables.byte_level().tokenizer
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    prompt = prepared(assets).prompt
    assert prompt.dtype == np.int32
    assert prompt.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert prompt[0] == tokenizer.token_to_id("<|im_start|>")


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_bos_is_never_doubled(writes: bool, add: bool) -> None:
    template = ("{{ bos_token }}" if writes else "") + "{{ messages[0].content }}"
    sample = text_tables.byte_fallback()
    prompt = prepared(assets_of(sample, template, add_bos=add,
                                template_tokens={"bos_token": "<s>"})).prompt.tolist()
    assert prompt.count(1) == int(writes or add) and (prompt[0] == 1) == (writes or add)


def test_core_defaults_and_explicit_values(assets: Assets) -> None:
    default = prepared(assets).submissions[0]
    assert (default.temperature, default.top_p, default.top_k) == (0.5, 0.9, 40)
    assert default.repetition_penalty == 1.2 and default.eos == (2,)
    assert default.top_logprobs == -1
    chosen = prepared(
        assets, temperature=0, top_p=1, top_k=-1, repetition_penalty=1, min_p=0.2,
        presence_penalty=1, frequency_penalty=-1, ignore_eos=True, min_tokens=3, max_tokens=9,
        logit_bias={"5": -2, "7": 3}, stop_token_ids=[4, 4, 5], logprobs=True, top_logprobs=2,
        priority=-3).submissions[0]
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p) == (0, 1, 0, 0.2)
    assert (chosen.repetition_penalty, chosen.presence_penalty) == (1, 1)
    assert chosen.frequency_penalty == -1 and chosen.eos == () and chosen.priority == -3
    assert (chosen.output_minimum, chosen.output_limit) == (3, 9)
    assert chosen.bias == {5: -2, 7: 3} and chosen.stop_ids == (4, 5) and chosen.top_logprobs == 2
    assert prepared(assets, logprobs=True).submissions[0].top_logprobs == 0
    assert prepared(assets, temperature=1e-9).submissions[0].temperature == 0
    check_fits(chosen, SMALL.context_max)
    for field, value in (("eos", (1,) * 9), ("stop_ids", tuple(range(17))),
                         ("bias", dict.fromkeys(range(513), 1.0)),
                         ("prompt", np.zeros(SMALL.context_max + 1, np.int32))):
        with pytest.raises(UserError, match=f"{field}: .* asked, at most"):
            check_fits(replace(chosen, **{field: value}), SMALL.context_max)


def test_output_limit(assets: Assets) -> None:
    count = len(prepared(assets).prompt)
    assert prepared(assets).submissions[0].output_limit == CONTEXT - count
    assert prepared(assets, max_completion_tokens=7).submissions[0].output_limit == 7
    exact = prepared(assets, max_tokens=CONTEXT - count)
    assert exact.submissions[0].output_limit == CONTEXT - count
    with pytest.raises(RequestError, match=f"{CONTEXT}.*{count}.*{CONTEXT + 1}"):
        prepared(assets, max_tokens=CONTEXT - count + 1)
    assert prepared(assets, context=count + 1).submissions[0].output_limit == 1
    with pytest.raises(RequestError, match="messages") as caught:
        prepared(assets, context=count)
    assert caught.value.code == "context_length_exceeded"


def test_seeds(assets: Assets) -> None:
    def seeds(**fields: Any) -> list[int]:
        return [s.seed for s in prepared(assets, **fields).submissions]

    assert seeds(n=4, seed=7) == seeds(n=4, seed=7)
    assert seeds(n=4, seed=7)[:2] == seeds(n=2, seed=7)
    assert len(set(seeds(n=64, seed=7))) == 64
    assert seeds(seed=-1) == seeds(seed=2**64 - 1) != seeds(seed=1)
    assert seeds() != seeds()
    assert choice_seed(0, 0) == 0xE220A8397B1DCDAF  # SplitMix64's first output from state 0


def test_template_refusal_is_the_client_s_error() -> None:
    refusing = assets_of(text_tables.byte_level(), "{{ raise_exception('no such role') }}")
    with pytest.raises(RequestError, match="no such role") as caught:
        prepared(refusing)
    assert caught.value.param == "messages"
    with pytest.raises(RequestError, match="no chat template"):
        prepared(assets_of(text_tables.byte_level(), ""))


@pytest.mark.parametrize("template", ["{{ '\\ud800' }}", "{{ raise_exception('\\ud800') }}"])
def test_what_a_template_makes_of_half_a_character(template: str) -> None:
    """Is refused to its request, in words that a body can hold."""
    with pytest.raises(RequestError, match="refused the messages") as caught:
        prepared(assets_of(text_tables.byte_level(), template))
    assert str(caught.value).encode()
    assert InvalidRequest.of(RequestError("\ud800", "\udfff")).fields() == {
        "message": "\ufffd", "type": "invalid_request_error", "param": "\ufffd", "code": None}


def test_scores_need_a_program_that_makes_them() -> None:
    silent = assets_of(text_tables.byte_level(), scores=False)
    prepared(silent)
    with pytest.raises(RequestError, match="no program that scores prompts") as caught:
        prepared(silent, prompt_logprobs=0)
    assert caught.value.param == "prompt_logprobs"


def test_ids_of_a_text_lie_in_the_vocabulary(assets: Assets) -> None:
    """Beyond it lie only those that an image brings."""
    preparer = Preparer(assets)
    last = assets.vocabulary - 1
    assert preparer.plain_tokens([0, last], special=False).tolist() == [0, last]
    for token in (-1, last + 1):
        with pytest.raises(RequestError, match=f"token {token} is not below the vocabulary"):
            preparer.plain_tokens([0, token], special=False)


def test_text_parts_are_joined(assets: Assets) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    split = prepared(assets, messages=[{"role": "developer", "content": parts}]).prompt
    joined = prepared(assets, messages=[{"role": "system", "content": "a\nb"}]).prompt
    assert split.tolist() == joined.tolist()


def test_text_that_cannot_fit_is_not_encoded(assets: Assets, monkeypatch) -> None:
    """Megabytes are refused by their size; the tokenizer never sees them."""
    preparer = Preparer(assets)
    monkeypatch.setattr(preparer.encoder, "encode", lambda text: pytest.fail("encoded"))
    huge = "word " * (CONTEXT * assets.byte_table.token_bytes_max)
    request = decode_chat(json.dumps({
        "model": "m", "messages": [{"role": "user", "content": huge}]}).encode())
    with pytest.raises(RequestError, match="bytes") as caught:
        preparer.prepare(request, CONTEXT)
    assert caught.value.code == "context_length_exceeded"
