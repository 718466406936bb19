//! How graphs run, change and die, and what keeps their parts alive.

use super::support::*;
use super::*;

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
fn a_graph_inside_a_graph() {
    let _turn = setup();
    let s = stream(1);
    let data = alloc(8);
    begin(s, GLOBAL);
    ok!(cuMemsetD32Async(data, 5, 1, s));
    let inner = end(s);
    let outer: usize = out!(|out| cuGraphCreate(out, 0));
    let child: usize = out!(|out| cuGraphAddChildGraphNode(out, outer, In::NULL, 0, inner));
    ok!(cuStreamBeginCaptureToGraph(s, outer, In::from(&child), In::NULL, 1, GLOBAL));
    ok!(cuMemcpyDtoDAsync_v2(data + 4, data, 4, s));
    assert_eq!(end(s), outer);
    let kind: u32 = out!(|out| cuGraphNodeGetType(child, out));
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
    // An event that was recorded in the capture and lives on does not keep what the graph holds.
    let event: usize = out!(|out| cuEventCreate(out, 2));
    ok!(cuEventRecord(event, s));
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
