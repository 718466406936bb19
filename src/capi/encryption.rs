//! Encryption of traffic between hosts.

use super::boundary::{self, unfinished};
use super::types::*;
use crate::error::Error;

/// Sets the key for all communicators made later in this process; NULL changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    twin!(pncclSetEncryption = set_encryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t)
}

unsafe fn set_encryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t {
    boundary::run("ncclSetEncryption", || {
        if config.is_null() {
            return Ok(());
        }
        // SAFETY: not NULL, and the caller promises an ncclEncryptionConfig_t there.
        let magic = unsafe { (&raw const (*config).magic).read_unaligned() };
        if magic != NCCL_API_MAGIC {
            return Err(Error::argument(format!(
                "config->magic is {magic:#x} instead of {NCCL_API_MAGIC:#x}: start from NCCL_ENCRYPTION_CONFIG_INITIALIZER"
            )));
        }
        Err(unfinished())
    })
}
