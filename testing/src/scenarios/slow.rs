//! A sender that runs ahead of a slow receiver must not overwrite what was not read yet.

use std::time::Duration;

use crate::driver::{self, Outcome};
use crate::pattern::mix;
use crate::rank::Rank;
use crate::reference::Type;

const BATCH: usize = 50;

/// Thousands of broadcasts from rank 0; the last rank is slow, sometimes before it calls, sometimes on its stream.
pub fn broadcast(rank: &Rank) -> Outcome<String> {
    let (nccl, t) = (rank.nccl, Type::Int32);
    let total = rank.number("broadcasts", 10_000);
    let stream = rank.enter()?;
    let comm = rank.init()?;
    // Sizes around the limits of slots, small ones mostly.
    let size = |number: usize| match number % 25 {
        0 => 9_001,
        n => 1 + n * 37 % 400,
    };
    let content = |number: usize, index: usize| (number * 31 + index) as u32;
    let stride = 9_001 * 4;
    let area = driver::alloc(BATCH * stride)?;
    let mut bytes = vec![0u8; BATCH * stride];
    let is_slow = rank.rank == rank.nranks - 1;
    for first in (0..total).step_by(BATCH) {
        let batch = first..(first + BATCH).min(total);
        if rank.rank == 0 {
            for number in batch.clone() {
                let from = (number - first) * stride;
                for index in 0..size(number) {
                    bytes[from + 4 * index..][..4].copy_from_slice(&content(number, index).to_le_bytes());
                }
            }
            driver::upload(area, &bytes, stream)?;
        }
        for number in batch.clone() {
            if is_slow {
                match mix(number as u64) % 97 {
                    0 => std::thread::sleep(Duration::from_millis(2)),
                    1 => driver::sleep(stream, 1500)?,
                    _ => {}
                }
            }
            let buffer = area + ((number - first) * stride) as u64;
            let code = nccl.broadcast(buffer, buffer, size(number), t.code(), 0, comm, stream);
            nccl.ok("ncclBroadcast", comm, code)?;
        }
        if rank.rank != 0 {
            driver::download(area, &mut bytes, stream)?;
            for number in batch {
                let from = (number - first) * stride;
                for index in 0..size(number) {
                    let got = &bytes[from + 4 * index..][..4];
                    crate::ensure!(
                        got == content(number, index).to_le_bytes(),
                        "broadcast {number}: element {index} is wrong"
                    );
                }
            }
        } else {
            driver::synchronize(stream)?;
        }
    }
    nccl.ok("the communicator's state", comm, nccl.async_error(comm))?;
    rank.destroy(comm)?;
    Ok(format!("checks {total}"))
}
