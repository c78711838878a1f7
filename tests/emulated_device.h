// Runs the CUDA C++ of helios_dod/ignition/kernels/native on a processor: every thread is a fiber, and
// the instructions of instructions.cuh do what the PTX manual says. Copies into shared memory arrive as
// late as they may, and shared memory begins as NaN, so that a missing wait or barrier shows.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#define EMULATED
typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
struct alignas(16) Words { u32 x, y, z, w; };
typedef char* Shared;
struct Three { int x = 0, y = 0, z = 0; };

#define INLINE static inline
#define INLINE_MEMBER
#define KERNEL static
#define CLUSTER(n)
#define BOUNDS(threads, blocks)

struct Barrier {
    int size = 0, count = 0, turn = 0;
};
struct Block;
struct Warp {
    Barrier barrier;
    u32 given[32][8];
    const char* rows[32];
};
struct Copy { Shared to; const void* from; bool whole; };
struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    Three index;
    int lane = 0;
    Warp* warp = nullptr;
    Block* block = nullptr;
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> open;
    bool ended = false, waited = false;
};
struct Block {
    Three index;
    int rank = 0;
    std::vector<Block*>* cluster = nullptr;
    Barrier barrier, *together = nullptr;
    unsigned char* memory = nullptr;
    std::deque<Warp> warps;
    std::deque<Thread> threads;
};

static Thread* running;
static ucontext_t scheduler;
static const std::function<void()>* body;
#define threadIdx (running->index)
#define blockIdx (running->block->index)
#define block_memory (running->block->memory)

static void give_way() { swapcontext(&running->context, &scheduler); }
static void meet(Barrier& barrier) {
    const int turn = barrier.turn;
    if (++barrier.count == barrier.size) {
        barrier.count = 0;
        barrier.turn++;
    }
    while (barrier.turn == turn) give_way();
}

INLINE Shared shared_of(const void* p) { return (Shared)p; }
inline i64 clock_ns = 0;  // goes on by what a test sets before a call
INLINE i64 now_ns() { return clock_ns; }
INLINE void let_next_begin() {}
INLINE void wait_for_before() { running->waited = true; }
INLINE Words load_once(const void* p) { return *(const Words*)p; }
INLINE Words load_words(const void* p) {
    if (!running->waited) abort();  // what kernels before write is not there yet
    return *(const Words*)p;
}
INLINE void sync_warp() { meet(running->warp->barrier); }
INLINE void sync_block() { meet(running->block->barrier); }
INLINE void sync_cluster() { meet(*running->block->together); }
INLINE float as_float(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
INLINE u32 as_bits(float v) { u32 bits; memcpy(&bits, &v, 4); return bits; }
INLINE u32 rounded(float v) {
    const u32 bits = as_bits(v);
    if (v != v) return 0x7FC0;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
INLINE u32 pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
INLINE float power_of_two(float x) { return exp2f(x); }
INLINE float from_block(const float* own, int rank) {
    const Block& there = *(*running->block->cluster)[rank];
    return *(const float*)(there.memory + ((const unsigned char*)own - running->block->memory));
}
INLINE u32 exchanged(u32 v, int lane) {
    running->warp->given[running->lane][0] = v;
    sync_warp();
    const u32 found = running->warp->given[lane][0];
    sync_warp();
    return found;
}
INLINE float from_lane(float v, int mask) { return as_float(exchanged(as_bits(v), running->lane ^ mask)); }
INLINE int of_lane(int v, int lane) { return (int)exchanged((u32)v, lane); }

INLINE float half_of(u32 word, int which) { return as_float((which ? word >> 16 : word & 0xFFFF) << 16); }
INLINE void multiply_add(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32* given = running->warp->given[running->lane];
    const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(given, mine, sizeof mine);
    sync_warp();
    const int g = running->lane / 4, t = running->lane % 4;
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        double sum = 0;
        for (int k = 0; k < 16; k++) {
            const u32* a = running->warp->given[row % 8 * 4 + k % 8 / 2];
            const u32* b = running->warp->given[column * 4 + k % 8 / 2];
            sum += (double)half_of(a[row / 8 + k / 8 * 2], k % 2) * half_of(b[4 + k / 8], k % 2);
        }
        d[i] = (float)(d[i] + sum);
    }
    sync_warp();
}
INLINE Words load_transposed(Shared row) {
    running->warp->rows[running->lane] = row;
    sync_warp();
    const int g = running->lane / 4, t = running->lane % 4;
    u32 found[4];
    for (int m = 0; m < 4; m++) {
        u16 low, high;
        memcpy(&low, running->warp->rows[8 * m + 2 * t] + 2 * g, 2);
        memcpy(&high, running->warp->rows[8 * m + 2 * t + 1] + 2 * g, 2);
        found[m] = low | (u32)high << 16;
    }
    sync_warp();
    return Words{found[0], found[1], found[2], found[3]};
}
INLINE void copy_ahead(Shared to, const void* from, bool whole) {
    running->open.push_back({to, from, whole});
    memset(to, 0xFF, 16);
}
INLINE void end_group() {
    running->groups.push_back(std::move(running->open));
    running->open.clear();
}
template <int N> INLINE void wait_groups() {
    while (running->groups.size() > N) {
        for (const Copy& copy : running->groups.front()) {
            if (copy.whole) memcpy(copy.to, copy.from, 16);
            else memset(copy.to, 0, 16);
        }
        running->groups.pop_front();
    }
}

static void begin() {
    (*body)();
    running->ended = true;
    give_way();
}

// Runs every block of a grid, the `splits` blocks of a cluster along z beside each other.
static void emulate(Three grid, int threads, int splits, int shared_bytes, const std::function<void()>& kernel) {
    body = &kernel;
    for (int y = 0; y < grid.y; y++)
        for (int x = 0; x < grid.x; x++)
            for (int z = 0; z < grid.z; z += splits) {
                std::vector<Block*> cluster;
                std::deque<Block> blocks(splits);
                Barrier together;
                together.size = threads * splits;
                for (int rank = 0; rank < splits; rank++) {
                    Block& block = blocks[rank];
                    block.index.x = x, block.index.y = y, block.index.z = z + rank;
                    block.rank = rank, block.cluster = &cluster, block.together = &together;
                    block.barrier.size = threads;
                    block.memory = (unsigned char*)aligned_alloc(128, (shared_bytes + 127) / 128 * 128);
                    memset(block.memory, 0xFF, shared_bytes);
                    cluster.push_back(&block);
                    block.warps.resize(threads / 32);
                    block.threads.resize(threads);
                    for (int i = 0; i < threads; i++) {
                        Thread& thread = block.threads[i];
                        thread.index.x = i, thread.lane = i % 32, thread.block = &block;
                        thread.warp = &block.warps[i / 32];
                        thread.warp->barrier.size = 32;
                        thread.stack.resize(64 << 10);
                        getcontext(&thread.context);
                        thread.context.uc_stack.ss_sp = thread.stack.data();
                        thread.context.uc_stack.ss_size = thread.stack.size();
                        makecontext(&thread.context, begin, 0);
                    }
                }
                for (bool left = true; left;) {
                    left = false;
                    for (Block& block : blocks)
                        for (Thread& thread : block.threads)
                            if (!thread.ended) {
                                left = true;
                                running = &thread;
                                swapcontext(&scheduler, &thread.context);
                            }
                }
                for (Block& block : blocks) free(block.memory);
            }
}
