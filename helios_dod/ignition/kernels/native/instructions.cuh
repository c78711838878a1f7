// The instructions of compute capability 9.0 that the kernels beside this use, each as a function, so
// that no header of a toolkit is needed. tests/emulated_device.h has the same functions for a processor.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

#ifndef EMULATED

struct __align__(16) Words { u32 x, y, z, w; };
typedef u32 Shared;  // an address in shared memory

#define INLINE static __device__ __forceinline__
#define INLINE_MEMBER __device__ __forceinline__
#define KERNEL extern "C" __global__
#define CLUSTER(n) __cluster_dims__(1, 1, n)
#define BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

extern __shared__ __align__(128) unsigned char block_memory[];

INLINE Shared shared_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Nanoseconds of a clock of the whole device.
INLINE i64 now_ns() {
    i64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
    return now;
}

INLINE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
INLINE void wait_for_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// 16 bytes that nothing writes while kernels run, and that are read once. Not .nc: the assembler moves
// such a load behind a wait.
INLINE Words load_once(const void* p) {
    Words v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
INLINE Words load_words(const void* p) {
    Words v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

// d += a (16 x 16, bf16) * b (16 x 8, bf16).
INLINE void multiply_add(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements, transposed; lane 8 i + r gives row r of matrix i.
INLINE Words load_transposed(Shared row) {
    Words v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(row) : "memory");
    return v;
}

// 16 bytes into shared memory, zeros unless `whole`.
INLINE void copy_ahead(Shared to, const void* from, bool whole) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(whole ? 16 : 0) : "memory");
}
INLINE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> INLINE void wait_groups() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

INLINE void sync_warp() { __syncwarp(); }
INLINE void sync_block() { __syncthreads(); }
INLINE void sync_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
INLINE float from_block(const float* own, int rank) {
    u32 there;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_of(own)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}
INLINE float from_lane(float v, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, v, mask); }
INLINE int of_lane(int v, int lane) { return __shfl_sync(0xFFFFFFFFu, v, lane); }

// Two floats rounded to bf16, the first in the low half.
INLINE u32 pack(float low, float high) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
INLINE float power_of_two(float x) {
    float v;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}
INLINE float as_float(u32 bits) { return __uint_as_float(bits); }

#endif

INLINE u16 to_bf16(float x) { return (u16)pack(x, 0.0f); }
INLINE float of_bf16(u16 bits) { return as_float((u32)bits << 16); }
