//! What a reduction must give, bit for bit: the library's arithmetic written a second time, for one element.
//!
//! Contributions are reduced in rank order. 16-bit and 8-bit floats are accumulated in 32-bit floats and rounded once, to
//! nearest even; 8-bit floats saturate. A float average multiplies each contribution by 1/n before it is added.
//! Integers wrap; their average divides the wrapped sum as C does. A scaled sum adds up contributions that each rank has
//! multiplied by a factor of its own and rounded to the element type. A NaN makes maximum and minimum NaN, -0 is below +0,
//! and NaN results have one bit pattern per type: all bits but the sign. Conversions come from the `half` crate and, for
//! 8-bit floats, from tables made from the formats' definitions.

use std::sync::LazyLock;

use half::{bf16, f16};

/// A data type; its number is the ABI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Type {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

use Type::*;

/// A reduction; the number of a built-in one is the ABI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Op {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
    /// A sum of scaled contributions; its number is the one that the communicator gave.
    Scaled = 5,
}

impl Type {
    pub const ALL: [Type; 12] = [
        Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, Float8e4m3,
        Float8e5m2,
    ];

    pub fn code(self) -> i32 {
        self as i32
    }

    pub fn size(self) -> usize {
        match self {
            Int8 | Uint8 | Float8e4m3 | Float8e5m2 => 1,
            Float16 | Bfloat16 => 2,
            Int32 | Uint32 | Float32 => 4,
            Int64 | Uint64 | Float64 => 8,
        }
    }

    pub fn is_float(self) -> bool {
        !self.is_integer()
    }

    fn is_integer(self) -> bool {
        matches!(self, Int8 | Uint8 | Int32 | Uint32 | Int64 | Uint64)
    }

    fn is_signed(self) -> bool {
        matches!(self, Int8 | Int32 | Int64)
    }

    /// Whether the bits are a NaN.
    pub fn is_nan(self, bits: u64) -> bool {
        match self {
            Float64 => f64::from_bits(bits).is_nan(),
            t if t.is_float() => t.to_f32(bits).is_nan(),
            _ => false,
        }
    }

    fn to_f32(self, bits: u64) -> f32 {
        match self {
            Float16 => f16::from_bits(bits as u16).to_f32(),
            Bfloat16 => bf16::from_bits(bits as u16).to_f32(),
            Float32 => f32::from_bits(bits as u32),
            Float8e4m3 => E4M3.values[bits as usize & 0xff],
            Float8e5m2 => E5M2.values[bits as usize & 0xff],
            _ => unreachable!("{self:?} is not accumulated in 32 bits"),
        }
    }

    fn round(self, value: f32) -> u64 {
        if value.is_nan() {
            return self.nan();
        }
        match self {
            Float16 => f16::from_f32(value).to_bits().into(),
            Bfloat16 => bf16::from_f32(value).to_bits().into(),
            Float32 => value.to_bits().into(),
            Float8e4m3 => E4M3.round(value).into(),
            Float8e5m2 => E5M2.round(value).into(),
            _ => unreachable!("{self:?} is not accumulated in 32 bits"),
        }
    }

    /// The bits of a value that the type holds exactly.
    pub fn encode(self, value: f64) -> u64 {
        match self {
            Float64 if value.is_nan() => self.nan(),
            Float64 => value.to_bits(),
            t if t.is_float() => t.round(value as f32),
            t if t.is_signed() => value as i64 as u64 & t.mask(),
            t => value as u64 & t.mask(),
        }
    }

    /// All bits of an element.
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.size())
    }

    /// The NaN that results have.
    fn nan(self) -> u64 {
        self.mask() >> 1
    }

    fn signed(self, bits: u64) -> i64 {
        let unused = 64 - 8 * self.size() as u32;
        ((bits << unused) as i64) >> unused
    }
}

impl Op {
    /// The built-in ones.
    pub const ALL: [Op; 5] = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg];

    pub fn code(self) -> i32 {
        self as i32
    }
}

/// What a rank with this factor contributes to a scaled sum: multiplied in 32 bits (64-bit floats and integers in their own type),
/// rounded to the element type before it leaves the rank.
pub fn scaled(t: Type, bits: u64, factor: u64) -> u64 {
    match t {
        Float64 => t.encode(f64::from_bits(bits) * f64::from_bits(factor)),
        _ if t.is_float() => t.round(t.to_f32(bits) * t.to_f32(factor)),
        _ => bits.wrapping_mul(factor) & t.mask(),
    }
}

/// The result of one element from the ranks' contributions, in rank order; those to a scaled sum are scaled already.
pub fn reduce(t: Type, op: Op, contributions: &[u64]) -> u64 {
    match t {
        _ if t.is_float() && matches!(op, Op::Max | Op::Min) => {
            let wide = |bits: &u64| if t == Float64 { f64::from_bits(*bits) } else { t.to_f32(*bits).into() };
            t.encode(extreme(op, contributions.iter().map(wide)))
        }
        Float64 => {
            let values = contributions.iter().map(|bits| f64::from_bits(*bits));
            t.encode(fold(op, values, 1.0 / contributions.len() as f64))
        }
        _ if t.is_float() => {
            let values = contributions.iter().map(|bits| t.to_f32(*bits));
            t.round(fold(op, values, 1.0 / contributions.len() as f32))
        }
        _ => integer(t, op, contributions),
    }
}

fn fold<F>(op: Op, mut values: impl Iterator<Item = F>, scale: F) -> F
where
    F: Copy + std::ops::Add<Output = F> + std::ops::Mul<Output = F>,
{
    let prepare = |value: F| if op == Op::Avg { value * scale } else { value };
    let first = prepare(values.next().expect("there is at least one rank"));
    values.fold(first, |sum, value| if op == Op::Prod { sum * value } else { sum + prepare(value) })
}

/// The largest or smallest of the values; every float type fits into a double.
fn extreme(op: Op, values: impl Iterator<Item = f64>) -> f64 {
    let better = |best: f64, value: f64| match (best.total_cmp(&value).is_lt(), op) {
        _ if best.is_nan() || value.is_nan() => f64::NAN,
        (true, Op::Max) | (false, Op::Min) => value,
        _ => best,
    };
    values.reduce(better).expect("there is at least one rank")
}

fn integer(t: Type, op: Op, contributions: &[u64]) -> u64 {
    let mut values = contributions.iter().copied();
    let first = values.next().expect("there is at least one rank");
    let less = |a: u64, b: u64| if t.is_signed() { t.signed(a) < t.signed(b) } else { a < b };
    let result = values.fold(first, |sum, value| match op {
        Op::Sum | Op::Avg | Op::Scaled => sum.wrapping_add(value) & t.mask(),
        Op::Prod => sum.wrapping_mul(value) & t.mask(),
        Op::Max => {
            if less(sum, value) {
                value
            } else {
                sum
            }
        }
        Op::Min => {
            if less(value, sum) {
                value
            } else {
                sum
            }
        }
    });
    let n = contributions.len();
    match op {
        Op::Avg if t.is_signed() => (t.signed(result) / n as i64) as u64 & t.mask(),
        Op::Avg => result / n as u64,
        _ => result,
    }
}

/// An 8-bit float format, all 256 values of it.
struct Float8 {
    values: [f32; 256],
    /// Code of the largest finite value.
    largest: u8,
    nan: u8,
}

static E4M3: LazyLock<Float8> = LazyLock::new(|| Float8::new(3, 7, 0x7e));
static E5M2: LazyLock<Float8> = LazyLock::new(|| Float8::new(2, 15, 0x7b));

impl Float8 {
    fn new(mantissa_bits: u32, bias: i32, largest: u8) -> Float8 {
        let mut values = [0.0; 256];
        for (code, value) in values.iter_mut().enumerate() {
            let magnitude = code & 0x7f;
            let exponent = (magnitude >> mantissa_bits) as i32;
            let fraction =
                (magnitude & ((1 << mantissa_bits) - 1)) as f32 / f32::powi(2.0, mantissa_bits as i32);
            let finite = match exponent {
                0 => fraction * f32::powi(2.0, 1 - bias),
                _ => (1.0 + fraction) * f32::powi(2.0, exponent - bias),
            };
            *value = if magnitude <= usize::from(largest) {
                finite
            } else if largest == 0x7b && magnitude == 0x7c {
                // Only E5M2 has an infinity.
                f32::INFINITY
            } else {
                f32::NAN
            };
            if code >= 0x80 {
                *value = -*value;
            }
        }
        Float8 { values, largest, nan: 0x7f }
    }

    /// To nearest, ties to even, beyond the largest value the largest value.
    fn round(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = value.abs();
        // Codes of positive finite values are in the order of their values.
        let finite = &self.values[..=usize::from(self.largest)];
        let above = finite.partition_point(|v| *v < magnitude);
        if above == finite.len() {
            return sign | self.largest;
        }
        if above == 0 {
            return sign;
        }
        // Exact: neighbours are within a factor of two or near zero, and double has bits to spare.
        let (low, high) = (f64::from(finite[above - 1]), f64::from(finite[above]));
        let (down, up) = (f64::from(magnitude) - low, high - f64::from(magnitude));
        let code = if down < up || (down == up && (above - 1) % 2 == 0) { above - 1 } else { above };
        sign | code as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_their_published_values() {
        let e4m3 = |code: usize| E4M3.values[code];
        assert_eq!((e4m3(0x38), e4m3(0x7e), e4m3(0x01)), (1.0, 448.0, f32::powi(2.0, -9)));
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        let e5m2 = |code: usize| E5M2.values[code];
        assert_eq!((e5m2(0x3c), e5m2(0x7b), e5m2(0x01)), (1.0, 57344.0, f32::powi(2.0, -16)));
        assert_eq!((e5m2(0x7c), e5m2(0xfc)), (f32::INFINITY, f32::NEG_INFINITY));
        assert!(e5m2(0x7d).is_nan());
    }

    #[test]
    fn rounding_gives_back_each_value_and_ties_go_to_even() {
        for format in [&*E4M3, &*E5M2] {
            for code in 0..=255u8 {
                let value = format.values[usize::from(code)];
                if value.is_finite() {
                    assert_eq!(format.round(value), code, "{value}");
                }
            }
            assert_eq!(format.round(1e9), format.largest);
            assert_eq!(format.round(f32::NEG_INFINITY), 0x80 | format.largest);
            assert_eq!(format.round(f32::NAN), 0x7f);
            assert_eq!(format.round(-1e-9), 0x80);
        }
        // Between 1 (even) and 1.125, and between 1.125 (odd) and 1.25.
        assert_eq!((E4M3.round(1.0625), E4M3.round(1.1875)), (0x38, 0x3a));
        assert_eq!(E4M3.round(1.0625 + f32::EPSILON), 0x39);
    }

    #[test]
    fn one_rounding_in_rank_order() {
        // 1 + 2^-11 + 2^-11 in 16 bits: rounded once 1 + 2^-10, rounded at each step 1.
        let half = |value: f32| u64::from(f16::from_f32(value).to_bits());
        let tiny = half(f32::powi(2.0, -11));
        assert_eq!(reduce(Float16, Op::Sum, &[half(1.0), tiny, tiny]), half(1.0 + f32::powi(2.0, -10)));
        // In 32 bits the order decides.
        let float = |value: f32| u64::from(value.to_bits());
        assert_eq!(reduce(Float32, Op::Sum, &[float(1e8), float(-1e8), float(1.0)]), float(1.0));
        assert_eq!(reduce(Float32, Op::Sum, &[float(1.0), float(1e8), float(-1e8)]), float(0.0));
        assert_eq!(
            reduce(Float32, Op::Avg, &[float(3.0), float(1.0), float(2.0)]),
            float(3.0f32 * (1.0 / 3.0) + 1.0 / 3.0 + 2.0 * (1.0f32 / 3.0))
        );
    }

    #[test]
    fn nan_wins_and_zeros_are_ordered() {
        let (nan, plus, minus) = (0xffc0_0000u64, 0u64, 0x8000_0000u64);
        for op in Op::ALL {
            assert_eq!(reduce(Float32, op, &[plus, nan]), 0x7fff_ffff, "{op:?}");
            assert_eq!(reduce(Float32, op, &[nan, plus]), 0x7fff_ffff, "{op:?}");
        }
        for zeros in [[plus, minus], [minus, plus]] {
            assert_eq!(reduce(Float32, Op::Max, &zeros), plus);
            assert_eq!(reduce(Float32, Op::Min, &zeros), minus);
        }
        assert_eq!(reduce(Float8e5m2, Op::Max, &[0x7c, 0x3c]), 0x7b, "infinity saturates");
        assert_eq!(reduce(Float64, Op::Min, &[2.0f64.to_bits(), (-3.0f64).to_bits()]), (-3.0f64).to_bits());
    }

    #[test]
    fn scaled_contributions_are_rounded_once_more() {
        let half = |value: f32| u64::from(f16::from_f32(value).to_bits());
        // (1 + 2^-10)^2 is 1 + 2^-9 + 2^-20: the last part is lost before the sum.
        let next = half(1.0 + f32::powi(2.0, -10));
        assert_eq!(scaled(Float16, next, next), half(1.0 + f32::powi(2.0, -9)));
        assert_eq!(scaled(Float8e4m3, 0x7e, 0x40), 0x7e, "448 * 2 saturates");
        assert_eq!(scaled(Int8, 100, 3), 44);
        assert_eq!(scaled(Uint64, 1 << 63, 2), 0);
        assert_eq!(scaled(Float64, 3.0f64.to_bits(), 0.5f64.to_bits()), 1.5f64.to_bits());
    }

    #[test]
    fn integers_wrap_and_averages_divide_as_c_does() {
        assert_eq!(reduce(Int8, Op::Sum, &[120, 100]), (120u8.wrapping_add(100)).into());
        assert_eq!(reduce(Int8, Op::Avg, &[0xff, 0xfe]), 0xff, "-3 / 2 is -1");
        assert_eq!(reduce(Uint8, Op::Avg, &[200, 100]), 22, "300 wraps to 44");
        assert_eq!(reduce(Int64, Op::Max, &[u64::MAX, 1]), 1);
        assert_eq!(reduce(Uint64, Op::Max, &[u64::MAX, 1]), u64::MAX);
        assert_eq!(reduce(Int32, Op::Min, &[0x8000_0000, 5]), 0x8000_0000);
        assert_eq!(reduce(Uint32, Op::Prod, &[0x8000_0001, 2]), 2);
    }
}
