//! Counts above 2^31 elements: an all-reduce in place and a message, each of bytes.

use crate::driver::{self, Outcome};
use crate::pattern::{Pattern, Values};
use crate::rank::Rank;
use crate::reference::{Op, Type};

const COUNT: usize = (1 << 31) + 5;
const CHUNK: usize = 16 << 20;
const PAD: usize = 512;
const CANARY: u8 = 0xa5;

pub fn run(rank: &Rank) -> Outcome<String> {
    let (nccl, t) = (rank.nccl, Type::Int8);
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let area = driver::alloc(COUNT + 2 * PAD)?;
    let buffer = area + PAD as u64;
    for at in [area, buffer + COUNT as u64] {
        driver::set(at, CANARY, PAD, stream)?;
    }
    let fill = |pattern: &Pattern| {
        each_chunk(|from, bytes| {
            pattern.fill(from, bytes);
            driver::upload(buffer + from as u64, bytes, stream)
        })
    };
    let compare = |pattern: &Pattern, what: &str| {
        let mut wanted = vec![0; CHUNK];
        each_chunk(|from, bytes| {
            driver::download(buffer + from as u64, bytes, stream)?;
            pattern.fill(from, &mut wanted[..bytes.len()]);
            match bytes.iter().zip(&wanted).position(|(got, want)| got != want) {
                None => Ok(()),
                Some(at) => Err(format!("{what}: element {} is wrong", from + at)),
            }
        })
    };

    fill(&Pattern::input(t, Op::Sum, rank.rank, rank.nranks, Values::Numbers))?;
    let code = nccl.all_reduce(buffer, buffer, COUNT, t.code(), Op::Sum.code(), comm, stream);
    nccl.ok("ncclAllReduce", comm, code)?;
    driver::synchronize(stream)?;
    nccl.ok("the communicator's state", comm, nccl.async_error(comm))?;
    let result = Pattern::result(t, Op::Sum, rank.nranks, Values::Numbers);
    compare(&result, "all-reduce")?;

    // The last rank sends its result to rank 0, which no longer has it.
    let last = rank.nranks - 1;
    if rank.rank == last {
        nccl.ok("ncclSend", comm, nccl.send(buffer, COUNT, t.code(), 0, comm, stream))?;
    } else if rank.rank == 0 {
        driver::set(buffer, 0, COUNT, stream)?;
        nccl.ok("ncclRecv", comm, nccl.recv(buffer, COUNT, t.code(), last as i32, comm, stream))?;
    }
    driver::synchronize(stream)?;
    nccl.ok("the communicator's state", comm, nccl.async_error(comm))?;
    if rank.rank == 0 {
        compare(&result, "message")?;
    }
    for at in [area, buffer + COUNT as u64] {
        let mut pad = [0; PAD];
        driver::download(at, &mut pad, stream)?;
        crate::ensure!(pad.iter().all(|byte| *byte == CANARY), "bytes around the buffer were overwritten");
    }
    driver::free(area)?;
    rank.destroy(comm)?;
    Ok("checks 2".into())
}

fn each_chunk(mut work: impl FnMut(usize, &mut [u8]) -> Outcome) -> Outcome {
    let mut bytes = vec![0; CHUNK];
    (0..COUNT).step_by(CHUNK).try_for_each(|from| work(from, &mut bytes[..CHUNK.min(COUNT - from)]))
}
