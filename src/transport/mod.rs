//! How rank A reaches rank B: memory of one rank that another rank's kernels can write.
//!
//! A path between two ranks of one host goes through GPU memory (`p2p`: NVLink, PCIe peer access, or one GPU
//! that both share) or through host memory (`shm`). Both directions of a pair use the same medium, so kernels
//! never see which one it is: they get addresses. [`Local`] is what this rank owns for others, [`Remote`]
//! what it mapped of theirs. Regions other than the base are made on first use, by whoever needs them first:
//! the owner's own call, or its service thread on behalf of a peer.

pub mod region;

pub use region::{Local, Region, Remote};

use crate::gpu::memory::Medium;

/// What a rank finds out about its way to a peer, before anything is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// GPU memory should work.
    Gpu,
    /// The setting, device or peer rules GPU memory out: why.
    NoGpu(NoGpu),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NoGpu {
    Disabled = 1,
    NoPeerAccess = 2,
    NoExport = 3,
    ProbeFailed = 4,
}

impl Reach {
    pub fn to_byte(self) -> u8 {
        match self {
            Reach::Gpu => 0,
            Reach::NoGpu(why) => why as u8,
        }
    }

    pub fn from_byte(byte: u8) -> Reach {
        Reach::NoGpu(match byte {
            0 => return Reach::Gpu,
            1 => NoGpu::Disabled,
            2 => NoGpu::NoPeerAccess,
            3 => NoGpu::NoExport,
            _ => NoGpu::ProbeFailed,
        })
    }

    /// The reason as part of a sentence; `None` for a path that is there.
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Reach::Gpu => None,
            Reach::NoGpu(NoGpu::Disabled) => Some("NCCL_P2P_DISABLE is set"),
            Reach::NoGpu(NoGpu::NoPeerAccess) => {
                Some("the driver reports no peer access between the two devices")
            }
            Reach::NoGpu(NoGpu::NoExport) => {
                Some("the driver can share GPU memory neither as a file descriptor nor by an IPC handle")
            }
            Reach::NoGpu(NoGpu::ProbeFailed) => Some(
                "a token written to the peer's memory did not arrive (IOMMU or PCIe ACS in the way, or a container without the \
                 rights to share GPU memory)",
            ),
        }
    }
}

/// The medium of a pair, from what both sides found; `None` when neither GPU nor host memory may be used.
/// `shm_disabled` on either side counts.
pub fn medium(own: Reach, theirs: Reach, shm_disabled: bool) -> Option<Medium> {
    match (own, theirs) {
        (Reach::Gpu, Reach::Gpu) => Some(Medium::Gpu),
        _ if !shm_disabled => Some(Medium::Host),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_choose_the_same_medium() {
        let reaches = [Reach::Gpu, Reach::NoGpu(NoGpu::Disabled), Reach::NoGpu(NoGpu::ProbeFailed)];
        for own in reaches {
            assert_eq!(Reach::from_byte(own.to_byte()), own);
            for theirs in reaches {
                for shm_disabled in [false, true] {
                    assert_eq!(medium(own, theirs, shm_disabled), medium(theirs, own, shm_disabled));
                }
            }
        }
        assert_eq!(medium(Reach::Gpu, Reach::Gpu, true), Some(Medium::Gpu));
        assert_eq!(medium(Reach::Gpu, Reach::NoGpu(NoGpu::NoPeerAccess), false), Some(Medium::Host));
        assert_eq!(medium(Reach::Gpu, Reach::NoGpu(NoGpu::NoPeerAccess), true), None);
    }
}
