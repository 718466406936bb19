//! Capture and graphs: what a capture records, what it refuses, and how graphs run, change and die.

#![allow(clippy::macro_metavars_in_unsafe)]

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

#[test]
fn captured_work_runs_at_each_launch() {
    let _turn = setup();
    let s = stream(1);
    let (data, copy) = (alloc(400), alloc(400));
    preset(data, 0, 100);
    let fill = function("emu_probe_fill");
    let arg = Fill { data, count: 50, value: 7, pad: 0 };
    begin(s, GLOBAL);
    assert_eq!(status(s), 1);
    launch(fill, 2, s, &arg);
    ok!(cuMemcpyDtoDAsync_v2(copy, data, 400, s));
    ok!(cuMemsetD32Async(data, 3, 1, s));
    ok!(cuStreamWriteValue32_v2(s, data + 396, 9, 0));
    let graph = end(s);
    assert_eq!(status(s), 0);
    assert_eq!((node_count(graph), edge_count(graph)), (4, 3));
    assert_eq!(read_word(data), 0, "nothing ran yet");
    let exec = instantiate(graph);
    ok!(cuGraphDestroy(graph));
    for _ in 0..3 {
        preset(copy, 0, 100);
        run(exec, s);
        assert_eq!((read_word(data), read_word(copy), read_word(copy + 196)), (3, 7, 56));
        assert_eq!(read_word(data + 396), 9);
    }
    ok!(cuGraphExecDestroy(exec));
    fails!(1, cuGraphLaunch(exec, s));
}

#[test]
fn branches_run_at_the_same_time() {
    let _turn = setup();
    let (a, b) = (stream(1), stream(1));
    let (fork, join) = (event(), event());
    let flags = alloc(8);
    begin(a, GLOBAL);
    ok!(cuMemsetD32Async(flags, 0, 2, a));
    ok!(cuEventRecord(fork, a));
    ok!(cuStreamWaitEvent(b, fork, 0));
    assert_eq!(status(b), 1);
    // Each branch waits for the other.
    ok!(cuStreamWriteValue32_v2(a, flags, 1, 0));
    ok!(cuStreamWaitValue32_v2(a, flags + 4, 1, 1));
    ok!(cuStreamWriteValue32_v2(b, flags + 4, 1, 0));
    ok!(cuStreamWaitValue32_v2(b, flags, 1, 1));
    ok!(cuEventRecord(join, b));
    ok!(cuStreamWaitEvent(a, join, 0));
    let graph = end(a);
    assert_eq!(status(b), 0);
    assert_eq!((node_count(graph), edge_count(graph)), (5, 4));
    let exec = instantiate(graph);
    for _ in 0..20 {
        run(exec, a);
    }
}

#[test]
fn launches_of_one_executable_follow_each_other() {
    let _turn = setup();
    let (a, b) = (stream(1), stream(1));
    let gate = pinned_word();
    let data = alloc(4);
    begin(a, RELAXED);
    hold(a, gate);
    ok!(cuMemsetD32Async(data, 1, 1, a));
    let exec = instantiate(end(a));
    ok!(cuGraphLaunch(exec, a));
    ok!(cuGraphLaunch(exec, b));
    ok!(cuGraphExecDestroy(exec));
    assert_eq!((query(a), query(b)), (600, 600));
    store(gate, 1);
    ok!(cuStreamSynchronize(b));
    assert_eq!((query(a), read_word(data)), (0, 1));
}

#[test]
fn an_unjoined_branch_is_an_error() {
    let _turn = setup();
    let (a, b) = (stream(1), stream(1));
    let fork = event();
    let data = alloc(4);
    begin(a, GLOBAL);
    ok!(cuEventRecord(fork, a));
    ok!(cuStreamWaitEvent(b, fork, 0));
    ok!(cuMemsetD32Async(data, 0, 1, b));
    end_fails(904, a);
    assert_eq!((status(a), status(b)), (0, 0));
}

#[test]
fn only_the_origin_ends_a_capture() {
    let _turn = setup();
    let (a, b) = (stream(1), stream(1));
    let fork = event();
    begin(a, GLOBAL);
    ok!(cuEventRecord(fork, a));
    ok!(cuStreamWaitEvent(b, fork, 0));
    end_fails(903, b);
    end_fails(901, a);
    end_fails(401, a);
    begin(a, THREAD_LOCAL);
    let context: usize = out!(|out| cuCtxGetCurrent(out));
    let other = std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(context));
        end_fails(908, a);
    });
    other.join().unwrap();
    assert_eq!(status(a), 0, "the other thread's try ended it");
    end_fails(401, a);
}

#[test]
fn what_a_destroyed_stream_did_cannot_be_joined() {
    let _turn = setup();
    let (a, b) = (stream(1), stream(1));
    let (fork, data) = (event(), alloc(4));
    begin(a, GLOBAL);
    ok!(cuEventRecord(fork, a));
    ok!(cuStreamWaitEvent(b, fork, 0));
    ok!(cuMemsetD32Async(data, 0, 1, b));
    ok!(cuStreamDestroy_v2(b));
    assert_eq!(status(a), 1);
    end_fails(904, a);
}

#[test]
fn a_place_in_an_ended_capture_is_nowhere() {
    let _turn = setup();
    let (a, b) = (stream(1), stream(1));
    let mark = event();
    begin(a, GLOBAL);
    ok!(cuEventRecord(mark, a));
    end(a);
    fails!(1, cuEventQuery(mark));
    fails!(1, cuStreamWaitEvent(b, mark, 0));
    begin(a, GLOBAL);
    fails!(1, cuStreamWaitEvent(a, mark, 1));
    end(a);
    ok!(cuEventRecord(mark, b));
    ok!(cuEventSynchronize(mark));
}

#[test]
fn a_failed_capture_leaves_no_graph() {
    let _turn = setup();
    let s = stream(1);
    begin(s, RELAXED);
    let (mut state, mut graph) = (0, 0);
    let (state, graph_out) = (Out::from(&mut state), Out::from(&mut graph));
    ok!(cuStreamGetCaptureInfo_v2(s, state, Out::NULL, graph_out, Out::NULL, Out::NULL));
    fails!(900, cuStreamSynchronize(s));
    end_fails(901, s);
    fails!(1, cuGraphDestroy(graph));
}

#[test]
fn nothing_is_captured_of_empty_work() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(4);
    begin(s, GLOBAL);
    ok!(cuMemsetD32Async(data, 0, 0, s));
    ok!(cuMemcpyDtoDAsync_v2(data, data, 0, s));
    // A set is looked at when its graph is made executable.
    ok!(cuMemsetD32Async(0, 0, 1, s));
    let graph = end(s);
    assert_eq!(node_count(graph), 1);
    let mut exec = 0;
    fails!(1, cuGraphInstantiateWithFlags(Out::from(&mut exec), graph, 0));
}

#[test]
fn captures_do_not_mix_with_other_work() {
    let _turn = setup();
    let (a, b, free) = (stream(1), stream(1), stream(1));
    let (outside, inside, never) = (event(), event(), event());
    ok!(cuEventRecord(outside, free));
    begin(a, RELAXED);
    ok!(cuStreamWaitEvent(a, never, 0));
    fails!(905, cuStreamWaitEvent(a, outside, 0));
    assert_eq!(status(a), 2);
    fails!(901, cuMemsetD32Async(alloc(4), 0, 1, a));
    end_fails(901, a);

    begin(a, RELAXED);
    begin(b, RELAXED);
    ok!(cuEventRecord(inside, a));
    fails!(902, cuStreamWaitEvent(b, inside, 0));
    end_fails(901, a);
    end_fails(901, b);

    begin(a, RELAXED);
    ok!(cuEventRecord(inside, a));
    fails!(907, cuEventQuery(inside));
    end_fails(901, a);
    begin(a, RELAXED);
    fails!(900, cuStreamSynchronize(a));
    end_fails(901, a);
    begin(a, RELAXED);
    fails!(900, cuCtxSynchronize());
    end_fails(901, a);
    fails!(900, cuStreamBeginCapture_v2(0, RELAXED));
    ok!(cuEventRecord(inside, free));
    ok!(cuEventSynchronize(inside));
}

#[test]
fn the_legacy_stream_is_refused_beside_a_blocking_capture() {
    let _turn = setup();
    let (blocking, free) = (stream(0), stream(1));
    let data = alloc(4);
    begin(free, RELAXED);
    ok!(cuMemsetD32Async(data, 0, 1, 0));
    end(free);
    begin(blocking, RELAXED);
    let mut value = 0;
    fails!(906, cuStreamIsCapturing(0, Out::from(&mut value)));
    assert_eq!(status(blocking), 1, "asking does no harm");
    fails!(906, cuMemsetD32Async(data, 0, 1, 0));
    end_fails(901, blocking);
}

#[test]
fn unsafe_calls_depend_on_both_modes() {
    let _turn = setup();
    let s = stream(1);
    // Making a graph executable and unloading a module are such calls, synchronous copies are none.
    let empty: usize = out!(|out| cuGraphCreate(out, 0));
    let module: usize = out!(|out| cuModuleLoadData(out, In::from(&PTX[0])));
    begin(s, THREAD_LOCAL);
    ok!(cuMemsetD32_v2(alloc_relaxed(), 0, 1));
    fails!(900, cuGraphInstantiateWithFlags(Out::from(&mut 0), empty, 0));
    end_fails(901, s);
    begin(s, THREAD_LOCAL);
    fails!(900, cuModuleUnload(module));
    end_fails(901, s);
    let context: usize = out!(|out| cuCtxGetCurrent(out));
    // What a cuMemAlloc of this thread, or of another one, returns during a capture; and in which state that leaves it.
    let allocate = |thread_mode: u32| {
        let mut mode = thread_mode;
        ok!(cuThreadExchangeStreamCaptureMode(Out::from(&mut mode)));
        let mut ptr = 0u64;
        // SAFETY: the pointer is to a local.
        let code = unsafe { cuMemAlloc_v2(Out::from(&mut ptr), 4) };
        ok!(cuThreadExchangeStreamCaptureMode(Out::from(&mut mode)));
        assert_eq!(mode, thread_mode);
        code
    };
    let elsewhere = |thread_mode: u32| {
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context));
            allocate(thread_mode)
        })
    };
    for (mode, thread_mode, here, there) in [
        (GLOBAL, GLOBAL, 900, 900),
        (GLOBAL, THREAD_LOCAL, 900, 0),
        (GLOBAL, RELAXED, 0, 0),
        (THREAD_LOCAL, GLOBAL, 900, 0),
        (THREAD_LOCAL, THREAD_LOCAL, 900, 0),
        (THREAD_LOCAL, RELAXED, 0, 0),
        (RELAXED, GLOBAL, 0, 0),
        (RELAXED, THREAD_LOCAL, 0, 0),
        (RELAXED, RELAXED, 0, 0),
    ] {
        for (expected, other) in [(here, false), (there, true)] {
            begin(s, mode);
            let code = if other { elsewhere(thread_mode).join().unwrap() } else { allocate(thread_mode) };
            assert_eq!(code, expected, "capture {mode}, thread {thread_mode}, other thread {other}");
            if expected == 0 {
                end(s);
            } else {
                end_fails(901, s);
            }
        }
    }
}

#[test]
fn a_program_can_steer_a_capture() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(12);
    begin(s, GLOBAL);
    ok!(cuMemsetD32Async(data, 1, 1, s));
    let info = || {
        let (mut status, mut id, mut graph, mut nodes, mut count) = (0, 0, 0, std::ptr::null(), 0);
        let (mut edges, status_out) = (std::ptr::null(), Out::from(&mut status));
        let (id, graph_out) = (Out::from(&mut id), Out::from(&mut graph));
        let (nodes_out, edges, count_out) =
            (Out::from(&mut nodes), Out::from(&mut edges), Out::from(&mut count));
        ok!(cuStreamGetCaptureInfo_v3(s, status_out, id, graph_out, nodes_out, edges, count_out));
        assert_eq!(status, 1);
        // SAFETY: the list holds that many nodes until the next call on the stream.
        (graph, unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec())
    };
    let (graph, nodes) = info();
    assert_eq!((node_count(graph), nodes.len()), (1, 1));
    // A node beside the stream, then the stream goes on behind both.
    let params =
        CUmemsetNodeParams { dst: data + 4, pitch: 0, value: 2, element_size: 4, width: 1, height: 1 };
    let side: usize = out!(|out| cuGraphAddMemsetNode(out, graph, In::NULL, 0, In::from(&params), 0));
    ok!(cuStreamUpdateCaptureDependencies(s, In::from(&side), 1, 0));
    assert_eq!(info().1.len(), 2);
    ok!(cuMemsetD32Async(data + 8, 3, 1, s));
    let captured = end(s);
    assert_eq!(captured, graph);
    assert_eq!((node_count(graph), edge_count(graph)), (3, 2));
    run(instantiate(graph), s);
    assert_eq!(read(data, 12), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    fails!(401, cuStreamUpdateCaptureDependencies(s, In::NULL, 0, 1));
}

#[test]
fn a_capture_can_go_into_an_existing_graph() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(4);
    let graph: usize = out!(|out| cuGraphCreate(out, 0));
    let root: usize = out!(|out| cuGraphAddEmptyNode(out, graph, In::NULL, 0));
    ok!(cuStreamBeginCaptureToGraph(s, graph, In::from(&root), In::NULL, 1, GLOBAL));
    ok!(cuMemsetD32Async(data, 4, 1, s));
    assert_eq!(end(s), graph);
    assert_eq!((node_count(graph), edge_count(graph)), (2, 1));
    run(instantiate(graph), s);
    assert_eq!(read_word(data), 4);
}

#[test]
fn external_events_are_nodes() {
    let _turn = setup();
    let (s, other) = (stream(1), stream(1));
    let (go, done) = (event(), event());
    let (gate, data) = (pinned_word(), alloc(4));
    fails!(401, cuEventRecordWithFlags(done, s, 1));
    fails!(401, cuStreamWaitEvent(s, go, 1));
    begin(s, GLOBAL);
    ok!(cuStreamWaitEvent(s, go, 1));
    ok!(cuMemsetD32Async(data, 6, 1, s));
    ok!(cuEventRecordWithFlags(done, s, 1));
    let graph = end(s);
    let mut nodes = [0usize; 3];
    let mut count = 3;
    ok!(cuGraphGetNodes(graph, Out::new(nodes.as_mut_ptr()), Out::from(&mut count)));
    let kinds = nodes.map(|node| -> u32 { out!(|out| cuGraphNodeGetType(node, out)) });
    assert_eq!(kinds, [6, 2, 7]);
    let exec = instantiate(graph);
    hold(other, gate);
    ok!(cuEventRecord(go, other));
    ok!(cuGraphLaunch(exec, s));
    fails!(600, cuEventQuery(done));
    store(gate, 1);
    ok!(cuEventSynchronize(done));
    assert_eq!(read_word(data), 6);
}

#[test]
fn a_graph_inside_a_graph() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(8);
    begin(s, GLOBAL);
    ok!(cuMemsetD32Async(data, 5, 1, s));
    let inner = instantiate(end(s));
    begin(s, GLOBAL);
    ok!(cuGraphLaunch(inner, s));
    ok!(cuMemcpyDtoDAsync_v2(data + 4, data, 4, s));
    let outer = end(s);
    let mut first = 0;
    let mut count = 1;
    ok!(cuGraphGetRootNodes(outer, Out::from(&mut first), Out::from(&mut count)));
    let kind: u32 = out!(|out| cuGraphNodeGetType(first, out));
    assert_eq!(kind, 4);
    preset(data, 0, 2);
    run(instantiate(outer), s);
    assert_eq!(read_word(data + 4), 5);
}

#[test]
fn captured_memory_lives_with_its_graph() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(4);
    begin(s, GLOBAL);
    let ptr: u64 = out!(|out| cuMemAllocAsync(out, 64, s));
    ok!(cuMemsetD32Async(ptr, 12, 16, s));
    ok!(cuMemcpyDtoDAsync_v2(data, ptr + 60, 4, s));
    ok!(cuMemFreeAsync(ptr, s));
    let graph = end(s);
    let mut nodes = [0usize; 4];
    let mut count = 4;
    ok!(cuGraphGetNodes(graph, Out::new(nodes.as_mut_ptr()), Out::from(&mut count)));
    let kinds = nodes.map(|node| -> u32 { out!(|out| cuGraphNodeGetType(node, out)) });
    assert_eq!(kinds, [10, 2, 1, 11]);
    let exec = instantiate(graph);
    ok!(cuGraphDestroy(graph));
    for _ in 0..2 {
        preset(data, 0, 1);
        run(exec, s);
        assert_eq!(read_word(data), 12);
    }
    let gone = || {
        let mut base = 0;
        // SAFETY: asks about an address.
        unsafe { cuMemGetAddressRange_v2(Out::from(&mut base), Out::NULL, ptr) }
    };
    assert_eq!(gone(), 0);
    ok!(cuGraphExecDestroy(exec));
    eventually("the memory goes", || gone() == 500);
}

#[test]
fn graphs_built_by_hand() {
    let _turn = setup();
    let s = stream(1);
    let (data, word) = (alloc(400), AtomicU32::new(0));
    unsafe extern "C" fn count(word: *mut c_void) {
        // SAFETY: the test's word lives until the graph has run.
        unsafe { &*word.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
    }
    let graph: usize = out!(|out| cuGraphCreate(out, 0));
    let fill = function("emu_probe_fill");
    let arg = Fill { data, count: 100, value: 1, pad: 0 };
    let list = [&raw const arg as usize];
    let kernel = CUkernelNodeParams {
        func: fill,
        grid: [1; 3],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: In::new(list.as_ptr()),
        extra: In::NULL,
        kern: 0,
        ctx: 0,
    };
    let first: usize = out!(|out| cuGraphAddKernelNode_v2(out, graph, In::NULL, 0, In::from(&kernel)));
    let host = CUhostNodeParams { function: Some(count), data: opaque(&word) };
    let second: usize = out!(|out| cuGraphAddHostNode(out, graph, In::from(&first), 1, In::from(&host)));
    let copy = CUmemcpy3D {
        src_type: 2,
        src_device: data,
        dst_type: 2,
        dst_device: data + 200,
        width: 4,
        height: 1,
        depth: 1,
        ..CUmemcpy3D::default()
    };
    let third: usize = out!(|out| cuGraphAddMemcpyNode(out, graph, In::NULL, 0, In::from(&copy), 0));
    ok!(cuGraphAddDependencies(graph, In::from(&second), In::from(&third), 1));
    fails!(1, cuGraphAddDependencies(graph, In::from(&second), In::from(&third), 1));
    let exec = instantiate(graph);
    run(exec, s);
    assert_eq!((read_word(data), read_word(data + 200), word.load(Ordering::Relaxed)), (1, 1, 1));

    // The parameters can be read, and changed in the executable graph alone.
    let mut seen = kernel;
    ok!(cuGraphKernelNodeGetParams_v2(first, Out::from(&mut seen)));
    // SAFETY: the list is the node's own and holds one pointer to the argument.
    let value = unsafe { (*(seen.params.get().unwrap() as *const Fill)).value };
    assert_eq!((seen.func, seen.block, value), (fill, [32, 1, 1], 1));
    let arg = Fill { value: 30, ..arg };
    let list = [&raw const arg as usize];
    let kernel = CUkernelNodeParams { params: In::new(list.as_ptr()), ..kernel };
    ok!(cuGraphExecKernelNodeSetParams_v2(exec, first, In::from(&kernel)));
    run(exec, s);
    assert_eq!(read_word(data + 200), 30);
    ok!(cuGraphNodeSetEnabled(exec, first, 0));
    preset(data, 8, 100);
    run(exec, s);
    assert_eq!(read_word(data + 200), 8);
    run(instantiate(graph), s);
    assert_eq!(read_word(data), 1, "the graph itself is as it was");

    // A ring cannot be instantiated.
    ok!(cuGraphAddDependencies(graph, In::from(&third), In::from(&first), 1));
    let mut none = 0;
    fails!(1, cuGraphInstantiateWithFlags(Out::from(&mut none), graph, 0));
    ok!(cuGraphRemoveDependencies(graph, In::from(&third), In::from(&first), 1));
    ok!(cuGraphDestroyNode(second));
    assert_eq!((node_count(graph), edge_count(graph)), (2, 0));
}

#[test]
fn executables_can_be_updated() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(8);
    let capture = |value, words| {
        begin(s, GLOBAL);
        ok!(cuMemsetD32Async(data, value, words, s));
        end(s)
    };
    let (first, second) = (capture(1, 1), capture(2, 2));
    let exec = instantiate(first);
    let mut info = CUgraphExecUpdateResultInfo { result: 9, error_node: 9, error_from_node: 9 };
    ok!(cuGraphExecUpdate_v2(exec, second, Out::from(&mut info)));
    assert_eq!(info.result, 0);
    run(exec, s);
    assert_eq!(read_word(data + 4), 2);
    begin(s, GLOBAL);
    ok!(cuStreamWriteValue32_v2(s, data, 3, 0));
    let other = end(s);
    fails!(910, cuGraphExecUpdate_v2(exec, other, Out::from(&mut info)));
    assert_eq!(info.result, 3);
    let empty: usize = out!(|out| cuGraphCreate(out, 0));
    fails!(910, cuGraphExecUpdate_v2(exec, empty, Out::from(&mut info)));
    assert_eq!(info.result, 2);
    let clone: usize = out!(|out| cuGraphClone(out, second));
    ok!(cuGraphDestroy(second));
    run(instantiate(clone), s);
}

#[test]
fn user_objects_live_as_long_as_graphs_need_them() {
    let _turn = setup();
    unsafe extern "C" fn destroy(word: *mut c_void) {
        let mut count = 0;
        // SAFETY: the driver checks what it is given.
        let code = unsafe { cuDeviceGetCount(Out::from(&mut count)) };
        // SAFETY: the test's word lives until the destructor has run.
        unsafe { &*word.cast::<AtomicU32>() }.store(code, Ordering::Release);
    }
    let s = stream(1);
    let gate = pinned_word();
    let word = AtomicU32::new(1);
    let object: usize = out!(|out| cuUserObjectCreate(out, opaque(&word), Some(destroy), 1, 1));
    begin(s, GLOBAL);
    hold(s, gate);
    let graph = end(s);
    const MOVE: u32 = 1;
    ok!(cuGraphRetainUserObject(graph, object, 1, MOVE));
    fails!(1, cuGraphReleaseUserObject(graph, object, 2));
    let exec = instantiate(graph);
    ok!(cuGraphDestroy(graph));
    ok!(cuGraphLaunch(exec, s));
    ok!(cuGraphExecDestroy(exec));
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(word.load(Ordering::Acquire), 1, "a launch still runs");
    store(gate, 1);
    ok!(cuStreamSynchronize(s));
    eventually("the destructor runs", || word.load(Ordering::Acquire) != 1);
    assert_eq!(word.load(Ordering::Acquire), 800, "and may not call the driver");
    fails!(1, cuUserObjectRetain(object, 1));
}

#[test]
fn a_captured_kernel_is_loaded_at_instantiation() {
    let _turn = setup();
    let s = stream(1);
    let fill = function("emu_probe_fill");
    let data = alloc(4);
    let loaded = || -> u32 { out!(|out| cuFuncIsLoaded(out, fill)) };
    begin(s, GLOBAL);
    launch(fill, 1, s, &Fill { data, count: 1, value: 1, pad: 0 });
    let graph = end(s);
    assert_eq!(loaded(), 0);
    let exec = instantiate(graph);
    assert_eq!(loaded(), 1);
    run(exec, s);
    ok!(cuGraphUpload(exec, s));
}
