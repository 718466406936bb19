//! Memory that one rank owns and others map.
//!
//! [`Memory`] is owned by the rank that others write to; [`Memory::export`] describes it to a peer, which
//! opens it with [`Mapping::open`]. GPU memory is a cuMem allocation that travels as a file descriptor; where
//! the driver or the container does not allow that, a legacy allocation with an IPC handle. Host memory is a
//! memfd that both sides register with the driver. The physical memory lives until the owner and all mappings
//! are gone, so a peer may go on writing to a rank that has left. Nothing has a name in a file system.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, LazyLock, Weak};

use cudarc::driver::sys;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;

use super::context::Context;
use super::driver::check;
use super::retire::retire;
use super::stream::RelaxedCapture;
use crate::error::{Error, Result};
use crate::sys::fd::memfd;
use crate::sys::fork::PrivateFd;

/// Where a region of memory lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Medium {
    Gpu,
    Host,
}

/// Memory of this rank.
#[derive(Debug)]
pub struct Memory {
    address: u64,
    bytes: usize,
    kind: Kind,
    context: Arc<Context>,
}

#[derive(Debug)]
enum Kind {
    /// A cuMem allocation, mapped at the address.
    Virtual(Virtual),
    /// cuMemAlloc.
    Legacy,
    Host {
        map: Registered,
        file: PrivateFd,
    },
}

/// How a peer is told about memory: `fd` travels beside it.
#[derive(Debug)]
pub struct Export {
    /// 0 cuMem allocation (fd), 1 legacy handle, 2 host memory (fd).
    pub kind: u8,
    pub bytes: u64,
    /// Legacy: the IPC handle. Unused otherwise.
    pub handle: [u8; 64],
    /// Legacy: the address in the owner's process, by which a peer in the same process finds the owner.
    pub address: u64,
    pub fd: Option<PrivateFd>,
}

/// Legacy allocations of this process: a process cannot open its own IPC handles.
static LEGACY: LazyLock<Mutex<HashMap<u64, Weak<Memory>>>> = LazyLock::new(Default::default);

impl Memory {
    /// Memory of at least `bytes` in `medium`, its content undefined in GPU memory and zero in host memory.
    pub fn new(context: &Arc<Context>, medium: Medium, bytes: usize) -> Result<Arc<Memory>> {
        let memory = match medium {
            Medium::Host => Memory::host(context, bytes)?,
            Medium::Gpu if context.device().exports_fds => Memory::virtual_(context, bytes)?,
            Medium::Gpu => Memory::legacy(context, bytes)?,
        };
        let memory = Arc::new(memory);
        if matches!(memory.kind, Kind::Legacy) {
            LEGACY.lock().insert(memory.address, Arc::downgrade(&memory));
        }
        Ok(memory)
    }

    fn virtual_(context: &Arc<Context>, bytes: usize) -> Result<Memory> {
        let _bound = context.bind()?;
        let property = property(context);
        let mut granularity = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        check(
            // SAFETY: pointers to live values.
            unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &property, minimum) },
            "cuMemGetAllocationGranularity",
        )?;
        let bytes = bytes.next_multiple_of(granularity.max(1));
        let mut handle = 0;
        check(
            // SAFETY: pointers to live values.
            unsafe { sys::cuMemCreate(&mut handle, bytes, &property, 0) },
            &format!("cuMemCreate of {bytes} bytes"),
        )?;
        let virtual_ = Virtual::map(handle, bytes, granularity, context)?;
        Ok(Memory {
            address: virtual_.address,
            bytes,
            kind: Kind::Virtual(virtual_),
            context: context.clone(),
        })
    }

    fn legacy(context: &Arc<Context>, bytes: usize) -> Result<Memory> {
        let _bound = context.bind()?;
        let mut address = 0;
        // SAFETY: out pointer to a live integer; a context is current.
        check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }, &format!("cuMemAlloc of {bytes} bytes"))?;
        Ok(Memory { address, bytes, kind: Kind::Legacy, context: context.clone() })
    }

    fn host(context: &Arc<Context>, bytes: usize) -> Result<Memory> {
        let bytes = bytes.next_multiple_of(4096);
        let file = memfd("oxccl", bytes as u64)?;
        let map = Registered::new(context, file.as_fd(), bytes)?;
        Ok(Memory { address: map.device, bytes, kind: Kind::Host { map, file }, context: context.clone() })
    }

    /// Device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Lets another device of this process use GPU memory.
    pub fn allow(&self, ordinal: i32) -> Result<()> {
        match &self.kind {
            Kind::Virtual(virtual_) => virtual_.allow(ordinal),
            // Legacy allocations are used by enabling peer access between contexts, which is the program's own choice.
            Kind::Legacy | Kind::Host { .. } => Ok(()),
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The host's view of host memory.
    pub fn host_pointer(&self) -> Option<*mut u8> {
        match &self.kind {
            Kind::Host { map, .. } => map.map.as_ref().map(MmapRaw::as_mut_ptr),
            _ => None,
        }
    }

    /// Writes to host memory that no kernel reads yet.
    pub fn write_host(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let base = self.host_pointer().ok_or_else(|| Error::internal("GPU memory has no host address"))?;
        if offset + bytes.len() > self.bytes {
            return Err(Error::internal("a write beyond host memory"));
        }
        // SAFETY: the range lies in the mapping (checked), and the two do not overlap.
        unsafe { base.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Zeroes host memory that no kernel uses.
    pub fn zero_host(&self) -> Result<()> {
        let base = self.host_pointer().ok_or_else(|| Error::internal("GPU memory has no host address"))?;
        // SAFETY: the mapping has this length.
        unsafe { base.write_bytes(0, self.bytes) };
        Ok(())
    }

    pub fn export(&self) -> Result<Export> {
        let _bound = self.context.bind()?;
        let mut export =
            Export { kind: 0, bytes: self.bytes as u64, handle: [0; 64], address: self.address, fd: None };
        match &self.kind {
            Kind::Virtual(virtual_) => export.fd = Some(virtual_.export()?),
            Kind::Legacy => {
                export.kind = 1;
                let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
                // SAFETY: out pointer to a live structure; the address came from cuMemAlloc.
                check(unsafe { sys::cuIpcGetMemHandle(&mut handle, self.address) }, "cuIpcGetMemHandle")?;
                export.handle = handle.reserved.map(|byte| byte as u8);
            }
            Kind::Host { file, .. } => {
                export.kind = 2;
                let copy = file.try_clone().map_err(|error| Error::system("duplicating a memfd", error))?;
                export.fd = Some(copy);
            }
        }
        Ok(export)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Kind::Legacy = self.kind {
            LEGACY.lock().remove(&self.address);
            let (context, address) = (self.context.clone(), self.address);
            retire(&self.context, self.bytes, move || {
                let Ok(_bound) = context.bind() else { return };
                // Freeing is refused while any thread captures in the global mode.
                let _relaxed = RelaxedCapture::enter();
                // SAFETY: our own allocation; whoever drops the last reference has seen its kernels leave.
                let _ = unsafe { sys::cuMemFree_v2(address) };
            });
        }
    }
}

/// A peer's memory in this rank's address space.
#[derive(Debug)]
pub struct Mapping {
    address: u64,
    kind: MappingKind,
}

#[derive(Debug)]
enum MappingKind {
    Virtual { _mapped: Virtual },
    Host { _map: Registered },
    Opened { context: Arc<Context>, bytes: usize },
    SameProcess { _owner: Arc<Memory> },
}

impl Mapping {
    pub fn open(context: &Arc<Context>, export: Export, same_process: bool) -> Result<Mapping> {
        let _bound = context.bind()?;
        let bytes =
            usize::try_from(export.bytes).map_err(|_| Error::internal("a peer's region is too large"))?;
        let fd = || {
            export.fd.as_ref().ok_or_else(|| Error::internal("a peer's memory came without its descriptor"))
        };
        match export.kind {
            0 => {
                let mut handle = 0;
                let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                let raw = fd()?.as_raw_fd();
                check(
                    // SAFETY: the driver takes the descriptor's number as a pointer-sized value and does not keep
                    // it.
                    unsafe { sys::cuMemImportFromShareableHandle(&mut handle, raw as usize as *mut _, kind) },
                    "cuMemImportFromShareableHandle",
                )?;
                let mapped = Virtual::map(handle, bytes, 0, context)?;
                Ok(Mapping { address: mapped.address, kind: MappingKind::Virtual { _mapped: mapped } })
            }
            1 if same_process => {
                let owner = LEGACY.lock().get(&export.address).and_then(Weak::upgrade);
                let owner =
                    owner.ok_or_else(|| Error::internal("a peer's memory in this process is gone"))?;
                if owner.context.device().ordinal != context.device().ordinal {
                    context.enable_peer(&owner.context)?;
                }
                Ok(Mapping { address: owner.address, kind: MappingKind::SameProcess { _owner: owner } })
            }
            1 => {
                let handle =
                    sys::CUipcMemHandle { reserved: export.handle.map(|byte| byte as std::ffi::c_char) };
                let mut address = 0;
                let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
                check(
                    // SAFETY: out pointer to a live integer; the handle is plain bytes that the driver checks.
                    unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) },
                    "cuIpcOpenMemHandle",
                )?;
                Ok(Mapping { address, kind: MappingKind::Opened { context: context.clone(), bytes } })
            }
            2 => {
                let map = Registered::new(context, fd()?.as_fd(), bytes)?;
                Ok(Mapping { address: map.device, kind: MappingKind::Host { _map: map } })
            }
            other => Err(Error::internal(format!("a peer's memory is of unknown kind {other}"))),
        }
    }

    /// Device address.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let MappingKind::Opened { context, bytes } = &self.kind {
            let (owner, address) = (context.clone(), self.address);
            retire(context, *bytes, move || {
                let Ok(_bound) = owner.bind() else { return };
                let _relaxed = RelaxedCapture::enter();
                // SAFETY: opened by `open`, closed once.
                let _ = unsafe { sys::cuIpcCloseMemHandle(address) };
            });
        }
    }
}

/// A cuMem allocation mapped for the device of `context`.
#[derive(Debug)]
struct Virtual {
    handle: sys::CUmemGenericAllocationHandle,
    address: u64,
    bytes: usize,
    context: Arc<Context>,
}

impl Virtual {
    /// Takes over `handle`, also when it fails.
    fn map(
        handle: sys::CUmemGenericAllocationHandle,
        bytes: usize,
        alignment: usize,
        context: &Arc<Context>,
    ) -> Result<Virtual> {
        let mut mapped = Virtual { handle, address: 0, bytes, context: context.clone() };
        check(
            // SAFETY: out pointer to a live integer.
            unsafe { sys::cuMemAddressReserve(&mut mapped.address, bytes, alignment, 0, 0) },
            "cuMemAddressReserve",
        )?;
        // SAFETY: the range was reserved above, the handle is alive.
        if let Err(error) = check(unsafe { sys::cuMemMap(mapped.address, bytes, 0, handle, 0) }, "cuMemMap") {
            // SAFETY: reserved above, nothing is mapped there.
            let _ = unsafe { sys::cuMemAddressFree(mapped.address, bytes) };
            mapped.address = 0;
            return Err(error);
        }
        mapped.allow(context.device().ordinal)?;
        Ok(mapped)
    }

    fn allow(&self, ordinal: i32) -> Result<()> {
        let access = sys::CUmemAccessDesc {
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: ordinal,
            },
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is mapped.
        check(
            unsafe { sys::cuMemSetAccess(self.address, self.bytes, &access, 1) },
            &format!("cuMemSetAccess for device {ordinal}"),
        )
    }

    fn export(&self) -> Result<PrivateFd> {
        let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        PrivateFd::create(|| {
            let mut fd = -1;
            check(
                // SAFETY: for this handle type the driver writes an int.
                unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.handle, kind, 0) },
                "cuMemExportToShareableHandle as a file descriptor",
            )?;
            // SAFETY: a new descriptor that is ours.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
    }
}

impl Drop for Virtual {
    fn drop(&mut self) {
        let Ok(_bound) = self.context.bind() else { return };
        let _relaxed = RelaxedCapture::enter();
        if self.address != 0 {
            // SAFETY: mapped by `map`; whoever drops the last reference has seen the kernels that use it
            // leave.
            let _ = unsafe { sys::cuMemUnmap(self.address, self.bytes) };
            // SAFETY: reserved by `map`, unmapped above.
            let _ = unsafe { sys::cuMemAddressFree(self.address, self.bytes) };
        }
        // SAFETY: our own reference of the allocation.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}

fn property(context: &Context) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: context.device().ordinal,
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// A mapped file that is registered with the driver.
#[derive(Debug)]
struct Registered {
    /// `None` only while it is dropped.
    map: Option<MmapRaw>,
    device: u64,
    context: Arc<Context>,
}

impl Registered {
    fn new(context: &Arc<Context>, file: BorrowedFd<'_>, bytes: usize) -> Result<Registered> {
        let _bound = context.bind()?;
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw(file.as_raw_fd())
            .map_err(|error| Error::system(format!("mapping {bytes} bytes of shared host memory"), error))?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        check(
            // SAFETY: the range is mapped and stays so until `drop` has unregistered it.
            unsafe { sys::cuMemHostRegister_v2(map.as_mut_ptr().cast(), bytes, flags) },
            &format!("cuMemHostRegister of {bytes} bytes"),
        )?;
        let mut device = 0;
        // SAFETY: the range was registered above with a device mapping.
        let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, map.as_mut_ptr().cast(), 0) };
        let registered = Registered { map: Some(map), device, context: context.clone() };
        check(found, "cuMemHostGetDevicePointer")?;
        Ok(registered)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(map) = self.map.take() else { return };
        let context = self.context.clone();
        retire(&self.context, map.len(), move || {
            let Ok(_bound) = context.bind() else { return };
            let _relaxed = RelaxedCapture::enter();
            // SAFETY: registered by `new`; the mapping is still there.
            let _ = unsafe { sys::cuMemHostUnregister(map.as_mut_ptr().cast()) };
        });
    }
}
