//! The types of nccl.h in Rust: handles, enums, structs.
//!
//! Layouts are those of NCCL 2.32.3, the newest known; older callers pass prefixes of them (`capi::config`). `layout` asserts every
//! offset at compile time. The header is printed from `host`, `device` and `c_enums`; `enums` holds what Rust uses instead of C
//! enums, because a C caller may pass any integer.

#[cfg(cbindgen)]
mod c_enums;
mod device;
mod enums;
mod host;
mod layout;

pub use device::*;
pub use enums::*;
pub use host::*;

/// What `ncclGetVersion` reports (docs/compatibility.md says why this and not [`API_VERSION`]).
pub const REPORTED_VERSION: i32 = 22809;
/// The NCCL whose functions and layouts this library knows. A struct's `version` may be newer still.
pub const API_VERSION: u32 = 23203;
/// First word after `size` in every versioned struct but [`ncclSimInfo_t`].
pub const NCCL_API_MAGIC: u32 = 0xcafe_beef;
/// The same for [`ncclSimInfo_t`].
pub const SIM_INFO_MAGIC: u32 = 0x7468_5283;
/// "Not set" in integers of configuration structs.
pub const NCCL_CONFIG_UNDEF_INT: i32 = i32::MIN;
