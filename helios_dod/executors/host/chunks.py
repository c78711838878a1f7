"""How threads share a step: chunks claimed from one word, and a step that ends with its last chunk.

The word holds the step's number and its next chunk, so a claim by compare-exchange fails for a
thread that is behind. A step is over when its chunks are done, whoever did them: a thread that
lost its processor between two chunks holds nobody up, and catches up when it comes back.
"""

from helios_dod.system import compare_exchange, kernel, load_acquire

LINE = 8  # words of a cache line
CLAIM = 0  # control word: step number << SHIFT | next chunk
SHIFT = 20
MASK = (1 << SHIFT) - 1  # chunks of a step at most


@kernel(boundscheck=False)
def next_chunk(control, step, total):
    """A chunk of the step to run, or -1: none is left, or others have gone on."""
    while True:
        word = load_acquire(control, CLAIM)
        chunk = word & MASK
        if word >> SHIFT != step or chunk >= total:
            return -1
        if compare_exchange(control, CLAIM, word, word + 1):
            return chunk
