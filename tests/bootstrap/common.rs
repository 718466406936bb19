//! What the tests share: ranks as threads, waiting for events, ids taken apart by their documented layout.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nccl::bootstrap::{Bootstrap, PeerEvent};
use nccl::error::Result;
use nccl::sys::Deadline;
use nccl::sys::fork::PrivateFd;
use sha2::{Digest, Sha256};

/// Far longer than anything takes.
pub const AMPLE: Duration = Duration::from_secs(60);

pub type Id = [u8; 128];

pub fn ample() -> Deadline {
    Deadline::after(AMPLE)
}

pub fn join(id: &Id, rank: u32, nranks: u32) -> Result<Bootstrap> {
    Bootstrap::join(id, rank, nranks, Arc::new(AtomicBool::new(false)), ample())
}

/// Runs `body` for each rank on a thread of its own, and returns the results in rank order.
pub fn ranks<T: Send>(nranks: u32, body: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..nranks).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A communicator whose ranks are all in this process.
pub fn communicator(nranks: u32) -> Vec<Bootstrap> {
    let id = nccl::bootstrap::unique_id().unwrap();
    ranks(nranks, |rank| join(&id, rank, nranks).unwrap())
}

/// The memory behind a descriptor, to be read and written.
pub fn file(fd: &PrivateFd) -> File {
    File::from(fd.as_fd().try_clone_to_owned().unwrap())
}

/// The events that a rank hears.
pub fn events(bootstrap: &Bootstrap) -> Receiver<PeerEvent> {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    bootstrap.watch(Arc::new(move |event| {
        let _ = sender.lock().unwrap().send(event);
    }));
    receiver
}

/// The same id with a change, its checksum made right again.
pub fn changed(id: &Id, change: impl FnOnce(&mut Id)) -> Id {
    let mut id = *id;
    change(&mut id);
    let sum = Sha256::new().chain_update(&id[..12]).chain_update(&id[16..]).finalize();
    id[12..16].copy_from_slice(&sum[..4]);
    id
}

/// The id without its Unix name: ranks must go through TCP.
pub fn tcp_only(id: &Id) -> Id {
    changed(id, |id| id[64..80].fill(0))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Id {
    let bytes: Vec<u8> =
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
    bytes.try_into().unwrap()
}
