"""Bitwise equalities of the engine on the host executor: batch, chunks, frames, seeds."""

from dataclasses import replace

import numpy as np
import pytest
from embedded import Embedded

from helios_dod.edges import Submission
from helios_dod.terms import FINISH_CANCELLED, FINISH_EOS, FINISH_LIMIT, FINISH_STOP_TOKEN

VOCABULARY = 49152
OUTPUT = 12


def requests(count: int, first_tag: int = 1) -> list[Submission]:
    """Different prompts, lengths and sampling; log-probabilities show the logits' bits."""
    rng = np.random.default_rng(11)
    made = []
    for i in range(count):
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 150)), dtype=np.int32)
        made.append(Submission(
            first_tag + i, prompt, OUTPUT, temperature=(0.0, 0.8, 1.3)[i % 3],
            top_p=(1.0, 0.9)[i % 2], top_k=(0, 40, 0)[i % 3],
            min_p=(0.0, 0.02)[i % 2], seed=1000 + i, top_logprobs=3,
            repetition_penalty=(1.0, 1.2)[i % 2], presence_penalty=(0.0, 0.5)[i // 2 % 2],
            bias={5: 2.5, 17: -100.0} if i % 4 == 0 else {}))
    return made


@pytest.fixture(scope="module")
def alone(f32_core):
    """Each request by itself: whole prefill, two frames."""
    with Embedded(f32_core) as engine:
        return [engine.ask([request])[0] for request in requests(16)]


def assert_same(answers, expected) -> None:
    for answer, known in zip(answers, expected, strict=True):
        assert answer.tokens == known.tokens
        assert answer.scores == known.scores and answer.tops == known.tops


@pytest.mark.parametrize("options", [
    pytest.param({}, id="batch of 16"),
    pytest.param({"prefill_tokens": 40}, id="chunked"),
    pytest.param({"frames": 1}, id="one frame"),
    pytest.param({"host_pending": True}, id="host-owned pending tokens"),
    pytest.param({"concurrency": 3}, id="three slots"),
])
def test_equal_to_alone(f32_core, alone, options):
    with Embedded(f32_core, **options) as engine:
        assert_same(engine.ask(requests(16)), alone)


def test_cached_equals_cold(f32_core, alone):
    """Asked again, prompts come from the cache and answers stay the same bits."""
    with Embedded(f32_core) as engine:
        assert_same(engine.ask(requests(16)), alone)
        assert engine.engine.world[0]["counters"]["prompt_tokens_cached"] == 0
        assert_same(engine.ask(requests(16, first_tag=101)), alone)
        assert engine.engine.world[0]["counters"]["prompt_tokens_cached"] > 500


def test_preempted_equals_undisturbed(f32_core, alone):
    """With a cache too small for all, requests are sent back and resume to the same bits."""
    page_bytes = 2 * 368_640  # f32 planes, 16 tokens a page
    made = [replace(request, output_limit=60) for request in requests(16)]
    with Embedded(f32_core) as engine:
        undisturbed = engine.ask(made)
    with Embedded(f32_core, cache_bytes=40 * page_bytes) as engine:
        assert_same(engine.ask(made), undisturbed)
        counters = engine.engine.world[0]["counters"]
        assert counters["preempted"] > 0 and counters["pages_evicted"] > 0
    for answer, short in zip(undisturbed, alone, strict=True):
        assert answer.tokens[:OUTPUT] == short.tokens


def test_one_thread_equals_two(f32_core, alone):
    with Embedded(f32_core, threads=1) as engine:
        assert_same(engine.ask(requests(4)), alone[:4])


def test_seed_decides(f32_core):
    """One seed gives one answer, across engines; other seeds give others."""
    def ask(seeds):
        prompt = np.arange(100, 120, dtype=np.int32)
        made = [Submission(i + 1, prompt, OUTPUT, temperature=1.0, seed=seed)
                for i, seed in enumerate(seeds)]
        with Embedded(f32_core) as engine:
            return [answer.tokens for answer in engine.ask(made)]

    first, again = ask([1, 2, 3, 4]), ask([4, 3, 2, 1])
    assert first == again[::-1]
    assert len({tuple(tokens) for tokens in first}) == 4


def test_ends(f32_core):
    """EOS, minimum, stop ids and limit end an answer where they must."""
    prompt = np.arange(200, 230, dtype=np.int32)
    with Embedded(f32_core) as engine:
        plain = engine.ask([Submission(1, prompt, OUTPUT)])[0]
        token = plain.tokens[4]
        at = plain.tokens.index(token)
        eos, stop, least = engine.ask([
            Submission(2, prompt, OUTPUT, eos=(token,)),
            Submission(3, prompt, OUTPUT, stop_ids=(token,)),
            Submission(4, prompt, OUTPUT, eos=(token,), output_minimum=OUTPUT - 1),
        ])
    assert plain.reason == FINISH_LIMIT and len(plain.tokens) == OUTPUT
    assert eos.reason == FINISH_EOS and eos.tokens == plain.tokens[:at + 1]
    assert stop.reason == FINISH_STOP_TOKEN and stop.tokens == plain.tokens[:at + 1]
    assert token not in least.tokens[:OUTPUT - 1]


def test_bias_and_penalties_act(f32_core):
    prompt = np.arange(300, 330, dtype=np.int32)
    with Embedded(f32_core) as engine:
        plain, forced, penalised = engine.ask([
            Submission(1, prompt, 40),
            Submission(2, prompt, 5, bias={4242: 100.0}),
            Submission(3, prompt, 40, frequency_penalty=2.0, presence_penalty=2.0),
        ])
    assert forced.tokens == [4242] * 5
    assert len(set(penalised.tokens)) > len(set(plain.tokens))


def test_cancel_ends_early_and_leaves_others(f32_core, alone):
    made = requests(4)
    with Embedded(f32_core) as engine:
        long = Submission(99, np.arange(50, 60, dtype=np.int32), 4000)
        step = engine.edge.events
        seen = []

        def events():
            batch = step()
            seen.extend(event for event in batch["tag"].tolist() if event == 99)
            if len(seen) == 3:
                engine.edge.cancel(99)
            return batch

        engine.edge.events = events
        answers = engine.ask([long, *made])
    assert answers[0].reason == FINISH_CANCELLED and 3 <= len(answers[0].tokens) < 50
    assert_same(answers[1:], alone[:4])


def test_too_long_is_refused_with_numbers(f32_core):
    with Embedded(f32_core, context_tokens=256) as engine:
        answer = engine.ask([Submission(1, np.arange(200, dtype=np.int32), 100)])[0]
    assert answer.rejection["value"] == 300 and answer.rejection["limit"] == 256


def test_prompt_scores_equal_those_of_decoding(f32_core):
    """A text is scored alike token by token and as a prompt, in chunks and beside others."""
    prompt = np.arange(400, 430, dtype=np.int32)
    with Embedded(f32_core) as engine:
        plain = engine.ask([Submission(1, prompt, 90, top_logprobs=0)])[0]
        text = np.array([*prompt, *plain.tokens], np.int32)
        made = [Submission(2, text, 3, scored=True, timed=True), *requests(4, first_tag=3)]
        scored, *others = engine.ask(made)
        again = engine.ask([replace(made[0], tag=9, scored=False)])[0]
    assert len(scored.prompt_scores) == len(text) - 1
    assert scored.prompt_scores[len(prompt) - 1:] == plain.scores
    assert scored.tokens == again.tokens and not again.prompt_scores
    assert scored.times == sorted(scored.times) and scored.times[0] > 0
    assert not any(time for other in others for time in other.times)
