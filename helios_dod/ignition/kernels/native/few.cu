// Products of few tokens: weights stream from memory into the registers that the matrix units read.
//
// A warp multiplies 16 rows of a weight with all tokens over its share of the columns; the warps of a
// block share the columns of its split and add their sums in order. A lane reads 16 bytes of a row at
// once, which holds columns of two matrix instructions: any order of columns will do, as long as the
// tokens' values are read in the same one. The first weights are read before the kernels before have
// ended. Of a gated product 8 rows are a gate's and 8 its partners'.
//
// Constants: ROWS, COLUMNS (a multiple of 32 * SPLITS), TOKENS (1 to 16), GATED, SPLITS (1 where gated),
// WARPS, DEPTH (steps in flight), BLOCKS.
#include "instructions.cuh"

constexpr int STEP = 32;  // columns
constexpr int TILE = 16;  // rows
constexpr int KEPT = GATED ? TILE / 2 : TILE;  // rows of the result
constexpr int STEPS = COLUMNS / STEP / SPLITS;
constexpr int EIGHTS = (TOKENS + 7) / 8;
constexpr int PADDED = TILE + 4;  // floats of a token's sums in shared memory
constexpr int TURNS = (STEPS + WARPS - 1) / WARPS;  // steps of a warp
constexpr int FLIGHT = DEPTH < TURNS ? DEPTH : TURNS;
static_assert(COLUMNS % (STEP * SPLITS) == 0 && !(GATED && SPLITS > 1), "shape");

struct Step {
    Words low, high;       // rows g and g + 8 of the tile
    Words values[EIGHTS];  // token g of each eight
};

INLINE float silu(float x) { return x / (1.0f + expf(-x)); }

// weight: bf16 [ROWS, COLUMNS], or where gated [2 * ROWS, COLUMNS]; x: bf16 [TOKENS, COLUMNS]; out: f32
// [SPLITS, TOKENS, ROWS], or where gated bf16 silu(gate) * up. Grid: blocks of KEPT rows, SPLITS.
KERNEL void BOUNDS(32 * WARPS, BLOCKS)
few_product(const u16* weight, const u16* x, void* out, const int* live) {
    let_next_begin();
    float* sums = (float*)block_memory;  // [WARPS][8 * EIGHTS][PADDED]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int first = blockIdx.x * KEPT, split = blockIdx.y;
    const int low = first + g < ROWS ? first + g : ROWS - 1;
    const int high = GATED ? ROWS + low : first + g + 8 < ROWS ? first + g + 8 : ROWS - 1;
    // Step i of a warp is number i * WARPS + warp of its split's, so that warps read what lies together.
    const int column = (split * STEPS + warp) * STEP + 8 * t;
    const u16* lows = weight + (i64)low * COLUMNS + column;
    const u16* highs = weight + (i64)high * COLUMNS + column;
    const u16* token = x + (i64)g * COLUMNS + column;
    const int mine = STEPS % WARPS == 0 ? TURNS : (STEPS - warp + WARPS - 1) / WARPS;
    Step ring[FLIGHT];
    auto weights = [&](Step& step, int i) {
        step.low = load_once(lows + i * (WARPS * STEP));
        step.high = load_once(highs + i * (WARPS * STEP));
    };
    auto values = [&](Step& step, int i) {
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            step.values[e] = Words{0, 0, 0, 0};
            if (8 * e + g < TOKENS)
                step.values[e] = load_words(token + (i64)e * 8 * COLUMNS + i * (WARPS * STEP));
        }
    };
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
        if (i < mine) weights(ring[i], i);
    wait_for_before();
    const int alive = *live;
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
        if (i < mine) values(ring[i], i);
    float acc[EIGHTS][4] = {};
    for (int base = 0; base < TURNS; base += FLIGHT) {
        if (base > 0 && alive == 0) return;  // the count has arrived by then
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            if (base + i >= mine) continue;
            Step& step = ring[i];
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                const Words a = step.low, b = step.high, v = step.values[e];
                multiply_add(acc[e], a.x, b.x, a.y, b.y, v.x, v.y);
                multiply_add(acc[e], a.z, b.z, a.w, b.w, v.z, v.w);
            }
            if (base + i + FLIGHT < mine) {
                weights(step, base + i + FLIGHT);
                values(step, base + i + FLIGHT);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        float* to = sums + (warp * EIGHTS + e) * 8 * PADDED + 2 * t * PADDED + g;
        to[0] = acc[e][0];
        to[PADDED] = acc[e][1];
        to[8] = acc[e][2];
        to[PADDED + 8] = acc[e][3];
    }
    sync_block();
    for (int i = threadIdx.x; i < KEPT * TOKENS; i += 32 * WARPS) {
        const int n = i / KEPT, r = i % KEPT;
        float sum = 0.0f, partner = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float* one = sums + (w * EIGHTS * 8 + n) * PADDED + r;
            sum += one[0];
            if (GATED) partner += one[8];
        }
        if (first + r < ROWS) {
            if (GATED)
                ((u16*)out)[(i64)n * ROWS + first + r] = to_bf16(silu(sum) * partner);
            else
                ((float*)out)[((i64)split * TOKENS + n) * ROWS + first + r] = sum;
        }
    }
}
