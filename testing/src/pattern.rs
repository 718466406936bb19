//! What buffers hold: values that tell ranks, calls and places apart, and the results they must give.
//!
//! Patterns repeat with a prime period, so that results of any count are computed once and a piece that lands a multiple
//! of a chunk away from its place is seen. A seed shifts where a call starts in the pattern: what the call before left
//! is then no right answer.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use crate::reference::{Op, Type, reduce, scaled};

/// Elements after which values repeat.
pub const PERIOD: usize = 4099;

/// Elements that repeat.
#[derive(Debug, Clone)]
pub struct Pattern {
    bytes: Arc<Vec<u8>>,
    size: usize,
}

/// What kind of values the contributions to a reduction have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Values {
    /// Finite; sums and products round, some are subnormal, integers wrap.
    Numbers,
    /// NaN, infinities, zeros of both signs, the smallest and largest, often.
    Specials,
}

type Key = (Type, Op, usize, Values);

struct Reduction {
    inputs: Vec<Pattern>,
    result: Pattern,
}

fn reduction(key: Key) -> Arc<Reduction> {
    static MADE: LazyLock<Mutex<HashMap<Key, Arc<Reduction>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().expect("no holder of this lock panics");
    made.entry(key).or_insert_with(|| Arc::new(make(key))).clone()
}

fn make((t, op, nranks, values): Key) -> Reduction {
    let elements: Vec<Vec<u64>> = (0..PERIOD)
        .map(|index| (0..nranks).map(|rank| value(t, op, rank, index, values)).collect())
        .collect();
    let leaves = |(rank, bits): (usize, &u64)| match op {
        Op::Scaled => scaled(t, *bits, factor(t, rank)),
        _ => *bits,
    };
    let result = |element: &Vec<u64>| {
        let contributions: Vec<u64> = element.iter().enumerate().map(leaves).collect();
        reduce(t, op, &contributions)
    };
    let results: Vec<u64> = elements.iter().map(result).collect();
    let inputs = (0..nranks)
        .map(|rank| {
            Pattern::of(t, elements.iter().map(|element| element[rank]).collect::<Vec<_>>().iter().copied())
        })
        .collect();
    Reduction { inputs, result: Pattern::of(t, results.into_iter()) }
}

/// The factor of a rank in scaled sums: another one for each rank, with which products round.
pub fn factor(t: Type, rank: usize) -> u64 {
    let random = mix((t.code() as u64) << 56 ^ 0xfac ^ (rank as u64) << 32);
    if !t.is_float() {
        return (random | 1) & t.mask();
    }
    let sign = if random & 4 == 0 { 1.0 } else { -1.0 };
    t.encode(sign * (0.5 + (random >> 32) as f64 / f64::powi(2.0, 32)))
}

/// splitmix64
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn value(t: Type, op: Op, rank: usize, index: usize, values: Values) -> u64 {
    let random = mix((t.code() as u64) << 56 ^ (op.code() as u64) << 48 ^ (rank as u64) << 32 ^ index as u64);
    if t.is_float() { float(t, op, random, values) } else { random & t.mask() }
}

/// A float from random bits.
fn float(t: Type, op: Op, random: u64, values: Values) -> u64 {
    if values == Values::Specials && random.is_multiple_of(3) {
        // Any bit pattern in turn with the ones that matter most.
        let sign = 1 << (8 * t.size() - 1);
        let infinity = if t == Type::Float8e4m3 { t.mask() & !sign } else { t.encode(f64::INFINITY) };
        return match random / 3 % 8 {
            0 => 0,
            1 => sign,
            2 => infinity,
            3 => infinity | sign,
            4 => t.mask() & !sign,
            5 => 1,
            6 => sign | 1,
            _ => (random >> 13) & t.mask(),
        };
    }
    // A few ulps of everything: exponents near zero, so that sums cancel and round, and products stay finite.
    let mantissa = 1.0 + (random & 0xffff_ffff) as f64 / f64::powi(2.0, 32);
    let spread = if op == Op::Prod { 2 } else { 9 };
    let exponent = ((random >> 32) % spread) as i32 - spread as i32 / 2;
    let sign = if random >> 63 == 1 { -1.0 } else { 1.0 };
    let value = sign * mantissa * f64::powi(2.0, exponent);
    if op != Op::Prod && random.is_multiple_of(31) {
        // Below the smallest normal number of most types.
        return (random >> 8) & 0x3;
    }
    t.encode(value)
}

impl Pattern {
    /// What `rank` contributes to a reduction.
    pub fn input(t: Type, op: Op, rank: usize, nranks: usize, values: Values) -> Pattern {
        reduction((t, op, nranks, values)).inputs[rank].clone()
    }

    /// The result of a reduction.
    pub fn result(t: Type, op: Op, nranks: usize, values: Values) -> Pattern {
        reduction((t, op, nranks, values)).result.clone()
    }

    /// Arbitrary bits that tell sender and receiver apart; `size` is the element's.
    pub fn raw(from: usize, to: usize, size: usize) -> Pattern {
        type Made = HashMap<(usize, usize, usize), Pattern>;
        static MADE: LazyLock<Mutex<Made>> = LazyLock::new(Mutex::default);
        let mut made = MADE.lock().expect("no holder of this lock panics");
        let make = || {
            let word = |index: usize| mix((from as u64) << 50 ^ (to as u64) << 40 ^ index as u64);
            let bytes =
                (0..PERIOD).flat_map(|index| word(index).to_le_bytes().into_iter().take(size)).collect();
            Pattern { bytes: Arc::new(bytes), size }
        };
        made.entry((from, to, size)).or_insert_with(make).clone()
    }

    fn of(t: Type, elements: impl Iterator<Item = u64>) -> Pattern {
        let size = t.size();
        let bytes = elements.flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect();
        Pattern { bytes: Arc::new(bytes), size }
    }

    /// Writes whole elements from number `start` on.
    pub fn fill(&self, start: usize, out: &mut [u8]) {
        let mut from = start % PERIOD * self.size;
        let mut done = 0;
        while done < out.len() {
            let n = (self.bytes.len() - from).min(out.len() - done);
            out[done..done + n].copy_from_slice(&self.bytes[from..from + n]);
            done += n;
            from = 0;
        }
    }

    /// The elements from number `start` on.
    pub fn bytes(&self, start: usize, count: usize) -> Vec<u8> {
        let mut out = vec![0; count * self.size];
        self.fill(start, &mut out);
        out
    }
}

/// The bits of an element.
pub fn element(t: Type, bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..t.size()].copy_from_slice(&bytes[..t.size()]);
    u64::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_results_are_numbers_and_every_rank_matters() {
        for t in Type::ALL {
            for op in Op::ALL {
                let result = Pattern::result(t, op, 8, Values::Numbers).bytes(0, PERIOD);
                for bytes in result.chunks_exact(t.size()) {
                    assert!(!t.is_nan(element(t, bytes)), "{t:?} {op:?}");
                }
                let of = |rank| Pattern::input(t, op, rank, 8, Values::Numbers).bytes(0, 100);
                assert!((1..8).all(|rank| of(rank) != of(0)), "{t:?} {op:?}");
            }
        }
    }

    #[test]
    fn factors_matter() {
        for t in Type::ALL {
            let factors: std::collections::HashSet<u64> = (0..4).map(|rank| factor(t, rank)).collect();
            assert!(factors.len() > 1, "{t:?}");
            let result = |op| Pattern::result(t, op, 2, Values::Numbers).bytes(0, 100);
            assert!(result(Op::Scaled) != result(Op::Sum), "{t:?}");
        }
    }

    #[test]
    fn specials_are_there() {
        let inputs = Pattern::input(Type::Float16, Op::Sum, 0, 2, Values::Specials).bytes(0, PERIOD);
        let count = |bits: u64| inputs.chunks_exact(2).filter(|b| element(Type::Float16, b) == bits).count();
        assert!(count(0x7c00) > 20 && count(0xfc00) > 20 && count(0x8000) > 20 && count(1) > 20);
        assert!(inputs.chunks_exact(2).any(|b| Type::Float16.is_nan(element(Type::Float16, b))));
    }

    #[test]
    fn filling_wraps_around() {
        let pattern = Pattern::raw(1, 2, 4);
        let whole = pattern.bytes(PERIOD - 2, 5);
        assert_eq!(whole[8..], pattern.bytes(0, 3));
    }
}
