"""The jitted interpreter: threads that run a program's operations together, without the GIL.

Control words (int64, one a cache line) and a short queue of submissions live in numpy arrays.
Every thread walks the same operations; within one they share rows, or claim chunks from a counter;
after it they meet at a barrier. Whoever arrives last resets the counters and, behind a program's
last operation, publishes its sequence and signals the eventfd: all results are visible before.
"""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.executors.host import plan, rows, sampling
from helios_dod.executors.host.attention import attention, cache_write
from helios_dod.executors.host.products import product
from helios_dod.system import fetch_add, kernel, load_acquire, store_release

LINE = 8
CLAIM, ARRIVED, GENERATION, SUBMITTED, FINISHED, SLEEPERS, STOP = (LINE * i for i in range(7))
WAKE, DONE, THREADS, COMPLETED = LINE * 7, LINE * 8, LINE * 9, LINE * 10
CONTROL_WORDS = LINE * 11
QUEUE = 4  # submissions that may wait or run
# Words of a queue entry.
FIRST, COUNT, LIVE_PACKED, LIVE_LANES, LIVE_SAMPLED, SEQUENCE = range(6)
QUEUE_WORDS = LINE
SPIN_PAUSES = 2_000  # some 20 us before a waiting thread offers its processor
IDLE_YIELDS = 400  # offers before an idle thread sleeps: some hundred microseconds


@kernel(boundscheck=False)
def barrier(control, threads, generation, ends, sequence):
    """Waits for all threads. Where a program ends, publishes it first."""
    if fetch_add(control, ARRIVED, 1) == threads - 1:
        control[ARRIVED] = 0
        control[CLAIM] = 0
        if ends:
            store_release(control, FINISHED, sequence)
            fetch_add(control, COMPLETED, 1)
            m.signal(control[DONE], 1)
        store_release(control, GENERATION, generation + 1)
        return
    spins = 0
    while load_acquire(control, GENERATION) == generation:
        spins += 1
        if spins < SPIN_PAUSES:
            m.pause()
        else:
            m.yield_processor()


@kernel(boundscheck=False)
def wait_for_work(control, done):
    """Blocks until more than `done` programs are submitted; False when threads shall end."""
    spins = 0
    while load_acquire(control, SUBMITTED) <= done:
        if load_acquire(control, STOP) != 0:
            return False
        spins += 1
        if spins < SPIN_PAUSES:
            m.pause()
        elif spins < SPIN_PAUSES + IDLE_YIELDS:
            m.yield_processor()
        else:
            fetch_add(control, SLEEPERS, 1)
            if load_acquire(control, SUBMITTED) <= done and load_acquire(control, STOP) == 0:
                m.sleep_until_signal(control[WAKE])
            fetch_add(control, SLEEPERS, -1)
            spins = 0
    return True


@kernel(boundscheck=False)
def copy_pages(w, thread, threads):
    """Copies whole pages of every cache plane; planes are shared out over threads."""
    count, pairs, stride, caches, planes = m.get_i32(w[2]), w[4], w[5], w[6], w[7]
    for plane in range(thread, planes, threads):
        base, nbytes = m.get_i64(caches + 16 * plane), m.get_i64(caches + 16 * plane + 8)
        for i in range(count):
            source, target = m.get_i32(pairs + i * stride), m.get_i32(pairs + i * stride + 4)
            m.copy_bytes(base + target * nbytes, base + source * nbytes, nbytes)


@kernel(boundscheck=False)
def run_rows(w, kind, first, last, scratch):
    """Operations that take a range of rows."""
    if kind == plan.NORMALISE:
        rows.normalise(w, first, last)
    elif kind == plan.ROTARY:
        rows.rotary(w, first, last, scratch)
    elif kind == plan.CACHE_WRITE:
        cache_write(w, first, last)
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


@kernel(boundscheck=False)
def run_program(control, entry, operations, thread, threads, generation, scratch):
    """Runs one queue entry; the barrier generation after it."""
    packed = m.get_i32(entry[LIVE_PACKED])
    lanes = m.get_i32(entry[LIVE_LANES])
    sampled = m.get_i32(entry[LIVE_SAMPLED])
    last = entry[FIRST] + entry[COUNT] - 1
    for i in range(entry[FIRST], last + 1):
        w = operations[i]
        kind, domain = w[0], w[1]
        live = packed if domain == plan.PACKED else lanes if domain == plan.LANES else sampled
        if kind == plan.PRODUCT:
            product(w, live, threads, control, CLAIM, scratch)
        elif kind == plan.ATTENTION:
            attention(w, lanes, control, CLAIM, scratch)
        elif kind == plan.ACTIVATION:
            rows.activation(w, live, thread, threads)
        elif kind == plan.COPY_PAGES:
            copy_pages(w, thread, threads)
        elif kind == plan.UPDATE_PAGE_TABLE:
            if thread == 0:
                rows.update_page_table(w)
        elif kind == plan.ADVANCE:
            if thread == 0:
                sampling.advance(w, lanes, sampled)
        else:
            run_rows(w, kind, live * thread // threads, live * (thread + 1) // threads, scratch)
        if w[plan.NEXT_FREE] == 0:
            barrier(control, threads, generation, i == last, entry[SEQUENCE])
            generation += 1
    return generation


@kernel(boundscheck=False)
def work(control, queue, operations, thread, scratch):
    """A thread's life: programs in submission order until STOP."""
    done = np.int64(0)
    generation = np.int64(0)
    threads = control[THREADS]
    while wait_for_work(control, done):
        generation = run_program(
            control, queue[done % QUEUE], operations, thread, threads, generation, scratch
        )
        done += 1


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
    fetch_add(control, SUBMITTED, 1)
    sleepers = load_acquire(control, SLEEPERS)
    if sleepers > 0:
        m.signal(control[WAKE], sleepers)
    return True
