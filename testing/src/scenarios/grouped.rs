//! Groups of many calls: collectives of all kinds and sizes with messages between them, checked one by one.
//!
//! More small collectives than one launch carries, large ones among them, some ranks grouping what others call one by one.

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::{self, Outcome, Stream};
use crate::nccl::{Comm, INVALID_ARGUMENT, INVALID_USAGE};
use crate::pattern::mix;
use crate::rank::Rank;
use crate::reference::{Op, Type};

/// Calls of one group.
const CALLS: usize = 60;
const LARGEST: usize = 40_000;

pub fn run(rank: &Rank) -> Outcome<String> {
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let mut checkers = Vec::new();
    for _ in 0..CALLS {
        checkers.push(Checker::new(rank.nccl, (LARGEST + 64) * 8 * rank.nranks)?);
    }
    let group = Group { rank, comm, stream };
    for turn in 0..rank.number("turns", 20) {
        let calls: Vec<Call> = (0..CALLS).map(|number| group.call(turn, number)).collect();
        let shifts: Vec<Shift> = (0..CALLS).map(|number| group.shift(turn, number)).collect();
        // In every third turn one rank makes its collectives without a group.
        let alone = turn % 3 == 2 && turn % rank.nranks == rank.rank;
        group.nest(&mut checkers, &calls, &shifts, &mut Vec::new(), alone)?;
    }
    let checks: u64 = checkers.iter().map(|checker| checker.checks).sum();
    rank.barrier()?;
    checkers.into_iter().try_for_each(Checker::free)?;
    rank.destroy(comm)?;
    Ok(format!("checks {checks}"))
}

/// Communicators that are ended in the group of their last calls end after these.
pub fn ends(rank: &Rank) -> Outcome<String> {
    let (nccl, stream) = (rank.nccl, rank.enter()?);
    let mut checker = Checker::new(nccl, 1 << 20)?;
    for count in [10, 50_000] {
        let comm = rank.init()?;
        let call = Call::sum(rank.rank, rank.nranks, count, count);
        checker.run_with(&call, Shift::default(), stream, |_, send, recv| {
            nccl.group(comm, || {
                call.enqueue(nccl, comm, stream, send, recv)?;
                if count > 10 {
                    nccl.ok("ncclCommFinalize", comm, nccl.finalize(comm))?;
                }
                nccl.ok("ncclCommDestroy", comm, nccl.destroy(comm))
            })?;
            driver::synchronize(stream)
        })?;
        crate::ensure!(nccl.destroy(comm) == INVALID_ARGUMENT, "the communicator is still there");
        // Ended twice, the group fails, and the communicator is gone.
        let comm = rank.init()?;
        nccl.ok("ncclGroupStart", comm, nccl.group_start())?;
        let buffer = checker.scratch();
        let code = nccl.all_reduce(buffer, buffer, 5, Type::Float32.code(), Op::Sum.code(), comm, stream);
        nccl.ok("ncclAllReduce", comm, code)?;
        nccl.ok("ncclCommDestroy", comm, nccl.destroy(comm))?;
        crate::ensure!(nccl.destroy(comm) == INVALID_ARGUMENT, "the second ncclCommDestroy passed");
        crate::ensure!(nccl.group_end() == INVALID_ARGUMENT, "the group with it passed");
        crate::ensure!(nccl.destroy(comm) == INVALID_ARGUMENT, "the communicator outlived the failed group");
        // The reason for which a group is dropped comes before the failures of the ends in it.
        let comm = rank.init()?;
        nccl.ok("ncclGroupStart", comm, nccl.group_start())?;
        let code = nccl.all_reduce(buffer, buffer, 5, Type::Float32.code(), Op::Sum.code(), comm, stream);
        nccl.ok("ncclAllReduce", comm, code)?;
        nccl.ok("ncclCommFinalize", comm, nccl.finalize(comm))?;
        nccl.ok("ncclCommAbort", comm, nccl.abort(comm))?;
        crate::ensure!(nccl.group_simulate_end() == INVALID_USAGE, "another error than the group's own");
    }
    // So does the parent of a split.
    let parent = rank.init()?;
    let mut child = Comm::NULL;
    nccl.group(parent, || {
        nccl.ok("ncclCommSplit", parent, nccl.split(parent, 0, 0, &mut child, None))?;
        nccl.ok("ncclCommDestroy", parent, nccl.destroy(parent))
    })?;
    crate::ensure!(nccl.destroy(parent) == INVALID_ARGUMENT, "the parent is still there");
    checker.run(&Call::sum(rank.rank, rank.nranks, 100, 1), Shift::default(), child, stream)?;
    rank.destroy(child)?;
    let checks = checker.checks;
    rank.barrier()?;
    checker.free()?;
    Ok(format!("checks {checks}"))
}

struct Group<'a> {
    rank: &'a Rank,
    comm: Comm,
    stream: Stream,
}

impl Group<'_> {
    fn call(&self, turn: usize, number: usize) -> Call {
        let random = mix((turn * CALLS + number) as u64);
        let pick = |shift: u32, count: usize| (random >> shift) as usize % count;
        // A turn whose calls may be made one by one has no messages: those need the group.
        let functions = if turn % 3 == 2 { Function::ALL.len() - 5 } else { Function::ALL.len() };
        let order = [
            Function::AllReduce,
            Function::Broadcast,
            Function::Bcast,
            Function::Reduce,
            Function::ReduceScatter,
            Function::AllGather,
            Function::AllToAll,
            Function::Gather,
            Function::Scatter,
            Function::SendRecv,
            Function::Exchange,
        ];
        Call {
            function: order[pick(0, functions)],
            t: Type::ALL[pick(8, Type::ALL.len())],
            op: Op::ALL[pick(16, Op::ALL.len())],
            root: pick(24, self.rank.nranks),
            count: if pick(32, 12) == 0 { pick(40, LARGEST) } else { pick(40, 700) },
            in_place: pick(56, 2) == 1,
            ..Call::sum(self.rank.rank, self.rank.nranks, 0, turn * CALLS + number)
        }
    }

    fn shift(&self, turn: usize, number: usize) -> Shift {
        let random = mix(((turn * CALLS + number) * 64 + self.rank.rank) as u64) as usize;
        Shift { send: random % 17, recv: random / 32 % 17 }
    }

    /// Prepares the buffers of one call after the other, makes all calls, and checks on the way back.
    fn nest(
        &self,
        checkers: &mut [Checker],
        calls: &[Call],
        shifts: &[Shift],
        buffers: &mut Vec<(Call, u64, u64)>,
        alone: bool,
    ) -> Outcome {
        let (Some((checker, checkers)), Some((call, calls)), Some((shift, shifts))) =
            (checkers.split_first_mut(), calls.split_first(), shifts.split_first())
        else {
            return self.make(buffers, alone);
        };
        checker.run_with(call, *shift, self.stream, |checker, send, recv| {
            buffers.push((*call, send, recv));
            self.nest(checkers, calls, shifts, buffers, alone)?;
            checker.settle(self.comm, self.stream)
        })
    }

    fn make(&self, buffers: &[(Call, u64, u64)], alone: bool) -> Outcome {
        let nccl = self.rank.nccl;
        let all = || {
            buffers
                .iter()
                .try_for_each(|(call, send, recv)| call.enqueue(nccl, self.comm, self.stream, *send, *recv))
        };
        if alone { all() } else { nccl.group(self.comm, all) }
    }
}
