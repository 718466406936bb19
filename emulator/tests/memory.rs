//! Memory: allocation and its accounting, virtual memory management and its descriptors, legacy IPC, pointer
//! attributes, pinned memory, checked copies.

#![allow(clippy::macro_metavars_in_unsafe)]

mod support;
use support::*;

fn setup() {
    init(&[
        ("OXCCL_EMU_DEVICES", "4"),
        ("OXCCL_EMU_MEMORY", "1G"),
        ("OXCCL_EMU_PEERS", "0100/1000/0000/0000"),
    ]);
    use_device(0);
}

fn attribute<T: Default>(ptr: u64, attribute: u32) -> T {
    let mut value = T::default();
    ok!(cuPointerGetAttribute(&raw mut value as usize, attribute, ptr));
    value
}

#[test]
fn allocations_are_counted_against_the_device() {
    setup();
    use_device(3);
    let info = || {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(Out::from(&mut free), Out::from(&mut total)));
        (free, total)
    };
    assert_eq!(info(), (1 << 30, 1 << 30));
    let ptr = alloc(600 << 20);
    assert_eq!(info().0, 424 << 20);
    let mut second = 0;
    fails!(2, cuMemAlloc_v2(Out::from(&mut second), 600 << 20));
    fails!(2, cuMemCreate(Out::from(&mut second), 600 << 20, In::from(&vmm_prop(3)), 0));
    ok!(cuMemFree_v2(ptr));
    assert_eq!(info().0, 1 << 30);
    fails!(1, cuMemFree_v2(ptr));
    fails!(1, cuMemAlloc_v2(Out::from(&mut second), 0));
}

#[test]
fn freed_memory_comes_back_empty() {
    setup();
    for _ in 0..3 {
        let ptr = alloc(1 << 20);
        assert!(read(ptr, 1 << 20).iter().all(|byte| *byte == 0));
        ok!(cuMemsetD8_v2(ptr, 7, 1 << 20));
        assert!(read(ptr, 1 << 20).iter().all(|byte| *byte == 7));
        ok!(cuMemFree_v2(ptr));
    }
}

#[test]
fn copies_stay_inside_allocations() {
    setup();
    let (a, b) = (alloc(1000), alloc(1000));
    let host = vec![1u8; 2000];
    ok!(cuMemcpyHtoD_v2(a, host.as_ptr() as usize, 1000));
    fails!(1, cuMemcpyHtoD_v2(a, host.as_ptr() as usize, 1001));
    fails!(1, cuMemcpyHtoD_v2(a + 1, host.as_ptr() as usize, 1000));
    fails!(1, cuMemcpyDtoD_v2(b, a + 500, 501));
    fails!(1, cuMemcpyDtoH_v2(host.as_ptr() as usize, host.as_ptr() as u64, 10));
    fails!(1, cuMemsetD32_v2(a, 1, 251));
    fails!(1, cuMemsetD32_v2(a + 2, 1, 1));
    fails!(1, cuMemsetD8_v2(a - 1, 1, 1));
    ok!(cuMemcpyDtoD_v2(b + 10, a, 990));
    assert_eq!(read(b, 11), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn strided_copies_and_sets() {
    setup();
    let device = alloc(64 * 8);
    ok!(cuMemsetD2D16_v2(device + 2, 64, 0x0201, 3, 8));
    let host = vec![0u8; 6 * 8];
    let copy = CUmemcpy2D {
        src_x: 2,
        src_y: 0,
        src_type: 2,
        src_host: 0,
        src_device: device,
        src_array: 0,
        src_pitch: 64,
        dst_x: 0,
        dst_y: 0,
        dst_type: 1,
        dst_host: host.as_ptr() as usize,
        dst_device: 0,
        dst_array: 0,
        dst_pitch: 6,
        width: 6,
        height: 8,
    };
    ok!(cuMemcpy2D_v2(In::from(&copy)));
    assert_eq!(host, [1, 2].repeat(24));
    assert_eq!(read(device, 10), [0, 0, 1, 2, 1, 2, 1, 2, 0, 0]);
    let too_high = CUmemcpy2D { height: 9, ..copy };
    fails!(1, cuMemcpy2D_v2(In::from(&too_high)));
}

#[test]
fn attributes_of_device_memory() {
    setup();
    let context = use_device(1);
    let (a, b) = (alloc(5000), alloc(5000));
    assert_eq!(attribute::<usize>(a, 1), context);
    assert_eq!(attribute::<u32>(a, 2), 2);
    assert_eq!(attribute::<u64>(a + 7, 3), a + 7);
    assert_eq!(attribute::<i32>(a, 9), 1);
    assert_eq!(attribute::<u8>(a, 10), 1);
    assert_eq!(attribute::<u64>(a + 4999, 11), a);
    assert_eq!(attribute::<usize>(a + 4999, 12), 5000);
    assert_ne!(attribute::<u64>(a, 7), attribute::<u64>(b, 7));
    assert_eq!(attribute::<u64>(a, 7), attribute::<u64>(a + 100, 7));
    let (mut base, mut size) = (0, 0);
    ok!(cuMemGetAddressRange_v2(Out::from(&mut base), Out::from(&mut size), a + 5));
    assert_eq!((base, size), (a, 5000));
    let mut value = 0u64;
    fails!(1, cuPointerGetAttribute(&raw mut value as usize, 4, a));
    fails!(1, cuPointerGetAttribute(&raw mut value as usize, 2, &raw const value as u64));
}

#[test]
fn several_attributes_of_unknown_memory() {
    setup();
    let (mut kind, mut start, mut ordinal) = (9u32, 9u64, 9i32);
    let attributes = [2u32, 11, 9];
    let data = [&raw mut kind as usize, &raw mut start as usize, &raw mut ordinal as usize];
    let ptr = data.as_ptr() as u64;
    ok!(cuPointerGetAttributes(3, In::new(attributes.as_ptr()), In::new(data.as_ptr()), ptr));
    assert_eq!((kind, start, ordinal), (0, 9, -2), "the range is left alone");
    fails!(1, cuPointerGetAttributes(0, In::NULL, In::NULL, ptr));
}

#[test]
fn pinned_and_registered_host_memory() {
    setup();
    let p: usize = out!(|out| cuMemHostAlloc(out, 100, 1));
    let p = p as u64;
    assert_eq!(attribute::<u32>(p, 2), 1);
    assert_eq!(attribute::<u64>(p, 4), p);
    let device: u64 = out!(|out| cuMemHostGetDevicePointer_v2(out, p as usize, 0));
    assert_eq!(device, p);
    let d = alloc(100);
    ok!(cuMemsetD8_v2(d, 3, 100));
    ok!(cuMemcpyDtoH_v2(p as usize, d, 100));
    assert_eq!(load(p), 0x0303_0303);
    fails!(1, cuMemcpyDtoH_v2(p as usize, d, 101));
    ok!(cuMemFreeHost(p as usize));
    fails!(1, cuMemFreeHost(p as usize));

    let own = vec![0u8; 10_000];
    let own = own.as_ptr() as usize;
    fails!(713, cuMemHostUnregister(own));
    ok!(cuMemHostRegister_v2(own, 10_000, 3));
    fails!(712, cuMemHostRegister_v2(own + 500, 100, 0));
    assert_eq!(attribute::<u32>(own as u64 + 9999, 2), 1);
    ok!(cuMemsetD8_v2(own as u64, 1, 10_000));
    ok!(cuMemHostUnregister(own));
    fails!(1, cuMemHostRegister_v2(0x1000, 100, 0));
}

#[test]
fn vmm_reserve_map_access() {
    setup();
    let mut handle = 0;
    fails!(1, cuMemCreate(Out::from(&mut handle), GRANULE - 1, In::from(&vmm_prop(0)), 0));
    fails!(101, cuMemCreate(Out::from(&mut handle), GRANULE, In::from(&vmm_prop(9)), 0));
    let granularity: usize = out!(|out| cuMemGetAllocationGranularity(out, In::from(&vmm_prop(0)), 0));
    assert_eq!(granularity, GRANULE);
    ok!(cuMemCreate(Out::from(&mut handle), GRANULE, In::from(&vmm_prop(0)), 0));
    let ptr: u64 = out!(|out| cuMemAddressReserve(out, 4 * GRANULE, 0, 0, 0));
    assert_eq!(ptr % GRANULE as u64, 0);
    fails!(1, cuMemsetD8_v2(ptr, 0, 1));
    fails!(801, cuMemMap(ptr, 2 * GRANULE, 0, handle, 0));
    fails!(801, cuMemMap(ptr, GRANULE, 4096, handle, 0));
    ok!(cuMemMap(ptr, GRANULE, 0, handle, 0));
    ok!(cuMemMap(ptr + GRANULE as u64, GRANULE, 0, handle, 0));
    fails!(1, cuMemMap(ptr, GRANULE, 0, handle, 0));
    fails!(1, cuMemMap(ptr + 4 * GRANULE as u64, GRANULE, 0, handle, 0));
    fails!(1, cuMemsetD8_v2(ptr, 0, 1));

    let location = |id| CUmemLocation { kind: 1, id };
    let access = |id| -> u64 { out!(|out| cuMemGetAccess(out, In::from(&location(id)), ptr)) };
    let desc = [0, 1].map(|id| CUmemAccessDesc { location: location(id), flags: 3 });
    assert_eq!(access(0), 0);
    ok!(cuMemSetAccess(ptr, 2 * GRANULE, In::new(desc.as_ptr()), 2));
    assert_eq!((access(0), access(1), access(2)), (3, 3, 0));
    let no_peer = CUmemAccessDesc { location: location(2), flags: 3 };
    fails!(101, cuMemSetAccess(ptr, GRANULE, In::from(&no_peer), 1));

    // Both halves are the same memory, and a copy may span them.
    ok!(cuMemsetD32_v2(ptr, 5, 1));
    assert_eq!(read_word(ptr + GRANULE as u64), 5);
    assert_eq!(read(ptr, 2 * GRANULE).len(), 2 * GRANULE);
    assert_eq!(attribute::<i32>(ptr, 9), 0);
    assert_eq!(attribute::<u8>(ptr, 10), 0);
    assert_eq!(attribute::<u64>(ptr, 14), 1);
    let second = ptr + GRANULE as u64;
    assert_eq!((attribute::<u64>(second, 11), attribute::<usize>(second, 12)), (ptr, 4 * GRANULE));
    assert_eq!((attribute::<u64>(second, 19), attribute::<usize>(second, 18)), (second, GRANULE));
    assert_ne!(attribute::<u64>(second, 7), attribute::<u64>(ptr, 7));

    let same: u64 = out!(|out| cuMemRetainAllocationHandle(out, ptr + 5));
    assert_eq!(same, handle);
    ok!(cuMemRelease(handle));
    ok!(cuMemRelease(handle));
    fails!(1, cuMemRelease(handle));
    assert_eq!(read_word(ptr), 5, "mappings keep the memory");
    fails!(1, cuMemAddressFree(ptr, 4 * GRANULE));
    fails!(1, cuMemUnmap(ptr, 5 * GRANULE));
    fails!(1, cuMemUnmap(ptr, 4096));
    ok!(cuMemUnmap(ptr, 2 * GRANULE));
    ok!(cuMemUnmap(ptr, 2 * GRANULE));
    fails!(1, cuMemsetD8_v2(ptr, 0, 1));
    ok!(cuMemAddressFree(ptr, 4 * GRANULE));
}

#[test]
fn an_exported_descriptor_is_the_same_memory() {
    setup();
    let handle: u64 = out!(|out| cuMemCreate(out, GRANULE, In::from(&vmm_prop(1)), 0));
    let fd: i32 = out!(|out| cuMemExportToShareableHandle(out, handle, 1, 0));
    // SAFETY: asks for the flags of a descriptor.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    let twin: u64 = out!(|out| cuMemImportFromShareableHandle(out, fd as usize, 1));
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(fd) };
    assert_ne!(handle, twin);
    let prop = {
        let mut prop = vmm_prop(7);
        ok!(cuMemGetAllocationPropertiesFromHandle(Out::from(&mut prop), twin));
        prop
    };
    assert_eq!(prop.location, CUmemLocation { kind: 1, id: 1 });
    let mut again = 0;
    fails!(1, cuMemExportToShareableHandle(Out::from(&mut again), twin, 1, 0));
    let (a, b) = (map(handle, 0, GRANULE), map(twin, 1, GRANULE));
    ok!(cuMemsetD32_v2(a, 77, 1));
    assert_eq!(read_word(b), 77);

    let mut none = 0;
    let file = std::fs::File::open("/dev/null").unwrap();
    let foreign = std::os::fd::AsRawFd::as_raw_fd(&file) as usize;
    fails!(999, cuMemImportFromShareableHandle(Out::from(&mut none), foreign, 1));
    fails!(999, cuMemImportFromShareableHandle(Out::from(&mut none), usize::MAX, 1));
}

#[test]
fn a_process_cannot_open_its_own_memory_handle() {
    setup();
    let ptr = alloc(100);
    let mut handle = CUipcHandle { reserved: [0; 64] };
    ok!(cuIpcGetMemHandle(Out::from(&mut handle), ptr));
    let mut opened = 0;
    fails!(201, cuIpcOpenMemHandle_v2(Out::from(&mut opened), handle, 1));
    fails!(1, cuIpcGetMemHandle(Out::from(&mut handle), &raw const opened as u64));
    let garbage = CUipcHandle { reserved: [7; 64] };
    fails!(1, cuIpcOpenMemHandle_v2(Out::from(&mut opened), garbage, 1));
}

#[test]
fn sets_and_memory_operations_need_access() {
    setup();
    let here = use_device(0);
    let peer = use_device(1);
    let ptr = alloc(8);
    ok!(cuMemsetD32_v2(ptr, 4, 2));
    ok!(cuCtxSynchronize());
    ok!(cuCtxSetCurrent(here));
    assert_eq!(read_word(ptr), 4, "copies go through the memory's own device");
    fails!(1, cuMemsetD32_v2(ptr, 5, 1));
    fails!(1, cuStreamWriteValue32_v2(0, ptr, 5, 0));
    // A context of its own, so that other tests see no access.
    let own: usize = out!(|out| cuCtxCreate_v2(out, 0, 0));
    fails!(217, cuCtxEnablePeerAccess(here, 0));
    ok!(cuCtxEnablePeerAccess(peer, 0));
    ok!(cuMemsetD32_v2(ptr, 5, 1));
    ok!(cuStreamWriteValue32_v2(0, ptr + 4, 6, 0));
    ok!(cuCtxSynchronize());
    assert_eq!((read_word(ptr), read_word(ptr + 4)), (5, 6));
    ok!(cuCtxDestroy_v2(own));
}

#[test]
fn stream_ordered_allocation() {
    setup();
    let s = stream(1);
    let gate = pinned_word();
    let ptr: u64 = out!(|out| cuMemAllocAsync(out, 1 << 20, s));
    ok!(cuMemsetD8Async(ptr, 9, 1 << 20, s));
    hold(s, gate);
    ok!(cuMemFreeAsync(ptr, s));
    let (mut base, mut size) = (0u64, 0usize);
    ok!(cuMemGetAddressRange_v2(Out::from(&mut base), Out::from(&mut size), ptr));
    store(gate, 1);
    ok!(cuStreamSynchronize(s));
    fails!(500, cuMemGetAddressRange_v2(Out::from(&mut base), Out::from(&mut size), ptr));
}
