//! Kernels and copies that fail: what breaks, and what goes on.
//!
//! A fault takes the device away from the process for good, so each test has a device of its own.

#![allow(clippy::macro_metavars_in_unsafe)]

mod support;
use support::*;

/// A context of its own on a device.
fn setup(device: i32) -> usize {
    init(&[("OXCCL_EMU_DEVICES", "5")]);
    out!(|out| cuCtxCreate_v2(out, 0, device))
}

#[test]
fn a_fault_breaks_its_context_and_device() {
    let broken = setup(0);
    let bad = function("emu_probe_out_of_bounds");
    let ptr = alloc(4096);
    launch(bad, 2, 0, &OutOfBounds { p: ptr + 4096, block: 1, read: 0 });
    fails!(700, cuCtxSynchronize());
    let mut next = 0;
    fails!(700, cuMemAlloc_v2(Out::from(&mut next), 4));
    let mut next = 0;
    fails!(700, cuStreamCreate(Out::from(&mut next), 0));
    fails!(700, cuCtxCreate_v2(Out::from(&mut next), 0, 0));
    let fresh: usize = out!(|out| cuCtxCreate_v2(out, 0, 1));
    assert_ne!(fresh, broken, "another device goes on");
    let _ = alloc(4);
    ok!(cuCtxSynchronize());
    ok!(cuCtxSetCurrent(broken));
    fails!(700, cuCtxSynchronize());
    ok!(cuCtxDestroy_v2(broken));
}

#[test]
fn memory_without_access_rights_faults() {
    setup(2);
    let fill = function("emu_probe_fill");
    let handle: u64 = out!(|out| cuMemCreate(out, GRANULE, In::from(&vmm_prop(2)), 0));
    let ptr: u64 = out!(|out| cuMemAddressReserve(out, GRANULE, 0, 0, 0));
    ok!(cuMemMap(ptr, GRANULE, 0, handle, 0));
    launch(fill, 1, 0, &Fill { data: ptr, count: 1, value: 1, pad: 0 });
    fails!(700, cuCtxSynchronize());
}

#[test]
fn a_copy_whose_memory_is_gone_breaks_the_context() {
    setup(3);
    let handle: u64 = out!(|out| cuMemCreate(out, GRANULE, In::from(&vmm_prop(3)), 0));
    let ptr = map(handle, 3, GRANULE);
    let s = stream(1);
    let gate = pinned_word();
    hold(s, gate);
    ok!(cuMemsetD32Async(ptr, 1, 1, s));
    ok!(cuMemUnmap(ptr, GRANULE));
    store(gate, 1);
    fails!(700, cuStreamSynchronize(s));
}

#[test]
fn a_broken_context_lets_little_through() {
    let broken = setup(4);
    let (s, e, data) = (stream(1), event(), alloc(4));
    launch(function("emu_probe_out_of_bounds"), 1, s, &OutOfBounds { p: 4096, block: 0, read: 0 });
    fails!(700, cuStreamSynchronize(s));
    let mut kind = 0u32;
    ok!(cuPointerGetAttribute(&raw mut kind as usize, 2, data));
    fails!(700, cuEventDestroy_v2(e));
    fails!(700, cuStreamDestroy_v2(s));
    fails!(700, cuMemFree_v2(data));
    ok!(cuCtxDestroy_v2(broken));
}
