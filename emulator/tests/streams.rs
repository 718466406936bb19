//! Streams, events, host functions, stream memory operations and kernels: order and concurrency.

#![allow(clippy::macro_metavars_in_unsafe)]

mod support;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use support::*;

const NOT_READY: u32 = 600;

fn setup() {
    init(&[("OXCCL_EMU_DEVICES", "2")]);
    // A context of its own keeps the tests of this process apart: they run at the same time.
    let _: usize = out!(|out| cuCtxCreate_v2(out, 0, 0));
}

#[test]
fn a_stream_runs_in_order_and_others_beside_it() {
    setup();
    let (a, b) = (stream(1), stream(1));
    let (gate, data) = (pinned_word(), alloc(8));
    ok!(cuMemsetD32Async(data, 1, 2, a));
    hold(a, gate);
    ok!(cuMemsetD32Async(data, 2, 1, a));
    ok!(cuMemsetD32Async(data + 4, 3, 1, b));
    ok!(cuStreamSynchronize(b));
    assert_eq!(query(a), NOT_READY);
    store(gate, 1);
    ok!(cuStreamSynchronize(a));
    assert_eq!(query(a), 0);
    assert_eq!(read_word(data), 2);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    setup();
    let (blocking, free) = (stream(0), stream(1));
    let gate = pinned_word();
    hold(blocking, gate);
    let data = alloc(4);
    ok!(cuMemsetD32Async(data, 1, 1, 0));
    ok!(cuMemsetD32Async(data, 2, 1, free));
    ok!(cuStreamSynchronize(free));
    assert_eq!(query(0), NOT_READY);
    let other = stream(0);
    ok!(cuMemsetD32Async(data, 3, 1, other));
    assert_eq!(query(other), NOT_READY, "behind the legacy stream");
    store(gate, 1);
    ok!(cuStreamSynchronize(other));
    assert_eq!(read_word(data), 3);
    ok!(cuCtxSynchronize());
}

#[test]
fn a_thread_has_a_default_stream_of_its_own() {
    setup();
    let context: usize = out!(|out| cuCtxGetCurrent(out));
    let gate = pinned_word();
    const PER_THREAD: usize = 2;
    hold(PER_THREAD, gate);
    assert_eq!(query(PER_THREAD), NOT_READY);
    let code = std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(context));
        query(PER_THREAD)
    });
    assert_eq!(code.join().unwrap(), 0);
    // SAFETY: asks for the state of the calling thread's stream.
    assert_eq!(unsafe { cuStreamQuery_ptsz(0) }, NOT_READY);
    assert_eq!(query(0), NOT_READY, "the legacy stream waits for it");
    store(gate, 1);
    ok!(cuStreamSynchronize_ptsz(0));
}

#[test]
fn events_order_streams_and_take_the_time() {
    setup();
    let (a, b) = (stream(1), stream(1));
    let (gate, data) = (pinned_word(), alloc(4));
    let (start, end, never) = (event(), event(), event());
    ok!(cuEventQuery(never));
    ok!(cuEventRecord(start, a));
    hold(a, gate);
    ok!(cuMemsetD32Async(data, 1, 1, a));
    ok!(cuEventRecord(end, a));
    ok!(cuStreamWaitEvent(b, end, 0));
    ok!(cuMemsetD32Async(data, 2, 1, b));
    let mut time = 0f32;
    fails!(NOT_READY, cuEventElapsedTime(Out::from(&mut time), start, end));
    fails!(NOT_READY, cuEventQuery(end));
    assert_eq!(query(b), NOT_READY);
    std::thread::sleep(std::time::Duration::from_millis(2));
    store(gate, 1);
    ok!(cuEventSynchronize(end));
    ok!(cuStreamSynchronize(b));
    assert_eq!(read_word(data), 2);
    ok!(cuEventElapsedTime(Out::from(&mut time), start, end));
    assert!(time >= 2.0, "{time} ms");
    fails!(400, cuEventElapsedTime(Out::from(&mut time), start, never));
    ok!(cuEventDestroy_v2(end));
    fails!(400, cuEventQuery(end));
}

#[test]
fn host_functions_run_in_order_and_may_hardly_call_the_driver() {
    setup();
    static CODE: AtomicU32 = AtomicU32::new(0);
    static OTHER: AtomicUsize = AtomicUsize::new(0);
    static NAMED: AtomicU32 = AtomicU32::new(9);
    static NULL: AtomicU32 = AtomicU32::new(9);
    unsafe extern "C" fn function(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes a word that lives until the stream is synchronised.
        let word = unsafe { &*data.cast::<AtomicU32>() };
        word.fetch_add(1, Ordering::Relaxed);
        let mut count = 0;
        // SAFETY: the driver checks what it is given.
        CODE.store(unsafe { cuDeviceGetCount(Out::from(&mut count)) }, Ordering::Relaxed);
        let other = OTHER.load(Ordering::Relaxed);
        // SAFETY: as above.
        let (named, null) = unsafe { (cuStreamSynchronize(other), cuStreamSynchronize(0)) };
        NAMED.store(named, Ordering::Relaxed);
        NULL.store(null, Ordering::Relaxed);
    }
    let s = stream(0);
    OTHER.store(stream(1), Ordering::Relaxed);
    let word = AtomicU32::new(0);
    for _ in 0..10 {
        ok!(cuLaunchHostFunc(s, Some(function), opaque(&word)));
    }
    ok!(cuStreamSynchronize(s));
    assert_eq!(word.load(Ordering::Relaxed), 10);
    assert_eq!(CODE.load(Ordering::Relaxed), 800);
    assert_eq!(NAMED.load(Ordering::Relaxed), 0, "a call that names a stream is let through");
    assert_eq!(NULL.load(Ordering::Relaxed), 800, "one that needs a context is not");
    fails!(1, cuLaunchHostFunc(s, None, opaque(&word)));
}

#[test]
fn memory_operations_signal_between_streams() {
    setup();
    let (a, b) = (stream(1), stream(1));
    let flags = alloc(16);
    ok!(cuMemsetD8_v2(flags, 0, 16));
    ok!(cuCtxSynchronize());
    ok!(cuStreamWaitValue32_v2(a, flags, 3, 0));
    ok!(cuStreamWriteValue64_v2(a, flags + 8, 1 << 40, 0));
    assert_eq!(query(a), NOT_READY);
    ok!(cuStreamWriteValue32_v2(b, flags, 4, 0));
    ok!(cuStreamSynchronize(a));
    assert_eq!(read(flags + 8, 8), (1u64 << 40).to_le_bytes());
    let op = |operation, address, value, flags| CUstreamBatchMemOpParams {
        operation,
        address,
        value,
        flags,
        alias: 0,
        pad: 0,
    };
    let batch = [op(1, flags, 4, 1), op(2, flags, 0, 0), op(5, flags + 8, 7, 0)];
    ok!(cuStreamBatchMemOp_v2(a, 3, In::new(batch.as_ptr()), 0));
    ok!(cuStreamSynchronize(a));
    assert_eq!((read_word(flags), read_word(flags + 8)), (0, 7));
    fails!(1, cuStreamWaitValue32_v2(a, flags + 2, 0, 0));
    fails!(1, cuStreamWaitValue64_v2(a, flags + 4, 0, 0));
    fails!(1, cuStreamWriteValue32_v2(a, flags + 512, 0, 0));
    fails!(1, cuStreamWriteValue32_v2(a, flags, 0, 8));
}

#[test]
fn kernels_run_beside_each_other() {
    setup();
    let spin = function("emu_probe_spin");
    ok!(cuFuncLoad(spin));
    let (a, b) = (stream(1), stream(1));
    let (first, second, started) = (pinned_word(), pinned_word(), pinned_word());
    launch(spin, 2, a, &Spin { flag: first, until: 1, pad: 0, started });
    launch(spin, 2, b, &Spin { flag: second, until: 1, pad: 0, started });
    eventually("both kernels run", || load(started) == 4);
    store(second, 1);
    ok!(cuStreamSynchronize(b));
    assert_eq!(query(a), NOT_READY);
    store(first, 1);
    ok!(cuStreamSynchronize(a));
}

#[test]
fn a_kernel_that_is_not_loaded_waits_for_running_ones() {
    setup();
    let spin = function("emu_probe_spin");
    ok!(cuFuncLoad(spin));
    let fill = function("emu_probe_fill");
    let state: u32 = out!(|out| cuFuncIsLoaded(out, fill));
    assert_eq!(state, 0);
    let (a, b) = (stream(1), stream(1));
    let (gate, started, launched) = (pinned_word(), pinned_word(), pinned_word());
    let data = alloc(400);
    launch(spin, 1, a, &Spin { flag: gate, until: 1, pad: 0, started });
    eventually("the kernel runs", || load(started) == 1);
    let context: usize = out!(|out| cuCtxGetCurrent(out));
    let other = std::thread::spawn(move || {
        ok!(cuCtxSetCurrent(context));
        launch(fill, 1, b, &Fill { data, count: 100, value: 5, pad: 0 });
        store(launched, 1);
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(load(launched), 0, "the launch waits for the running kernel");
    store(gate, 1);
    other.join().unwrap();
    ok!(cuStreamSynchronize(b));
    assert_eq!(read_word(data + 396), 104);
    let state: u32 = out!(|out| cuFuncIsLoaded(out, fill));
    assert_eq!(state, 1);
}

#[test]
fn kernels_of_ptx_are_loaded_with_their_module() {
    setup();
    let fill = function_of(PTX, "emu_probe_fill");
    let state: u32 = out!(|out| cuFuncIsLoaded(out, fill));
    assert_eq!(state, 1);
}

#[test]
fn parameters_are_copied_at_the_launch() {
    setup();
    let fill = function("emu_probe_fill");
    let s = stream(1);
    let (gate, data) = (pinned_word(), alloc(400));
    hold(s, gate);
    let mut arg = Fill { data, count: 100, value: 5, pad: 0 };
    launch(fill, 3, s, &arg);
    arg.value = 9;
    let extra = [1, &raw const arg as usize, 2, &size_of::<Fill>() as *const usize as usize, 0];
    let code = {
        // SAFETY: the list names a buffer of the right size.
        unsafe { cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, s, In::NULL, In::new(extra.as_ptr())) }
    };
    assert_eq!(code, 0);
    store(gate, 1);
    ok!(cuStreamSynchronize(s));
    assert_eq!(read_word(data), 9);
    let (mut offset, mut size) = (1, 1);
    ok!(cuFuncGetParamInfo(fill, 0, Out::from(&mut offset), Out::from(&mut size)));
    assert_eq!((offset, size), (0, size_of::<Fill>()));
    fails!(1, cuFuncGetParamInfo(fill, 1, Out::from(&mut offset), Out::from(&mut size)));
}

#[test]
fn launches_that_cannot_run_are_refused() {
    setup();
    let fill = function("emu_probe_fill");
    let arg = Fill { data: alloc(4), count: 1, value: 0, pad: 0 };
    let list = [&raw const arg as usize];
    let params = In::new(list.as_ptr());
    fails!(1, cuLaunchKernel(fill, 0, 1, 1, 1, 1, 1, 0, 0, params, In::NULL));
    fails!(1, cuLaunchKernel(fill, 1, 1, 1, 1025, 1, 1, 0, 0, params, In::NULL));
    fails!(1, cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 50 << 10, 0, params, In::NULL));
    ok!(cuFuncSetAttribute(fill, 8, 100 << 10));
    ok!(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 50 << 10, 0, params, In::NULL));
    fails!(1, cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, 0, In::NULL, In::NULL));
    fails!(400, cuLaunchKernel(12345, 1, 1, 1, 1, 1, 1, 0, 0, params, In::NULL));
    fails!(400, cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, 99, params, In::NULL));
    fails!(720, cuLaunchCooperativeKernel(fill, 1 << 20, 1, 1, 1024, 1, 1, 0, 0, params));
    let mut none = 0;
    let module: usize = out!(|out| cuModuleLoadData(out, In::from(&PTX[0])));
    fails!(500, cuModuleGetFunction(Out::from(&mut none), module, Text::new(c"no_such_kernel")));
    let blocks: i32 = out!(|out| cuOccupancyMaxActiveBlocksPerMultiprocessor(out, fill, 1024, 0));
    assert_eq!(blocks, 2);
    ok!(cuCtxSynchronize());
}

#[test]
fn pageable_memory_is_read_at_the_call() {
    setup();
    let s = stream(1);
    let (gate, data) = (pinned_word(), alloc(4));
    let mut source = [1u8; 4];
    hold(s, gate);
    ok!(cuMemcpyHtoDAsync_v2(data, source.as_ptr() as usize, 4, s));
    source = [2; 4];
    store(gate, 1);
    ok!(cuStreamSynchronize(s));
    assert_eq!(read(data, 4), [1; 4]);
    ok!(cuMemcpyHtoDAsync_v2(data, source.as_ptr() as usize, 4, s));
    let mut target = [0u8; 4];
    ok!(cuMemcpyDtoHAsync_v2(target.as_mut_ptr() as usize, data, 4, s));
    assert_eq!(target, [2; 4], "a copy to pageable memory is done when the call returns");
}

#[test]
fn calls_need_the_right_context() {
    setup();
    let fill = function("emu_probe_fill");
    let (s, e, data) = (stream(1), event(), alloc(4));
    let arg = Fill { data, count: 1, value: 1, pad: 0 };
    let _other: usize = out!(|out| cuCtxCreate_v2(out, 0, 1));
    assert_eq!(launch_code(fill, 1, s, &arg), 400, "a stream of another context");
    ok!(cuMemsetD32Async(data, 1, 1, s));
    ok!(cuStreamSynchronize(s));
    let foreign = stream(1);
    fails!(400, cuEventRecord(e, foreign));
    ok!(cuStreamWaitEvent(foreign, e, 0));
    let without = std::thread::spawn(move || {
        ok!(cuMemsetD32Async(data, 2, 1, s));
        ok!(cuStreamSynchronize(s));
        fails!(201, cuStreamSynchronize(0));
        fails!(201, cuMemsetD32_v2(data, 1, 1));
        fails!(201, cuCtxSynchronize());
        let mut ptr = 0;
        fails!(201, cuMemAlloc_v2(Out::from(&mut ptr), 4));
        let mut context = 1;
        ok!(cuCtxGetCurrent(Out::from(&mut context)));
        assert_eq!(context, 0);
    });
    without.join().unwrap();
}

#[test]
fn threads_that_mix_all_kinds_of_streams_come_to_an_end() {
    setup();
    let context: usize = out!(|out| cuCtxGetCurrent(out));
    const ROUNDS: u32 = 200;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                ok!(cuCtxSetCurrent(context));
                let (blocking, free, mark) = (stream(0), stream(1), event());
                let data = alloc(8);
                for round in 1..=ROUNDS {
                    ok!(cuMemsetD32Async(data, round, 1, blocking));
                    ok!(cuEventRecord(mark, blocking));
                    ok!(cuStreamWaitEvent(free, mark, 0));
                    ok!(cuMemcpyDtoDAsync_v2(data + 4, data, 4, free));
                    ok!(cuStreamSynchronize(free));
                    ok!(cuMemsetD32Async(data, 0, 1, 0));
                    ok!(cuMemsetD32Async(data, round, 1, 2));
                    assert_eq!((read_word(data + 4), read_word(data)), (round, round));
                }
                ok!(cuStreamDestroy_v2(free));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ok!(cuCtxSynchronize());
}

#[test]
fn priorities_flags_and_handles() {
    setup();
    let (mut least, mut greatest) = (1, 1);
    ok!(cuCtxGetStreamPriorityRange(Out::from(&mut least), Out::from(&mut greatest)));
    assert_eq!((least, greatest), (0, -5));
    let s: usize = out!(|out| cuStreamCreateWithPriority(out, 1, -100));
    let (priority, flags): (i32, u32) =
        (out!(|out| cuStreamGetPriority(s, out)), out!(|out| cuStreamGetFlags(s, out)));
    assert_eq!((priority, flags), (-5, 1));
    ok!(cuStreamDestroy_v2(s));
    fails!(400, cuStreamSynchronize(s));
    fails!(400, cuStreamDestroy_v2(s));
    let mut none = 0;
    fails!(1, cuStreamCreate(Out::from(&mut none), 2));
    fails!(1, cuEventCreate(Out::from(&mut none), 4));
}
