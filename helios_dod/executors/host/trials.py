"""What tuning graphs do beside products: they read the clock, and choose the fastest candidate."""

from helios_dod.executors.host import memory as m
from helios_dod.system import kernel

# Words of ChooseFastest after its kind and row domain.
C_MARKS, C_BEST, C_SELECTED, C_CANDIDATES, C_FIRST = 2, 4, 6, 8, 9
MARGIN = 32  # a later candidate is chosen where it is shorter by more than one part of so many


@kernel(boundscheck=False)
def mark_time(w):
    """Now, in nanoseconds."""
    m.put_i64(w[2], m.monotonic_ns())


@kernel(boundscheck=False)
def choose_fastest(w):
    """The shortest span of each candidate so far, and the number of the fastest."""
    marks, best = w[C_MARKS], w[C_BEST]
    for i in range(w[C_CANDIDATES]):
        span = max(m.get_i64(marks + 8 * (i + 1)) - m.get_i64(marks + 8 * i), 1)
        before = m.get_i64(best + 8 * i)
        if before == 0 or span < before:
            m.put_i64(best + 8 * i, span)
    chosen = 0
    for i in range(1, w[C_CANDIDATES]):
        if m.get_i64(best + 8 * i) * MARGIN < m.get_i64(best + 8 * chosen) * (MARGIN - 1):
            chosen = i
    m.put_i32(w[C_SELECTED], w[C_FIRST] + chosen)
