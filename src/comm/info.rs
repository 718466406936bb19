//! What ranks tell each other at init, and what follows from it for all of them.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::gpu::context::{Device, format_uuid};
use crate::gpu::kernels::KERNELS_SHA256;
use crate::param;

/// Version of the encoding below.
const FORMAT: u8 = 1;
const BYTES: usize = 82;

/// One rank's facts and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankInfo {
    pub uuid: [u8; 16],
    pub pci: String,
    /// Blocks of our kernels that fit on its device at once.
    pub resident: u32,
    pub min_blocks: u32,
    pub max_blocks: u32,
    pub ll: bool,
    pub simple: bool,
    pub p2p_disabled: bool,
    pub shm_disabled: bool,
    /// GPU memory can be handed to other processes.
    pub exports: bool,
    pub shares_gpu: bool,
    /// First bytes of the hash of the kernel sources: kernels of different sources must not meet.
    pub kernels: [u8; 8],
}

/// The caller's limits on blocks; environment wins over the communicator's config.
#[derive(Debug, Clone, Copy)]
pub struct BlockLimits {
    pub min: u32,
    pub max: u32,
}

impl RankInfo {
    pub fn own(device: &Device, resident: u32, blocks: BlockLimits) -> Result<RankInfo> {
        let (ll, simple) = protocols(param::text(param::PROTO).as_deref())?;
        let mut kernels = [0; 8];
        kernels.copy_from_slice(&KERNELS_SHA256.as_bytes()[..8]);
        Ok(RankInfo {
            uuid: device.uuid,
            pci: device.pci.clone(),
            resident,
            min_blocks: blocks.min,
            max_blocks: blocks.max,
            ll,
            simple,
            p2p_disabled: param::bool(param::P2P_DISABLE),
            shm_disabled: param::bool(param::SHM_DISABLE),
            exports: device.exports_fds || device.legacy_ipc,
            shares_gpu: param::bool(param::MULTI_RANK_GPU_ENABLE),
            kernels,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.uuid);
        let mut pci = [0; 32];
        let length = self.pci.len().min(pci.len());
        pci[..length].copy_from_slice(&self.pci.as_bytes()[..length]);
        bytes.extend(pci);
        for word in [self.resident, self.min_blocks, self.max_blocks] {
            bytes.extend(word.to_le_bytes());
        }
        let flags =
            [self.ll, self.simple, self.p2p_disabled, self.shm_disabled, self.exports, self.shares_gpu];
        bytes.extend(flags.map(u8::from));
        bytes.extend([0; 7]);
        bytes.extend(self.kernels);
        debug_assert_eq!(bytes.len(), BYTES);
        bytes
    }

    pub fn decode(rank: usize, bytes: &[u8]) -> Result<RankInfo> {
        let strange = || Error::internal(format!("rank {rank} sent its facts in an unknown form"));
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| strange())?;
        if bytes[0] != FORMAT {
            return Err(strange());
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[1..17]);
        let pci = bytes[17..49].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
        let flag = |at: usize| bytes[61 + at] != 0;
        let mut kernels = [0; 8];
        kernels.copy_from_slice(&bytes[74..82]);
        Ok(RankInfo {
            uuid,
            pci,
            resident: word(49),
            min_blocks: word(53),
            max_blocks: word(57),
            ll: flag(0),
            simple: flag(1),
            p2p_disabled: flag(2),
            shm_disabled: flag(3),
            exports: flag(4),
            shares_gpu: flag(5),
            kernels,
        })
    }
}

/// What all ranks conclude from all facts; every rank computes the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    pub ll: bool,
    pub simple: bool,
    pub min_blocks: u32,
    pub max_blocks: u32,
}

pub fn agree(infos: &[RankInfo]) -> Result<Agreed> {
    let mut ranks_of: HashMap<[u8; 16], Vec<usize>> = HashMap::new();
    for (rank, info) in infos.iter().enumerate() {
        ranks_of.entry(info.uuid).or_default().push(rank);
    }
    for (uuid, ranks) in &ranks_of {
        if let [first, second, ..] = ranks[..]
            && !ranks.iter().all(|rank| infos[*rank].shares_gpu)
        {
            return Err(Error::usage(format!(
                "duplicate GPU: ranks {first} and {second} both use {} (PCI {}); give each rank a device of its own (is \
                 cudaSetDevice called before the communicator is made?), or set NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks",
                format_uuid(uuid),
                infos[first].pci
            )));
        }
    }
    if let Some(rank) = infos.iter().position(|info| info.kernels != infos[0].kernels) {
        return Err(Error::usage(format!(
            "ranks 0 and {rank} run different builds of the library (their kernels differ); use one libnccl.so.2 everywhere"
        )));
    }
    let ll = infos.iter().all(|info| info.ll);
    let simple = infos.iter().all(|info| info.simple);
    if !ll && !simple {
        return Err(Error::usage(
            "NCCL_PROTO leaves no protocol that all ranks allow (LL and Simple are built in)",
        ));
    }
    // Ranks of one process that share a GPU run at the same time, so together their blocks must fit.
    let room = infos
        .iter()
        .map(|info| (info.resident / ranks_of[&info.uuid].len() as u32).max(1))
        .min()
        .unwrap_or(1);
    let max_blocks = infos.iter().map(|info| info.max_blocks).min().unwrap_or(1).min(room).max(1);
    let min_blocks = infos.iter().map(|info| info.min_blocks).max().unwrap_or(1).clamp(1, max_blocks);
    Ok(Agreed { ll, simple, min_blocks, max_blocks })
}

/// Which protocols an NCCL_PROTO value allows: a comma list of LL, LL128, Simple, inverted by a leading `^`.
fn protocols(value: Option<&str>) -> Result<(bool, bool)> {
    let Some(value) = value else { return Ok((true, true)) };
    let (inverted, list) = match value.trim().strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, value.trim()),
    };
    let named = |name: &str| list.split(',').any(|item| item.trim().eq_ignore_ascii_case(name));
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        if !["LL", "LL128", "Simple"].iter().any(|name| item.eq_ignore_ascii_case(name)) {
            return Err(Error::usage(format!(
                "NCCL_PROTO: `{item}` is no protocol (LL, LL128, Simple; ^ in front inverts)"
            )));
        }
    }
    // LL128 has no kernels of its own here: where only it is asked for, LL serves.
    let (ll, simple) = (named("LL") || named("LL128"), named("Simple"));
    Ok(if inverted { (!named("LL"), !simple) } else { (ll, simple) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(gpu: u8) -> RankInfo {
        RankInfo {
            uuid: [gpu; 16],
            pci: "0000:01:00.0".to_owned(),
            resident: 264,
            min_blocks: 1,
            max_blocks: 64,
            ll: true,
            simple: true,
            p2p_disabled: false,
            shm_disabled: false,
            exports: true,
            shares_gpu: false,
            kernels: *b"01234567",
        }
    }

    #[test]
    fn facts_survive_the_way() {
        let own = RankInfo { simple: false, shm_disabled: true, shares_gpu: true, max_blocks: 7, ..info(9) };
        assert_eq!(RankInfo::decode(3, &own.encode()).expect("decodes"), own);
        assert!(RankInfo::decode(3, &own.encode()[1..]).is_err());
    }

    #[test]
    fn a_gpu_twice_is_refused_unless_all_its_ranks_allow_it() {
        let error = agree(&[info(1), info(2), info(1)]).expect_err("refused");
        assert!(
            error.message().contains("ranks 0 and 2") && error.message().contains("GPU-01010101-"),
            "{error}"
        );
        let shared = RankInfo { shares_gpu: true, ..info(1) };
        assert!(agree(&[shared.clone(), info(1)]).is_err());
        assert_eq!(agree(&[shared.clone(), shared.clone(), shared]).expect("allowed").max_blocks, 64);
        let small = RankInfo { shares_gpu: true, resident: 12, ..info(1) };
        assert_eq!(agree(&[small.clone(), small.clone(), small]).expect("allowed").max_blocks, 4);
    }

    #[test]
    fn limits_and_protocols_are_what_all_allow() {
        let one = RankInfo { min_blocks: 4, max_blocks: 16, ll: false, ..info(1) };
        let agreed = agree(&[one.clone(), info(2)]).expect("agree");
        assert_eq!(agreed, Agreed { ll: false, simple: true, min_blocks: 4, max_blocks: 16 });
        assert!(agree(&[one, RankInfo { simple: false, ..info(2) }]).is_err());
        assert!(agree(&[info(1), RankInfo { kernels: [0; 8], ..info(2) }]).is_err());
    }

    #[test]
    fn protocol_lists() {
        assert_eq!(protocols(None).expect("valid"), (true, true));
        assert_eq!(protocols(Some("LL")).expect("valid"), (true, false));
        assert_eq!(protocols(Some("^LL,LL128")).expect("valid"), (false, true));
        assert_eq!(protocols(Some("simple")).expect("valid"), (false, true));
        assert!(protocols(Some("LL256")).is_err());
    }
}
