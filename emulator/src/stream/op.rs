//! Queued work as a graph of operations, and the threads that run it.
//!
//! Every piece of queued work is an [`Op`]. It becomes ready when all operations before it have ended; then a marker
//! ends at once, on whichever thread made it ready, and a task runs on a thread of the pool. The pool grows without
//! limit, because a task may wait for another one: streams, branches of a graph and kernels that wait for one another
//! all run at the same time. A thread that ended a task goes on with the next one that this made ready.
//!
//! What an operation wrote is visible to those after it and to whoever waited for it: the end is published under the
//! operation's lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

type Task = Box<dyn FnOnce(&Arc<Op>) + Send>;

/// What an operation does when its turn comes.
pub enum Job {
    /// Takes no time and never waits: runs on any thread. It must not lock a stream or a context.
    Marker(Box<dyn FnOnce() + Send>),
    /// May take time or wait for ever.
    Task(Task),
}

pub struct Op {
    done: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    /// Operations that must end before, plus one while the operation is being set up.
    waiting: usize,
    after: Vec<Arc<Op>>,
    job: Option<Job>,
    ended: bool,
}

impl Op {
    /// Queues a job behind the operations of `before`.
    pub fn submit(before: &[Arc<Op>], job: Job) -> Arc<Op> {
        let state = State { waiting: 1, after: Vec::new(), job: Some(job), ended: false };
        let op =
            Arc::new(Op { done: AtomicBool::new(false), state: Mutex::new(state), ended: Condvar::new() });
        for earlier in before {
            let mut earlier = earlier.state.lock();
            // The end of an operation is decided under its lock, so it is either seen here or told to us later.
            if !earlier.ended {
                op.state.lock().waiting += 1;
                earlier.after.push(op.clone());
            }
        }
        if op.release() {
            let next = settle(VecDeque::from([op.clone()]), false);
            debug_assert!(next.is_none(), "only a pool thread keeps a task");
        }
        op
    }

    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the release in `finish`.
        self.done.load(Ordering::Acquire)
    }

    /// Waits for the end.
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// Waits for the end or the deadline, and says whether the end came.
    pub fn wait_until(&self, deadline: Option<Instant>) -> bool {
        // Most operations are short, and a sleep costs two switches; giving the CPU away lets them run meanwhile.
        for _ in 0..50 {
            if self.is_done() {
                return true;
            }
            std::thread::yield_now();
        }
        let mut state = self.state.lock();
        while !self.is_done() {
            match deadline {
                None => self.ended.wait(&mut state),
                Some(deadline) => {
                    if self.ended.wait_until(&mut state, deadline).timed_out() {
                        return self.is_done();
                    }
                }
            }
        }
        true
    }

    /// Takes away one reason to wait; true if it was the last.
    fn release(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting -= 1;
        state.waiting == 0
    }

    /// Publishes the end; what became ready is added to `ready`.
    fn finish(&self, ready: &mut VecDeque<Arc<Op>>) {
        let mut state = self.state.lock();
        let after = std::mem::take(&mut state.after);
        state.ended = true;
        self.done.store(true, Ordering::Release);
        self.ended.notify_all();
        drop(state);
        ready.extend(after.into_iter().filter(|op| op.release()));
    }
}

/// Ends markers and hands tasks to threads until nothing is left. On a pool thread the first task is returned instead.
fn settle(mut ready: VecDeque<Arc<Op>>, on_pool: bool) -> Option<Arc<Op>> {
    let mut mine = None;
    while let Some(op) = ready.pop_front() {
        let mut state = op.state.lock();
        if matches!(state.job, Some(Job::Task(_))) {
            drop(state);
            if on_pool && mine.is_none() {
                mine = Some(op);
            } else {
                pool::run(op);
            }
            continue;
        }
        let job = state.job.take();
        drop(state);
        if let Some(Job::Marker(marker)) = job {
            marker();
        }
        op.finish(&mut ready);
    }
    mine
}

/// Runs a task to its end and returns the next one for this thread.
fn run_task(op: Arc<Op>) -> Option<Arc<Op>> {
    let job = op.state.lock().job.take();
    if let Some(Job::Task(task)) = job {
        task(&op);
    }
    let mut ready = VecDeque::new();
    op.finish(&mut ready);
    settle(ready, true)
}

mod pool {
    //! Threads made on demand; idle ones wait to be used again.

    use super::{Arc, Condvar, Mutex, Op, run_task};

    #[derive(Default)]
    struct Seat {
        op: Mutex<Option<Arc<Op>>>,
        given: Condvar,
    }

    static IDLE: Mutex<Vec<Arc<Seat>>> = Mutex::new(Vec::new());

    /// Runs the task on a thread that does nothing else.
    pub fn run(op: Arc<Op>) {
        if let Some(seat) = IDLE.lock().pop() {
            *seat.op.lock() = Some(op);
            seat.given.notify_one();
            return;
        }
        let first = op.clone();
        let builder = std::thread::Builder::new().name("emu-lane".to_owned());
        if builder.spawn(move || work(first)).is_err() {
            // The system refuses threads: late is better than never.
            let mut next = Some(op);
            while let Some(op) = next {
                next = run_task(op);
            }
        }
    }

    fn work(first: Arc<Op>) {
        block_signals();
        let seat = Arc::new(Seat::default());
        let mut next = Some(first);
        loop {
            while let Some(op) = next {
                next = run_task(op);
            }
            IDLE.lock().push(seat.clone());
            // The next task often comes at once, and waking a sleeping thread costs more than the task.
            for _ in 0..50 {
                if seat.op.lock().is_some() {
                    break;
                }
                std::thread::yield_now();
            }
            let mut op = seat.op.lock();
            while op.is_none() {
                seat.given.wait(&mut op);
            }
            next = op.take();
        }
    }

    /// The program's signals are for the program's threads. Faults stay deliverable: the kernel runtime catches them.
    fn block_signals() {
        // SAFETY: the set is a local that the calls initialise; only this thread's mask changes.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            for signal in
                [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT]
            {
                libc::sigdelset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;

    #[test]
    fn a_diamond_runs_in_order_and_its_branches_at_once() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let (to_right, from_left) = mpsc::channel();
        let (to_left, from_right) = mpsc::channel();
        let note = |log: &Arc<Mutex<Vec<u32>>>, n| {
            let log = log.clone();
            move || log.lock().push(n)
        };
        let top = Op::submit(&[], Job::Marker(Box::new(note(&log, 1))));
        let end_left = note(&log, 2);
        let left = Op::submit(
            std::slice::from_ref(&top),
            Job::Task(Box::new(move |_| {
                to_right.send(()).unwrap();
                from_right.recv().unwrap();
                end_left();
            })),
        );
        let right = Op::submit(
            &[top],
            Job::Task(Box::new(move |_| {
                to_left.send(()).unwrap();
                from_left.recv().unwrap();
            })),
        );
        let bottom = Op::submit(&[left, right], Job::Marker(Box::new(note(&log, 3))));
        bottom.wait();
        assert_eq!(*log.lock(), [1, 2, 3]);
    }

    #[test]
    fn a_long_chain_of_markers_needs_no_stack() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let inner = gate.clone();
        let mut last = Op::submit(&[], Job::Task(Box::new(move |_| drop(inner.lock()))));
        let count = Arc::new(AtomicU32::new(0));
        for _ in 0..100_000 {
            let count = count.clone();
            last = Op::submit(
                &[last],
                Job::Marker(Box::new(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                })),
            );
        }
        assert!(!last.is_done());
        drop(closed);
        last.wait();
        assert_eq!(count.load(Ordering::Relaxed), 100_000);
    }
}
