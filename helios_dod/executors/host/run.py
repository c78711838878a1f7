"""The jitted interpreter: threads that run programs together, step by step, without the GIL.

A step is an operation, or a run of operations that take the same rows. Control words (int64, one a
cache line) and a short queue of submissions live in numpy arrays. A thread finds the current step
from the claim word and the count of completed programs, claims chunks of it, and adds the number
it has run; whoever completes the step moves the claim word on, and behind a program's last step
publishes its sequence and signals the eventfd: all results are visible before.
"""

import numpy as np

from helios_dod.executors.host import commit, plan, recurrence, rounds, rows, sampling, trials
from helios_dod.executors.host import memory as m
from helios_dod.executors.host.attention import attention, attention_chunks, cache_write
from helios_dod.executors.host.chunks import CLAIM, LINE, SHIFT, next_chunk
from helios_dod.executors.host.products import P_TRIAL_ROWS, product, product_chunks
from helios_dod.system import fetch_add, kernel, load_acquire, store_release

FINISHED, SUBMITTED, COMPLETED, RAN, SLEEPERS, STOP = (LINE * i for i in range(1, 7))
WAKE, DONE, THREADS, NEXT_STEP = LINE * 7, LINE * 8, LINE * 9, LINE * 10
CONTROL_WORDS = LINE * 11  # behind them: a counter for each attention item in segments
QUEUE = 4  # submissions that may wait or run
# Words of a queue entry. STEP: number of its first step, counted over all programs.
FIRST, COUNT, LIVE_PACKED, LIVE_LANES, LIVE_SAMPLED, LIVE_DRAWN, SEQUENCE, STEP = range(8)
QUEUE_WORDS = LINE
SHARES = 4  # shares of rows a thread, where there are enough rows
SPIN_PAUSES = 2_000  # some 20 us before a waiting thread offers its processor
IDLE_YIELDS = 400  # offers before an idle thread sleeps: some hundred microseconds


@kernel(boundscheck=False)
def wait_for_work(control):
    """Blocks until a program is queued that is not complete; False when threads shall end."""
    spins = 0
    while load_acquire(control, STOP) == 0:
        if load_acquire(control, SUBMITTED) > load_acquire(control, COMPLETED):
            return True
        spins += 1
        if spins < SPIN_PAUSES:
            m.pause()
        elif spins < SPIN_PAUSES + IDLE_YIELDS:
            m.yield_processor()
        else:
            fetch_add(control, SLEEPERS, 1)
            if (
                load_acquire(control, SUBMITTED) <= load_acquire(control, COMPLETED)
                and load_acquire(control, STOP) == 0
            ):
                m.sleep_until_signal(control[WAKE])
            fetch_add(control, SLEEPERS, -1)
            spins = 0
    return False


@kernel(boundscheck=False)
def copy_pages(w, control, step, total):
    """Copies whole pages of every cache plane; a chunk is a plane."""
    count, pairs, stride, caches, planes = m.get_i32(w[2]), w[4], w[5], w[6], w[7]
    ran = 0
    plane = next_chunk(control, step, total)
    while plane >= 0:
        if plane < planes:
            base, nbytes = m.get_i64(caches + 16 * plane), m.get_i64(caches + 16 * plane + 8)
            for i in range(count):
                source, target = m.get_i32(pairs + i * stride), m.get_i32(pairs + i * stride + 4)
                m.copy_bytes(base + target * nbytes, base + source * nbytes, nbytes)
        ran += 1
        plane = next_chunk(control, step, total)
    return ran


@kernel(inline="always", boundscheck=False)
def run_rows(w, first, last, scratch):
    """An operation over a range of rows."""
    kind = w[0]
    if kind == plan.NORMALISE:
        rows.normalise(w, first, last)
    elif kind == plan.ROTARY:
        rows.rotary(w, first, last, scratch)
    elif kind == plan.CACHE_WRITE:
        cache_write(w, first, last)
    elif kind == plan.ACTIVATION:
        rows.activation(w, first, last)
    elif kind == plan.EMBED:
        rows.embed(w, first, last)
    elif kind == plan.SELECT_TOKENS:
        rows.select_tokens(w, first, last)
    elif kind == plan.SELECT_ROWS:
        rows.select_rows(w, first, last)
    elif kind == plan.ADJUST_LOGITS:
        sampling.adjust_logits(w, first, last)
    elif kind == plan.SAMPLE:
        sampling.sample(w, first, last, scratch)
    elif kind == plan.SCORE:
        sampling.score(w, first, last)
    elif kind == plan.SCATTER_ROWS:
        rows.scatter_rows(w, first, last)
    elif kind == plan.FILL_ROWS:
        rows.fill_rows(w, first, last)
    elif kind == plan.UPDATE_PAGE_TABLE:
        rows.update_page_table(w)
    elif kind == plan.RECURRENT_SCAN:
        recurrence.recurrent_scan(w, first, last, scratch)
    elif kind == plan.CAUSAL_CONVOLUTION:
        recurrence.causal_convolution(w, first, last)
    elif kind == plan.COPY_STATE_ROWS:
        recurrence.copy_state_rows(w, first, last)
    elif kind == plan.COMMIT_STATE_ROWS:
        recurrence.commit_state_rows(w, first, last)
    elif kind == plan.COPY_PARTIAL_PAGE:
        recurrence.copy_partial_page(w, first, last)
    elif kind == plan.MARK_TIME:
        trials.mark_time(w)
    elif kind == plan.CHOOSE_FASTEST:
        trials.choose_fastest(w)


@kernel(boundscheck=False)
def items_of(w, live):
    """Items of an operation on rows: its live rows, or parts of them."""
    kind = w[0]
    if kind == plan.ACTIVATION:
        return live * rows.activation_blocks(w)
    if kind == plan.RECURRENT_SCAN:
        return live * w[recurrence.G_HEADS]
    if kind == plan.CAUSAL_CONVOLUTION:
        return live * recurrence.convolution_blocks(w)
    return live


@kernel(boundscheck=False)
def chunks_of(w, live, lanes, threads):
    """Chunks of a step whose first operation is `w`; at least one, so that every step ends."""
    kind = w[0]
    if kind == plan.PRODUCT:
        return max(1, product_chunks(w, live, threads))
    if kind == plan.ATTENTION:
        return max(1, attention_chunks(w, lanes, threads))
    if kind == plan.COPY_PAGES:
        return max(1, w[7])
    if kind == plan.ADVANCE or kind == plan.UPDATE_PAGE_TABLE or kind == plan.DRAFT:
        return np.int64(1)
    if kind == plan.MARK_TIME or kind == plan.CHOOSE_FASTEST:
        return np.int64(1)
    return max(1, min(items_of(w, live), threads * SHARES))


@kernel(inline="always", boundscheck=False)
def run_step(control, entry, operations, first, count, step, threads, scratch):
    """Runs chunks of a step until none is left; completes it where they were the last ones."""
    w = operations[first]
    kind, domain = w[0], w[1]
    lanes, sampled = m.get_i32(entry[LIVE_LANES]), m.get_i32(entry[LIVE_SAMPLED])
    live = lanes if domain == plan.LANES else sampled
    if domain == plan.PACKED:
        live = m.get_i32(entry[LIVE_PACKED])
    elif domain == plan.DRAWN:
        live = m.get_i32(entry[LIVE_DRAWN])
    elif domain == plan.TRIAL:
        live = w[P_TRIAL_ROWS]
    spans = live if domain == plan.DRAWN else lanes  # lanes of rows that attend
    total = chunks_of(w, live, spans, threads)
    ends = step + 1 == entry[STEP] + entry[COUNT]
    sequence = entry[SEQUENCE]
    ran = 0
    if kind == plan.PRODUCT:
        ran = product(w, live, threads, control, step, total, scratch)
    elif kind == plan.ATTENTION:
        ran = attention(w, spans, threads, control, CONTROL_WORDS, step, total, scratch)
    elif kind == plan.COPY_PAGES:
        ran = copy_pages(w, control, step, total)
    else:
        live = items_of(w, live)
        chunk = next_chunk(control, step, total)
        while chunk >= 0:
            if kind == plan.ADVANCE:
                commit.advance(w, lanes, sampled)
            elif kind == plan.DRAFT:
                rounds.draft(w, lanes)
            elif kind == plan.VERIFY:
                rounds.verify(
                    operations, first, live * chunk // total, live * (chunk + 1) // total, scratch)
            else:
                low, high = live * chunk // total, live * (chunk + 1) // total
                for i in range(first, first + count):
                    run_rows(operations[i], low, high, scratch)
            ran += 1
            chunk = next_chunk(control, step, total)
    if ran > 0 and fetch_add(control, RAN, ran) + ran == total:
        complete_step(control, step, ends, sequence)


@kernel(boundscheck=False)
def complete_step(control, step, ends, sequence):
    """Lets threads go on to the next step. Where a program ends, publishes it first."""
    control[RAN] = 0
    if ends:
        store_release(control, FINISHED, sequence)
        fetch_add(control, COMPLETED, 1)
        m.signal(control[DONE], 1)
    store_release(control, CLAIM, (step + 1) << SHIFT)


@kernel(boundscheck=False)
def work(control, queue, steps, operations, scratch):
    """A thread's life: steps in order until STOP. steps: int64 [n, 2], first operation and count.

    What is read of the queue holds if the same program is incomplete after it; a claim holds if the
    claim word still names the step, and then the program cannot end before the chunk does."""
    threads = control[THREADS]
    while wait_for_work(control):
        done = load_acquire(control, COMPLETED)
        entry = queue[done % QUEUE]
        step = load_acquire(control, CLAIM) >> SHIFT
        index = step - entry[STEP]
        row = entry[FIRST] + index
        known = 0 <= index < entry[COUNT] and done < load_acquire(control, SUBMITTED)
        if not known or load_acquire(control, COMPLETED) != done:
            m.pause()
            continue
        run_step(control, entry, operations, steps[row, 0], steps[row, 1], step, threads, scratch)
        spins = 0
        while load_acquire(control, CLAIM) >> SHIFT == step and load_acquire(control, STOP) == 0:
            spins += 1
            if spins < SPIN_PAUSES:
                m.pause()
            else:
                m.yield_processor()


@kernel
def enqueue(control, queue, entries, frame, program, sequence):
    """Queues a program. False when the queue is full."""
    count = control[SUBMITTED]
    if count - load_acquire(control, COMPLETED) >= QUEUE:
        return False
    entry = queue[count % QUEUE]
    for i in range(SEQUENCE):
        entry[i] = entries[frame, program, i]
    entry[SEQUENCE] = sequence
    entry[STEP] = control[NEXT_STEP]
    control[NEXT_STEP] += entry[COUNT]
    fetch_add(control, SUBMITTED, 1)
    sleepers = load_acquire(control, SLEEPERS)
    if sleepers > 0:
        m.signal(control[WAKE], sleepers)
    return True
