//! What collectives must compute, written independently of the kernels: `half` converts f16 and bf16, fp8 is rounded by
//! searching the table of its values.

use std::sync::LazyLock;

use half::{bf16, f16};

pub const TYPES: [Type; 12] = [
    Type::I8,
    Type::U8,
    Type::I32,
    Type::U32,
    Type::I64,
    Type::U64,
    Type::F16,
    Type::F32,
    Type::F64,
    Type::Bf16,
    Type::E4m3,
    Type::E5m2,
];

/// In the order of ncclDataType_t.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
    E4m3,
    E5m2,
}

/// In the order of the kernels' operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    PremulSum,
}

pub const OPS: [Op; 6] = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg, Op::PremulSum];

impl Type {
    pub fn size(self) -> usize {
        match self {
            Type::I8 | Type::U8 | Type::E4m3 | Type::E5m2 => 1,
            Type::F16 | Type::Bf16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 => 8,
        }
    }
}

pub fn load(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn store(value: u64, bytes: &mut [u8]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (value >> (8 * i)) as u8;
    }
}

/// Value of an fp8 element by its definition.
fn fp8_value(kind: Type, bits: u8) -> f64 {
    let (fraction_bits, bias, exponent_mask) = if kind == Type::E4m3 { (3, 7, 15) } else { (2, 15, 31) };
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> fraction_bits) & exponent_mask;
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    match kind {
        Type::E4m3 if bits & 0x7f == 0x7f => return f64::NAN,
        Type::E5m2 if exponent == 31 => {
            return if fraction == 0.0 { sign * f64::INFINITY } else { f64::NAN };
        }
        _ => {}
    }
    sign * match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

/// Nearest fp8 value, ties to the even pattern, saturating. Positive patterns are in the order of their values.
fn fp8_round(kind: Type, value: f32) -> u8 {
    static TABLES: LazyLock<[Vec<f64>; 2]> =
        LazyLock::new(|| [table(Type::E4m3, 0x7e), table(Type::E5m2, 0x7b)]);
    fn table(kind: Type, largest: u8) -> Vec<f64> {
        (0..=largest).map(|bits| fp8_value(kind, bits)).collect()
    }
    if value.is_nan() {
        return 0x7f;
    }
    let values = &TABLES[usize::from(kind == Type::E5m2)];
    let magnitude = f64::from(value.abs());
    let above = values.partition_point(|&v| v < magnitude);
    let bits = if above == values.len() {
        above - 1
    } else if above == 0 {
        0
    } else {
        let (down, up) = (magnitude - values[above - 1], values[above] - magnitude);
        if down < up || (down == up && above % 2 == 1) { above - 1 } else { above }
    };
    bits as u8 | if value.is_sign_negative() { 0x80 } else { 0 }
}

fn to_f32(kind: Type, bits: u64) -> f32 {
    match kind {
        Type::F16 => f16::from_bits(bits as u16).to_f32(),
        Type::Bf16 => bf16::from_bits(bits as u16).to_f32(),
        Type::F32 => f32::from_bits(bits as u32),
        _ => fp8_value(kind, bits as u8) as f32,
    }
}

fn from_f32(kind: Type, value: f32) -> u64 {
    match kind {
        Type::F16 if value.is_nan() => 0x7fff,
        Type::F16 => u64::from(f16::from_f32(value).to_bits()),
        Type::Bf16 if value.is_nan() => 0x7fff,
        Type::Bf16 => u64::from(bf16::from_f32(value).to_bits()),
        Type::F32 if value.is_nan() => 0x7fff_ffff,
        Type::F32 => u64::from(value.to_bits()),
        _ => u64::from(fp8_round(kind, value)),
    }
}

/// IEEE 754-2019 maximum and minimum: NaN wins, +0 is above -0.
macro_rules! extremes {
    ($name:ident, $float:ty) => {
        fn $name(a: $float, b: $float, max: bool) -> $float {
            if a.is_nan() || b.is_nan() {
                return <$float>::NAN;
            }
            if a == b {
                let negative = if max {
                    a.is_sign_negative() && b.is_sign_negative()
                } else {
                    a.is_sign_negative() || b.is_sign_negative()
                };
                return if negative { -a.abs() } else { a.abs() };
            }
            if (a > b) == max { a } else { b }
        }
    };
}
extremes!(extreme32, f32);
extremes!(extreme64, f64);

/// One element over all ranks; `scalars` are the ranks' factors of a pre-multiplied sum.
pub fn reduce(kind: Type, op: Op, parts: &[u64], scalars: &[u64]) -> u64 {
    match kind {
        Type::F64 => reduce_f64(op, parts, scalars),
        Type::F16 | Type::Bf16 | Type::F32 | Type::E4m3 | Type::E5m2 => reduce_f32(kind, op, parts, scalars),
        _ => reduce_integer(kind, op, parts, scalars),
    }
}

fn reduce_f32(kind: Type, op: Op, parts: &[u64], scalars: &[u64]) -> u64 {
    let part = 1.0f32 / parts.len() as f32;
    let values = parts.iter().zip(scalars).map(|(&bits, &scalar)| match op {
        Op::PremulSum => to_f32(kind, from_f32(kind, to_f32(kind, bits) * to_f32(kind, scalar))),
        Op::Avg => to_f32(kind, bits) * part,
        _ => to_f32(kind, bits),
    });
    let result = values
        .reduce(|a, b| match op {
            Op::Prod => a * b,
            Op::Max => extreme32(a, b, true),
            Op::Min => extreme32(a, b, false),
            _ => a + b,
        })
        .expect("at least one rank");
    from_f32(kind, result)
}

fn reduce_f64(op: Op, parts: &[u64], scalars: &[u64]) -> u64 {
    let part = 1.0f64 / parts.len() as f64;
    let values = parts.iter().zip(scalars).map(|(&bits, &scalar)| match op {
        Op::PremulSum => f64::from_bits(bits) * f64::from_bits(scalar),
        Op::Avg => f64::from_bits(bits) * part,
        _ => f64::from_bits(bits),
    });
    let result = values
        .reduce(|a, b| match op {
            Op::Prod => a * b,
            Op::Max => extreme64(a, b, true),
            Op::Min => extreme64(a, b, false),
            _ => a + b,
        })
        .expect("at least one rank");
    if result.is_nan() { 0x7fff_ffff_ffff_ffff } else { result.to_bits() }
}

/// In 128 bits, cut to the type after every step.
fn reduce_integer(kind: Type, op: Op, parts: &[u64], scalars: &[u64]) -> u64 {
    let cut = |value: i128| -> i128 {
        match kind {
            Type::I8 => i128::from(value as i8),
            Type::U8 => i128::from(value as u8),
            Type::I32 => i128::from(value as i32),
            Type::U32 => i128::from(value as u32),
            Type::I64 => i128::from(value as i64),
            _ => i128::from(value as u64),
        }
    };
    let values = parts.iter().zip(scalars).map(|(&bits, &scalar)| match op {
        Op::PremulSum => cut(cut(i128::from(bits)).wrapping_mul(cut(i128::from(scalar)))),
        _ => cut(i128::from(bits)),
    });
    let mut result = values
        .reduce(|a, b| match op {
            Op::Prod => cut(a.wrapping_mul(b)),
            Op::Max => a.max(b),
            Op::Min => a.min(b),
            _ => cut(a + b),
        })
        .expect("at least one rank");
    if op == Op::Avg {
        result /= parts.len() as i128;
    }
    result as u64 & (u64::MAX >> (64 - 8 * kind.size()))
}

/// Reduces whole vectors.
pub fn reduce_vectors(kind: Type, op: Op, inputs: &[&[u8]], scalars: &[u64]) -> Vec<u8> {
    let size = kind.size();
    let mut result = vec![0; inputs[0].len()];
    for (i, out) in result.chunks_exact_mut(size).enumerate() {
        let parts: Vec<u64> = inputs.iter().map(|input| load(&input[i * size..(i + 1) * size])).collect();
        store(reduce(kind, op, &parts, scalars), out);
    }
    result
}

/// Small random numbers, the same on every machine.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Any bit pattern, or a number of ordinary size: patterns alone are rarely near each other.
pub fn element(kind: Type, random: &mut Random) -> u64 {
    let bits = random.next();
    if random.below(3) == 0 {
        return bits & (u64::MAX >> (64 - 8 * kind.size()));
    }
    let small = (bits % 401) as f32 / 8.0 - 25.0;
    match kind {
        Type::F64 => f64::from(small).to_bits(),
        Type::F16 | Type::Bf16 | Type::F32 | Type::E4m3 | Type::E5m2 => from_f32(kind, small),
        _ => (small as i64 as u64) & (u64::MAX >> (64 - 8 * kind.size())),
    }
}

pub fn vector(kind: Type, count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; count * kind.size()];
    for out in bytes.chunks_exact_mut(kind.size()) {
        store(element(kind, random), out);
    }
    bytes
}
