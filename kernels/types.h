// The twelve data types: how their elements become numbers and numbers become elements.
//
// Conversions to 16 and 8 bits round to nearest even. NaNs are made one pattern per type (f16, bf16 0x7fff, fp8 0x7f,
// f32 0x7fffffff, f64 0x7fffffffffffffff), so that results have the same bits on every machine. f16 and bf16 overflow to
// infinity; fp8 saturates at its largest finite value (448 and 57344), infinity included, as GPUs convert in hardware.
#pragma once

#include "device.h"

// ncclDataType_t
enum : uint32_t {
  TYPE_I8 = 0,
  TYPE_U8 = 1,
  TYPE_I32 = 2,
  TYPE_U32 = 3,
  TYPE_I64 = 4,
  TYPE_U64 = 5,
  TYPE_F16 = 6,
  TYPE_F32 = 7,
  TYPE_F64 = 8,
  TYPE_BF16 = 9,
  TYPE_E4M3 = 10,
  TYPE_E5M2 = 11,
};

FN uint32_t type_size(uint32_t type) {
  switch (type) {
    case TYPE_I32:
    case TYPE_U32:
    case TYPE_F32:
      return 4;
    case TYPE_I64:
    case TYPE_U64:
    case TYPE_F64:
      return 8;
    case TYPE_F16:
    case TYPE_BF16:
      return 2;
    default:
      return 1;
  }
}

FN double canonical(double d) { return d == d ? d : bits_double(0x7fffffffffffffffull); }

// Magnitude bits of a small format, its fraction moved to f32's place, times a power of two that corrects the bias: exact,
// also for its subnormals.
FN float widen(uint32_t magnitude_bits, uint32_t scale_bits) { return bits_float(magnitude_bits) * bits_float(scale_bits); }

FN float half_to_float(uint32_t h) {
#ifdef HARDWARE_HALF
  return half_to_float_hw(h);
#else
  uint32_t magnitude = h & 0x7fff;
  uint32_t bits = magnitude >= 0x7c00 ? 0x7f800000 | (magnitude & 0x3ff) << 13 : float_bits(widen(magnitude << 13, 0x77800000));
  return bits_float(bits | (h & 0x8000) << 16);
#endif
}

// Rounds the magnitude bits of an f32 inside the small format's normal range to `fraction` bits, to nearest even.
FN uint32_t round_fraction(uint32_t magnitude, uint32_t fraction) {
  uint32_t drop = 23 - fraction;
  return (magnitude + ((1u << (drop - 1)) - 1) + (magnitude >> drop & 1)) >> drop;
}

// The same below the normal range: adding a number whose last place is the format's smallest step rounds like the FPU.
FN uint32_t round_subnormal(uint32_t magnitude, uint32_t magic_bits) {
  return float_bits(bits_float(magnitude) + bits_float(magic_bits)) - magic_bits;
}

FN uint32_t float_to_half(float f) {
  uint32_t bits = float_bits(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  if (magnitude < 0x38800000) return sign | round_subnormal(magnitude, 0x3f000000);
  return sign | (round_fraction(magnitude, 10) - (112 << 10));
}

FN float bfloat_to_float(uint32_t b) { return bits_float(b << 16); }

FN uint32_t float_to_bfloat(float f) {
  uint32_t bits = float_bits(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

FN float e4m3_to_float(uint32_t v) {
  uint32_t magnitude = v & 0x7f;
  uint32_t bits = magnitude == 0x7f ? 0x7fc00000 : float_bits(widen(magnitude << 20, 0x7b800000));
  return bits_float(bits | (v & 0x80) << 24);
}

FN uint32_t float_to_e4m3(float f) {
  uint32_t bits = float_bits(f), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  if (magnitude > 0x43e00000) return sign | 0x7e;  // above 448
  if (magnitude < 0x3c800000) return sign | round_subnormal(magnitude, 0x46800000);
  return sign | (round_fraction(magnitude, 3) - (120 << 3));
}

FN float e5m2_to_float(uint32_t v) { return half_to_float(v << 8); }

FN uint32_t float_to_e5m2(float f) {
  uint32_t bits = float_bits(f), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  if (magnitude > 0x47600000) return sign | 0x7b;  // above 57344
  if (magnitude < 0x38800000) return sign | round_subnormal(magnitude, 0x43000000);
  return sign | (round_fraction(magnitude, 2) - (112 << 2));
}

// Two at a time, as they stand in a word.
FN uint32_t floats_to_halves(float low, float high) {
#ifdef HARDWARE_HALF
  return floats_to_halves_hw(low, high);
#else
  return float_to_half(low) | float_to_half(high) << 16;
#endif
}

FN uint32_t floats_to_bfloats(float low, float high) {
#ifdef HARDWARE_HALF
  return floats_to_bfloats_hw(low, high);
#else
  return float_to_bfloat(low) | float_to_bfloat(high) << 16;
#endif
}

// The types that are added up in f32. `PER_WORD` elements lie in a 32-bit word.
struct Half {
  static constexpr uint32_t PER_WORD = 2;
  METHOD static void read(uint32_t word, float* f) {
    f[0] = half_to_float(word & 0xffff);
    f[1] = half_to_float(word >> 16);
  }
  METHOD static uint32_t write(const float* f) { return floats_to_halves(f[0], f[1]); }
};

struct Bfloat {
  static constexpr uint32_t PER_WORD = 2;
  METHOD static void read(uint32_t word, float* f) {
    f[0] = bits_float(word << 16);
    f[1] = bits_float(word & 0xffff0000);
  }
  METHOD static uint32_t write(const float* f) { return floats_to_bfloats(f[0], f[1]); }
};

struct Single {
  static constexpr uint32_t PER_WORD = 1;
  METHOD static void read(uint32_t word, float* f) { f[0] = bits_float(word); }
  METHOD static uint32_t write(const float* f) { return float_bits(canonical(f[0])); }
};

// Four fp8 elements from two pairs. The hardware's NaN is not relied upon.
FN uint32_t four_e4m3(const float* f) {
#ifdef HARDWARE_FP8
  uint32_t v = floats_to_e4m3_hw(f[0], f[1]) | floats_to_e4m3_hw(f[2], f[3]) << 16;
  UNROLLED
  for (uint32_t i = 0; i < 4; i++) v = f[i] == f[i] ? v : (v & ~(0xffu << (8 * i))) | 0x7fu << (8 * i);
  return v;
#else
  return float_to_e4m3(f[0]) | float_to_e4m3(f[1]) << 8 | float_to_e4m3(f[2]) << 16 | float_to_e4m3(f[3]) << 24;
#endif
}
FN uint32_t four_e5m2(const float* f) {
#ifdef HARDWARE_FP8
  uint32_t v = floats_to_e5m2_hw(f[0], f[1]) | floats_to_e5m2_hw(f[2], f[3]) << 16;
  UNROLLED
  for (uint32_t i = 0; i < 4; i++) v = f[i] == f[i] ? v : (v & ~(0xffu << (8 * i))) | 0x7fu << (8 * i);
  return v;
#else
  return float_to_e5m2(f[0]) | float_to_e5m2(f[1]) << 8 | float_to_e5m2(f[2]) << 16 | float_to_e5m2(f[3]) << 24;
#endif
}

struct E4m3 {
  static constexpr uint32_t PER_WORD = 4;
  METHOD static void read(uint32_t word, float* f) {
#ifdef HARDWARE_FP8
    Half::read(e4m3_to_halves_hw(word & 0xffff), f);
    Half::read(e4m3_to_halves_hw(word >> 16), f + 2);
#else
    UNROLLED
    for (uint32_t i = 0; i < 4; i++) f[i] = e4m3_to_float(word >> (8 * i) & 0xff);
#endif
  }
  METHOD static uint32_t write(const float* f) { return four_e4m3(f); }
};

struct E5m2 {
  static constexpr uint32_t PER_WORD = 4;
  METHOD static void read(uint32_t word, float* f) {
    UNROLLED
    for (uint32_t i = 0; i < 4; i++) f[i] = e5m2_to_float(word >> (8 * i) & 0xff);
  }
  METHOD static uint32_t write(const float* f) { return four_e5m2(f); }
};
