//! Devices and contexts: which GPU a communicator is bound to, and making its context current for the length
//! of a call.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::driver::{check, driver};
use crate::error::{Error, Result};
use crate::param;

/// What is known of a GPU. The UUID is its identity; the ordinal holds in this process only.
#[derive(Debug, Clone)]
pub struct Device {
    pub ordinal: i32,
    pub uuid: [u8; 16],
    pub name: String,
    /// `domain:bus:device.function` as nvidia-smi prints it.
    pub pci: String,
    /// Major and minor compute capability.
    pub capability: (i32, i32),
    pub multiprocessors: i32,
    /// cuMem allocations that can be handed to other processes as file descriptors.
    pub exports_fds: bool,
    /// Legacy IPC handles.
    pub legacy_ipc: bool,
}

impl Device {
    pub fn query(ordinal: i32) -> Result<Device> {
        driver()?;
        let mut device = 0;
        check(
            // SAFETY: out pointer to a live integer.
            unsafe { sys::cuDeviceGet(&mut device, ordinal) },
            &format!("cuDeviceGet of device {ordinal}"),
        )?;
        let attribute = |which: Attribute| -> Result<i32> {
            let mut value = 0;
            // SAFETY: out pointer to a live integer; `device` came from cuDeviceGet.
            check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }, "cuDeviceGetAttribute")?;
            Ok(value)
        };
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: out pointer to a live structure.
        check(unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) }, "cuDeviceGetUuid")?;
        let mut name = [0; 128];
        check(
            // SAFETY: the buffer has the length that is passed.
            unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) },
            "cuDeviceGetName",
        )?;
        let mut pci = [0; 32];
        check(
            // SAFETY: the buffer has the length that is passed.
            unsafe { sys::cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as i32, device) },
            "cuDeviceGetPCIBusId",
        )?;
        Ok(Device {
            ordinal,
            uuid: uuid.bytes.map(|byte| byte as u8),
            name: text(&name),
            pci: text(&pci),
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            exports_fds: attribute(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0
                && attribute(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
                    != 0
                && param::int(param::CUMEM_ENABLE) != Some(0),
            // Introduced with CUDA 12.8's driver; older ones have it on every Linux machine.
            legacy_ipc: attribute(Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED).unwrap_or(1) != 0,
        })
    }

    /// `GPU-xxxxxxxx-…`, as nvidia-smi -L prints it.
    pub fn uuid_text(&self) -> String {
        format_uuid(&self.uuid)
    }

    /// Whether this device can address the memory of the device with the other ordinal.
    pub fn can_access(&self, other: i32) -> Result<bool> {
        let mut can = 0;
        let result = if other == self.ordinal {
            return Ok(true);
        } else {
            // SAFETY: out pointer to a live integer.
            unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.ordinal, other) }
        };
        check(result, &format!("cuDeviceCanAccessPeer of devices {} and {other}", self.ordinal))?;
        Ok(can != 0)
    }
}

pub fn format_uuid(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The ordinal of the device with this UUID in this process, if it is visible here.
pub fn ordinal_of(uuid: &[u8; 16]) -> Result<Option<i32>> {
    for ordinal in 0..driver()?.devices {
        if Device::query(ordinal)?.uuid == *uuid {
            return Ok(Some(ordinal));
        }
    }
    Ok(None)
}

fn text(bytes: &[i8]) -> String {
    bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte as u8)).collect()
}

/// A context that stays usable as long as this object lives.
#[derive(Debug)]
pub struct Context {
    raw: sys::CUcontext,
    device: Device,
    /// A reference to the device's primary context, to give back. Contexts that a program made itself are its
    /// own to keep alive.
    retained: bool,
}

// SAFETY: a CUcontext may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The calling thread's current context; when it has none, the primary context of device 0, as the CUDA
    /// runtime does.
    pub fn current() -> Result<Arc<Context>> {
        driver()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: out pointer to a live pointer.
        check(unsafe { sys::cuCtxGetCurrent(&mut raw) }, "cuCtxGetCurrent")?;
        if raw.is_null() {
            return Context::primary(0);
        }
        let mut ordinal = 0;
        // SAFETY: out pointer to a live integer; a context is current.
        check(unsafe { sys::cuCtxGetDevice(&mut ordinal) }, "cuCtxGetDevice")?;
        let primary = Context::primary(ordinal)?;
        if primary.raw == raw {
            return Ok(primary);
        }
        Ok(Arc::new(Context { raw, device: Device::query(ordinal)?, retained: false }))
    }

    /// The primary context of a device (the one that the CUDA runtime uses).
    pub fn primary(ordinal: i32) -> Result<Arc<Context>> {
        let device = Device::query(ordinal)?;
        let mut raw = std::ptr::null_mut();
        check(
            // SAFETY: out pointer to a live pointer; the reference is given back in `drop`.
            unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, ordinal) },
            &format!("cuDevicePrimaryCtxRetain of device {ordinal}"),
        )?;
        Ok(Arc::new(Context { raw, device, retained: true }))
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Identifies the context in this process.
    pub fn key(&self) -> usize {
        self.raw as usize
    }

    /// Makes the context current until the guard is dropped; nothing happens when it is current already.
    pub fn bind(&self) -> Result<Bound> {
        let mut current = std::ptr::null_mut();
        // SAFETY: out pointer to a live pointer.
        check(unsafe { sys::cuCtxGetCurrent(&mut current) }, "cuCtxGetCurrent")?;
        if current == self.raw {
            return Ok(Bound { pushed: false });
        }
        // SAFETY: `raw` is a live context (`retained`, or the program's own promise while the communicator
        // lives).
        check(unsafe { sys::cuCtxPushCurrent_v2(self.raw) }, "cuCtxPushCurrent")?;
        Ok(Bound { pushed: true })
    }

    /// Lets this device's kernels use memory of another device's context of this process (legacy allocations
    /// need it).
    pub fn enable_peer(&self, other: &Context) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: both contexts are alive.
        match unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            result => check(
                result,
                &format!(
                    "cuCtxEnablePeerAccess from device {} to {}",
                    self.device.ordinal, other.device.ordinal
                ),
            ),
        }
    }

    /// Free and total bytes of the device's memory.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: out pointers to live integers; a context is current.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "cuMemGetInfo")?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.retained {
            // SAFETY: gives back the reference that `primary` took. A failure means that the driver is
            // shutting down.
            let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device.ordinal) };
        }
    }
}

/// Restores the thread's context stack when dropped.
#[must_use]
#[derive(Debug)]
pub struct Bound {
    pushed: bool,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `bind` pushed.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

/// What the driver knows of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointer {
    /// Memory of the device with this ordinal.
    Device(i32),
    /// Page-locked host memory that kernels can use.
    Host,
    /// Managed memory.
    Managed,
    /// Not known to the driver: pageable host memory, freed memory, or no memory.
    Unknown,
}

/// Asks the driver once for all it knows of `address`.
pub fn pointer(address: u64) -> Result<Pointer> {
    use sys::CUpointer_attribute as P;
    let (mut kind, mut ordinal, mut managed) = (0u32, -1i32, 0u32);
    let mut attributes = [
        P::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        P::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        P::CU_POINTER_ATTRIBUTE_IS_MANAGED,
    ];
    let mut values: [*mut std::ffi::c_void; 3] =
        [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut managed).cast()];
    // SAFETY: three attributes and three places of their sizes (4 bytes each).
    let result =
        unsafe { sys::cuPointerGetAttributes(3, attributes.as_mut_ptr(), values.as_mut_ptr(), address) };
    check(result, "cuPointerGetAttributes")?;
    Ok(match (kind, managed) {
        (_, 1..) => Pointer::Managed,
        (2, _) => Pointer::Device(ordinal),
        (1, _) => Pointer::Host,
        _ => Pointer::Unknown,
    })
}

/// A sentence about why `address` cannot serve as a buffer on `device`; `Ok` when it can.
pub fn check_buffer(device: &Device, address: u64, name: &str) -> Result<()> {
    match pointer(address)? {
        Pointer::Device(ordinal) if ordinal == device.ordinal => Ok(()),
        Pointer::Host | Pointer::Managed => Ok(()),
        Pointer::Device(ordinal) => Err(Error::argument(format!(
            "{name} {address:#x} is memory of device {ordinal}, the communicator's device is {}",
            device.ordinal
        ))),
        Pointer::Unknown => Err(Error::argument(format!(
            "{name} {address:#x} is not GPU memory: it is pageable host memory, was freed, or points nowhere"
        ))),
    }
}
