//! Configuration structs of callers of any version, read into the core's settings.
//!
//! A caller's struct is a prefix of ours (older) or has more fields (newer; what we do not know is ignored, as NCCL does). `size`
//! alone does not tell which fields the caller knew, because some were added inside padding; a field counts when it lies within
//! `size` *and* `version` is at least the version that brought it. Everything else keeps its default.

use std::ffi::{CStr, c_char, c_int};
use std::mem::{offset_of, size_of, size_of_val};
use std::ptr;

use super::types::*;
use crate::comm::Config;
use crate::error::{Error, Result};

/// Larger than any configuration struct will be: a size beyond it is garbage.
const LARGEST: usize = 4096;
const UNDEF: c_int = NCCL_CONFIG_UNDEF_INT;

const UNSET: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: NCCL_API_MAGIC,
    version: API_VERSION,
    blocking: UNDEF,
    cgaClusterSize: UNDEF,
    minCTAs: UNDEF,
    maxCTAs: UNDEF,
    netName: ptr::null(),
    splitShare: UNDEF,
    trafficClass: UNDEF,
    commName: ptr::null(),
    collnetEnable: UNDEF,
    CTAPolicy: UNDEF,
    shrinkShare: UNDEF,
    nvlsCTAs: UNDEF,
    nChannelsPerNetPeer: UNDEF,
    nvlinkCentricSched: UNDEF,
    graphUsageMode: UNDEF,
    numRmaCtx: UNDEF,
    maxP2pPeers: UNDEF,
    graphStreamOrdering: UNDEF,
    launchOrderImplicit: UNDEF,
    numRmaSig: UNDEF,
    rmaEagerInit: UNDEF,
    hostCftMode: UNDEF,
    nvlsHostMode: UNDEF,
};

const UNSET_CALL: ncclCollConfig_t = ncclCollConfig_t {
    size: size_of::<ncclCollConfig_t>(),
    magic: NCCL_API_MAGIC,
    version: API_VERSION,
    ext: ptr::null_mut(),
    minCTAs: UNDEF,
    maxCTAs: UNDEF,
    nvlsCTAs: UNDEF,
    cgaClusterSize: UNDEF,
    algSelection: ptr::null(),
    forceAlgSelection: 1,
    CTAPolicy: UNDEF,
    userProfilerTag: 0,
    launchCompletionEvent: ptr::null_mut(),
};

/// Resets the fields that the caller's version did not have, or that its size does not cover whole.
macro_rules! keep_known {
    ($config:expr, $type:ident, $unset:ident, $size:expr, { $($field:ident: $since:literal),* $(,)? }) => {
        $(if $config.version < $since || offset_of!($type, $field) + size_of_val(&$config.$field) > $size {
            $config.$field = $unset.$field;
        })*
    };
}

/// The settings of a communicator; NULL stands for the defaults.
///
/// # Safety
/// `config` is NULL or points to a struct of the version that it names, whose texts are NULL or end with a zero.
pub(super) unsafe fn communicator(config: *const ncclConfig_t) -> Result<Config> {
    if config.is_null() {
        return Ok(Config::default());
    }
    // SAFETY: passed on; 20 bytes reach to the end of `blocking`, which the first version (2.14) had.
    let known = unsafe { read(config, UNSET, 20, "NCCL_CONFIG_INITIALIZER") }?;
    check(&known)?;
    Ok(Config {
        blocking: flag(known.blocking),
        cga_cluster_size: set(known.cgaClusterSize),
        min_ctas: set(known.minCTAs),
        max_ctas: set(known.maxCTAs),
        // SAFETY: passed on.
        net_name: unsafe { text(known.netName) },
        split_share: flag(known.splitShare),
        traffic_class: set(known.trafficClass),
        // SAFETY: passed on.
        name: unsafe { text(known.commName) },
        cta_policy: set(known.CTAPolicy),
    })
}

/// Checks that a call's settings ask for nothing but a plain call; NULL stands for the defaults.
///
/// # Safety
/// `config` is NULL or points to a struct of the version that it names, whose texts are NULL or end with a zero.
pub(super) unsafe fn plain_call(config: *const ncclCollConfig_t) -> Result<()> {
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: passed on; 64 bytes are the first version (2.31).
    let known = unsafe { read(config, UNSET_CALL, 64, "NCCL_COLLCONFIG_INITIALIZER") }?;
    // SAFETY: the caller promises a text that ends with a zero.
    let selection = unsafe { text(known.algSelection) }.unwrap_or_default();
    for (name, is_set) in [
        ("ext", !known.ext.is_null()),
        ("minCTAs", known.minCTAs != UNDEF),
        ("maxCTAs", known.maxCTAs != UNDEF),
        ("nvlsCTAs", known.nvlsCTAs != UNDEF),
        ("cgaClusterSize", known.cgaClusterSize != UNDEF),
        ("algSelection", !selection.is_empty()),
        ("CTAPolicy", known.CTAPolicy != UNDEF),
        ("launchCompletionEvent", !known.launchCompletionEvent.is_null()),
    ] {
        if is_set {
            return Err(Error::usage(format!(
                "config->{name} is not finished in OxCCL {}: leave it unset",
                env!("CARGO_PKG_VERSION")
            )));
        }
    }
    Ok(())
}

/// A versioned struct, whose every bit pattern is a value of its type.
trait Versioned: Copy {
    fn head(&self) -> (usize, u32, u32);
    fn keep_known(&mut self, size: usize);
}

impl Versioned for ncclConfig_t {
    fn head(&self) -> (usize, u32, u32) {
        (self.size, self.magic, self.version)
    }

    fn keep_known(&mut self, size: usize) {
        keep_known!(self, ncclConfig_t, UNSET, size, {
            cgaClusterSize: 21700, minCTAs: 21700, maxCTAs: 21700, netName: 21700,
            splitShare: 21800,
            trafficClass: 22600,
            commName: 22700, collnetEnable: 22700, CTAPolicy: 22700, shrinkShare: 22700, nvlsCTAs: 22700,
            nChannelsPerNetPeer: 22800, nvlinkCentricSched: 22800,
            graphUsageMode: 22900, numRmaCtx: 22900,
            maxP2pPeers: 23000,
            graphStreamOrdering: 23007,
            launchOrderImplicit: 23100, numRmaSig: 23100, rmaEagerInit: 23100, hostCftMode: 23100,
            nvlsHostMode: 23200,
        });
    }
}

impl Versioned for ncclCollConfig_t {
    fn head(&self) -> (usize, u32, u32) {
        (self.size, self.magic, self.version)
    }

    fn keep_known(&mut self, size: usize) {
        keep_known!(self, ncclCollConfig_t, UNSET_CALL, size, { launchCompletionEvent: 23200 });
    }
}

/// # Safety
/// `pointer` points to a versioned struct of at least `smallest` bytes, or to at least 16 bytes that are none.
unsafe fn read<T: Versioned>(pointer: *const T, unset: T, smallest: usize, initialiser: &str) -> Result<T> {
    let mut known = unset;
    let copy = |known: &mut T, bytes: usize| {
        // SAFETY: `bytes` is at most the size of T and of the caller's struct; the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), ptr::from_mut(known).cast::<u8>(), bytes) };
    };
    copy(&mut known, 16);
    let (size, magic, version) = known.head();
    // Magic first: without it, size and version mean nothing.
    if magic != NCCL_API_MAGIC {
        return Err(Error::argument(format!(
            "config->magic is {magic:#x} instead of {NCCL_API_MAGIC:#x}: start from {initialiser}"
        )));
    }
    if !(smallest..=LARGEST).contains(&size) {
        return Err(Error::argument(format!(
            "config->size is {size}: no version of the struct has this size; start from {initialiser}"
        )));
    }
    // A negative version arrives as a large number.
    if version == 0 || version > c_int::MAX as u32 {
        return Err(Error::argument(format!(
            "config->version is {}: no version of NCCL has this number; start from {initialiser}",
            version.cast_signed()
        )));
    }
    copy(&mut known, size.min(size_of::<T>()));
    known.keep_known(size);
    Ok(known)
}

fn check(config: &ncclConfig_t) -> Result<()> {
    let rule = |name: &str, value: c_int, holds: bool, allowed: &str| {
        if value == UNDEF || holds {
            Ok(())
        } else {
            Err(Error::argument(format!("config->{name} is {value}: allowed are {allowed}")))
        }
    };
    for (name, value) in [
        ("blocking", config.blocking),
        ("splitShare", config.splitShare),
        ("collnetEnable", config.collnetEnable),
        ("shrinkShare", config.shrinkShare),
        ("nvlinkCentricSched", config.nvlinkCentricSched),
        ("graphStreamOrdering", config.graphStreamOrdering),
        ("launchOrderImplicit", config.launchOrderImplicit),
        ("rmaEagerInit", config.rmaEagerInit),
    ] {
        rule(name, value, (0..=1).contains(&value), "0 and 1")?;
    }
    for (name, value) in [
        ("minCTAs", config.minCTAs),
        ("maxCTAs", config.maxCTAs),
        ("nvlsCTAs", config.nvlsCTAs),
        ("maxP2pPeers", config.maxP2pPeers),
    ] {
        rule(name, value, value > 0, "positive numbers")?;
    }
    for (name, value) in [
        ("cgaClusterSize", config.cgaClusterSize),
        ("numRmaCtx", config.numRmaCtx),
        ("numRmaSig", config.numRmaSig),
    ] {
        rule(name, value, value >= 0, "0 and positive numbers")?;
    }
    let value = config.CTAPolicy;
    rule("CTAPolicy", value, (0..=3).contains(&value), "the NCCL_CTA_POLICY bits")?;
    let value = config.nChannelsPerNetPeer;
    rule("nChannelsPerNetPeer", value, (1..=64).contains(&value), "1 to 64")?;
    let value = config.graphUsageMode;
    rule("graphUsageMode", value, (0..=2).contains(&value), "0 to 2")?;
    let value = config.hostCftMode;
    rule("hostCftMode", value, (1..=3).contains(&value), "the values of ncclHostCftMode_t")?;
    let value = config.nvlsHostMode;
    let bits = (0..=3).contains(&value) || value == c_int::MAX;
    rule("nvlsHostMode", value, bits, "the bits of ncclNvlsHostMode_t")?;
    // NCCL also refuses minCTAs without maxCTAs, which looks like an accident: it has a meaning, so it is taken here.
    if config.minCTAs != UNDEF && config.maxCTAs != UNDEF && config.minCTAs > config.maxCTAs {
        return Err(Error::argument(format!(
            "config->minCTAs is {}, more than config->maxCTAs, which is {}",
            config.minCTAs, config.maxCTAs
        )));
    }
    if config.blocking == 0 {
        return Err(Error::usage(format!(
            "config->blocking is 0: nonblocking communicators are not finished in OxCCL {}; use 1",
            env!("CARGO_PKG_VERSION")
        )));
    }
    Ok(())
}

fn set(value: c_int) -> Option<c_int> {
    (value != UNDEF).then_some(value)
}

fn flag(value: c_int) -> Option<bool> {
    set(value).map(|value| value != 0)
}

/// # Safety
/// `text` is NULL or ends with a zero.
unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, and the caller promises the zero.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
