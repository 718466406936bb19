//! Functions of our own (oxccl.h): which library serves this process.

use std::ffi::{CStr, c_char};

/// Product version, e.g. "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn oxcclVersion() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("the version has no zero inside"),
        };
    VERSION.as_ptr()
}
