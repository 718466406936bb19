//! Faults on demand: failing calls (`OXCCL_EMU_FAIL`) and slow operations (`OXCCL_EMU_SLOW`).
//!
//! Calls are counted per process and per function, from 1, and only for functions that a rule names; without rules a
//! call costs one load here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config;
use crate::error::{Code, Result};

/// `function:call:code`, where call is a number, `number+` for that call and all later ones, or `*` for all.
pub struct Rule {
    function: String,
    first: u64,
    last: u64,
    code: Code,
    calls: AtomicU64,
}

impl Rule {
    pub fn parse(text: &str) -> Option<Rule> {
        let mut parts = text.split(':');
        let function = base_name(parts.next()?.trim()).to_owned();
        let call = parts.next()?.trim();
        let code = Code(parts.next()?.trim().parse().ok()?);
        let (first, last) = if call == "*" {
            (1, u64::MAX)
        } else if let Some(from) = call.strip_suffix('+') {
            (from.parse().ok()?, u64::MAX)
        } else {
            let only = call.parse().ok()?;
            (only, only)
        };
        Some(Rule { function, first, last, code, calls: AtomicU64::new(0) })
    }
}

/// Fails if a rule says that this call of `function` shall fail.
pub fn inject(function: &str) -> Result {
    let rules = &config::get().fail;
    if rules.is_empty() {
        return Ok(());
    }
    let base = base_name(function);
    for rule in rules.iter().filter(|rule| rule.function == base) {
        // Relaxed: the count is all that is shared.
        let call = rule.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if (rule.first..=rule.last).contains(&call) && rule.code.0 != 0 {
            return Err(rule.code);
        }
    }
    Ok(())
}

/// The name without what distinguishes versions of one function: `cuMemAlloc` for `cuMemAlloc_v2`.
pub fn base_name(function: &str) -> &str {
    let name = function.strip_suffix("_ptsz").or_else(|| function.strip_suffix("_ptds")).unwrap_or(function);
    match name.rsplit_once("_v") {
        Some((base, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

/// Kinds of operation that `OXCCL_EMU_SLOW` delays.
#[derive(Clone, Copy)]
pub enum Slow {
    Copy,
    Set,
    Launch,
    MemOp,
    Host,
}

/// Sleeps as long as operations of this kind shall take longer. Called where the operation runs, not where it is queued.
pub fn delay(kind: Slow) {
    let slow = &config::get().slow;
    let micros = match kind {
        Slow::Copy => slow.copy,
        Slow::Set => slow.set,
        Slow::Launch => slow.launch,
        Slow::MemOp => slow.memop,
        Slow::Host => slow.host,
    };
    if micros > 0 {
        std::thread::sleep(Duration::from_micros(micros));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_function_share_a_name() {
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cuStreamQuery_ptsz"), "cuStreamQuery");
        assert_eq!(base_name("cuStreamWaitValue32_v2_ptsz"), "cuStreamWaitValue32");
        assert_eq!(base_name("cuInit"), "cuInit");
    }

    #[test]
    fn rules_with_errors_are_refused() {
        assert!(Rule::parse("cuInit:1:100").is_some());
        assert!(Rule::parse("cuInit:1").is_none());
        assert!(Rule::parse("cuInit:one:100").is_none());
    }
}
