//! The collectives with settings for one call: without any, and with all at their defaults, they are the plain ones;
//! settings that are not finished are refused, not ignored.

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::Outcome;
use crate::nccl::{CollConfig, INVALID_ARGUMENT, INVALID_USAGE};
use crate::rank::Rank;
use crate::reference::{Op, Type};
use crate::scenarios::misuse::refused;

pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let mut checker = Checker::new(nccl, 70_100 * 4 * rank.nranks)?;
    let default = CollConfig::new();
    let mut functions = 0;
    for (seed, function) in Function::ALL.into_iter().enumerate() {
        let (t, op) = (Type::Float32, Op::Max);
        let root = seed % rank.nranks;
        for config in [None, Some(&default)] {
            for count in [0, 9, 70_001] {
                let call = Call { function, t, op, root, ..Call::sum(rank.rank, rank.nranks, count, seed) };
                let kinds = (t.code(), op.code(), root as i32);
                let mut is_one = true;
                checker.run_with(&call, Shift::default(), stream, |checker, send, recv| {
                    match nccl.with_config(function, (send, recv, count), kinds, comm, stream, config) {
                        Some(code) => nccl.ok(&format!("{function:?} with {config:?}"), comm, code)?,
                        None => {
                            is_one = false;
                            call.enqueue(nccl, comm, stream, send, recv)?;
                        }
                    }
                    checker.settle(comm, stream)
                })?;
                functions += usize::from(is_one && count == 9 && config.is_none());
            }
        }
        let kinds = (t.code(), op.code(), root as i32);
        let name = std::ffi::CString::new("ring").map_err(|e| e.to_string())?;
        for (word, config, wanted) in [
            ("magic", CollConfig { magic: 0, ..default }, INVALID_ARGUMENT),
            ("size", CollConfig { size: 3, ..default }, INVALID_ARGUMENT),
            ("version", CollConfig { version: 0, ..default }, INVALID_ARGUMENT),
            ("minCTAs", CollConfig { min_ctas: 2, ..default }, INVALID_USAGE),
            ("maxCTAs", CollConfig { max_ctas: 2, ..default }, INVALID_USAGE),
            ("algSelection", CollConfig { alg_selection: name.as_ptr(), ..default }, INVALID_USAGE),
        ] {
            let code = nccl.with_config(function, (0, 0, 0), kinds, comm, stream, Some(&config));
            if let Some(code) = code {
                refused(rank, &format!("{function:?}"), comm, code, &[wanted], &[word])?;
            }
        }
    }
    crate::ensure!(functions == 8, "{functions} functions have a form with settings");
    rank.destroy(comm)?;
    Ok(format!("checks {}", checker.checks))
}
