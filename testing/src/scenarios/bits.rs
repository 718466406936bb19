//! Results are the same bits on every rank, in every repetition, and after other communicators came and went.
//!
//! The report is a hash over all results: equal hashes of two runs say that they computed the same bits, whatever the
//! protocol.

use crate::call::{Call, Function};
use crate::driver::{self, Outcome};
use crate::pattern::{Pattern, Values};
use crate::rank::Rank;
use crate::reference::{Op, Type};

const REPEATS: usize = 200;
const COUNTS: [usize; 3] = [777, 20_011, 100_003];

pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let capacity = COUNTS[2] * 4;
    let (send, recv) = (driver::alloc(capacity)?, driver::alloc(capacity)?);
    let repeats = rank.number("repeats", REPEATS);
    let mut total = 0u64;
    for (t, op) in [
        (Type::Float32, Op::Sum),
        (Type::Bfloat16, Op::Sum),
        (Type::Float16, Op::Avg),
        (Type::Float8e4m3, Op::Sum),
    ] {
        for count in COUNTS {
            let input = Pattern::input(t, op, rank.rank, rank.nranks, Values::Numbers).bytes(0, count);
            driver::upload(send, &input, stream)?;
            let call =
                Call { function: Function::AllReduce, t, op, ..Call::sum(rank.rank, rank.nranks, count, 0) };
            let mut first = None;
            let mut got = vec![0; input.len()];
            // Large ones a few times, so that the time goes to many repetitions.
            for turn in 0..if count > 30_000 { repeats.div_ceil(10) } else { repeats } {
                crate::check::trace(&call);
                driver::set(recv, turn as u8, got.len(), stream)?;
                call.enqueue(nccl, comm, stream, send, recv)?;
                driver::download(recv, &mut got, stream)?;
                let hash = hash(&got);
                let first = *first.get_or_insert(hash);
                crate::ensure!(hash == first, "{t:?} {op:?} {count}: repetition {turn} gave other bits");
                if turn == repeats / 2 && count == COUNTS[0] {
                    let other = rank.init()?;
                    call.enqueue(nccl, other, stream, send, recv)?;
                    driver::synchronize(stream)?;
                    rank.destroy(other)?;
                }
            }
            let own = first.unwrap_or(0);
            for (peer, bytes) in rank.gather(&own.to_le_bytes())?.into_iter().enumerate() {
                crate::ensure!(
                    bytes == own.to_le_bytes(),
                    "{t:?} {op:?} {count}: rank {peer} got other bits"
                );
            }
            total = crate::pattern::mix(total ^ own);
        }
    }
    rank.destroy(comm)?;
    Ok(format!("hash {total:016x}"))
}

/// FNV-1a by words.
fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        crate::pattern::mix(hash ^ u64::from_le_bytes(word))
    })
}
