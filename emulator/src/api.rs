//! The one way into the emulator: what every exported function does before and after its own work.
//!
//! `cu!` defines exported functions. `[any]` before one marks a function that works before `cuInit`, `[stream]` one that
//! works in a stream callback as far as it names a stream. A second name after a slash is the variant of the function
//! for which the NULL stream is the calling thread's own stream.
//! A call never unwinds into its caller: a panic becomes `CUDA_ERROR_UNKNOWN`.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Code, NOT_INITIALIZED, NOT_PERMITTED, Result, UNKNOWN};
use crate::{config, fault};

macro_rules! cu {
    (@one $(#[$meta:meta])* [$($need:ident)?] $name:ident ($($arg:ident : $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        /// # Safety
        /// Pointers are what the driver API's description of the function asks for.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::api::enter(stringify!($name), cu!(@need $($need)?), || -> $crate::error::Result { $body })
        }
    };
    (@per_thread $per_thread:ident $name:ident ($($arg:ident : $ty:ty),* $(,)?)) => {
        #[doc = concat!("`", stringify!($name), "` with the calling thread's stream as the NULL stream.")]
        /// # Safety
        /// As for the function itself.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $per_thread($($arg: $ty),*) -> u32 {
            $crate::api::with_per_thread_default(|| {
                // SAFETY: the arguments are handed on as they came.
                unsafe { $name($($arg),*) }
            })
        }
    };
    (@need) => { $crate::api::Need::Initialised };
    (@need any) => { $crate::api::Need::Nothing };
    (@need stream) => { $crate::api::Need::Stream };
    () => {};
    ($(#[$meta:meta])* $([$need:ident])? fn $name:ident / $per_thread:ident $args:tt $body:block $($rest:tt)*) => {
        cu!(@one $(#[$meta])* [$($need)?] $name $args $body);
        cu!(@per_thread $per_thread $name $args);
        cu!($($rest)*);
    };
    ($(#[$meta:meta])* $([$need:ident])? fn $name:ident $args:tt $body:block $($rest:tt)*) => {
        cu!(@one $(#[$meta])* [$($need)?] $name $args $body);
        cu!($($rest)*);
    };
}

/// What must have happened before a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Nothing,
    Initialised,
    /// As `Initialised`, and the call is let through in a callback: it is refused there only if it needs a context.
    Stream,
}

static INITIALISED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static PER_THREAD_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of an exported function and returns the code for C.
pub fn enter(name: &'static str, need: Need, body: impl FnOnce() -> Result) -> u32 {
    let result = catch_unwind(AssertUnwindSafe(|| {
        if need != Need::Nothing {
            // Acquire: pairs with the release in `set_initialised`, behind which the devices were made.
            if FORKED.load(Ordering::Relaxed) || !INITIALISED.load(Ordering::Acquire) {
                return Err(NOT_INITIALIZED);
            }
            if IN_CALLBACK.get() && need != Need::Stream {
                return Err(NOT_PERMITTED);
            }
        }
        fault::inject(name)?;
        body()
    }))
    .unwrap_or(Err(UNKNOWN));
    let code = result.err().map_or(0, |Code(code)| code);
    config::log_call(name, code);
    code
}

/// Whether this process was forked from one that had initialised the driver: nothing works here.
pub fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Ends `cuInit`. A child that is forked from here on gets `CUDA_ERROR_NOT_INITIALIZED` from every call.
pub fn set_initialised() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        extern "C" fn in_child() {
            FORKED.store(true, Ordering::Relaxed);
        }
        // SAFETY: the handler only stores to an atomic, which is allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    INITIALISED.store(true, Ordering::Release);
}

/// Runs a user's callback, in which most of the driver API must not be called.
pub fn in_callback<R>(body: impl FnOnce() -> R) -> R {
    let before = IN_CALLBACK.replace(true);
    let result = body();
    IN_CALLBACK.set(before);
    result
}

pub fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs a call for which the NULL stream means the calling thread's own.
pub fn with_per_thread_default(call: impl FnOnce() -> u32) -> u32 {
    let before = PER_THREAD_DEFAULT.replace(true);
    let code = call();
    PER_THREAD_DEFAULT.set(before);
    code
}

/// Whether the NULL stream means the calling thread's own in the present call.
pub fn per_thread_default() -> bool {
    PER_THREAD_DEFAULT.get()
}
