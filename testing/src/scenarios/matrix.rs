//! Every function with every type, operation and count, in and out of place, aligned and not, against the reference.
//!
//! All ranks walk through the same list, on two communicators in turn: one as the library sets it up, one with a single
//! block, so that large counts go several times through the slots of one channel. Misalignment differs from rank to
//! rank. The protocol is forced from outside, by NCCL_PROTO.

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::Outcome;
use crate::nccl::{Comm, Config};
use crate::pattern::{Values, mix};
use crate::rank::Rank;
use crate::reference::{Op, Type};

const COUNTS: [usize; 8] = [0, 1, 15, 16, 17, 255, 256, 257];
/// Bytes that fill all slots of a channel three times: LL has 2 of 8 KiB, Simple has 4 of 64 KiB.
const LL_BYTES: usize = 3 * 2 * (8 << 10);
const SIMPLE_BYTES: usize = 3 * 4 * (64 << 10);

/// How much of the matrix.
#[derive(Clone, Copy, PartialEq)]
enum Set {
    /// In place or out of place in turn.
    Usual,
    /// Both, each aligned and misaligned.
    Full,
    /// A share of it that still has each function, type and operation.
    Small,
}

pub fn run(rank: &Rank) -> Outcome<String> {
    let set = match rank.arg("set") {
        Some("full") => Set::Full,
        Some("small") => Set::Small,
        _ => Set::Usual,
    };
    let large = if rank.arg("large") == Some("simple") { SIMPLE_BYTES } else { LL_BYTES };
    let stream = rank.enter()?;
    let comms = [rank.init()?, rank.init_config(&Config { max_ctas: 1, ..Config::new() })?];
    let mut checker = Checker::new(rank.nccl, (large + 64) * rank.nranks)?;
    let mut number = 0;
    for function in Function::ALL {
        let ops = if function.reduces() { &Op::ALL[..] } else { &Op::ALL[..1] };
        for t in Type::ALL {
            for op in ops {
                for count in COUNTS.into_iter().chain([large / t.size() + 1]) {
                    number += 1;
                    let is_large = count > 257;
                    if set == Set::Small
                        && (!mix(number).is_multiple_of(6) || is_large && !mix(number).is_multiple_of(12))
                    {
                        continue;
                    }
                    for variant in 0..4 {
                        let random = mix(number << 8 | variant);
                        let (in_place, shifted) = match set {
                            Set::Full if is_large && variant >= 2 => continue,
                            Set::Full => (variant & 1 == 1, variant >= 2 || is_large && random & 1 == 1),
                            Set::Usual if variant >= if is_large { 1 } else { 2 } => continue,
                            Set::Usual if is_large => (random & 2 == 2, random & 1 == 1),
                            Set::Usual => (variant == 1, random & 1 == 1),
                            Set::Small if variant > 0 => continue,
                            Set::Small => (random & 2 == 2, random & 1 == 1),
                        };
                        let call = Call {
                            function,
                            t,
                            op: *op,
                            made_op: -1,
                            root: random as usize % rank.nranks,
                            count,
                            rank: rank.rank,
                            nranks: rank.nranks,
                            in_place,
                            values: Values::Numbers,
                            seed: number as usize,
                        };
                        let shift = if shifted { shift(rank, number) } else { Shift::default() };
                        checker.run(&call, shift, comms[(random >> 8) as usize % 2], stream)?;
                    }
                }
            }
        }
    }
    finish(rank, &comms, checker)
}

/// A misalignment of this rank's own.
fn shift(rank: &Rank, number: u64) -> Shift {
    let random = mix(number << 16 | rank.rank as u64) as usize;
    Shift { send: random % 17, recv: random / 32 % 17 }
}

/// NaN, infinities, signed zeros, subnormals and largest values in every type and operation that reduces.
pub fn specials(rank: &Rank) -> Outcome<String> {
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let mut checker = Checker::new(rank.nccl, 64 << 10)?;
    for function in [Function::AllReduce, Function::Reduce, Function::ReduceScatter] {
        for t in Type::ALL {
            for op in Op::ALL {
                for count in [1, 1021] {
                    let call = Call {
                        function,
                        t,
                        op,
                        values: Values::Specials,
                        ..Call::sum(rank.rank, rank.nranks, count, checker.checks as usize)
                    };
                    checker.run(&call, Shift::default(), comm, stream)?;
                }
            }
        }
    }
    finish(rank, &[comm], checker)
}

fn finish(rank: &Rank, comms: &[Comm], checker: Checker) -> Outcome<String> {
    let checks = checker.checks;
    // Freeing memory waits for the device and blocks launches of the process's other ranks meanwhile.
    rank.barrier()?;
    checker.free()?;
    comms.iter().try_for_each(|comm| rank.destroy(*comm))?;
    Ok(format!("checks {checks}"))
}
