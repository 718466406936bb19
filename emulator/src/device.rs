//! The emulated devices: how many there are, what they are called and what they can do.
//!
//! A device's identity (UUID, PCI address, memory in use) belongs to the physical device; its ordinal is its place in
//! CUDA_VISIBLE_DEVICES and may differ from process to process. Memory in use is counted per process.

use std::ffi::c_char;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::api;
use crate::config::{self, Peers};
use crate::error::{Code, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, OUT_OF_MEMORY, Result};
use crate::types::{CUdevice, CUuuid, Out, Text};

/// One device that this process can see.
pub struct Device {
    pub ordinal: CUdevice,
    /// Place among all emulated devices, the same in every process.
    pub physical: u32,
    pub uuid: CUuuid,
    pub pci_bus: u32,
    used: AtomicU64,
    /// The code of the first kernel fault in this process, or 0.
    fault: AtomicU32,
}

impl Device {
    pub fn total(&self) -> u64 {
        config::get().memory
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts `bytes` as in use, or fails as a full device does.
    pub fn take(&self, bytes: u64) -> Result {
        let total = self.total();
        let taken = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= total);
        // Relaxed: a count, which orders nothing.
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken) {
            Ok(_) => Ok(()),
            Err(_) => Err(OUT_OF_MEMORY),
        }
    }

    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes that a kernel failed: the process gets no further context on this device.
    pub fn note_fault(&self, code: Code) {
        // Relaxed: the code is all that is shared.
        let _ = self.fault.compare_exchange(0, code.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn check_fault(&self) -> Result {
        match self.fault.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Whether kernels and copies of this device can reach the other's memory.
    pub fn can_access(&self, other: &Device) -> bool {
        self.physical != other.physical && linked(self.physical, other.physical)
    }

    fn pci_text(&self) -> String {
        format!("0000:{:02X}:00.0", self.pci_bus)
    }
}

fn linked(from: u32, to: u32) -> bool {
    match &config::get().peers {
        Peers::All => true,
        Peers::None => false,
        Peers::Matrix(rows) => {
            rows.get(from as usize).and_then(|row| row.get(to as usize)).copied().unwrap_or(false)
        }
    }
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

pub fn all() -> &'static [Device] {
    DEVICES.get().map_or(&[], Vec::as_slice)
}

pub fn get(ordinal: CUdevice) -> Result<&'static Device> {
    usize::try_from(ordinal).ok().and_then(|index| all().get(index)).ok_or(INVALID_DEVICE)
}

/// The visible device with this identity.
pub fn by_uuid(uuid: &CUuuid) -> Option<&'static Device> {
    all().iter().find(|device| device.uuid == *uuid)
}

fn uuid_of(physical: u32) -> CUuuid {
    // Version 4 and variant 1 in the places where they belong, so that parsers accept it.
    let mut bytes = *b"oxccl\0\x40\0\x80\0\0\0\0\0\0\0";
    bytes[9..13].copy_from_slice(&config::get().host.to_be_bytes());
    bytes[15] = physical as u8;
    CUuuid { bytes }
}

fn uuid_text(uuid: &CUuuid) -> String {
    let hex = |range: std::ops::Range<usize>| -> String {
        uuid.bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    format!("GPU-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

/// The physical devices that CUDA_VISIBLE_DEVICES leaves, in its order. The list ends at the first entry that names no
/// device; a device named twice makes all of it void.
fn visible(count: u32, variable: Option<&str>) -> Vec<u32> {
    let Some(text) = variable else { return (0..count).collect() };
    let mut list = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let found = if entry.starts_with("GPU-") {
            let mut matching = (0..count).filter(|device| uuid_text(&uuid_of(*device)).starts_with(entry));
            matching.next().filter(|_| matching.next().is_none())
        } else {
            entry.parse().ok().filter(|device| *device < count)
        };
        match found {
            Some(device) if list.contains(&device) => return Vec::new(),
            Some(device) => list.push(device),
            None => break,
        }
    }
    list
}

/// Attributes that are not 0, except those that depend on the device or on settings.
const FIXED: &[(u32, i32)] = &[
    (1, 1024),              // MAX_THREADS_PER_BLOCK
    (2, 1024),              // MAX_BLOCK_DIM_X
    (3, 1024),              // MAX_BLOCK_DIM_Y
    (4, 64),                // MAX_BLOCK_DIM_Z
    (5, i32::MAX),          // MAX_GRID_DIM_X
    (6, 65535),             // MAX_GRID_DIM_Y
    (7, 65535),             // MAX_GRID_DIM_Z
    (8, 49152),             // MAX_SHARED_MEMORY_PER_BLOCK
    (9, 65536),             // TOTAL_CONSTANT_MEMORY
    (10, 32),               // WARP_SIZE
    (11, i32::MAX),         // MAX_PITCH
    (12, 65536),            // MAX_REGISTERS_PER_BLOCK
    (13, 1_980_000),        // CLOCK_RATE
    (14, 512),              // TEXTURE_ALIGNMENT
    (15, 1),                // GPU_OVERLAP
    (19, 1),                // CAN_MAP_HOST_MEMORY
    (31, 1),                // CONCURRENT_KERNELS
    (36, 3_201_000),        // MEMORY_CLOCK_RATE
    (37, 6144),             // GLOBAL_MEMORY_BUS_WIDTH
    (38, 62_914_560),       // L2_CACHE_SIZE
    (39, 2048),             // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 3),                // ASYNC_ENGINE_COUNT
    (41, 1),                // UNIFIED_ADDRESSING
    (78, 1),                // STREAM_PRIORITIES_SUPPORTED
    (79, 1),                // GLOBAL_L1_CACHE_SUPPORTED
    (80, 1),                // LOCAL_L1_CACHE_SUPPORTED
    (81, SHARED_PER_SM),    // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    (82, 65536),            // MAX_REGISTERS_PER_MULTIPROCESSOR
    (83, 1),                // MANAGED_MEMORY
    (87, 2),                // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
    (89, 1),                // CONCURRENT_MANAGED_ACCESS
    (90, 1),                // COMPUTE_PREEMPTION_SUPPORTED
    (91, 1),                // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (95, 1),                // COOPERATIVE_LAUNCH
    (97, SHARED_PER_BLOCK), // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    (99, 1),                // HOST_REGISTER_SUPPORTED
    (106, 32),              // MAX_BLOCKS_PER_MULTIPROCESSOR
    (111, 1024),            // RESERVED_SHARED_MEMORY_PER_BLOCK
    (113, 1),               // READ_ONLY_HOST_REGISTER_SUPPORTED
    (126, 4),               // MEM_SYNC_DOMAIN_COUNT
    (129, 1),               // UNIFIED_FUNCTION_POINTERS
    (131, -1),              // NUMA_ID
    (134, 0),               // HOST_NUMA_ID
];

/// Shared memory of one multiprocessor, and the most that one block can have.
pub const SHARED_PER_SM: i32 = 233_472;
pub const SHARED_PER_BLOCK: i32 = 232_448;

/// The last attribute that the emulated driver knows, plus one.
const ATTRIBUTE_END: u32 = 145;

fn attribute(device: &Device, attribute: u32) -> Result<i32> {
    let settings = config::get();
    let without = &settings.without;
    Ok(match attribute {
        16 => settings.sms as i32,
        33 => device.pci_bus as i32,
        75 => settings.capability.0 as i32,
        76 => settings.capability.1 as i32,
        // CAN_USE_STREAM_MEM_OPS and the 64-bit form, first and second version, and WAIT_VALUE_NOR, second version.
        92 | 93 | 122 | 123 => i32::from(!without.memops),
        102 => i32::from(!without.vmm),
        103 => i32::from(!without.vmm && !without.fd),
        115 => i32::from(!without.pools),
        125 => i32::from(!without.ipc),
        0 | ATTRIBUTE_END.. => return Err(INVALID_VALUE),
        other => FIXED.iter().find(|(key, _)| *key == other).map_or(0, |(_, value)| *value),
    })
}

cu! {
    [any] fn cuInit(flags: u32) {
        if api::is_forked_child() {
            return Err(NOT_INITIALIZED);
        }
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let devices = DEVICES.get_or_init(|| {
            // Set but empty hides all devices, so `config::variable` does not do.
            let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            let physical = visible(config::get().devices, variable.as_deref());
            let make = |(ordinal, physical): (usize, u32)| Device {
                ordinal: ordinal as CUdevice,
                physical,
                uuid: uuid_of(physical),
                pci_bus: 0x10 + physical,
                used: AtomicU64::new(0),
                fault: AtomicU32::new(0),
            };
            physical.into_iter().enumerate().map(make).collect()
        });
        if devices.is_empty() {
            return Err(NO_DEVICE);
        }
        api::set_initialised();
        Ok(())
    }

    [any] fn cuDriverGetVersion(version: Out<i32>) {
        version.set(config::get().driver)
    }

    fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) {
        device.set(get(ordinal)?.ordinal)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(all().len() as i32)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: i32, dev: CUdevice) {
        get(dev)?;
        fill_text(name, len, &config::get().name)
    }

    fn cuDeviceGetUuid(uuid: Out<CUuuid>, dev: CUdevice) {
        uuid.set(get(dev)?.uuid)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, dev: CUdevice) {
        uuid.set(get(dev)?.uuid)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, dev: CUdevice) {
        bytes.set(get(dev)?.total() as usize)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attrib: u32, dev: CUdevice) {
        value.check()?;
        value.set(attribute(get(dev)?, attrib)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, dev: CUdevice) {
        get(dev)?;
        let (high, low) = config::get().capability;
        major.set(high as i32)?;
        minor.set(low as i32)
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, len: i32, dev: CUdevice) {
        fill_text(text, len, &get(dev)?.pci_text())
    }

    fn cuDeviceGetByPCIBusId(dev: Out<CUdevice>, text: Text) {
        dev.check()?;
        let wanted = text.get()?.to_ascii_uppercase();
        let parts: Vec<&str> = wanted.trim_end_matches(".0").split(':').collect();
        let numbers: Option<Vec<u32>> = parts.iter().map(|part| u32::from_str_radix(part, 16).ok()).collect();
        let bus = match numbers.ok_or(INVALID_VALUE)?.as_slice() {
            [0, bus, 0] | [bus, 0] => *bus,
            _ => return Err(INVALID_DEVICE),
        };
        let device = all().iter().find(|device| device.pci_bus == bus).ok_or(INVALID_DEVICE)?;
        dev.set(device.ordinal)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, dev: CUdevice, peer: CUdevice) {
        let (device, peer) = (get(dev)?, get(peer)?);
        can.set(i32::from(device.can_access(peer)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attrib: u32, src: CUdevice, dst: CUdevice) {
        value.check()?;
        let (src, dst) = (get(src)?, get(dst)?);
        if src.physical == dst.physical {
            return Err(INVALID_DEVICE);
        }
        let access = src.can_access(dst);
        value.set(match attrib {
            1 => config::get().p2p_rank as i32,
            2 => i32::from(access),
            3 => i32::from(access && !config::get().without.atomics),
            4 => i32::from(access),
            _ => return Err(INVALID_VALUE),
        })
    }

    fn cuDeviceGetLuid(luid: Out<c_char>, mask: Out<u32>, dev: CUdevice) {
        // A Windows notion.
        let _ = (luid, mask, get(dev)?);
        Err(crate::error::NOT_SUPPORTED)
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: u32, dev: CUdevice) {
        let _ = (kind, get(dev)?);
        supported.set(0)
    }

    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        let _ = (target, scope);
        Ok(())
    }

    fn cuDeviceGetProperties(properties: Out<[i32; 14]>, dev: CUdevice) {
        let device = get(dev)?;
        let mut values = [0; 14];
        // The members of `CUdevprop` in order, as attributes.
        for (value, key) in values.iter_mut().zip([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]) {
            *value = attribute(device, key)?;
        }
        properties.set(values)
    }
}

fn fill_text(out: Out<c_char>, len: i32, text: &str) -> Result {
    out.check()?;
    let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)).ok_or(INVALID_VALUE)?;
    let bytes = &text.as_bytes()[..text.len().min(room)];
    for (index, byte) in bytes.iter().enumerate() {
        out.set_at(index, *byte as c_char);
    }
    out.set_at(bytes.len(), 0);
    Ok(())
}

/// Reads a device ordinal or the identity behind a pointer argument, for functions that take either.
pub fn from_location(kind: i32, id: i32) -> Result<&'static Device> {
    if kind == 1 { get(id) } else { Err(INVALID_VALUE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_follow_the_variable() {
        assert_eq!(visible(4, None), [0, 1, 2, 3]);
        assert_eq!(visible(4, Some("2,0")), [2, 0]);
        assert_eq!(visible(4, Some("")), [0; 0]);
        assert_eq!(visible(4, Some("1,7,0")), [1], "the list ends at a device that is not there");
        assert_eq!(visible(4, Some("1,1")), [0; 0], "a device named twice");
        let uuid = uuid_text(&uuid_of(3));
        assert_eq!(visible(4, Some(&format!("{uuid},0"))), [3, 0]);
        assert_eq!(visible(4, Some("GPU-6f78")), [0; 0], "an ambiguous prefix names no device");
    }
}
