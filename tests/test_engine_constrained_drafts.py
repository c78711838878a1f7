"""Constrained answers of the host's operations in speculative rounds, by llguidance: the tokens of
plain decode, several a step where a text under a schema repeats itself."""

import json

import jsonschema
import numpy as np
import pytest
from embedded import Embedded
from ignition_fixtures import TINY

from helios_dod.edges import Submission
from helios_dod.grammars.library import Text, encode
from helios_dod.ignition.make_core import make_core
from helios_dod.ignition.preparation.options import Options
from helios_dod.terms import FINISH_EOS, OP_DECODE, OP_SPECULATIVE

MEASUREMENT = {"type": "object", "additionalProperties": False,
               "properties": {"temperature": {"type": "integer", "minimum": 0, "maximum": 99},
                              "humidity": {"enum": ["low", "high"]}},
               "required": ["temperature", "humidity"]}
SCHEMA = {"type": "array", "items": MEASUREMENT, "minItems": 4, "maxItems": 4}


LANES = 10


def make(path, **options):
    """A tiny model of random weights with programs of widths 1, 2 and 4."""
    make_core(TINY / "smollm2", path, Options(
        cache="f32", lanes=LANES, packed=(64,), widths=(2, 4), draft_layers=1, **options),
        namespace="test")
    return path


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Its programs with more than 8 lanes take no masks."""
    folder = tmp_path_factory.mktemp("constrained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOS_CONFIG", str(folder / "config"))
        yield make(folder / "core")


def grammar(schema):
    return encode(Text(grammar="start: %json " + json.dumps(
        schema | {"x-guidance": {"whitespace_flexible": False}})))


def requests(count, eos, free=0):
    """Greedy and sampled ones under the schema, some with penalties; then some without."""
    made = [Submission(
        tag=i + 1, prompt=np.array([5, 6, 7 + i], np.int32), output_limit=400, seed=i, eos=eos,
        temperature=(0.0, 0.8)[i % 2], repetition_penalty=(1.0, 1.1)[i // 2 % 2],
        grammar=grammar(SCHEMA)) for i in range(count)]
    return made + [Submission(
        tag=100 + i, prompt=np.array([3, 4, 5] * 6, np.int32), output_limit=60, seed=i,
        temperature=(0.0, 1.0)[i % 2]) for i in range(free)]


def insist(engine):
    """Keeps the cost of the widest rounds unknown, so that they are chosen as long as drafts may be
    accepted."""
    programs = engine.engine.world[0]["programs"]
    widest = programs["lane_limit"] == programs["round_width"]
    programs["observed_count"][widest & (programs["operation"] == OP_SPECULATIVE)] = -(1 << 30)


def ask(core, count, free=0, **options):
    """Answers with their texts, the counters, and launches by operation; of those that verify under
    masks, with more than eight lanes."""
    with Embedded(core, **options) as engine:
        insist(engine)
        eos = engine.plan.contract.frontend.eos_tokens
        table = engine.plan.core.token_bytes()
        answers = engine.ask(requests(count, eos, free))
        w = engine.engine.world[0]
        counters = {name: int(w["counters"][name]) for name in w["counters"].dtype.names}
        launches = {operation: int(w["programs"]["launches"][
            w["programs"]["operation"] == operation].sum())
            for operation in (OP_DECODE, OP_SPECULATIVE)}
        launches["many"] = int(w["programs"]["launches"][
            (w["programs"]["operation"] == OP_SPECULATIVE) & (w["programs"]["batch"] > 8)
            & (w["programs"]["masked"] == 1)].sum())
    data, offsets = table.data.tobytes(), table.offsets.tolist()
    texts = [b"".join(data[offsets[t]:offsets[t + 1]] for t in answer.tokens if t not in eos)
             for answer in answers]
    return answers, texts, counters, launches


@pytest.mark.parametrize(("count", "free", "options"), [
    (1, 0, {}), (4, 0, {}), (3, 2, {}), (3, 2, {"speculative_width": 2}), (4, 1, {"frames": 1}),
], ids=["alone", "together", "beside free ones", "width 2", "one frame"])
def test_copied_under_a_schema_equals_plain(core, count, free, options):
    """The same tokens, greedy and sampled, and every answer is valid."""
    plain, _, before, _ = ask(core, count, free)
    drafted, texts, after, launches = ask(core, count, free, history_drafting=True, **options)
    for answer, known in zip(drafted, plain, strict=True):
        assert answer.tokens == known.tokens and answer.reason == known.reason
    for text, answer in list(zip(texts, drafted, strict=True))[:count]:
        assert answer.reason == FINISH_EOS
        jsonschema.validate(json.loads(text), SCHEMA)
    assert after["drafts_constrained_accepted"] > 20 * count
    assert after["constrained_in_flight_max"] == 1
    if count == 1:  # several have masks at different times, and then go one after the other
        tokens, steps = len(drafted[0].tokens), after["constrained_submitted"]
        assert before["constrained_submitted"] == tokens and steps < 0.8 * tokens
    assert before["drafts_constrained_offered"] == 0 and launches[OP_SPECULATIVE] > 10


def test_more_lanes_than_have_masks(core):
    """They decode one token a step together, and draft again when fewer are left."""
    plain, *_ = ask(core, LANES)
    drafted, texts, counters, launches = ask(core, LANES, history_drafting=True)
    assert launches["many"] == 0
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in plain]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert launches[OP_DECODE] > 10 and counters["draft_masks_full"] > 0


def test_all_lanes_have_masks_where_the_core_says_so(core, tmp_path):
    """More than eight constrained answers draft together."""
    wide = make(tmp_path / "core", drafted_lanes=LANES)
    plain, *_ = ask(core, LANES)
    drafted, texts, counters, launches = ask(wide, LANES, history_drafting=True)
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in plain]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert counters["draft_masks_full"] == 0
    assert counters["drafts_constrained_accepted"] > 20 * LANES
    assert launches["many"] > 10
