"""What a caller of the library gives is refused by name, or accepted and served as it says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios_dod import Engine, Machine, Options, Submission
from helios_dod.edges import REAL, WHOLE
from helios_dod.errors import UserError
from helios_dod.executors.costs import FixedCost
from helios_dod.frontend.requests import BOUNDS
from helios_dod.simulation.invariants import check_quiet
from helios_dod.terms import EGRESS_FINISHED, EGRESS_TOKEN, FINISH_DEADLINE, FINISH_LIMIT

ONE_LANE = Machine(lanes=1, prefill_tokens=64, context_tokens=256, vocabulary=997,
                   cost=FixedCost(1_000_000, 0))
PROMPT = np.arange(20, dtype=np.int32)
TOKENS = ("eos", "stop_ids", "stop_sequences", "bias", "prompt", "delimiters")
ODD = st.one_of(
    st.none(), st.text(max_size=3), st.floats(), st.integers(-3, 40), st.booleans(),
    st.integers(-(2**70), 2**70), st.sampled_from([
        10**5000, -(10**5000), np.float32(0.5), np.int64(3), 2**31, 2**63, -(2**63), 997, 1e300]))


@pytest.fixture(scope="module")
def engine():
    with Engine.simulated(ONE_LANE) as made:
        yield made


def run(engine):
    """Tag -> (finish, tokens), in the order in which requests began."""
    tokens, ended = {}, {}
    for events in engine.batches():
        for event in events:
            if event["kind"] == EGRESS_TOKEN:
                tokens.setdefault(int(event["tag"]), []).append(int(event["token"]))
            elif event["kind"] == EGRESS_FINISHED:
                ended[int(event["tag"])] = int(event["reason"])
            else:
                ended[int(event["tag"])] = -int(event["reason"])
    check_quiet(engine.loop.world)
    return {tag: (ended[tag], tokens.get(tag, [])) for tag in [*tokens, *ended]}


def with_token(field, value):
    """The field with a value where it has a token."""
    return {"bias": lambda: {value: 1.0}, "stop_sequences": lambda: ((1, value),),
            "prompt": lambda: [1, value]}.get(field, lambda: (value,))()


@settings(max_examples=250, deadline=None)
@given(st.sampled_from([*WHOLE, *REAL, "top_k", "bias value", *TOKENS]), ODD)
def test_a_field_is_refused_by_name_or_served(engine, field, value):
    changed = {field: value}
    if field in TOKENS:
        changed = {field: with_token(field, value)}
    elif field == "bias value":
        changed = {"bias": {3: value}}
    request = replace(Submission(7, PROMPT, 4), **changed)
    try:
        assert engine.submit(request)
    except UserError as error:
        assert str(error).startswith(field.split()[0] + ":"), error
        assert len(str(error)) < 500
        return
    answers = run(engine)
    (tag, (finish, tokens)), = answers.items()
    assert tag == request.tag
    if finish == FINISH_DEADLINE:
        assert 0 < request.deadline_ns <= engine.now_ns
    elif finish < 0:
        assert field in ("prompt", "output_limit"), "the engine says what it cannot hold"
    else:
        assert finish == FINISH_LIMIT or field in TOKENS
        assert 0 < len(tokens) <= request.output_limit


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(*WHOLE["priority"]), min_size=3, max_size=3))
def test_smaller_priorities_run_first(engine, priorities):
    for tag, priority in enumerate(priorities):
        assert engine.submit(Submission(tag, PROMPT, 2, priority=priority))
    assert list(run(engine)) == sorted(range(3), key=lambda tag: priorities[tag])


def test_a_class_outweighs_a_minute_of_waiting_and_no_more():
    """Behind earlier classes that keep arriving, a request waits at most a minute a class: here two
    minutes, in steps of ten seconds, while another holds the only lane."""
    second, began = 1_000_000_000, []
    with Engine.simulated(replace(ONE_LANE, cost=FixedCost(second, 0))) as engine:
        assert engine.submit(Submission(0, PROMPT, 230))
        assert engine.submit(Submission(1, PROMPT, 1, priority=2))
        arrived = {}
        while not engine.idle() or len(arrived) < 20:
            due = (len(arrived) + 1) * 10 * second
            if len(arrived) < 20 and engine.now_ns >= due:
                arrived[10 + len(arrived)] = engine.now_ns
                assert engine.submit(Submission(9 + len(arrived), PROMPT, 1))
            engine.tick()
            began += [int(event["tag"]) for event in engine.events()
                      if event["kind"] == EGRESS_TOKEN and event["tag"] not in began]
            engine.advance(engine.now_ns + second)
    before = [tag for tag, when in arrived.items() if when < 120 * second]
    assert 5 < len(before) < 15
    assert began == [0, *before, 1, *(tag for tag in arrived if tag not in before)]


@pytest.mark.parametrize(("field", "value", "text"), [
    ("priority", 2**31 - 1, "-1048576 to 1048576 possible, got 2147483647"),
    ("deadline_ns", -1, "got -1"), ("seed", -1, "0 to 18446744073709551615 possible, got -1"),
    ("tag", 1.5, "expected a whole number, got 1.5"), ("temperature", float("nan"), "got nan"),
    ("temperature", 1e-40, "0 or at least 0.0001 possible, got 1e-40"),
    ("top_k", 998, "0 to 997 possible, got 998"), ("prompt", [1.5, 2], "got float64 of shape [2]"),
    ("prompt", [], "at least one token id"), ("prompt", np.zeros((2, 2), int), "shape [2, 2]"),
    ("prompt", np.array([2**33]), "got 8589934592"), ("bias", {997: 1.0}, "0 to 996 possible"),
    ("eos", (-1,), "0 to 996 possible, got -1"), ("grammar", "text", "expected bytes, got 'text'"),
    ("stop_strings", ("a",), "expected bytes, got 'a'"),
    ("spans", ((0, 1, -1),), "got -1"), ("prompt", [[1], [1, 2]], "at least one"),
    pytest.param("output_limit", 10**5000, "a number of 16610 bits", id="huge"),
])
def test_errors_name_field_limit_and_value(engine, field, value, text):
    with pytest.raises(UserError) as caught:
        engine.submit(replace(Submission(7, PROMPT, 4), **{field: value}))
    assert str(caught.value).startswith(field + ": ") and text in str(caught.value)


def test_what_a_server_accepts_the_engine_accepts():
    for names, scale in ((WHOLE, 1), (REAL, 1)):
        for name in names.keys() & BOUNDS.keys() - {"seed"}:  # a server folds seeds to 64 bits
            low, high = BOUNDS[name]
            assert names[name][0] <= low * scale and high * scale <= names[name][1], name


@pytest.mark.parametrize(("call", "text"), [
    (lambda engine: engine.cancel(2**63), "tag: "),
    (lambda engine: engine.cancel("1"), "tag: expected a whole number, got '1'"),
    (lambda engine: engine.advance(0.5), "until_ns: expected a whole number, got 0.5"),
    (lambda engine: engine.advance(-1), "until_ns: 0 to"),
    (lambda _: Options(size="XXL"), "size: 'XXL' asked, one of TEST_MIN, SMALL"),
    (lambda _: Options(size=["LARGE"]), "size: ['LARGE'] asked"),
    (lambda _: Options(concurrency=2.5), "concurrency: expected a whole number, got 2.5"),
    (lambda _: Options(frames=None), "frames: expected a whole number, got None"),
    (lambda _: Options(caching=1), "caching: 1 asked, True or False possible"),
    (lambda _: Options(disk_folder="/tmp"), "disk_folder: '/tmp' asked"),
    (lambda _: Engine.host("core", threads=-1), "threads: 0 to 1024 possible, got -1"),
    (lambda _: Machine(lanes=0), "lanes: 1 to"), (lambda _: Machine(pages=-1), "pages: 0 to"),
    (lambda _: Machine(page_tokens=0), "page_tokens: 0 asked, one of"),
    (lambda _: Machine(frames=3), "frames: 1 to 2 possible, got 3"),
    (lambda _: Machine(cost=5), "cost: expected"),
    (lambda _: FixedCost(-1, 0), "program_ns: 0 to"),
    (lambda _: Engine.simulated(Machine(vocabulary=2**31 - 1)),
     "vocabulary: expected 1 to 1048576"),
    (lambda _: Engine.simulated(Machine(lanes=5000)), "slots_max"),
])
def test_other_entries_name_what_they_refuse(engine, call, text):
    with pytest.raises(UserError) as caught:
        call(engine)
    assert text in str(caught.value)
