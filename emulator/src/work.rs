//! What can be queued on a stream or be a node of a graph, and what each does when it runs.
//!
//! A [`Work`] is plain data: an eager call queues it at once, a capturing stream puts it into the graph, a launch of
//! the graph queues it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::api;
use crate::context::Context;
use crate::error::{ILLEGAL_ADDRESS, LAUNCH_FAILED, Result};
use crate::fault::{self, Slow};
use crate::graph::Graph;
use crate::kernel::{self, KernelFault};
use crate::memory::copy::{Copy, Set};
use crate::module::Function;
use crate::stream::event::Event;
use crate::stream::op::{Job, Op};
use crate::types::{CUhostFn, CUstream, CUstreamCallback, Opaque};

#[derive(Clone)]
pub enum Work {
    Empty,
    Kernel(Launch),
    Copy(Copy),
    Set(Set),
    Host {
        function: CUhostFn,
        data: Opaque,
    },
    Callback {
        function: CUstreamCallback,
        stream: CUstream,
        data: Opaque,
    },
    MemOps(Arc<[MemOp]>),
    /// A graph inside a graph.
    Child(Arc<Graph>),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    /// Takes memory away once the work before it has ended.
    Free(u64),
    /// The place in a graph where its memory comes or goes; it is there as long as the graph.
    Memory(Arc<GraphMemory>, MemoryNode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryNode {
    Alloc,
    Free,
}

/// Memory of a graph and its copies.
pub struct GraphMemory {
    pub address: u64,
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        crate::memory::alloc::free_now(self.address);
    }
}

#[derive(Clone)]
pub struct Launch {
    pub function: Arc<Function>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub arg: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemOp {
    pub kind: MemOpKind,
    pub address: u64,
    pub value: u64,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemOpKind {
    Wait32,
    Wait64,
    Write32,
    Write64,
    Barrier,
}

/// Queues the work in a context behind the operations of `before`. The caller holds no lock that the work needs.
pub fn start(work: Work, context: &'static Context, before: &[Arc<Op>]) -> Arc<Op> {
    match work {
        Work::Empty | Work::Memory(..) => Op::submit(before, Job::Marker(Box::new(|| {}))),
        Work::Record(event) => event.record(before, context),
        Work::Wait(event) => {
            let mut before = before.to_vec();
            before.extend(event.to_wait_for());
            Op::submit(&before, Job::Marker(Box::new(|| {})))
        }
        Work::Child(graph) => graph.start(context, before),
        work => Op::submit(before, Job::Task(Box::new(move |op| run(&work, context, op)))),
    }
}

/// Runs one piece of work; a fault breaks the context, and a broken context runs nothing more.
fn run(work: &Work, context: &'static Context, op: &Arc<Op>) {
    if let Work::Callback { function: Some(function), stream, data } = work {
        // Callbacks of this kind are told about a failure instead of being left out.
        let status = context.failure().map_or(0, |code| code.0);
        // SAFETY: the caller of cuStreamAddCallback promised a function of this type, for this pointer.
        api::in_callback(|| unsafe { function(*stream, status, data.0) });
        return;
    }
    if context.failure().is_some() {
        return;
    }
    let result = match work {
        Work::Kernel(launch) => launch.run(context, op),
        Work::Copy(copy) => {
            fault::delay(Slow::Copy);
            copy.run()
        }
        Work::Set(set) => {
            fault::delay(Slow::Set);
            set.run()
        }
        Work::Host { function, data } => {
            fault::delay(Slow::Host);
            if let Some(function) = function {
                // SAFETY: the caller who queued the function promised its type, and that it may run with this pointer.
                api::in_callback(|| unsafe { function(data.0) });
            }
            Ok(())
        }
        Work::MemOps(ops) => {
            fault::delay(Slow::MemOp);
            ops.iter().try_for_each(|op| op.run(context))
        }
        Work::Free(address) => {
            crate::memory::alloc::free_now(*address);
            Ok(())
        }
        Work::Empty
        | Work::Memory(..)
        | Work::Child(_)
        | Work::Record(_)
        | Work::Wait(_)
        | Work::Callback { .. } => Ok(()),
    };
    if let Err(code) = result {
        context.break_by(code);
    }
}

impl Launch {
    fn run(&self, context: &'static Context, op: &Arc<Op>) -> Result {
        fault::delay(Slow::Launch);
        context.running.lock().push(op.clone());
        let result = kernel::run(self.function.info, self.grid[0], self.block[0], &self.arg);
        context.running.lock().retain(|running| !Arc::ptr_eq(running, op));
        result.map_err(|fault| {
            crate::config::log(&format!("kernel {} failed: {fault:?}", self.function.info.name));
            match fault {
                KernelFault::IllegalAddress(_) => ILLEGAL_ADDRESS,
                KernelFault::Trap => LAUNCH_FAILED,
            }
        })
    }
}

impl MemOp {
    fn run(&self, context: &'static Context) -> Result {
        match self.kind {
            MemOpKind::Barrier => fence(Ordering::SeqCst),
            MemOpKind::Write32 => {
                // SAFETY: the address was checked to be aligned and inside an allocation when the work was queued;
                // other threads and processes access it only as an atomic or after this.
                let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
                // Release: everything before in the stream is visible to whoever sees the value.
                crate::memory::guarded(|| word.store(self.value as u32, Ordering::Release))?;
            }
            MemOpKind::Write64 => {
                // SAFETY: as for 32 bits.
                let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
                crate::memory::guarded(|| word.store(self.value, Ordering::Release))?;
            }
            MemOpKind::Wait32 | MemOpKind::Wait64 => {
                let mut turns = 0u32;
                while !self.holds()? && context.failure().is_none() {
                    // What is waited for mostly comes from another process on the same cores: yield, then nap.
                    turns += 1;
                    if turns < 200 {
                        std::thread::yield_now();
                    } else {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the condition of a wait holds now.
    fn holds(&self) -> Result<bool> {
        let wide = self.kind == MemOpKind::Wait64;
        let seen = crate::memory::guarded(|| {
            // Acquire: pairs with the release of whoever wrote the value.
            if wide {
                // SAFETY: checked when queued, as for writes.
                unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.load(Ordering::Acquire)
            } else {
                // SAFETY: as above.
                u64::from(unsafe { AtomicU32::from_ptr(self.address as *mut u32) }.load(Ordering::Acquire))
            }
        })?;
        let value = if wide { self.value } else { self.value & u64::from(u32::MAX) };
        let all = if wide { u64::MAX } else { u64::from(u32::MAX) };
        Ok(match self.flags & 3 {
            // The difference counts as a signed number, so that counters may wrap.
            0 if wide => seen.wrapping_sub(value) as i64 >= 0,
            0 => (seen as u32).wrapping_sub(value as u32) as i32 >= 0,
            1 => seen == value,
            2 => seen & value != 0,
            _ => (seen | value) != all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_compare_as_the_driver_does() {
        let word = AtomicU32::new(5);
        let address = word.as_ptr() as u64;
        let holds = |flags, value| MemOp { kind: MemOpKind::Wait32, address, value, flags }.holds().unwrap();
        assert!(holds(0, 5) && holds(0, 4) && !holds(0, 6));
        assert!(holds(0, 0xffff_fff0), "a counter that wrapped is ahead");
        assert!(holds(1, 5) && !holds(1, 4));
        assert!(holds(2, 4) && !holds(2, 2));
        assert!(holds(3, 0) && !holds(3, !5));
    }
}
