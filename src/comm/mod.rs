//! Communicators: creation, queries, errors, end of life.

use std::sync::{Arc, LazyLock};

use crate::error::{Code, Error, LastError, Result};
use crate::process::registry::Registry;

/// The settings of one communicator as the caller gave them; `None` where the caller left the default.
#[derive(Debug, Clone, Default)]
pub struct Config {
    pub blocking: Option<bool>,
    pub cga_cluster_size: Option<i32>,
    pub min_ctas: Option<i32>,
    pub max_ctas: Option<i32>,
    pub net_name: Option<String>,
    pub split_share: Option<bool>,
    pub traffic_class: Option<i32>,
    pub name: Option<String>,
    pub cta_policy: Option<i32>,
}

/// Called with the new communicator's handle when it is ready (inside a group: at the outermost end).
pub type Publish = Box<dyn FnOnce(usize) + Send>;

#[derive(Debug)]
pub struct Comm {
    last_error: LastError,
}

static COMMS: LazyLock<Registry<Comm>> = LazyLock::new(Registry::new);

/// The communicator behind a handle; a stale, garbage or NULL handle is an invalid argument.
pub fn lookup(handle: usize) -> Result<Arc<Comm>> {
    if handle == 0 {
        return Err(Error::argument("communicator is NULL"));
    }
    COMMS.get(handle).ok_or_else(|| {
        Error::argument(format!(
            "communicator {handle:#x} does not exist: it was destroyed or aborted, or never was one"
        ))
    })
}

/// Joins communicator `id` as `rank` of `nranks` with the current device of the calling thread. Blocks until all ranks are there, or,
/// inside a group, leaves that to the outermost end.
pub fn init_rank(nranks: i32, id: [u8; 128], rank: i32, config: Config, publish: Publish) -> Result<()> {
    let _ = (nranks, id, rank, config, publish);
    Err(Error::usage("communicators are not finished"))
}

/// One communicator per device of this process, in the order of `devices` (CUDA ordinals).
pub fn init_all(devices: &[i32]) -> Result<Vec<usize>> {
    let _ = devices;
    Err(Error::usage("communicators are not finished"))
}

/// Flushes and quiesces; a second call is an invalid argument.
pub fn finalize(handle: usize) -> Result<()> {
    lookup(handle).map(drop)
}

/// Ends the handle, after finalize if the caller has not done it.
pub fn destroy(handle: usize) -> Result<()> {
    lookup(handle).map(drop)
}

/// Ends the handle and makes every wait of this communicator, on GPU and CPU, give up. Never blocks.
pub fn abort(handle: usize) -> Result<()> {
    lookup(handle).map(drop)
}

impl Comm {
    pub fn rank(&self) -> i32 {
        0
    }

    pub fn nranks(&self) -> i32 {
        0
    }

    /// CUDA ordinal of the communicator's device in this process.
    pub fn device(&self) -> i32 {
        0
    }

    /// The sticky state: `None` while all is well.
    pub fn async_error(&self) -> Option<Code> {
        None
    }

    pub fn last_error(&self) -> &LastError {
        &self.last_error
    }
}
