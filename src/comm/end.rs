//! Finalize, destroy, abort, and what happens when a peer is gone.
//!
//! Nothing here waits for a peer, for graphs, or under a lock that init or a group holds. The memory of a
//! communicator is given back by the service thread once its kernels have left and no graph refers to it;
//! peers that still write to it hold references of their own.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Comm, HANDLES, lookup};
use crate::bootstrap::{Bootstrap, PeerEvent};
use crate::error::{Error, PROCESS_LAST_ERROR, Result};
use crate::param;
use crate::process::{defer, on_worker, service};
use crate::sys::Deadline;

/// How often the service thread looks whether an aborted communicator's kernels have left.
const LEFT_POLL: Duration = Duration::from_millis(5);
/// How often it looks at a communicator that has ended and that a graph keeps.
const REPLAY_POLL: Duration = Duration::from_millis(250);

/// Flushes and quiesces; a second call is an invalid argument.
pub fn finalize(handle: usize) -> Result<()> {
    let comm = lookup(handle)?;
    if comm.finalized.swap(true, Ordering::AcqRel) {
        return Err(Error::argument(format!("rank {}: the communicator is finalized already", comm.rank)));
    }
    flush(&comm)
}

/// Ends the handle, after finalize if the caller has not done it.
pub fn destroy(handle: usize) -> Result<()> {
    lookup(handle)?;
    // Of two racing callers one gets the communicator, the other finds the handle stale.
    let Some(comm) = HANDLES.remove(handle) else { return lookup(handle).map(drop) };
    let flushed = match comm.finalized.swap(true, Ordering::AcqRel) {
        true => Ok(()),
        false => flush(&comm),
    };
    // Looked at before the release makes kernels give up: what gives up after it can only be a replay.
    if comm.host.error().is_none() && comm.order.lock().event.is_done() {
        watch_replays(Arc::downgrade(&comm));
    }
    release(comm, None);
    flushed
}

/// Ends the handle and makes every wait of this communicator, on GPU and CPU, give up. Never blocks.
pub fn abort(handle: usize) -> Result<()> {
    lookup(handle)?;
    let Some(comm) = HANDLES.remove(handle) else { return lookup(handle).map(drop) };
    let error = Error::remote(format!("rank {} aborted the communicator", comm.rank));
    release(comm, Some(error));
    Ok(())
}

/// Waits until the operations of this rank are done, or can never be.
fn flush(comm: &Comm) -> Result<()> {
    let seconds = param::int(param::INIT_TIMEOUT).and_then(|s| u64::try_from(s).ok()).unwrap_or(300);
    let deadline = Deadline::after(Duration::from_secs(seconds));
    let mut nap = Duration::from_micros(20);
    while !comm.order.lock().event.is_done() {
        if comm.async_error().is_some() {
            // Reported by ncclCommGetAsyncError; destroying a failed communicator is the right thing to do.
            return Ok(());
        }
        if deadline.expired() {
            return Err(Error::timeout(format!(
                "rank {}: operations of the communicator did not end within {seconds} s (OXCCL_INIT_TIMEOUT): a peer has not made the \
                 matching call",
                comm.rank
            )));
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(1));
    }
    Ok(())
}

/// Leaves the others, with `error` if there is one, and gives everything back when the kernels have left.
pub(super) fn release(comm: Arc<Comm>, error: Option<Error>) {
    let bootstrap = comm.bootstrap.lock().take();
    let reason = error.clone();
    // Kernels of graphs that outlive the handle must not wait for ever.
    comm.poison(reason.unwrap_or_else(|| Error::usage("the communicator was destroyed")), || ());
    match (bootstrap, error) {
        // An abort does not wait for the others to hear of it.
        (Some(bootstrap), Some(error)) => on_worker(move || {
            bootstrap.fail(&error);
            leave(bootstrap, Bootstrap::leave_at_once);
        }),
        (Some(bootstrap), None) => leave(bootstrap, Bootstrap::leave),
        (None, _) => (),
    }
    defer(move || drop_when_idle(comm));
}

/// Ends the membership. Where a set-up on another thread still uses it, that thread's reference ends it when it is done.
fn leave(bootstrap: Arc<Bootstrap>, how: fn(Bootstrap)) {
    if let Ok(bootstrap) = Arc::try_unwrap(bootstrap) {
        how(bootstrap);
    }
}

/// Drops the communicator's own reference once the operations launched so far have ended. Runs on the service thread, which waits for
/// nothing: not for the operations, not for a caller who is launching, and not for the driver, which may
/// synchronise when memory is given back.
fn drop_when_idle(comm: Arc<Comm>) {
    let idle = comm.order.try_lock().is_some_and(|order| order.event.is_done());
    match service() {
        Ok(service) if !idle => service.after(LEFT_POLL, Box::new(move || drop_when_idle(comm))),
        _ => on_worker(move || drop(comm)),
    }
}

/// Looks now and then, as long as a graph keeps the communicator that has ended, whether a replay gave up: one that was still under
/// way, or one that was launched later. No call is left to return the error, so it becomes the process's last error, once.
fn watch_replays(comm: Weak<Comm>) {
    let Ok(service) = service() else { return };
    service.after(
        REPLAY_POLL,
        Box::new(move || {
            let Some(alive) = comm.upgrade() else { return };
            if alive.host.error().is_none() {
                drop_on_worker(alive);
                return watch_replays(comm);
            }
            let message = format!(
                "rank {} of communicator {}: a CUDA graph was still running when the communicator ended, or was launched later; its \
                 results are not valid",
                alive.rank, alive.name
            );
            PROCESS_LAST_ERROR.set(&message);
            tracing::warn!(target: "INIT", "{message}");
            drop_on_worker(alive);
        }),
    );
}

/// Drops a reference, on a thread that may block if it has become the last.
pub(super) fn drop_on_worker(comm: Arc<Comm>) {
    if let Some(comm) = Arc::into_inner(comm) {
        on_worker(move || drop(comm));
    }
}

/// Lets the service thread tell the communicator about its peers.
pub(super) fn watch(comm: &Arc<Comm>, bootstrap: &Bootstrap) {
    let weak = Arc::downgrade(comm);
    bootstrap.watch(Arc::new(move |event| {
        let Some(comm) = weak.upgrade() else { return };
        match event {
            PeerEvent::Died { rank, how } => {
                comm.fail(Error::remote(format!("rank {rank} is gone: {how}")));
            }
            PeerEvent::Failed { rank, message } => {
                comm.fail(Error::remote(format!("rank {rank} failed: {message}")));
            }
            PeerEvent::Left { rank } => comm.note_left(rank),
            PeerEvent::RendezvousLost { how } => tracing::info!(
                target: "BOOTSTRAP",
                "rank {} of communicator {}: {how}; operations go on, but the end of a rank is no longer noticed",
                comm.rank,
                comm.name
            ),
        }
    }));
}
