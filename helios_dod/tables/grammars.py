"""Constrained requests that hold a slot: the state of each one's next mask, and what its worker is
to do.

A worker computes masks off the tick. It gets jobs in order (`take_jobs`, after a tick) and writes a
mask, then an answer (`write_answer`), from its own thread; `see_answers` lets answers enter before
a tick. A row that is freed may be taken again
at once: jobs and answers carry the generation, and a worker does its jobs one after the other, so
a late mask is overwritten before the row is READY again."""

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

ANSWER_STATUSES = 16  # an answer is generation * 16 + status
JOB_COLUMNS = 5  # row, generation, kind, first generated token, number of tokens


@table(rows="slots_max")
class Grammars:
    """One row per constrained request that holds a slot: PENDING, READY or FAILED.

    Invariants: `slot` and `slots.grammar` agree; a READY row's mask is that of the token after the
    `given` generated ones; a row is in `queue` once if it has a job."""

    state: u8
    job: u8  # what the worker is to do
    generation: u32
    slot: i32
    given: i32  # generated tokens that the worker knows of
    answer: i64  # written by the worker: generation and status
    seen: i64  # the `answer` of a PENDING row when this tick began, or 0
    # Written by the worker: row r's mask, a bit for each token that may follow, is the words from
    # r * mask_words on.
    masks: scalar(u32["mask_area_max"])
    mask_words: scalar(i32)  # words of one mask: those of the core's vocabulary
    free: scalar(i32["slots_max"])
    free_count: scalar(i32)
    queue: scalar(i32["slots_max"])
    queue_count: scalar(i32)


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
    return np.zeros((slots, JOB_COLUMNS), np.int64), np.zeros(slots * width, np.int32)


@kernel
def take_jobs(world, jobs, tokens):
    """Moves the queue into jobs, int64 [slots_max, JOB_COLUMNS], and the tokens that ADVANCE is
    about into tokens, int32 [slots_max * width_max]; the number of jobs."""
    grammars, slots, requests = world[0].grammars, world[0].slots, world[0].requests
    count, written = grammars.queue_count, 0
    for i in range(count):
        row = grammars.queue[i]
        kind = grammars.job[row]
        grammars.job[row] = JOB_NONE
        first, size = 0, 0
        if kind == JOB_ADVANCE:
            request = slots.request[grammars.slot[row]]
            prompt = requests.prompt_count[request]
            first = grammars.given[row]
            size = requests.token_count[request] - prompt - first
            for k in range(size):
                at = prompt + first + k
                block = requests.blocks[request, at // TOKEN_BLOCK]
                tokens[written + k] = world[0].tokens.ids[block, at % TOKEN_BLOCK]
            grammars.given[row] = first + size
            first, written = written, written + size
        elif kind == JOB_START:
            request = slots.request[grammars.slot[row]]
            size = requests.token_count[request] - requests.prompt_count[request]
            grammars.given[row] = size
        jobs[i, 0], jobs[i, 1], jobs[i, 2] = row, grammars.generation[row], kind
        jobs[i, 3], jobs[i, 4] = first, size
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
            if answer // ANSWER_STATUSES == grammars.generation[row]:
                grammars.seen[row] = answer


@kernel
def write_answer(world, row, generation, status):
    """A worker's answer, after the mask that it wrote."""
    store_release(world[0].grammars.answer, row, np.int64(generation) * ANSWER_STATUSES + status)
