// Reduction of packs, rank by rank.
//
// Contributions are taken in rank order. f16, bf16 and fp8 are added up in f32 and rounded once; f32 and f64 in themselves;
// integers wrap. `avg`: each float contribution is multiplied by 1/nranks in the type it is added up in, before it is
// added; integers are divided after, towards zero. `max` and `min`: a NaN makes the result NaN, and -0 < +0. The scaled sum
// (OP_PREMUL_SUM): `prepare` multiplies a rank's contribution by its scalar in f32 (f64, integer) and rounds it to the
// element type before it leaves the rank; the owner's contribution goes the same way.
//
// An `Arith` has: Accumulator<W>, PREPARES, GROUP (LL lines asked for at a time), WIDTH and UNROLL (words of a Simple pack, and packs
// reduced at a time), prepare(), add(), finish().
#pragma once

#include "types.h"
#include "work.h"

// For operations that only move bytes.
struct NoArith {
  static constexpr bool PREPARES = false;
  static constexpr uint32_t WIDTH = 4;
  static constexpr uint32_t UNROLL = 4;
  METHOD explicit NoArith(const CollectiveWork&) {}
  template <uint32_t W>
  METHOD Pack<W> prepare(const Pack<W>& v) const {
    return v;
  }
};

// Sum of a type that is added up in f32, without a switch.
template <class T>
struct FloatSum {
  static constexpr bool PREPARES = false;
  static constexpr uint32_t GROUP = 4;
  static constexpr uint32_t WIDTH = 4;
  static constexpr uint32_t UNROLL = T::PER_WORD == 1 ? 4 : 2;
  template <uint32_t W>
  struct Accumulator {
    float f[T::PER_WORD * W];
  };

  METHOD explicit FloatSum(const CollectiveWork&) {}
  template <uint32_t W>
  METHOD Pack<W> prepare(const Pack<W>& v) const {
    return v;
  }
  template <uint32_t W>
  METHOD void add(Accumulator<W>& a, const Pack<W>& v, bool first) const {
    float x[T::PER_WORD * W];
  UNROLLED
    for (uint32_t i = 0; i < W; i++) T::read(v.w[i], x + i * T::PER_WORD);
  UNROLLED
    for (uint32_t i = 0; i < T::PER_WORD * W; i++) a.f[i] = first ? x[i] : a.f[i] + x[i];
  }
  template <uint32_t W>
  METHOD Pack<W> finish(const Accumulator<W>& a) const {
    Pack<W> v;
  UNROLLED
    for (uint32_t i = 0; i < W; i++) v.w[i] = T::write(a.f + i * T::PER_WORD);
    return v;
  }
};

// f32, max: bits of the result where the operands compare equal (zeros of both signs) or one is NaN are not left to the machine.
FN float larger(float a, float b) {
  if (a != a || b != b) return bits_float(0x7fffffff);
  if (a == b) return bits_float(float_bits(a) & float_bits(b));
  return a > b ? a : b;
}
FN float smaller(float a, float b) {
  if (a != a || b != b) return bits_float(0x7fffffff);
  if (a == b) return bits_float(float_bits(a) | float_bits(b));
  return a < b ? a : b;
}
FN double larger(double a, double b) {
  if (a != a || b != b) return bits_double(0x7fffffffffffffffull);
  if (a == b) return bits_double(double_bits(a) & double_bits(b));
  return a > b ? a : b;
}
FN double smaller(double a, double b) {
  if (a != a || b != b) return bits_double(0x7fffffffffffffffull);
  if (a == b) return bits_double(double_bits(a) | double_bits(b));
  return a < b ? a : b;
}

// Elements of an integer or f64 type in a pack's words. `Wide` is the unsigned type that wraps without overflowing.
template <class T, class Wide>
struct Words {
  static constexpr uint32_t SIZE = sizeof(T);
  METHOD static T get(const uint32_t* w, uint32_t i) {
    if constexpr (SIZE == 8) {
      return (T)(w[2 * i] | (uint64_t)w[2 * i + 1] << 32);
    } else if constexpr (SIZE == 4) {
      return (T)w[i];
    } else {
      return (T)(w[i / 4] >> (8 * (i % 4)));
    }
  }
  METHOD static void put(uint32_t* w, uint32_t i, T v) {
    if constexpr (SIZE == 8) {
      w[2 * i] = (uint32_t)(uint64_t)v;
      w[2 * i + 1] = (uint32_t)((uint64_t)v >> 32);
    } else if constexpr (SIZE == 4) {
      w[i] = (uint32_t)v;
    } else {
      uint32_t shift = 8 * (i % 4);
      w[i / 4] = (w[i / 4] & ~(0xffu << shift)) | (uint32_t)(uint8_t)v << shift;
    }
  }
  METHOD static T sum(T a, T b) { return (T)((Wide)a + (Wide)b); }
  METHOD static T product(T a, T b) { return (T)((Wide)a * (Wide)b); }
  METHOD static T max(T a, T b) { return a > b ? a : b; }
  METHOD static T min(T a, T b) { return a < b ? a : b; }
};

struct Doubles {
  static constexpr uint32_t SIZE = 8;
  METHOD static double get(const uint32_t* w, uint32_t i) { return bits_double(w[2 * i] | (uint64_t)w[2 * i + 1] << 32); }
  METHOD static void put(uint32_t* w, uint32_t i, double v) {
    uint64_t bits = double_bits(v);
    w[2 * i] = (uint32_t)bits;
    w[2 * i + 1] = (uint32_t)(bits >> 32);
  }
  METHOD static double sum(double a, double b) { return canonical(a + b); }
  METHOD static double product(double a, double b) { return canonical(a * b); }
  METHOD static double max(double a, double b) { return larger(a, b); }
  METHOD static double min(double a, double b) { return smaller(a, b); }
};

typedef Words<int8_t, uint32_t> I8;
typedef Words<uint8_t, uint32_t> U8;
typedef Words<int32_t, uint32_t> I32;
typedef Words<uint32_t, uint32_t> U32;
typedef Words<int64_t, uint64_t> I64;
typedef Words<uint64_t, uint64_t> U64;

// Any type and operation: one switch per pack.
struct AnyArith {
  static constexpr bool PREPARES = true;
  static constexpr uint32_t GROUP = 1;
  static constexpr uint32_t WIDTH = 2;
  static constexpr uint32_t UNROLL = 1;
  // What lies here depends on the type: the pack's own words, or, where it is added up in f32, up to four floats per word.
  template <uint32_t W>
  struct Accumulator {
    uint32_t w[4 * W];
  };

  // Read from the launch's parameter where it is needed, rather than kept in registers.
  const CollectiveWork& work;

  METHOD explicit AnyArith(const CollectiveWork& w) : work(w) {}

  METHOD uint64_t scalar() const {
    uint64_t at = work.scalar;
    if (!work.scalar_is_address) return at;
    switch (type_size(work.datatype)) {
      case 8:
        return load_weak8(at);
      case 4:
        return load_weak4(at);
      case 2:
        return load_weak2(at);
      default:
        return load_weak1(at);
    }
  }

  template <class T, uint32_t W>
  METHOD void multiply(Pack<W>& v) const {
    uint64_t bits = scalar();
    uint32_t s[2] = {(uint32_t)bits, (uint32_t)(bits >> 32)};
  UNROLLED
    for (uint32_t i = 0; i < 4 * W / T::SIZE; i++) T::put(v.w, i, T::product(T::get(v.w, i), T::get(s, 0)));
  }
  template <class T, uint32_t W>
  METHOD void multiply_float(Pack<W>& v) const {
    float s[4];
    T::read((uint32_t)scalar(), s);
  UNROLLED
    for (uint32_t i = 0; i < W; i++) {
      float x[T::PER_WORD];
      T::read(v.w[i], x);
  UNROLLED
      for (uint32_t j = 0; j < T::PER_WORD; j++) x[j] = x[j] * s[0];
      v.w[i] = T::write(x);
    }
  }
  template <uint32_t W>
  METHOD Pack<W> prepare(Pack<W> v) const {
    if (work.op != OP_PREMUL_SUM) return v;
    switch (work.datatype) {
      case TYPE_I8:
      case TYPE_U8:
        multiply<U8>(v);
        break;
      case TYPE_I32:
      case TYPE_U32:
        multiply<U32>(v);
        break;
      case TYPE_I64:
      case TYPE_U64:
        multiply<U64>(v);
        break;
      case TYPE_F16:
        multiply_float<Half>(v);
        break;
      case TYPE_F32:
        multiply_float<Single>(v);
        break;
      case TYPE_F64:
        multiply<Doubles>(v);
        break;
      case TYPE_BF16:
        multiply_float<Bfloat>(v);
        break;
      case TYPE_E4M3:
        multiply_float<E4m3>(v);
        break;
      default:
        multiply_float<E5m2>(v);
    }
    return v;
  }

  template <class T, uint32_t W>
  METHOD void add_words(Accumulator<W>& a, const Pack<W>& v) const {
    constexpr uint32_t N = 4 * W / T::SIZE;
    switch (work.op) {
      case OP_PROD:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) T::put(a.w, i, T::product(T::get(a.w, i), T::get(v.w, i)));
        break;
      case OP_MAX:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) T::put(a.w, i, T::max(T::get(a.w, i), T::get(v.w, i)));
        break;
      case OP_MIN:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) T::put(a.w, i, T::min(T::get(a.w, i), T::get(v.w, i)));
        break;
      default:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) T::put(a.w, i, T::sum(T::get(a.w, i), T::get(v.w, i)));
    }
  }
  template <uint32_t N>
  METHOD void add_floats(uint32_t* a, const float* x, bool first) const {
    if (first) {
  UNROLLED
      for (uint32_t i = 0; i < N; i++) a[i] = float_bits(x[i]);
      return;
    }
    switch (work.op) {
      case OP_PROD:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) a[i] = float_bits(bits_float(a[i]) * x[i]);
        break;
      case OP_MAX:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) a[i] = float_bits(larger(bits_float(a[i]), x[i]));
        break;
      case OP_MIN:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) a[i] = float_bits(smaller(bits_float(a[i]), x[i]));
        break;
      default:
  UNROLLED
        for (uint32_t i = 0; i < N; i++) a[i] = float_bits(bits_float(a[i]) + x[i]);
    }
  }
  template <class T, uint32_t W>
  METHOD void add_as_floats(Accumulator<W>& a, const Pack<W>& v, bool first) const {
    constexpr uint32_t N = T::PER_WORD * W;
    float x[N];
  UNROLLED
    for (uint32_t i = 0; i < W; i++) T::read(v.w[i], x + i * T::PER_WORD);
    if (work.op == OP_AVG) {
      float part = 1.0f / (float)work.comm.nranks;
  UNROLLED
      for (uint32_t i = 0; i < N; i++) x[i] = x[i] * part;
    }
    add_floats<N>(a.w, x, first);
  }
  template <uint32_t W>
  METHOD void add(Accumulator<W>& a, const Pack<W>& v, bool first) const {
    switch (work.datatype) {
      case TYPE_F16:
        return add_as_floats<Half>(a, v, first);
      case TYPE_F32:
        return add_as_floats<Single>(a, v, first);
      case TYPE_BF16:
        return add_as_floats<Bfloat>(a, v, first);
      case TYPE_E4M3:
        return add_as_floats<E4m3>(a, v, first);
      case TYPE_E5M2:
        return add_as_floats<E5m2>(a, v, first);
      default:
        break;
    }
    Pack<W> x = v;
    if (work.datatype == TYPE_F64 && work.op == OP_AVG) {
      double part = 1.0 / (double)work.comm.nranks;
  UNROLLED
      for (uint32_t i = 0; i < W / 2; i++) Doubles::put(x.w, i, canonical(Doubles::get(x.w, i) * part));
    }
    if (first) {
  UNROLLED
      for (uint32_t i = 0; i < W; i++) a.w[i] = x.w[i];
      return;
    }
    switch (work.datatype) {
      case TYPE_I8:
        return add_words<I8>(a, x);
      case TYPE_U8:
        return add_words<U8>(a, x);
      case TYPE_I32:
        return add_words<I32>(a, x);
      case TYPE_U32:
        return add_words<U32>(a, x);
      case TYPE_I64:
        return add_words<I64>(a, x);
      case TYPE_U64:
        return add_words<U64>(a, x);
      default:
        return add_words<Doubles>(a, x);
    }
  }

  template <class T, class Quotient, uint32_t W>
  METHOD void divide(Pack<W>& v) const {
  UNROLLED
    for (uint32_t i = 0; i < 4 * W / T::SIZE; i++) T::put(v.w, i, (decltype(T::get(v.w, i)))((Quotient)T::get(v.w, i) / (Quotient)work.comm.nranks));
  }
  template <class T, uint32_t W>
  METHOD void write_floats(Pack<W>& v, const Accumulator<W>& a) const {
  UNROLLED
    for (uint32_t i = 0; i < W; i++) {
      float x[T::PER_WORD];
  UNROLLED
      for (uint32_t j = 0; j < T::PER_WORD; j++) x[j] = bits_float(a.w[i * T::PER_WORD + j]);
      v.w[i] = T::write(x);
    }
  }
  template <uint32_t W>
  METHOD Pack<W> finish(const Accumulator<W>& a) const {
    Pack<W> v;
  UNROLLED
    for (uint32_t i = 0; i < W; i++) v.w[i] = a.w[i];
    switch (work.datatype) {
      case TYPE_F16:
        write_floats<Half>(v, a);
        return v;
      case TYPE_F32:
        write_floats<Single>(v, a);
        return v;
      case TYPE_BF16:
        write_floats<Bfloat>(v, a);
        return v;
      case TYPE_E4M3:
        write_floats<E4m3>(v, a);
        return v;
      case TYPE_E5M2:
        write_floats<E5m2>(v, a);
        return v;
      default:
        break;
    }
    if (work.op == OP_AVG) {
      switch (work.datatype) {
        case TYPE_I8:
          divide<I8, int32_t>(v);
          break;
        case TYPE_U8:
          divide<U8, uint32_t>(v);
          break;
        case TYPE_I32:
          divide<I32, int32_t>(v);
          break;
        case TYPE_U32:
          divide<U32, uint32_t>(v);
          break;
        case TYPE_I64:
          divide<I64, int64_t>(v);
          break;
        case TYPE_U64:
          divide<U64, uint64_t>(v);
          break;
        default:
          break;
      }
    }
    return v;
  }
};
