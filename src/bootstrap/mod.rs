//! How ranks find each other: unique ids, authenticated rendezvous, out-of-band exchange.

use crate::error::{Error, Result};

/// A new unique id. Never touches CUDA.
pub fn unique_id() -> Result<[u8; 128]> {
    Err(Error::usage("unique ids are not finished"))
}
