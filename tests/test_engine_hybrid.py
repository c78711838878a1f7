"""A hybrid of recurrent and attention layers on the host executor: the same bits restored from a
snapshot or recomputed, preempted or not, in a batch or alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from embedded import Answer, Embedded
from hybrid_core import prepare_hybrid, write_hybrid
from test_offload_host import cut_off

from helios_dod.edges import Submission
from helios_dod.runtime.native_model import open_accepted
from helios_dod.runtime.selection import snapshot_bytes
from helios_dod.terms import CAUSE_ANSWER, OP_SPECULATIVE

OUTPUT = 12
PAGE_BYTES = 2 * 2 * 16 * 16 * 4


@pytest.fixture(scope="module")
def core(tmp_path_factory, monkeypatch_module) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    monkeypatch_module.setenv("HELIOS_CONFIG", str(folder / "config"))
    return write_hybrid(folder)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def requests(count: int, first_tag: int = 1) -> list[Submission]:
    """Different prompts and sampling; log-probabilities show the logits' bits."""
    rng = np.random.default_rng(3)
    return [Submission(
        first_tag + i, rng.integers(0, 250, int(rng.integers(5, 120)), dtype=np.int32), OUTPUT,
        temperature=(0.0, 0.8)[i % 2], seed=i, top_logprobs=3) for i in range(count)]


def assert_same(answers: list[Answer], expected: list[Answer]) -> None:
    for answer, known in zip(answers, expected, strict=True):
        assert answer.tokens == known.tokens
        assert answer.scores == known.scores and answer.tops == known.tops


def counter(engine: Embedded, name: str) -> int:
    return int(engine.engine.world[0]["counters"][name])


@pytest.fixture(scope="module")
def cold(core) -> list[Answer]:
    """Each request by itself, nothing reused."""
    with Embedded(core, caching=False) as engine:
        return [engine.ask([request])[0] for request in requests(8)]


@pytest.mark.parametrize("options", [
    pytest.param({}, id="batch of 8"), pytest.param({"prefill_tokens": 20}, id="chunked"),
    pytest.param({"frames": 1}, id="one frame"), pytest.param({"concurrency": 2}, id="two slots"),
])
def test_equal_to_alone(core, cold, options):
    with Embedded(core, **options) as engine:
        assert_same(engine.ask(requests(8)), cold)


def room(core: Path, pages: int, snapshots: int) -> dict[str, int]:
    """Options of so many of both."""
    contract = open_accepted(core).contract
    each = snapshot_bytes(contract, contract.programs)
    return {"cache_bytes": pages * PAGE_BYTES + snapshots * each, "snapshots": snapshots}


def test_restored_equals_recomputed(core, cold):
    """Prompts that are asked again and texts that go on begin with snapshots, and answer the same
    bits as without any. None goes for another, which would depend on who is done first."""
    asked = requests(8)[:2]
    longer = [replace(request, tag=50 + request.tag, prompt=np.concatenate([
        request.prompt, np.array(answer.tokens, np.int32), np.arange(40, 60, dtype=np.int32)]))
        for request, answer in zip(asked, cold, strict=False)]
    with Embedded(core, caching=False) as engine:
        expected = engine.ask(longer)
    with Embedded(core, snapshots=20) as engine:
        assert_same(engine.ask(asked), cold[:2])
        assert counter(engine, "snapshot_hits") == 0
        assert counter(engine, "snapshots_published") >= 4
        assert_same(engine.ask([replace(r, tag=r.tag + 20) for r in asked]), cold[:2])
        hits = counter(engine, "snapshot_hits")
        assert hits == 2
        assert_same(engine.ask(longer), expected)
        assert counter(engine, "snapshot_hits") == hits + 2
        restored = counter(engine, "prompt_tokens_cached")
        assert counter(engine, "snapshots_evicted") == counter(engine, "snapshots_dropped") == 0
    ended = sum(len(request.prompt) + OUTPUT - 1 for request in asked)
    again = sum((len(request.prompt) - 1) // 16 * 16 for request in asked)
    assert restored == again + ended  # the ends of answers, inside pages, are restored whole


def test_an_answer_kept_on_its_way_equals_undisturbed(core):
    """Answers that pause for snapshots of themselves go on with the same bits; one that a stop ends
    is gone on with from the last of them, although it has none of its end."""
    made = [replace(request, output_limit=150, eos=()) for request in requests(4)]
    with Embedded(core, caching=False) as engine:
        undisturbed = engine.ask(made)
    stopped = replace(made[0], tag=70, stop_sequences=(tuple(undisturbed[0].tokens[138:140]),))
    text = np.concatenate([made[0].prompt, np.array(undisturbed[0].tokens[:137], np.int32)])
    after = replace(made[0], tag=71, prompt=text, output_limit=20)
    with Embedded(core, caching=False) as engine:
        expected = engine.ask([after])
    with Embedded(core) as engine:
        assert_same(engine.ask(made), undisturbed)
        assert engine.engine.world[0]["snapshots"]["taken"][CAUSE_ANSWER] >= 4
    with Embedded(core) as engine:
        ended = engine.ask([stopped])[0]
        assert ended.tokens == undisturbed[0].tokens[:len(ended.tokens)]
        cached = counter(engine, "prompt_tokens_cached")
        assert_same(engine.ask([after]), expected)
        restored = counter(engine, "prompt_tokens_cached") - cached
    assert restored % 64 == 0 and restored > len(made[0].prompt)


def test_preempted_equals_undisturbed(core, cold):
    """With a cache too small for all, requests are sent back and resume to the same bits."""
    made = [replace(request, output_limit=60) for request in requests(8)]
    with Embedded(core, caching=False) as engine:
        undisturbed = engine.ask(made)
    with Embedded(core, **room(core, 24, 6), context_tokens=256) as engine:
        assert_same(engine.ask(made), undisturbed)
        assert counter(engine, "preempted") > 0


@pytest.mark.parametrize("disk_pages", [0, 60], ids=["memory", "disk"])
def test_offloaded_equals_resident(core, cold, tmp_path, disk_pages):
    """Pages that belong to snapshots leave a cache that holds half of them, and come back with
    their snapshot: the same bits."""
    options = {"offload_bytes": (8 if disk_pages else 80) * PAGE_BYTES}
    if disk_pages:
        options |= {"disk_bytes": disk_pages * PAGE_BYTES, "disk_folder": tmp_path}
    with Embedded(core, **room(core, 24, 30), context_tokens=256, concurrency=2,
                  **options) as engine:
        for turn in range(3):
            for request, known in zip(requests(8), cold, strict=True):
                asked = replace(request, tag=100 * turn + request.tag)
                engine.engine.world[0]["tiers"]["restored_count"] = 0  # a restore is always tried
                assert_same(engine.ask([asked]), [known])
        assert counter(engine, "pages_offloaded") > 20 and counter(engine, "copies_failed") == 0
        assert counter(engine, "snapshot_hits") >= 8
        assert counter(engine, "snapshot_hits_away") > 4
        restored = "pages_restored_disk" if disk_pages else "pages_restored_memory"
        assert counter(engine, restored) > 4


@pytest.mark.parametrize("fault", ["changed", "cut off"])
def test_answers_over_a_file_that_fails_are_the_same(core, cold, tmp_path, fault):
    """Pages that the disk has lost are computed again, to the same bits."""
    folder = tmp_path / "disk"  # apart from the core, which is mapped too
    folder.mkdir()
    options = {"offload_bytes": 8 * PAGE_BYTES, "disk_bytes": 60 * PAGE_BYTES,
               "disk_folder": folder}
    with Embedded(core, **room(core, 24, 30), context_tokens=256, concurrency=2,
                  **options) as engine:
        for turn in range(3):
            for request, known in zip(requests(8), cold, strict=True):
                asked = replace(request, tag=100 * turn + request.tag)
                engine.engine.world[0]["tiers"]["restored_count"] = 0  # a restore is always tried
                assert_same(engine.ask([asked]), [known])
            engine.engine.executor.drain()
            if fault == "changed":
                engine.engine.executor._copies._disk.bytes[:] ^= 1
            elif turn == 0:
                cut_off(folder)
        stored, failed = (counter(engine, name) for name in ("pages_stored", "copies_failed"))
        # What is changed is found when it comes back; to what is cut off no page can be written.
        assert (stored > 8 and failed > 0) if fault == "changed" else (stored > 0 and failed > 8), (
            stored, failed)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory, core) -> Path:
    """The same model with rounds of one, two and four tokens, drawn by its first pair of layers."""
    return write_hybrid(tmp_path_factory.mktemp("drafting"), snapshots=20, widths=(2, 4))


def drafted(count: int) -> list[Submission]:
    """Longer answers to the same prompts; of one, log-probabilities too, so that it has no drafts.
    """
    return [replace(request, output_limit=40, top_logprobs=3 if i == 3 else -1)
            for i, request in enumerate(requests(count))]


@pytest.fixture(scope="module")
def plain(core) -> list[Answer]:
    """What they are answered without rounds."""
    with Embedded(core, caching=False) as engine:
        return engine.ask(drafted(8))


def insist(engine: Embedded) -> None:
    """Keeps the cost of the widest rounds unknown, so that they are chosen as long as drafts may be
    accepted."""
    programs = engine.engine.world[0]["programs"]
    widest = programs["lane_limit"] == programs["round_width"]
    programs["observed_count"][widest & (programs["operation"] == OP_SPECULATIVE)] = -(1 << 30)


@pytest.mark.parametrize("options", [
    pytest.param({}, id="width 4"), pytest.param({"speculative_width": 2}, id="width 2"),
    pytest.param({"concurrency": 2, "frames": 1}, id="two slots, one frame"),
    pytest.param({"history_drafting": True}, id="copied"),
])
def test_rounds_equal_plain_decode(drafting, plain, options):
    """Whatever is accepted: the state behind exactly that goes on."""
    with Embedded(drafting, **options) as engine:
        insist(engine)
        assert_same(engine.ask(drafted(8)), plain)
        assert counter(engine, "rounds_speculative") > 10
        assert counter(engine, "drafts_offered") > counter(engine, "drafts_accepted") > 10


def test_rounds_of_one_token_equal_plain_decode(drafting, plain):
    with Embedded(drafting, speculative_width=1) as engine:
        assert_same(engine.ask(drafted(8)), plain)
        programs = engine.engine.world[0]["programs"]
        assert programs["launches"][programs["operation"] == OP_SPECULATIVE].sum() > 10


def test_rounds_from_snapshots_equal_plain_decode(drafting, plain):
    """State that rounds committed goes into snapshots where they end, and texts go on from it."""
    asked = drafted(2)
    longer = [replace(request, tag=50 + request.tag, prompt=np.concatenate([
        request.prompt, np.array(answer.tokens, np.int32), np.arange(40, 60, dtype=np.int32)]))
        for request, answer in zip(asked, plain, strict=False)]
    with Embedded(drafting, caching=False, speculative_width=1) as engine:
        expected = engine.ask(longer)
    with Embedded(drafting) as engine:
        insist(engine)
        assert_same(engine.ask(asked), plain[:2])
        assert_same(engine.ask([replace(r, tag=r.tag + 20) for r in asked]), plain[:2])
        assert counter(engine, "snapshot_hits") == 2
        assert_same(engine.ask(longer), expected)
        assert counter(engine, "snapshot_hits") == 4
        assert counter(engine, "drafts_accepted") > 10


def test_rounds_that_are_preempted_equal_plain_decode(drafting, plain):
    """A small cache sends requests back in the middle of their rounds."""
    with Embedded(drafting, **room(drafting, 24, 20), context_tokens=256) as engine:
        insist(engine)
        assert_same(engine.ask(drafted(8)), plain)
        assert counter(engine, "preempted") > 0 and counter(engine, "rounds_speculative") > 10


@pytest.mark.parametrize("fault", ["commit", "ahead"])
def test_state_of_refused_drafts_is_seen(drafting, plain, monkeypatch, fault):
    """A device that commits no state, or takes refused drafts into the committed one."""
    from helios_dod.executors.host import plan

    name = {"commit": "_commit_state_rows", "ahead": "_recurrent_scan"}[fault]
    built = getattr(plan.Planner, name)

    def wrong(self, op):
        domain, words = built(self, op)
        words[-1 if fault == "ahead" else 4] = 0  # in place; rows of no bytes
        return domain, words

    monkeypatch.setattr(plan.Planner, name, wrong)
    with Embedded(drafting) as engine:
        insist(engine)
        answers = engine.ask(drafted(8))
    assert [answer.tokens for answer in answers] != [answer.tokens for answer in plain]


def test_a_skipped_copy_is_seen(core, cold, monkeypatch):
    """A device that restores no recurrent rows answers something else."""
    from helios_dod.executors.host import plan

    built = plan.Planner._copy_state_rows

    def skipping(self, op):
        domain, words = built(self, op)
        if op.source_row.buffer != self.live_row(op):
            words[-1] = 0
        return domain, words

    restore = prepare_hybrid(6).manifest
    names = {i: buffer.name for i, buffer in enumerate(restore.buffers)}
    monkeypatch.setattr(plan.Planner, "live_row", lambda self, op: next(
        i for i, name in names.items() if name == "state_row"), raising=False)
    monkeypatch.setattr(plan.Planner, "_copy_state_rows", skipping)
    asked = [request for request in requests(8) if len(request.prompt) > 40][:2]
    with Embedded(core) as engine:
        first = engine.ask(asked)
        again = engine.ask([replace(request, tag=request.tag + 20) for request in asked])
        assert counter(engine, "snapshot_hits") == 2
    assert [answer.scores for answer in first] != [answer.scores for answer in again]
