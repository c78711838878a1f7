// Tuning graphs: the time between candidates, and the fastest of them. One thread.
#include "instructions.cuh"

constexpr i64 MARGIN = 32;  // a later candidate is chosen where it is shorter by more than one part of so many

// marks[place] = now; live[0] = rows, which the candidates behind it run over.
KERNEL void BOUNDS(32, 1)
mark_time(i64* marks, int place, int* live, int rows) {
    if (threadIdx.x == 0) {
        live[0] = rows;
        marks[place] = now_ns();
    }
}

// Candidate i ran between marks i and i + 1: best[i] becomes its shortest span so far (0: none yet), and
// selected[0] the number of the fastest.
KERNEL void BOUNDS(32, 1)
choose_fastest(const i64* marks, i64* best, int* selected, int candidates) {
    if (threadIdx.x != 0) return;
    int chosen = 0;
    for (int i = 0; i < candidates; i++) {
        i64 span = marks[i + 1] - marks[i];
        if (span < 1) span = 1;
        if (best[i] == 0 || span < best[i]) best[i] = span;
        if (best[i] * MARGIN < best[chosen] * (MARGIN - 1)) chosen = i;
    }
    selected[0] = chosen;
}
