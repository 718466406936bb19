//! Data types and operations: their codes in the ABI, and values whose results are exact.
//!
//! Inputs are chosen so that any order of reduction gives the same exactly representable result in every type, fp8
//! included: sums of at most eight equal powers of two, products of ones and twos, small integers for max and min.
//! Only an average over a number of ranks that is no power of two may differ, by one unit in the last place.

/// One of the ABI's data types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType {
    pub name: &'static str,
    pub code: i32,
    pub size: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    /// Bits of exponent and of mantissa.
    Float(u32, u32),
}

const fn data_type(name: &'static str, code: i32, size: usize, kind: Kind) -> DataType {
    DataType { name, code, size, kind }
}

pub const TYPES: [DataType; 12] = [
    data_type("int8", 0, 1, Kind::Signed),
    data_type("uint8", 1, 1, Kind::Unsigned),
    data_type("int32", 2, 4, Kind::Signed),
    data_type("uint32", 3, 4, Kind::Unsigned),
    data_type("int64", 4, 8, Kind::Signed),
    data_type("uint64", 5, 8, Kind::Unsigned),
    data_type("half", 6, 2, Kind::Float(5, 10)),
    data_type("float", 7, 4, Kind::Float(8, 23)),
    data_type("double", 8, 8, Kind::Float(11, 52)),
    data_type("bfloat16", 9, 2, Kind::Float(8, 7)),
    data_type("f8e4m3", 10, 1, Kind::Float(4, 3)),
    data_type("f8e5m2", 11, 1, Kind::Float(5, 2)),
];

/// One of the ABI's built-in reductions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    pub name: &'static str,
    pub code: i32,
}

pub const OPS: [Op; 5] = [
    Op { name: "sum", code: 0 },
    Op { name: "prod", code: 1 },
    Op { name: "max", code: 2 },
    Op { name: "min", code: 3 },
    Op { name: "avg", code: 4 },
];

/// Elements after which input patterns repeat, apart from the ranks' turn. Prime: a chunk that lands in a wrong place
/// is a multiple of a power of two away, and never matches.
const TURN: usize = 1009;

impl DataType {
    pub fn by_name(name: &str) -> Option<DataType> {
        TYPES.into_iter().find(|t| t.name == name)
    }

    /// Little-endian bytes of a value that the type can hold exactly.
    pub fn encode(&self, value: f64) -> [u8; 8] {
        match self.kind {
            Kind::Signed => (value as i64).to_le_bytes(),
            Kind::Unsigned => (value as u64).to_le_bytes(),
            Kind::Float(exponent, mantissa) => encode_float(value, exponent, mantissa).to_le_bytes(),
        }
    }

    fn decode(&self, bytes: &[u8]) -> f64 {
        let mut wide = [0u8; 8];
        wide[..self.size].copy_from_slice(&bytes[..self.size]);
        let raw = u64::from_le_bytes(wide);
        match self.kind {
            Kind::Signed => {
                let unused = 64 - 8 * self.size as u32;
                ((raw << unused) as i64 >> unused) as f64
            }
            Kind::Unsigned => raw as f64,
            Kind::Float(exponent, mantissa) => decode_float(raw, exponent, mantissa),
        }
    }

    /// Whether `got` is right where `want` is expected. `slack` allows one unit in the last place.
    pub fn same(&self, got: &[u8], want: &[u8], slack: bool) -> bool {
        if got == want {
            return true;
        }
        match self.kind {
            Kind::Float(_, mantissa) if slack => {
                let (got, want) = (self.decode(got), self.decode(want));
                (got - want).abs() <= want.abs() * f64::powi(2.0, -(mantissa as i32))
            }
            _ => false,
        }
    }
}

impl Op {
    pub fn by_name(name: &str) -> Option<Op> {
        OPS.into_iter().find(|o| o.name == name)
    }

    /// The input of one rank at one element.
    fn input(&self, kind: Kind, rank: usize, nranks: usize, index: usize) -> f64 {
        let turn = index % TURN;
        // `count` ranks contribute, in turn others: each rank's data matters at some elements.
        let contributes = |count: usize| (rank + index) % nranks < count;
        match self.name {
            "prod" => {
                if contributes(turn % (nranks.min(6) + 1)) {
                    2.0
                } else {
                    1.0
                }
            }
            "max" | "min" => {
                let value = ((rank * 5 + turn) % 9) as f64;
                if kind == Kind::Unsigned { value } else { value - 4.0 }
            }
            _ => {
                if contributes(1 + turn % nranks.min(8)) {
                    f64::from(1u8 << (turn % 3))
                } else {
                    0.0
                }
            }
        }
    }

    fn result(&self, kind: Kind, nranks: usize, index: usize) -> f64 {
        let inputs = (0..nranks).map(|rank| self.input(kind, rank, nranks, index));
        match self.name {
            "prod" => inputs.product(),
            "max" => inputs.fold(f64::NEG_INFINITY, f64::max),
            "min" => inputs.fold(f64::INFINITY, f64::min),
            "avg" => {
                let mean = inputs.sum::<f64>() / nranks as f64;
                if matches!(kind, Kind::Float(..)) { mean } else { mean.trunc() }
            }
            _ => inputs.sum(),
        }
    }

    /// Whether results may differ from the exact ones by one unit in the last place.
    pub fn slack(&self, nranks: usize) -> bool {
        self.name == "avg" && !nranks.is_power_of_two()
    }
}

/// Bytes that repeat. `at` reads from any offset.
pub struct Pattern {
    bytes: Vec<u8>,
    offset: usize,
}

impl Pattern {
    /// What `rank` contributes to a reduction. `seed` moves the start, so that what an earlier call left differs.
    pub fn input(t: DataType, op: Op, rank: usize, nranks: usize, seed: usize) -> Pattern {
        Self::elements(t, nranks, seed, |index| op.input(t.kind, rank, nranks, index))
    }

    /// The result of a reduction.
    pub fn result(t: DataType, op: Op, nranks: usize, seed: usize) -> Pattern {
        Self::elements(t, nranks, seed, |index| op.result(t.kind, nranks, index))
    }

    fn elements(t: DataType, nranks: usize, seed: usize, value: impl Fn(usize) -> f64) -> Pattern {
        let period = TURN * nranks;
        let bytes: Vec<u8> =
            (0..period).flat_map(|index| t.encode(value(index)).into_iter().take(t.size)).collect();
        let offset = (seed * 131 % period) * t.size;
        Pattern { bytes, offset }
    }

    /// Arbitrary bytes that tell sender, receiver and call apart.
    pub fn raw(from: usize, to: usize, seed: usize) -> Pattern {
        let mut state = (from as u64) << 40 ^ (to as u64) << 20 ^ seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
        let bytes = (0..4099)
            .map(|_| {
                // splitmix64
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                (z ^ (z >> 31)) as u8
            })
            .collect();
        Pattern { bytes, offset: 0 }
    }

    /// Writes the pattern's bytes from `start` on into `out`.
    pub fn fill(&self, start: usize, out: &mut [u8]) {
        let mut from = (self.offset + start) % self.bytes.len();
        let mut done = 0;
        while done < out.len() {
            let n = (self.bytes.len() - from).min(out.len() - done);
            out[done..done + n].copy_from_slice(&self.bytes[from..from + n]);
            done += n;
            from = 0;
        }
    }
}

fn encode_float(value: f64, exponent_bits: u32, mantissa_bits: u32) -> u64 {
    let raw = value.to_bits();
    let sign = (raw >> 63) << (exponent_bits + mantissa_bits);
    if value == 0.0 {
        return sign;
    }
    let exponent = ((raw >> 52) & 0x7ff) as i64 - 1023 + ((1i64 << (exponent_bits - 1)) - 1);
    let mantissa = raw & ((1 << 52) - 1);
    assert!(exponent > 0, "{value} is not normal in a type with {exponent_bits} exponent bits");
    // Averages over odd numbers of ranks are rounded here, to nearest; everything else is exact.
    let drop = 52 - mantissa_bits;
    let kept = mantissa >> drop;
    let round = u64::from(drop > 0 && (mantissa >> (drop - 1)) & 1 == 1);
    sign | (((exponent as u64) << mantissa_bits) + kept + round)
}

fn decode_float(raw: u64, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let sign = if (raw >> (exponent_bits + mantissa_bits)) & 1 == 1 { -1.0 } else { 1.0 };
    let exponent = ((raw >> mantissa_bits) & ((1 << exponent_bits) - 1)) as i32;
    let mantissa = (raw & ((1 << mantissa_bits) - 1)) as f64 / f64::powi(2.0, mantissa_bits as i32);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let magnitude = if exponent == 0 {
        mantissa * f64::powi(2.0, 1 - bias)
    } else {
        (1.0 + mantissa) * f64::powi(2.0, exponent - bias)
    };
    sign * magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_is_exact_in_every_type() {
        for nranks in [1, 2, 3, 4, 5, 8, 16, 72] {
            for t in TYPES {
                for op in OPS {
                    for index in 0..3 * TURN {
                        let want = op.result(t.kind, nranks, index);
                        if op.slack(nranks) && matches!(t.kind, Kind::Float(..)) {
                            continue;
                        }
                        let back = t.decode(&t.encode(want)[..t.size]);
                        assert_eq!(back, want, "{} {} of {nranks} ranks at {index}", t.name, op.name);
                    }
                }
            }
        }
    }

    #[test]
    fn floats_have_their_published_bits() {
        let bits = |name: &str, value: f64| {
            let t = DataType::by_name(name).unwrap();
            u64::from_le_bytes(t.encode(value))
        };
        assert_eq!(bits("float", -1.5), u64::from((-1.5f32).to_bits()));
        assert_eq!(bits("double", 0.1), 0.1f64.to_bits());
        assert_eq!((bits("half", 1.0), bits("half", -2.0)), (0x3c00, 0xc000));
        assert_eq!((bits("bfloat16", 1.0), bits("bfloat16", 3.0)), (0x3f80, 0x4040));
        assert_eq!((bits("f8e4m3", 1.0), bits("f8e4m3", 448.0)), (0x38, 0x7e));
        assert_eq!((bits("f8e5m2", 1.0), bits("f8e5m2", -4.0)), (0x3c, 0xc4));
        assert_eq!(bits("float", f64::from(1.0f32 / 3.0)), u64::from((1.0f32 / 3.0).to_bits()));
    }

    #[test]
    fn each_rank_matters_and_seeds_differ() {
        let t = DataType::by_name("float").unwrap();
        let bytes = |pattern: Pattern| {
            let mut out = vec![0; 4 * 2000];
            pattern.fill(12, &mut out);
            out
        };
        for op in OPS {
            let of = |rank| bytes(Pattern::input(t, op, rank, 4, 1));
            assert!((1..4).all(|rank| of(rank) != of(0)), "{}", op.name);
            assert_ne!(
                bytes(Pattern::result(t, op, 4, 1)),
                bytes(Pattern::result(t, op, 4, 2)),
                "{}",
                op.name
            );
        }
        assert_ne!(bytes(Pattern::raw(0, 1, 7)), bytes(Pattern::raw(1, 0, 7)));
    }

    #[test]
    fn slack_is_one_unit_and_only_when_asked() {
        let t = DataType::by_name("float").unwrap();
        let (a, b) = (1.0f32.to_le_bytes(), (1.0f32 + f32::EPSILON).to_le_bytes());
        assert!(t.same(&b, &a, true) && !t.same(&b, &a, false));
        assert!(!t.same(&(1.0f32 + 3.0 * f32::EPSILON).to_le_bytes(), &a, true));
    }
}
