//! Integration tests of the library through its C ABI: ranks are processes and threads that load the built library by
//! path, as any program does, on the emulated CUDA driver or on real GPUs.
//!
//! [`runs`] is the table of everything that is tested; `tests/` and the program `oxccl-check` both go by it. A run
//! starts [`team`]s of ranks, each rank does one of the [`scenarios`]. Results are compared with [`reference`], which
//! does the library's arithmetic a second time.

pub mod call;
pub mod check;
pub mod control;
pub mod driver;
pub mod machine;
pub mod nccl;
pub mod pattern;
pub mod program;
pub mod rank;
pub mod reference;
pub mod runs;
pub mod scenarios;
pub mod team;

/// Fails a scenario with a sentence.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
