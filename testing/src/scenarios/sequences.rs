//! Operations of all kinds around the wrap-around of sequence numbers (OXCCL_SEQUENCE_START is set from outside).

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::Outcome;
use crate::nccl::Config;
use crate::rank::Rank;

/// One function after the other, each often enough to take every counter across; then all mixed.
pub fn run(rank: &Rank) -> Outcome<String> {
    let stream = rank.enter()?;
    let mut checker = Checker::new(rank.nccl, 128 * 1024 * rank.nranks)?;
    let repeats = rank.number("repeats", 24);
    for function in Function::ALL.into_iter().map(Some).chain([None]) {
        // A fresh communicator starts before the wrap again.
        let comm = rank.init_config(&Config { max_ctas: 2, ..Config::new() })?;
        for turn in 0..repeats * if function.is_none() { 3 } else { 1 } {
            let function = function.unwrap_or(Function::ALL[turn % Function::ALL.len()]);
            let count = [3, 700, 30_011][turn % 3];
            let call =
                Call { function, root: turn % rank.nranks, ..Call::sum(rank.rank, rank.nranks, count, turn) };
            checker
                .run(&call, Shift::default(), comm, stream)
                .map_err(|e| format!("operation {turn}: {e}"))?;
        }
        rank.destroy(comm)?;
    }
    Ok(format!("checks {}", checker.checks))
}
