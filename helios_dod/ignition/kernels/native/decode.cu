// Decode attention: one query a lane, from the product of all heads to the attention's result.
//
// Each warp has its own pages of the history, every WARPS-th of its block's share, in a ring of DEPTH
// pages of shared memory that it copies ahead, the first of them before the kernels before have ended:
// pages before the new position are from earlier programs. Queries are the rows of the first matrix
// operand, so that a page's weights are the second product's operand as they lie. The block that has the
// new position stores its key and value, and counts it from shared memory. Warps, then the blocks of a
// cluster, which share one history, add their sums in order.
//
// Constants: HEADS, KEY_HEADS (at most 8 heads a key head), HEAD (16 to 128, a power of two), HALF, PAGE
// (16), WINDOW, INTERLEAVED, BIAS, NORM, PARTIALS, TOKENS, SPLITS (1 to 8), WARPS, DEPTH.
#include "instructions.cuh"

constexpr int GROUP = HEADS / KEY_HEADS;
constexpr int ROWS_OF_A = 8;  // queries that a matrix instruction keeps of its 16
constexpr int THREADS = 32 * WARPS;
constexpr int COLUMNS = (HEADS + 2 * KEY_HEADS) * HEAD;
constexpr int PLANE = HEAD * PAGE;         // elements of a head's page
constexpr int PIECES = PLANE / 8;          // of 16 bytes
constexpr int STAGE_BYTES = 2 * PLANE * 2;  // keys, then values
constexpr int RING_BYTES = WARPS * DEPTH * STAGE_BYTES;
constexpr int SUMS = ROWS_OF_A * (HEAD + 2);  // floats of a warp: values, tops, totals
constexpr int SUM_BYTES = WARPS * SUMS * 4;
constexpr int FRONT = RING_BYTES > SUM_BYTES ? RING_BYTES : SUM_BYTES;  // sums lie where pages were
constexpr float LEAST = -1.0e30f;  // below every score, and finite, so that differences are
constexpr float LOG2_E = 1.4426950408889634f;
static_assert(PAGE == 16 && GROUP <= ROWS_OF_A && HEAD % 16 == 0 && THREADS % HEAD == 0, "shape");

// Where 16 bytes of a row of `pieces` lie, so that the same piece of eight rows is in all banks.
template <int PIECES_OF_ROW> INLINE int placed(int row, int piece) {
    constexpr int span = PIECES_OF_ROW < 8 ? PIECES_OF_ROW : 8;
    return row * PIECES_OF_ROW + (piece ^ (row / (8 / span) % span));
}

struct Share {
    int first, begin, end;  // positions that are seen begin at `first`; the block's are begin .. end - 1
    bool newest;            // whether the new position is the block's
};

// The part of `where` positions, and of the new one, that a split counts, in whole pages.
INLINE Share share_of(int where, int split) {
    Share s;
    s.first = WINDOW > 0 && where >= WINDOW ? where - WINDOW + 1 : 0;
    const int start = s.first / PAGE * PAGE;
    const int each = ((where + 1 - start + SPLITS - 1) / SPLITS + PAGE - 1) / PAGE * PAGE;
    s.begin = start + split * each;
    s.end = s.begin + each < where ? s.begin + each : where;
    s.newest = where >= s.begin && where < s.begin + each;
    return s;
}

struct Pages {
    const int* table;  // of the lane
    const u16 *keys, *values;
    Share share;
    Shared ring;  // of the warp
    int key_head, first_page, count, held;

    // Copies page i of the warp's `count` ahead, one group of copies a page whether there is one or not.
    INLINE_MEMBER void ahead(int i, int lane) {
        if (i % 32 == 0) {
            const int mine = first_page + (i + lane) * WARPS;
            held = i + lane < count ? table[mine] : 0;
        }
        if (i < count) {
            const i64 plane = ((i64)of_lane(held, i % 32) * KEY_HEADS + key_head) * PLANE;
            const Shared to = ring + i % DEPTH * STAGE_BYTES;
            const int position = (first_page + i * WARPS) * PAGE;
#pragma unroll
            for (int piece = lane; piece < PIECES; piece += 32)
                copy_ahead(to + 16 * placed<2>(piece / 2, piece % 2), keys + plane + 8 * piece, true);
#pragma unroll
            for (int piece = lane; piece < PIECES; piece += 32) {
                const int row = piece / (HEAD / 8), at = position + row;
                copy_ahead(to + PLANE * 2 + 16 * placed<HEAD / 8>(row, piece % (HEAD / 8)),
                           values + plane + 8 * piece, at >= share.first && at < share.end);
            }
        }
        end_group();
    }
};

struct Sums {
    float top, total;  // of query g; total: of this lane's positions
    float acc[HEAD / 8][2];
};

// Adds a page in shared memory to the sums of its positions that are seen.
INLINE void attend(Sums& sums, const u32 (&query)[HEAD / 16][2], Shared page, const Share& share, int position,
                   float factor, int lane) {
    const int t = lane % 4, matrix = lane / 8, r = lane % 8;
    float score[2][4] = {};
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++) {
        const Words b = load_transposed(page + 16 * placed<2>(16 * k + matrix % 2 * 8 + r, matrix / 2));
        multiply_add(score[0], query[k][0], 0, query[k][1], 0, b.x, b.y);
        multiply_add(score[1], query[k][0], 0, query[k][1], 0, b.z, b.w);
    }
    bool seen[2][2];
    float higher = sums.top;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int at = position + 8 * half + 2 * t + j;
            seen[half][j] = at >= share.first && at < share.end;
            score[half][j] *= factor;
            higher = fmaxf(higher, seen[half][j] ? score[half][j] : LEAST);
        }
    }
    higher = fmaxf(higher, from_lane(higher, 1));
    higher = fmaxf(higher, from_lane(higher, 2));
    const float shrink = power_of_two(sums.top - higher);
    sums.top = higher;
    sums.total *= shrink;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            score[half][j] = seen[half][j] ? power_of_two(score[half][j] - higher) : 0.0f;
            sums.total += score[half][j];
        }
    }
    const u32 a0 = pack(score[0][0], score[0][1]), a2 = pack(score[1][0], score[1][1]);
#pragma unroll
    for (int j = 0; j < HEAD / 8; j += 2) {
        const Words b = load_transposed(
            page + PLANE * 2 + 16 * placed<HEAD / 8>(matrix % 2 * 8 + r, j + matrix / 2));
        float d[4] = {sums.acc[j][0] * shrink, sums.acc[j][1] * shrink, 0.0f, 0.0f};
        multiply_add(d, a0, 0, a2, 0, b.x, b.y);
        sums.acc[j][0] = d[0], sums.acc[j][1] = d[1];
        float e[4] = {sums.acc[j + 1][0] * shrink, sums.acc[j + 1][1] * shrink, 0.0f, 0.0f};
        multiply_add(e, a0, 0, a2, 0, b.z, b.w);
        sums.acc[j + 1][0] = e[0], sums.acc[j + 1][1] = e[1];
    }
}

INLINE float column_of(const float* partials, const float* bias, int lane, int column) {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < PARTIALS; part++)
        sum += partials[((i64)part * TOKENS + lane) * COLUMNS + column];
    return BIAS ? sum + bias[column] : sum;
}

// Lane i is row i. Grid: lanes, KEY_HEADS, SPLITS. partials: f32 [PARTIALS, TOKENS, COLUMNS]; keys: bf16
// [pages, KEY_HEADS, HEAD, PAGE]; values: bf16 [pages, KEY_HEADS, PAGE, HEAD]; output: bf16 [lanes, HEADS *
// HEAD]; table: [slots, stride] page numbers.
KERNEL void BOUNDS(THREADS, 1) CLUSTER(SPLITS)
decode_attention(const float* partials, const float* bias, const float* query_norm, const float* key_norm,
                        const float* frequencies, const int* position, const int* slot, const int* table,
                        u16* keys, u16* values, u16* output, const int* live, int stride, float epsilon,
                        float magnitude, float scale) {
    let_next_begin();
    const int row = blockIdx.x, key_head = blockIdx.y, split = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int where = position[row], lanes = live[0];
    const int* pages_of_lane = table + (i64)slot[row] * stride;
    if (row >= lanes) {
        wait_for_before();
        return;
    }
    float* raw = (float*)(block_memory + FRONT);  // f32 [GROUP + 1][HEAD]: queries and the new key
    float* factors = raw + (GROUP + 1) * HEAD;    // f32 [GROUP + 1], padded to 16
    u16* turned = (u16*)(factors + 16);           // bf16 [ROWS_OF_A + 1][HEAD]: rotated, the key last
    u16* newest = turned + (ROWS_OF_A + 1) * HEAD;  // bf16 [HEAD]: the new value
    const Share share = share_of(where, split);
    Pages pages;
    pages.table = pages_of_lane, pages.keys = keys, pages.values = values, pages.share = share;
    pages.ring = shared_of(block_memory) + warp * DEPTH * STAGE_BYTES;
    pages.key_head = key_head, pages.first_page = share.begin / PAGE + warp, pages.held = 0;
    const int left = share.end - pages.first_page * PAGE;  // positions from the warp's first page on
    pages.count = left > 0 ? (left + PAGE * WARPS - 1) / (PAGE * WARPS) : 0;
    const int d = threadIdx.x % HEAD;
    int partner = d;
    float cosine = 1.0f, sine = 0.0f;
    if (d < 2 * HALF) {
        const bool ahead = INTERLEAVED ? d % 2 == 0 : d < HALF;
        partner = INTERLEAVED ? d ^ 1 : ahead ? d + HALF : d - HALF;
        const float angle = (float)where * frequencies[INTERLEAVED ? d / 2 : ahead ? d : d - HALF];
        cosine = cosf(angle) * magnitude;
        sine = (ahead ? -sinf(angle) : sinf(angle)) * magnitude;
    }
    for (int i = 0; i < DEPTH; i++) pages.ahead(i, lane);
    const i64 newest_page = (i64)pages_of_lane[where / PAGE] * KEY_HEADS + key_head;
    for (int i = threadIdx.x; i < (ROWS_OF_A - GROUP) * HEAD; i += THREADS) turned[GROUP * HEAD + i] = 0;
    wait_for_before();
    for (int head = threadIdx.x / HEAD; head <= GROUP; head += THREADS / HEAD)
        raw[head * HEAD + d] = column_of(
            partials, bias, row, (head < GROUP ? key_head * GROUP + head : HEADS + key_head) * HEAD + d);
    if (share.newest && threadIdx.x < HEAD)
        newest[d] = to_bf16(column_of(partials, bias, row, (HEADS + KEY_HEADS + key_head) * HEAD + d));
    sync_block();
    if (NORM) {
        for (int head = warp; head <= GROUP; head += WARPS) {
            float squares = 0.0f;
            for (int i = lane; i < HEAD; i += 32) squares += raw[head * HEAD + i] * raw[head * HEAD + i];
            for (int mask = 16; mask; mask /= 2) squares += from_lane(squares, mask);
            if (lane == 0) factors[head] = 1.0f / sqrtf(squares / HEAD + epsilon);
        }
        sync_block();
    }
    for (int head = threadIdx.x / HEAD; head <= GROUP; head += THREADS / HEAD) {
        float own = raw[head * HEAD + d], other = raw[head * HEAD + partner];
        if (NORM) {
            const float* weight = head < GROUP ? query_norm : key_norm;
            own *= factors[head] * weight[d];
            other *= factors[head] * weight[partner];
        }
        turned[(head < GROUP ? head : ROWS_OF_A) * HEAD + d] = to_bf16(own * cosine + sine * other);
    }
    sync_block();
    if (share.newest && threadIdx.x < HEAD) {
        keys[newest_page * PLANE + d * PAGE + where % PAGE] = turned[ROWS_OF_A * HEAD + d];
        values[newest_page * PLANE + where % PAGE * HEAD + d] = newest[d];
    }
    const float factor = scale * LOG2_E;
    u32 query[HEAD / 16][2];
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++) {
        query[k][0] = *(const u32*)(turned + g * HEAD + 16 * k + 2 * t);
        query[k][1] = *(const u32*)(turned + g * HEAD + 16 * k + 8 + 2 * t);
    }
    Sums sums = {LEAST, 0.0f, {}};
    if (share.newest && warp == 0) {
        float dot = 0.0f;
        for (int i = t; i < HEAD; i += 4)
            dot += of_bf16(turned[g * HEAD + i]) * of_bf16(turned[ROWS_OF_A * HEAD + i]);
        dot += from_lane(dot, 1);
        dot += from_lane(dot, 2);
        sums.top = dot * factor;
        sums.total = t == 0 ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < HEAD / 8; j++) {
            sums.acc[j][0] = of_bf16(newest[8 * j + 2 * t]);
            sums.acc[j][1] = of_bf16(newest[8 * j + 2 * t + 1]);
        }
    }
    for (int i = 0; i < pages.count; i++) {
        wait_groups<DEPTH - 1>();
        sync_warp();
        attend(sums, query, pages.ring + i % DEPTH * STAGE_BYTES, share,
               (pages.first_page + i * WARPS) * PAGE, factor, lane);
        sync_warp();
        pages.ahead(i + DEPTH, lane);
    }
    wait_groups<0>();
    sums.total += from_lane(sums.total, 1);
    sums.total += from_lane(sums.total, 2);
    sync_block();
    float* kept = (float*)block_memory;  // [WARPS][SUMS]: values [ROWS_OF_A][HEAD], tops, totals
    float* own = kept + warp * SUMS;
#pragma unroll
    for (int j = 0; j < HEAD / 8; j++) {
        own[g * HEAD + 8 * j + 2 * t] = sums.acc[j][0];
        own[g * HEAD + 8 * j + 2 * t + 1] = sums.acc[j][1];
    }
    if (t == 0) {
        own[ROWS_OF_A * HEAD + g] = sums.top;
        own[ROWS_OF_A * HEAD + ROWS_OF_A + g] = sums.total;
    }
    sync_block();
    // Each thread adds the warps of its own places, so its block's sums can lie where the first warp's were.
    for (int head = threadIdx.x / HEAD; head < GROUP; head += THREADS / HEAD) {
        float top = LEAST, total = 0.0f, value = 0.0f;
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, kept[w * SUMS + ROWS_OF_A * HEAD + head]);
        for (int w = 0; w < WARPS; w++) {
            const float* one = kept + w * SUMS;
            const float weight = power_of_two(one[ROWS_OF_A * HEAD + head] - top);
            total += weight * one[ROWS_OF_A * HEAD + ROWS_OF_A + head];
            value += weight * one[head * HEAD + d];
        }
        if (SPLITS == 1) {
            output[((i64)row * HEADS + key_head * GROUP + head) * HEAD + d] = to_bf16(value / total);
        } else {
            raw[head * HEAD + d] = value;
            if (d == 0) factors[head] = top;
            if (d == 0) factors[8 + head] = total;
        }
    }
    if (SPLITS == 1) return;
    sync_cluster();
    for (int i = split * THREADS + threadIdx.x; i < GROUP * HEAD; i += SPLITS * THREADS) {
        float top = LEAST, total = 0.0f, value = 0.0f, tops[SPLITS];
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            tops[s] = from_block(factors + i / HEAD, s);
            top = fmaxf(top, tops[s]);
        }
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            const float weight = power_of_two(tops[s] - top);
            total += weight * from_block(factors + 8 + i / HEAD, s);
            value += weight * from_block(raw + i, s);
        }
        output[((i64)row * HEADS + key_head * GROUP) * HEAD + i] = to_bf16(value / total);
    }
    sync_cluster();
}
