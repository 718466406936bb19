//! The C ABI: one file per chapter of nccl.h. Every body runs inside [`boundary`].
//!
//! Each `ncclX` has a twin `pncclX`, as in NCCL, so that a profiler can define `ncclX` and call `pncclX`. Both call one function
//! that is not exported: were one of them to call the other, a preloaded profiler would call itself without end. The exported
//! functions are written as plain `fn` because the header generator does not see functions made by macros.
//!
//! Pointer arguments come from C: NULL is checked, anything else is the caller's promise. Communicators are handles that
//! [`crate::comm::lookup`] checks, so a stale or garbage one is an error and never a crash.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, clippy::too_many_arguments)]

/// The body of `ncclX`: defines and exports the twin `pncclX`, and calls the function behind both.
macro_rules! twin {
    ($twin:ident = $body:ident($($argument:ident: $type:ty),* $(,)?) -> $return:ty) => {{
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $twin($($argument: $type),*) -> $return {
            // SAFETY: the C caller's promises about its pointers are those that the body asks for.
            unsafe { $body($($argument),*) }
        }
        // SAFETY: as above.
        unsafe { $body($($argument),*) }
    }};
}

/// Writes a result through a pointer argument, named as in nccl.h for the message when it is NULL.
macro_rules! put {
    ($pointer:ident, $value:expr) => {{
        let value = $value;
        // SAFETY: used in bodies of exported functions only, whose callers promise that a pointer is NULL or writable.
        unsafe { $crate::capi::boundary::write($pointer, stringify!($pointer), value) }
    }};
}

mod boundary;
mod collectives;
mod collectives_config;
mod config;
mod derive;
mod device;
mod device_requirements;
mod encryption;
mod errors;
mod group;
mod init;
mod lifecycle;
mod memory;
mod oxccl;
mod param;
mod param_values;
mod point_to_point;
mod query;
mod redop;
mod register;
mod rma;
pub mod types;
mod version;
