// What a kernel may use of its machine: the only file that knows whether NVRTC compiles for a GPU or g++ for the emulator.
//
// Global memory is named by 64-bit addresses and touched only through the functions here, so that order, scope and width
// of every access are written down. An access has one of these orders:
//   weak      ordered by barriers within the block and by fences beyond it; for bulk data
//   relaxed   seen by other GPUs and the host, in no order to others
//   acquire / release   of system scope unless the name says otherwise
// On the GPU functions are inlined, by force: what a caller holds across a call would go to a stack frame.
#pragma once

#ifdef __CUDACC_RTC__  // ---------------------------------------------------------------------------------------- GPU

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;

#define FN static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define ALIGNED(n) alignas(n)
#define UNROLLED _Pragma("unroll")
#define NOT_UNROLLED _Pragma("unroll 1")
// Two blocks of 512 threads per SM: at most 64 registers.
#define KERNEL(name, Argument) KERNEL_OF(name, Argument, 512)
#define KERNEL_OF(name, Argument, threads) \
  extern "C" __global__ void __launch_bounds__(threads, 2) name(const __grid_constant__ Argument work)

FN uint32_t block_id() { return blockIdx.x; }
FN uint32_t grid_size() { return gridDim.x; }
FN uint32_t tid() { return threadIdx.x; }
FN uint32_t nthreads() { return blockDim.x; }
constexpr uint32_t WARP = 32;
FN void barrier() { __syncthreads(); }
// Not the aligned form: lanes may come from a spin loop one by one.
FN void barrier(uint32_t id, uint32_t count) { asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(count) : "memory"); }
FN void relax() {}
// Failed spins between two looks at the abort words, which cost more than a microsecond each.
constexpr uint32_t POLL_SPINS = 1 << 13;

template <class T>
FN T& shared() {
  __shared__ T instance;
  return instance;
}

// Whether this thread of the block is the first to come.
FN bool claim_shared(uint32_t* word) { return atomicExch(word, 1u) == 0; }

FN uint32_t float_bits(float f) { return __float_as_uint(f); }
FN float bits_float(uint32_t b) { return __uint_as_float(b); }
FN uint64_t double_bits(double d) { return (uint64_t)__double_as_longlong(d); }
FN double bits_double(uint64_t b) { return __longlong_as_double((long long)b); }
// The hardware's NaN after an f32 operation is this one already.
FN float canonical(float f) { return f; }

FN void load16(uint64_t p, uint32_t (&v)[4]) {
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
}
// Of a generic address.
FN void load16_anywhere(uint64_t p, uint32_t (&v)[4]) {
  asm volatile("ld.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
}
// Bypasses L1: for memory that others write while the kernel runs, after an acquire.
FN void load16_shared(uint64_t p, uint32_t (&v)[4]) {
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
}
FN void store16(uint64_t p, const uint32_t (&v)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]));
}
// LL: relaxed; each 8-byte half is single-copy atomic.
FN void load_line(uint64_t p, uint32_t (&v)[4]) {
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
}
FN void store_line(uint64_t p, const uint32_t (&v)[4]) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]));
}

FN uint64_t load_weak8(uint64_t p) {
  uint64_t v;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}
FN uint64_t load_weak8_shared(uint64_t p) {
  uint64_t v;
  asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}
FN uint32_t load_weak4(uint64_t p) {
  uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
FN uint32_t load_weak2(uint64_t p) {
  uint16_t v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
FN uint32_t load_weak1(uint64_t p) {
  uint32_t v;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
FN void store_weak8(uint64_t p, uint64_t v) { asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(v)); }
FN void store_weak4(uint64_t p, uint32_t v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v)); }
FN void store_weak2(uint64_t p, uint32_t v) { asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"((uint16_t)v)); }
FN void store_weak1(uint64_t p, uint32_t v) { asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(v)); }

FN uint32_t load_relaxed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
FN uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
FN void store_relaxed(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
FN void store_relaxed(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
FN void store_release(uint32_t* p, uint32_t v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// Of device scope: for the rank's own kernels.
FN void store_release_device(uint32_t* p, uint32_t v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// Says that loads are done. Their values have been used when the block's barrier lets the storing thread go on, and
// a GPU starts no store before that; a release would wait for the block's stores too, which nobody asked for.
FN void store_ack(uint32_t* p, uint32_t v) { store_relaxed(p, v); }
FN uint32_t exchange_acquire_device(uint32_t* p, uint32_t v) {
  uint32_t old;
  asm volatile("atom.acquire.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
FN uint32_t compare_exchange_device(uint32_t* p, uint32_t expected, uint32_t v) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(expected), "r"(v) : "memory");
  return old;
}
FN uint32_t add_relaxed_device(uint32_t* p, uint32_t v) {
  uint32_t old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
// Everything this thread has done or seen before comes, for everybody, before what it does after.
FN void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Conversions of the hardware where their bits are those of types.h's portable code.
#define HARDWARE_HALF 1
FN float half_to_float_hw(uint32_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)h));
  return f;
}
FN uint32_t floats_to_halves_hw(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
FN uint32_t floats_to_bfloats_hw(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

#if __CUDA_ARCH__ >= 890
#define HARDWARE_FP8 1
// Two elements in the low half of a word, to an f16x2.
FN uint32_t e4m3_to_halves_hw(uint32_t v) {
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)v));
  return r;
}
FN uint32_t floats_to_e4m3_hw(float low, float high) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
FN uint32_t floats_to_e5m2_hw(float low, float high) {
  uint16_t r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
#endif

#else  // ------------------------------------------------------------------------------------------------- emulator

#include "emulator.h"

#define FN static inline
#define METHOD inline
#define ALIGNED(n) alignas(n)
#define UNROLLED
#define NOT_UNROLLED
#define KERNEL_OF(name, Argument, threads) KERNEL(name, Argument)
#define KERNEL(name, Argument)                                                        \
  static void name##_body(const Argument& work);                                      \
  static void name(const void* argument) { name##_body(*(const Argument*)argument); } \
  static void name##_body(const Argument& work)

FN uint32_t block_id() { return emu_block_id(); }
FN uint32_t grid_size() { return emu_grid_size(); }
FN uint32_t tid() { return emu_thread_id(); }
FN uint32_t nthreads() { return emu_block_size(); }
constexpr uint32_t WARP = 1;
FN void barrier() { emu_barrier(0, emu_block_size()); }
FN void barrier(uint32_t id, uint32_t count) { emu_barrier(id, count); }
FN void relax() { emu_relax(); }
constexpr uint32_t POLL_SPINS = 64;

template <class T>
FN T& shared() {
  return *(T*)emu_shared();
}

FN bool claim_shared(uint32_t* word) {
  bool first = *word == 0;
  *word = 1;
  return first;
}

template <class To, class From>
FN To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
FN uint32_t float_bits(float f) { return bits_of<uint32_t>(f); }
FN float bits_float(uint32_t b) { return bits_of<float>(b); }
FN uint64_t double_bits(double d) { return bits_of<uint64_t>(d); }
FN double bits_double(uint64_t b) { return bits_of<double>(b); }
FN float canonical(float f) { return f == f ? f : bits_float(0x7fffffff); }

template <class T>
FN T emu_get(uint64_t p, int model, uint32_t order) {
  T v;
  if (emu_weak_memory) {
    emu_load((const void*)p, &v, sizeof v, order);
  } else if (model == __ATOMIC_ACQUIRE) {
    v = __atomic_load_n((const T*)p, __ATOMIC_ACQUIRE);
  } else {
    v = __atomic_load_n((const T*)p, __ATOMIC_RELAXED);
  }
  return v;
}
template <class T>
FN void emu_put(uint64_t p, T v, int model, uint32_t order) {
  if (emu_weak_memory) {
    emu_store((void*)p, &v, sizeof v, order);
  } else if (model == __ATOMIC_RELEASE) {
    __atomic_store_n((T*)p, v, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n((T*)p, v, __ATOMIC_RELAXED);
  }
}

FN void load_halves(uint64_t p, uint32_t (&v)[4], uint32_t order) {
  for (uint32_t i = 0; i < 4; i += 2) {
    uint64_t half = emu_get<uint64_t>(p + 4 * i, __ATOMIC_RELAXED, order);
    v[i] = (uint32_t)half;
    v[i + 1] = (uint32_t)(half >> 32);
  }
}
FN void store_halves(uint64_t p, const uint32_t (&v)[4], uint32_t order) {
  for (uint32_t i = 0; i < 4; i += 2) {
    emu_put<uint64_t>(p + 4 * i, v[i] | (uint64_t)v[i + 1] << 32, __ATOMIC_RELAXED, order);
  }
}
FN void load16(uint64_t p, uint32_t (&v)[4]) { load_halves(p, v, EMU_WEAK); }
FN void load16_anywhere(uint64_t p, uint32_t (&v)[4]) { load_halves(p, v, EMU_WEAK); }
FN void load16_shared(uint64_t p, uint32_t (&v)[4]) { load_halves(p, v, EMU_WEAK); }
FN void store16(uint64_t p, const uint32_t (&v)[4]) { store_halves(p, v, EMU_WEAK); }
FN void load_line(uint64_t p, uint32_t (&v)[4]) { load_halves(p, v, EMU_RELAXED); }
FN void store_line(uint64_t p, const uint32_t (&v)[4]) { store_halves(p, v, EMU_RELAXED); }
FN uint64_t load_weak8(uint64_t p) { return emu_get<uint64_t>(p, __ATOMIC_RELAXED, EMU_WEAK); }
FN uint64_t load_weak8_shared(uint64_t p) { return load_weak8(p); }
FN uint32_t load_weak4(uint64_t p) { return emu_get<uint32_t>(p, __ATOMIC_RELAXED, EMU_WEAK); }
FN uint32_t load_weak2(uint64_t p) { return emu_get<uint16_t>(p, __ATOMIC_RELAXED, EMU_WEAK); }
FN uint32_t load_weak1(uint64_t p) { return emu_get<uint8_t>(p, __ATOMIC_RELAXED, EMU_WEAK); }
FN void store_weak8(uint64_t p, uint64_t v) { emu_put<uint64_t>(p, v, __ATOMIC_RELAXED, EMU_WEAK); }
FN void store_weak4(uint64_t p, uint32_t v) { emu_put<uint32_t>(p, v, __ATOMIC_RELAXED, EMU_WEAK); }
FN void store_weak2(uint64_t p, uint32_t v) { emu_put<uint16_t>(p, (uint16_t)v, __ATOMIC_RELAXED, EMU_WEAK); }
FN void store_weak1(uint64_t p, uint32_t v) { emu_put<uint8_t>(p, (uint8_t)v, __ATOMIC_RELAXED, EMU_WEAK); }
FN uint32_t load_relaxed(const uint32_t* p) { return emu_get<uint32_t>((uint64_t)p, __ATOMIC_RELAXED, EMU_RELAXED); }
FN uint32_t load_acquire(const uint32_t* p) { return emu_get<uint32_t>((uint64_t)p, __ATOMIC_ACQUIRE, EMU_ACQ_REL); }
FN void store_relaxed(uint32_t* p, uint32_t v) { emu_put<uint32_t>((uint64_t)p, v, __ATOMIC_RELAXED, EMU_RELAXED); }
FN void store_relaxed(uint64_t* p, uint64_t v) { emu_put<uint64_t>((uint64_t)p, v, __ATOMIC_RELAXED, EMU_RELAXED); }
FN void store_release(uint32_t* p, uint32_t v) { emu_put<uint32_t>((uint64_t)p, v, __ATOMIC_RELEASE, EMU_ACQ_REL); }
FN void store_release_device(uint32_t* p, uint32_t v) { store_release(p, v); }
// The compiler may not move the loads behind it; the weak-memory mode does not delay loads.
FN void store_ack(uint32_t* p, uint32_t v) { emu_put<uint32_t>((uint64_t)p, v, __ATOMIC_RELEASE, EMU_RELAXED); }
FN uint32_t exchange_acquire_device(uint32_t* p, uint32_t v) {
  uint32_t old = emu_exchange(p, v);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return old;
}
FN uint32_t compare_exchange_device(uint32_t* p, uint32_t expected, uint32_t v) { return emu_compare_exchange(p, expected, v); }
FN uint32_t add_relaxed_device(uint32_t* p, uint32_t v) { return emu_add(p, v); }
FN void fence() { emu_fence(); }

#endif

// One step of a reduction or copy works on a pack: 8 bytes (an LL line) or 16.
template <uint32_t W>
struct Pack {
  uint32_t w[W];
};

// Packs in pieces of the widest size that address and length allow.
FN Pack<4> load_pieces(uint64_t p, uint32_t bytes) {
  uint32_t bits = (uint32_t)p | bytes, piece = bits & 1 ? 1 : bits & 2 ? 2 : 4;
  uint64_t low = 0, high = 0;
  NOT_UNROLLED
  for (uint32_t at = 0; at < bytes; at += piece) {
    uint64_t x = piece == 4 ? load_weak4(p + at) : piece == 2 ? load_weak2(p + at) : load_weak1(p + at);
    x <<= 8 * (at & 7);
    if (at < 8) {
      low |= x;
    } else {
      high |= x;
    }
  }
  return {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
}

FN void store_pieces(uint64_t p, uint32_t bytes, Pack<4> v) {
  uint32_t bits = (uint32_t)p | bytes, piece = bits & 1 ? 1 : bits & 2 ? 2 : 4;
  uint64_t low = v.w[0] | (uint64_t)v.w[1] << 32, high = v.w[2] | (uint64_t)v.w[3] << 32;
  NOT_UNROLLED
  for (uint32_t at = 0; at < bytes; at += piece) {
    uint32_t x = (uint32_t)((at < 8 ? low : high) >> (8 * (at & 7)));
    if (piece == 4) {
      store_weak4(p + at, x);
    } else if (piece == 2) {
      store_weak2(p + at, x);
    } else {
      store_weak1(p + at, x);
    }
  }
}

template <uint32_t W>
FN bool is_whole(uint64_t p, uint64_t bytes) {
  return bytes >= 4 * W && !(p & (4 * W - 1));
}

FN Pack<2> load_whole(uint64_t p, Pack<2>) {
  uint64_t x = load_weak8(p);
  return {{(uint32_t)x, (uint32_t)(x >> 32)}};
}
FN Pack<4> load_whole(uint64_t p, Pack<4> v) {
  load16(p, v.w);
  return v;
}
FN void store_whole(uint64_t p, const Pack<2>& v) { store_weak8(p, v.w[0] | (uint64_t)v.w[1] << 32); }
FN void store_whole(uint64_t p, const Pack<4>& v) { store16(p, v.w); }

// An aligned pack of a slot: written by others, after an acquire.
FN Pack<2> load_slot(uint64_t p, Pack<2>) {
  uint64_t x = load_weak8_shared(p);
  return {{(uint32_t)x, (uint32_t)(x >> 32)}};
}
FN Pack<4> load_slot(uint64_t p, Pack<4> v) {
  load16_shared(p, v.w);
  return v;
}

// At most `bytes` (a multiple of the element size) of the user's memory from `p` on; the rest of the pack is 0.
template <uint32_t W>
FN Pack<W> load_pack(uint64_t p, uint64_t bytes) {
  if (is_whole<W>(p, bytes)) return load_whole(p, Pack<W>{});
  Pack<4> v = load_pieces(p, bytes < 4 * W ? (uint32_t)bytes : 4 * W);
  if constexpr (W == 4) {
    return v;
  } else {
    return {{v.w[0], v.w[1]}};
  }
}

template <uint32_t W>
FN void store_pack(uint64_t p, uint64_t bytes, const Pack<W>& v) {
  if (is_whole<W>(p, bytes)) return store_whole(p, v);
  Pack<4> wide = {};
  UNROLLED
  for (uint32_t i = 0; i < W; i++) wide.w[i] = v.w[i];
  store_pieces(p, bytes < 4 * W ? (uint32_t)bytes : 4 * W, wide);
}
