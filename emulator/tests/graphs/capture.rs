//! What a capture records, and what breaks it.

use super::support::*;
use super::*;

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
    end_fails(901, a);
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
fn no_graph_is_launched_into_a_capture() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(4);
    begin(s, GLOBAL);
    ok!(cuMemsetD32Async(data, 5, 1, s));
    let exec = instantiate(end(s));
    begin(s, GLOBAL);
    fails!(900, cuGraphLaunch(exec, s));
    fails!(900, cuGraphLaunch(exec, s));
    end_fails(901, s);
    run(exec, s);
    assert_eq!(read_word(data), 5);
}
