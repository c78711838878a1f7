"""Constrained requests that hold a slot: the state of each one's next mask, and what its worker is
to do.

A worker computes masks off the tick. It gets jobs in order (`take_jobs`, after a tick) and writes a
mask, then an answer (`write_answer`), from its own thread; `see_answers` lets answers enter before
a tick. A row that is freed may be taken again
at once: jobs and answers carry the generation, and a worker does its jobs one after the other, so
a late mask is overwritten before the row is READY again.

The first `drafted_rows` rows have room for `positions` masks: that of the next token, then one
behind each draft that a round may verify. An answer says how many of the offered drafts the grammar
allows; masks are there up to the one behind the last of them."""

import numpy as np

from helios_dod.limits import NO_ROW, TOKEN_BLOCK
from helios_dod.schema import i32, i64, scalar, table, u8, u32
from helios_dod.system import kernel, load_acquire, store_release
from helios_dod.terms import (
    FRAME_SUBMITTED,
    FREE,
    GRAMMAR_PENDING,
    GRAMMAR_READY,
    JOB_ADVANCE,
    JOB_NONE,
    JOB_RELEASE,
    JOB_START,
)

ANSWER_STATUSES = 16  # an answer is (generation * 16 + drafts) * 16 + status
ANSWER_DRAFTS = 16
JOB_COLUMNS = 6  # row, generation, kind, first token, number of tokens, and of drafts behind them


@table(rows="slots_max")
class Grammars:
    """One row per constrained request that holds a slot: PENDING, READY or FAILED.

    Invariants: `slot` and `slots.grammar` agree; a READY row's mask is that of the token after the
    `given` generated ones, and its further ones are those behind the first `drafts` candidates of
    its slot; a row is in `queue` once if it has a job."""

    state: u8
    job: u8  # what the worker is to do
    generation: u32
    slot: i32
    given: i32  # generated tokens that the worker knows of
    offered: i32  # candidates of the slot that the worker is asked about
    drafts: i32  # of them, what it allowed
    answer: i64  # written by the worker: generation and status
    seen: i64  # the `answer` of a PENDING row when this tick began, or 0
    # Written by the worker: row r's masks, a bit for each token that may follow, are the words
    # from mask_row(r) * mask_words on.
    masks: scalar(u32["mask_area_max"])
    mask_words: scalar(i32)  # words of one mask: those of the core's vocabulary
    positions: scalar(i32)  # masks of one of the first `drafted_rows` rows
    drafted_rows: scalar(i32)
    free: scalar(i32["slots_max"])
    free_count: scalar(i32)
    queue: scalar(i32["slots_max"])
    queue_count: scalar(i32)


@kernel
def mask_row(world, row):
    """Masks that stand before a row's first."""
    grammars = world[0].grammars
    return row + min(row, grammars.drafted_rows) * (grammars.positions - 1)


@kernel
def queue_job(world, row, job):
    """Asks the worker for something; what the row was to do before is void."""
    grammars = world[0].grammars
    if grammars.job[row] == JOB_NONE:
        grammars.queue[grammars.queue_count] = row
        grammars.queue_count += 1
    grammars.job[row] = job


@kernel
def take_grammar(world, slot):
    """Gives a constrained request's slot a row; its first mask is asked for."""
    grammars = world[0].grammars
    assert grammars.free_count > 0
    grammars.free_count -= 1
    row = grammars.free[grammars.free_count]
    assert grammars.state[row] == FREE
    grammars.generation[row] += 1
    grammars.state[row] = GRAMMAR_PENDING
    grammars.slot[row] = slot
    grammars.given[row] = 0
    world[0].slots.grammar[slot] = row
    queue_job(world, row, JOB_START)


@kernel
def free_grammar(world, slot):
    """Gives a slot's row back, if it has one; the worker is told."""
    grammars, row = world[0].grammars, world[0].slots.grammar[slot]
    if row == NO_ROW:
        return
    assert grammars.slot[row] == slot
    grammars.state[row] = FREE
    grammars.slot[row] = NO_ROW
    grammars.given[row] = 0
    grammars.offered[row] = 0
    grammars.drafts[row] = 0
    grammars.seen[row] = 0
    world[0].slots.grammar[slot] = NO_ROW
    grammars.free[grammars.free_count] = row
    grammars.free_count += 1
    queue_job(world, row, JOB_RELEASE)


@kernel
def outstanding(world):
    """Frames in flight."""
    frames, count = world[0].frames, 0
    for frame in range(frames.state.shape[0]):
        count += frames.state[frame] == FRAME_SUBMITTED
    return count


@kernel
def may_sample(world, slot):
    """Is the slot unconstrained, or its mask READY and nothing in flight?"""
    row = world[0].slots.grammar[slot]
    return row == NO_ROW or (
        world[0].grammars.state[row] == GRAMMAR_READY and outstanding(world) == 0)


def job_buffers(world):
    """The two arrays that `take_jobs` fills."""
    slots, width = len(world[0]["slots"]["state"]), world[0]["completions"]["tokens"].shape[-1]
    return np.zeros((slots, JOB_COLUMNS), np.int64), np.zeros(2 * slots * width, np.int32)


@kernel
def take_jobs(world, jobs, tokens):
    """Moves the queue into jobs, int64 [slots_max, JOB_COLUMNS], and the tokens that ADVANCE is
    about into tokens, int32 [2 * slots_max * width_max]; the number of jobs."""
    grammars, slots, requests = world[0].grammars, world[0].slots, world[0].requests
    count, written = grammars.queue_count, 0
    for i in range(count):
        row = grammars.queue[i]
        kind = grammars.job[row]
        grammars.job[row] = JOB_NONE
        first, size, drafts = 0, 0, 0
        if kind == JOB_ADVANCE:
            slot = grammars.slot[row]
            request, drafts = slots.request[slot], grammars.offered[row]
            prompt = requests.prompt_count[request]
            first = grammars.given[row]
            size = requests.token_count[request] - prompt - first
            for k in range(size):
                at = prompt + first + k
                block = requests.blocks[request, at // TOKEN_BLOCK]
                tokens[written + k] = world[0].tokens.ids[block, at % TOKEN_BLOCK]
            for k in range(drafts):
                tokens[written + size + k] = world[0].candidates.tokens[slot, k]
            grammars.given[row] = first + size
            first, written = written, written + size + drafts
        elif kind == JOB_START:
            request = slots.request[grammars.slot[row]]
            size = requests.token_count[request] - requests.prompt_count[request]
            grammars.given[row] = size
        jobs[i, 0], jobs[i, 1], jobs[i, 2] = row, grammars.generation[row], kind
        jobs[i, 3], jobs[i, 4], jobs[i, 5] = first, size, drafts
    grammars.queue_count = 0
    return count


@kernel
def see_answers(world):
    """Reads every answer that a PENDING row waits for, for the tick that begins."""
    grammars = world[0].grammars
    if grammars.free_count == grammars.free.shape[0]:
        return
    for row in range(grammars.state.shape[0]):
        grammars.seen[row] = 0
        if grammars.state[row] == GRAMMAR_PENDING:
            answer = load_acquire(grammars.answer, row)
            if answer // (ANSWER_DRAFTS * ANSWER_STATUSES) == grammars.generation[row]:
                grammars.seen[row] = answer


@kernel
def write_answer(world, row, generation, status, drafts):
    """A worker's answer, after the masks that it wrote. drafts: those that it allows."""
    answer = (np.int64(generation) * ANSWER_DRAFTS + drafts) * ANSWER_STATUSES + status
    store_release(world[0].grammars.answer, row, answer)


@kernel
def drafts_allowed(answer):
    """The drafts that an answer allows."""
    return answer // ANSWER_STATUSES % ANSWER_DRAFTS
