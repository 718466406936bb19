//! Capture and graphs: what a capture records and refuses, how graphs run, change and die.

#![allow(clippy::macro_metavars_in_unsafe)]

mod capture;
mod launches;
#[path = "../support/mod.rs"]
mod support;

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use support::*;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// A capture in global mode hinders all threads: tests of this file take turns.
static TURN: Mutex<()> = Mutex::new(());

fn setup() -> std::sync::MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    init(&[("OXCCL_EMU_DEVICES", "2")]);
    let _: usize = out!(|out| cuCtxCreate_v2(out, 0, 0));
    turn
}

fn begin(stream: usize, mode: u32) {
    ok!(cuStreamBeginCapture_v2(stream, mode));
}

fn end(stream: usize) -> usize {
    out!(|out| cuStreamEndCapture(stream, out))
}

fn end_fails(code: u32, stream: usize) {
    let mut graph = 1;
    fails!(code, cuStreamEndCapture(stream, Out::from(&mut graph)));
    assert_eq!(graph, 0);
}

fn instantiate(graph: usize) -> usize {
    out!(|out| cuGraphInstantiateWithFlags(out, graph, 0))
}

fn run(exec: usize, stream: usize) {
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
}

/// Sets words and waits: a set of device memory does not wait itself, and non-blocking streams do not wait for it.
fn preset(ptr: u64, value: u32, words: usize) {
    ok!(cuMemsetD32_v2(ptr, value, words));
    ok!(cuCtxSynchronize());
}

/// Memory from within a capture.
fn alloc_relaxed() -> u64 {
    let mut mode = RELAXED;
    ok!(cuThreadExchangeStreamCaptureMode(Out::from(&mut mode)));
    let ptr = alloc(4);
    ok!(cuThreadExchangeStreamCaptureMode(Out::from(&mut mode)));
    ptr
}

fn node_count(graph: usize) -> usize {
    out!(|out| cuGraphGetNodes(graph, Out::NULL, out))
}

fn edge_count(graph: usize) -> usize {
    out!(|out| cuGraphGetEdges(graph, Out::NULL, Out::NULL, out))
}

fn status(stream: usize) -> u32 {
    out!(|out| cuStreamIsCapturing(stream, out))
}
