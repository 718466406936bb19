//! The bootstrap between real threads and processes: joining, exchange, requests, failures, strangers, forks.
//!
//! Processes are this test binary, started again to play a role (`process::process`). Every wait has a deadline far beyond what
//! it needs, and no test depends on how long something takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod process;
mod processes;
mod strangers;
mod threads;
