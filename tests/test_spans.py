"""Atomic spans and boundary endpoints: nothing ends inside a span, and what its tokens stand for is
part of the text; snapshots are taken at the prompt's own boundaries."""

from dataclasses import replace

import numpy as np
import pytest

from helios_dod.edges import Submission
from helios_dod.errors import UserError
from helios_dod.simulation.invariants import Violation, check
from helios_dod.simulation.kinds import PLAIN, Kinds
from helios_dod.simulation.simulator import Live, Simulator, Workload
from helios_dod.tables.prefixes import chain, home_row
from helios_dod.tables.spans import features_of

HYBRID = Kinds(recurrent=True, continuation=True, snapshots=8)
QUIET = Workload(arrival=0.0, cancel=0.0, deadline=0.0, drain=1.0)
CUTS = Workload(cuts=1.0, shared=1.0, turns=0.5, prompt_max=60, output_max=20)
TEXT = (np.arange(100, dtype=np.int32) * 7) % 50


def ask(simulator: Simulator, submission: Submission) -> int:
    """Runs one request to its end; the prompt tokens that were not computed."""
    cached = int(simulator.world[0]["counters"]["prompt_tokens_cached"])
    simulator.live[submission.tag] = Live(submission, [])
    assert simulator.edge.submit(submission)
    for _ in range(400):
        if submission.tag not in simulator.live:
            break
        simulator.tick()
    assert submission.tag not in simulator.live
    return int(simulator.world[0]["counters"]["prompt_tokens_cached"]) - cached


@pytest.mark.parametrize("kinds", [
    PLAIN, HYBRID, Kinds(recurrent=True, snapshots=8), Kinds(shift=1)], ids=str)
def test_nothing_ends_inside_a_span(kinds):
    """Endpoints are checked after every system; answers are the oracle's."""
    Simulator(41, walked=True, kinds=kinds, workload=CUTS).run(80)
    for seed in range(300, 303):
        simulator = Simulator(seed, walked=False, kinds=kinds, workload=CUTS)
        simulator.run(800)
        assert simulator.finished > 0


def test_a_hit_ends_before_a_span_that_it_would_cut():
    simulator = Simulator(1, walked=True, kinds=PLAIN, workload=QUIET)
    first = Submission(1, TEXT[:50], 2, spans=((28, 38, 5),))
    assert ask(simulator, first) == 0
    assert ask(simulator, replace(first, tag=2)) == 48
    assert ask(simulator, replace(first, tag=3, prompt=TEXT[:40])) == 16  # 32 lies inside
    assert ask(simulator, Submission(4, TEXT[:26], 2)) == 16


def test_a_text_without_spans_takes_no_page_of_one_with_them():
    """Also where the span's page lies in the row that a search for the text comes to: its home
    differs in the last bit, and another text's page is in the text's own."""
    simulator = Simulator(2, walked=True, kinds=PLAIN, workload=QUIET)
    world, scratch = simulator.world, simulator.world.copy()
    rng = np.random.default_rng(1)

    def hashed(tokens: np.ndarray) -> np.uint64:
        seed = np.uint64(world[0]["settings"]["cache_seed"])
        return np.uint64(chain(seed, tokens[None], 0, 0, 16))

    def mixed(digest: int) -> np.uint64:
        requests = scratch[0]["requests"]
        requests["span_count"][0], requests["span_end"][0, 0] = 1, 8
        requests["span_digest"][0, 0] = digest
        return np.uint64(features_of(scratch, 0, 0, 16))

    texts = (rng.integers(0, 50, 20, dtype=np.int32) for _ in range(1 << 16))
    text = next(t for t in texts if home_row(world, hashed(t)) % 2 == 0)
    home = home_row(world, hashed(text))
    before = next(t for t in texts if home_row(world, hashed(t)) == home)
    digest = next(d for d in range(1, 1 << 16)
                  if home_row(world, np.uint64(hashed(text) ^ mixed(d))) == home + 1)
    assert ask(simulator, Submission(1, before, 2)) == 0
    assert ask(simulator, Submission(2, text, 2, spans=((0, 8, digest),))) == 0
    assert ask(simulator, Submission(3, text, 2)) == 0
    assert ask(simulator, Submission(4, text, 2, spans=((0, 8, digest),))) == 16
    assert ask(simulator, Submission(5, text, 2)) == 16


def test_what_a_span_stands_for_is_part_of_the_text():
    """Equal tokens of other content share the pages before the span only, in both directions."""
    simulator = Simulator(2, walked=True, kinds=PLAIN, workload=QUIET)
    first = Submission(1, TEXT[:60], 2, spans=((20, 28, 5),))
    assert ask(simulator, first) == 0
    assert ask(simulator, replace(first, tag=2, spans=((20, 28, 6),))) == 16
    assert ask(simulator, replace(first, tag=3, spans=())) == 16
    assert ask(simulator, replace(first, tag=4)) == 48
    assert ask(simulator, replace(first, tag=5, spans=((20, 28, 6),))) == 48


def test_snapshots_hold_what_spans_stand_for():
    """Also of the tokens past their last complete page."""
    simulator = Simulator(3, walked=True, kinds=HYBRID, workload=QUIET)
    first = Submission(1, TEXT[:28], 2, spans=((18, 24, 5),), boundaries=(26,))
    assert ask(simulator, first) == 0
    longer = replace(first, prompt=TEXT[:40])
    assert ask(simulator, replace(longer, tag=2, spans=((18, 24, 6),))) == 16
    assert ask(simulator, replace(longer, tag=3)) >= 26


def test_prompts_that_part_at_a_boundary_share_up_to_it():
    """A snapshot is taken exactly there."""
    simulator = Simulator(4, walked=True, kinds=HYBRID, workload=QUIET)
    other = np.concatenate([TEXT[:37], (TEXT[37:60] + 1) % 50]).astype(np.int32)
    assert ask(simulator, Submission(1, TEXT[:60], 2, boundaries=(20, 37))) == 0
    assert ask(simulator, Submission(2, other, 2)) == 37
    pages = Simulator(5, walked=True, kinds=Kinds(recurrent=True, snapshots=8), workload=QUIET)
    assert ask(pages, Submission(1, TEXT[:60], 2, boundaries=(20, 37))) == 0
    assert ask(pages, Submission(2, other, 2)) == 32  # state inside pages is not kept


def test_spans_that_no_chunk_holds_are_refused_with_the_numbers():
    simulator = Simulator(6, walked=True, kinds=PLAIN, workload=QUIET)
    longest = simulator.longest
    assert longest == 16 - 3 + 1
    simulator.edge.submit(Submission(1, TEXT, 2, spans=((3, 4 + longest, 1),)))
    simulator.live[1] = Live(Submission(1, TEXT, 2), [])
    for _ in range(5):
        simulator.walk()
    event = simulator.edge.events()[0]
    assert (event["value"], event["limit"]) == (longest + 1, longest)


@pytest.mark.parametrize("fields, words", [
    ({"spans": ((4, 4, 1),)}, "spans: 4 to 4"), ({"spans": ((4, 9, 1), (8, 12, 1))}, "8 to 12"),
    ({"spans": ((90, 101, 1),)}, "inside 100"), ({"boundaries": (5, 5)}, "boundaries: 5"),
    ({"boundaries": (101,)}, "up to 100"), ({"spans": ((4, 9, 1),), "boundaries": (6,)}, "6, not"),
    ({"spans": ((90, 100, 1),), "scored": True}, "ends the prompt, at 100"),
    ({"boundaries": tuple(range(1, 18))}, "boundaries: 17 asked, at most 16"),
])
def test_cuts_that_make_no_sense_are_refused(fields, words):
    simulator = Simulator(7, kinds=PLAIN, workload=QUIET)
    with pytest.raises(UserError, match=words):
        simulator.edge.submit(Submission(1, TEXT, 2, **fields))


def test_canary_an_endpoint_inside_a_span():
    simulator = Simulator(8, walked=True, kinds=PLAIN, workload=replace(CUTS, arrival=1.0))
    for _ in range(20):
        simulator.tick()
    w = simulator.world[0]
    slot = next(s for s in w["slots"]["live"][: int(w["slots"]["live_count"])]
                if w["slots"]["scheduled"][s] > 0 and w["slots"]["request"][s] < 6)
    row = w["slots"]["request"][slot]
    w["requests"]["span_count"][row] = 1
    w["requests"]["span_first"][row, 0] = w["slots"]["scheduled"][slot] - 1
    w["requests"]["span_end"][row, 0] = w["slots"]["scheduled"][slot] + 1
    with pytest.raises(Violation, match="inside a span"):
        check(simulator.world)
