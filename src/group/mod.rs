//! ncclGroupStart and ncclGroupEnd: what a thread collects and launches together.
//!
//! Depth and contents belong to the calling thread. Only the outermost end does anything: it brings up the
//! communicators that were asked for, each on a thread of its own since they wait for each other, then
//! launches the operations, communicator by communicator in an order that all ranks share. The first error of a group wins and cancels all of
//! it.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::comm::{self, Comm, Config, InitJob, Publish, SplitJob};
use crate::enqueue::{self, Call, Operation, PointToPoint};
use crate::error::{Error, Result};

#[derive(Default)]
struct Group {
    depth: u32,
    inits: Vec<InitJob>,
    splits: Vec<SplitJob>,
    operations: Vec<Operation>,
    /// Communicators that end with the group, and how.
    ends: Vec<(usize, End)>,
    failure: Option<Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Finalize,
    Destroy,
}

impl End {
    fn make(self, handle: usize) -> Result<()> {
        match self {
            End::Finalize => comm::finalize(handle),
            End::Destroy => comm::destroy(handle),
        }
    }
}

thread_local! {
    /// Without a destructor: destructors of the program's own objects, which run later on this thread or at exit, still make calls.
    /// Empty outside a group, so nothing is lost.
    static GROUP: ManuallyDrop<RefCell<Group>> = ManuallyDrop::default();
}

fn with_group<T>(body: impl FnOnce(&mut Group) -> T) -> T {
    GROUP.with(|group| body(&mut group.borrow_mut()))
}

pub fn start() {
    with_group(|group| group.depth += 1);
}

/// Launches what the outermost group collected; the first error of the group wins.
pub fn end() -> Result<()> {
    let closed = with_group(|group| -> Result<Option<Group>> {
        match group.depth {
            0 => Err(Error::usage("ncclGroupEnd without ncclGroupStart")),
            1 => Ok(Some(std::mem::take(group))),
            _ => {
                group.depth -= 1;
                Ok(None)
            }
        }
    })?;
    let Some(group) = closed else { return Ok(()) };
    let done = match group.failure {
        Some(failure) => Err(failure),
        None => bring_up(group.inits, group.splits).and_then(|()| launch(group.operations)),
    };
    // Also after a failure: the caller has given these communicators up.
    done.and(make_ends(group.ends))
}

/// All of them, whatever becomes of the ones before; the first error counts.
fn make_ends(ends: Vec<(usize, End)>) -> Result<()> {
    let mut first = Ok(());
    for (handle, how) in ends {
        let ended = how.make(handle);
        first = first.and(ended);
    }
    first
}

/// Finalizes or destroys a communicator, or leaves that to the outermost end where the group holds operations or splits of it.
pub fn finish(handle: usize, how: End) -> Result<()> {
    let comm = comm::lookup(handle)?;
    let waits = with_group(|group| {
        let waits = group.operations.iter().any(|operation| Arc::ptr_eq(operation.comm(), &comm))
            || group.splits.iter().any(|split| Arc::ptr_eq(split.parent(), &comm));
        if waits && group.ends.contains(&(handle, how)) {
            return Err(Error::argument(format!("communicator {handle:#x} ends with this group already")));
        }
        if waits {
            group.ends.push((handle, how));
        }
        Ok(waits)
    })?;
    if waits { Ok(()) } else { how.make(handle) }
}

/// Closes the group without launching, since no estimate exists: returns `why`, and an outer group fails with it.
pub fn cancel(why: Error) -> Result<()> {
    let closed = with_group(|group| match group.depth {
        0 => Err(Error::usage("ncclGroupSimulateEnd without ncclGroupStart")),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            group.failure.get_or_insert_with(|| why.clone());
            Ok(None)
        }
    })?;
    let Some(group) = closed else { return Err(why) };
    // An earlier failure of a call in the group comes first, as at its end.
    let failed: Result<()> = Err(group.failure.unwrap_or(why));
    failed.and(make_ends(group.ends))
}

/// Remembers that a call inside the open group failed: the outermost end returns its error again. Does
/// nothing outside a group.
pub fn record_failure(error: &Error) {
    with_group(|group| {
        if group.depth > 0 && group.failure.is_none() {
            group.failure = Some(error.clone());
        }
    });
}

/// Joins communicator `id` as `rank` of `nranks` with the current device of the calling thread. Blocks until
/// all ranks are there, or, inside a group, leaves that to the outermost end.
pub fn init_rank(nranks: i32, id: [u8; 128], rank: i32, config: Config, publish: Publish) -> Result<()> {
    let job = comm::current_job(nranks, id, rank, config, publish)?;
    let job = with_group(|group| {
        if group.depth == 0 {
            return Some(job);
        }
        group.inits.push(job);
        None
    });
    job.map_or(Ok(()), InitJob::run)
}

/// One communicator per device of this process, in the order of `devices` (CUDA ordinals). Blocks, also
/// inside a group.
pub fn init_all(devices: &[i32]) -> Result<Vec<usize>> {
    let handles = Arc::new(Mutex::new(vec![0; devices.len()]));
    let jobs = comm::init_all_jobs(crate::bootstrap::unique_id()?, devices, |rank| {
        let handles = handles.clone();
        Box::new(move |handle| handles.lock()[rank] = handle)
    })?;
    let brought_up = bring_up(jobs, Vec::new());
    let handles = std::mem::take(&mut *handles.lock());
    brought_up.inspect_err(|_| {
        for handle in handles.iter().filter(|handle| **handle != 0) {
            // The others of the list are of no use; what fails here is already part of the error.
            let _ = comm::abort(*handle);
        }
    })?;
    Ok(handles)
}

/// Makes children of `comm`'s ranks by colour; see [`SplitJob`]. Blocks until the child is ready, or, inside a group, leaves that to the outermost end.
pub fn split(comm: &Arc<Comm>, color: i32, key: i32, config: Option<Config>, publish: Publish) -> Result<()> {
    let job = SplitJob::new(comm.clone(), color, key, config, publish)?;
    let job = with_group(|group| {
        if group.depth == 0 {
            return Some(job);
        }
        group.splits.push(job);
        None
    });
    job.map_or(Ok(()), SplitJob::run)
}

pub fn collective(comm: &Arc<Comm>, call: Call) -> Result<()> {
    let operations = enqueue::prepare(comm, call)?;
    submit(operations)
}

pub fn point_to_point(comm: &Arc<Comm>, call: PointToPoint) -> Result<()> {
    let operation = enqueue::prepare_message(comm, call)?;
    submit(vec![operation])
}

fn submit(mut operations: Vec<Operation>) -> Result<()> {
    let open = with_group(|group| {
        let open = group.depth > 0;
        if open {
            group.operations.append(&mut operations);
        }
        open
    });
    if open { Ok(()) } else { launch(operations) }
}

/// Brings up communicators that wait for each other: each on a thread of its own, but the children of one parent in order, as on all its
/// ranks.
fn bring_up(inits: Vec<InitJob>, splits: Vec<SplitJob>) -> Result<()> {
    let mut of_parent: Vec<(*const Comm, Vec<SplitJob>)> = Vec::new();
    for split in splits {
        let key = Arc::as_ptr(split.parent());
        match of_parent.iter_mut().find(|(other, _)| *other == key) {
            Some((_, list)) => list.push(split),
            None => of_parent.push((key, vec![split])),
        }
    }
    type Task = Box<dyn FnOnce() -> Result<()> + Send>;
    let inits = inits.into_iter().map(|job| -> Task { Box::new(|| job.run()) });
    let splits = of_parent
        .into_iter()
        .map(|(_, list)| -> Task { Box::new(|| list.into_iter().try_for_each(SplitJob::run)) });
    let mut tasks: Vec<Task> = inits.chain(splits).collect();
    let Some(last) = tasks.pop() else { return Ok(()) };
    std::thread::scope(|scope| {
        let thread = |task| std::thread::Builder::new().spawn_scoped(scope, task);
        let others: Vec<_> = tasks.into_iter().map(thread).collect();
        let own = last();
        let mut first = Ok(());
        for other in others {
            let result = match other {
                Ok(other) => other
                    .join()
                    .unwrap_or_else(|_| Err(Error::internal("a thread of an init group panicked"))),
                Err(error) => Err(Error::system("starting a thread for a communicator of the group", error)),
            };
            first = first.and(result);
        }
        first.and(own)
    })
}

/// Launches operations, communicator by communicator. A group promises no order among them, and its streams are joined, so ranks that
/// launched in the orders of their calls could wait for each other: all launch in the order of the sessions.
fn launch(operations: Vec<Operation>) -> Result<()> {
    let mut of_comm: Vec<(*const Comm, Vec<Operation>)> = Vec::new();
    for operation in operations {
        let key = Arc::as_ptr(operation.comm());
        match of_comm.iter_mut().find(|(other, _)| *other == key) {
            Some((_, list)) => list.push(operation),
            None => of_comm.push((key, vec![operation])),
        }
    }
    of_comm.sort_by_key(|(_, list)| list.first().map(|operation| operation.comm().session()));
    for (_, list) in of_comm {
        enqueue::launch(list)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destructors_that_run_later_than_this_modules_still_make_calls() {
        struct Late(std::sync::mpsc::Sender<(bool, bool)>);
        impl Drop for Late {
            fn drop(&mut self) {
                start();
                let paired = end().is_ok();
                let _ = self.0.send((paired, end().is_err()));
            }
        }
        thread_local! {
            static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        // The last used first is destroyed first, so `LATE` outlives what the group keeps for the thread.
        let thread = std::thread::spawn(move || {
            LATE.with_borrow_mut(|late| *late = Some(Late(sender)));
            start();
            end().expect("an empty group");
        });
        thread.join().expect("no panic");
        assert_eq!(receiver.recv(), Ok((true, true)));
    }
}
