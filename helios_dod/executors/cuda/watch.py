"""The watcher: turns the word that the device writes into a readable eventfd, without the GIL."""

import numpy as np

from helios_dod.executors.host import memory as m
from helios_dod.system import kernel, load_acquire, store_release

LINE = 8  # words of a cache line
SUBMITTED, SEEN, ASLEEP, STOP, DONE = (LINE * i for i in range(5))
CONTROL_WORDS = LINE * 5
PATIENCE = 400_000  # pauses without progress before the driver is asked: some 20 ms


@kernel(boundscheck=False)
def follow(control, finished):
    """Signals every finished submission until all are, or until none finishes for long.

    Returns whether submissions are still unfinished."""
    waited = 0
    while True:
        seen = control[SEEN]
        now = load_acquire(finished, 0)
        if now > seen:
            store_release(control, SEEN, now)
            m.signal(control[DONE], np.int64(1))
            waited = 0
        elif now >= load_acquire(control, SUBMITTED):
            return False
        else:
            m.pause()
            waited += 1
            if waited > PATIENCE:
                return True
