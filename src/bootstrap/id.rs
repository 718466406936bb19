//! The unique id: 128 bytes that a program carries from the rank that asked for it to all others.
//!
//! Layout (numbers little-endian), version 1:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `OxCCL id` |
//! | 8..10 | 0xffff: where other libraries keep an address family, so that they refuse the id at once |
//! | 10..12 | version of this layout |
//! | 12..16 | first four bytes of SHA-256 over all other bytes |
//! | 16..32 | job id: names the rendezvous; not secret |
//! | 32..64 | key: whoever knows it may take part; never logged, never sent |
//! | 64..80 | abstract Unix name of the process that made the id; zero without one |
//! | 80..82 | TCP port; 0 without TCP |
//! | 82 | number of IPv4 addresses (low four bits) and of IPv6 addresses (high four bits) |
//! | 83 | flags; bit 0: rank 0 listens at the address (`NCCL_COMM_ID`) |
//! | 84..128 | the addresses, IPv4 first, in the order in which to try them |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sha2::{Digest, Sha256};

use crate::bootstrap::wire::{Malformed, Reader, Writer};
use crate::error::{Error, Result};

pub const ID_BYTES: usize = 128;
const TAG: &[u8; 8] = b"OxCCL id";
const LAYOUT: u16 = 1;
const ADDRESS_BYTES: usize = 44;
const FLAG_COMM_ID: u8 = 1;

/// A unique id taken apart. Its `Debug` form shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    pub job: [u8; 16],
    pub key: [u8; 32],
    pub unix_name: Option<[u8; 16]>,
    pub port: u16,
    pub addresses: Vec<IpAddr>,
    /// Rank 0 listens at the address itself.
    pub comm_id: bool,
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("UniqueId").field("candidates", &self.candidates()).finish_non_exhaustive()
    }
}

impl UniqueId {
    /// Addresses beyond what the id has room for are left out.
    pub fn encode(&self) -> [u8; ID_BYTES] {
        let fitting = fit(&self.addresses);
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) = fitting.iter().partition(|address| address.is_ipv4());
        let mut writer = Writer::default();
        writer.fixed(TAG).u16(0xffff).u16(LAYOUT).u32(0).fixed(&self.job).fixed(&self.key);
        writer.fixed(&self.unix_name.unwrap_or_default()).u16(self.port);
        writer.u8(v4.len() as u8 | (v6.len() as u8) << 4).u8(if self.comm_id { FLAG_COMM_ID } else { 0 });
        for address in v4.into_iter().chain(v6) {
            match address {
                IpAddr::V4(address) => writer.fixed(&address.octets()),
                IpAddr::V6(address) => writer.fixed(&address.octets()),
            };
        }
        let mut id = [0; ID_BYTES];
        let bytes = writer.finish();
        id[..bytes.len()].copy_from_slice(&bytes);
        let sum = checksum(&id);
        id[12..16].copy_from_slice(&sum);
        id
    }

    /// Refuses, with a sentence, what is not an id of this library in one piece.
    pub fn decode(id: &[u8; ID_BYTES]) -> Result<UniqueId> {
        if id.iter().all(|byte| *byte == 0) {
            return Err(Error::argument(
                "the unique id is all zero: rank 0 must ask for one with ncclGetUniqueId and send it to all ranks",
            ));
        }
        if !id.starts_with(TAG) {
            return Err(Error::argument(
                "the unique id was not made by this library: all ranks, and the one that calls ncclGetUniqueId, must load the \
                 same library (another NCCL may come first on some rank's library path)",
            ));
        }
        if checksum(id) != id[12..16] {
            return Err(Error::argument(
                "the unique id is damaged: not all of its 128 bytes arrived as they were sent",
            ));
        }
        let layout = u16::from_le_bytes([id[10], id[11]]);
        if layout != LAYOUT {
            return Err(Error::usage(format!(
                "the unique id was made by another version of this library (layout {layout}, here {LAYOUT}): all ranks must \
                 load the same version"
            )));
        }
        parse(id)
            .map_err(|Malformed| Error::argument("the unique id is damaged: its addresses make no sense"))
    }

    pub fn candidates(&self) -> Vec<SocketAddr> {
        let with_port = |address: &IpAddr| SocketAddr::new(*address, self.port);
        if self.port == 0 { Vec::new() } else { self.addresses.iter().map(with_port).collect() }
    }
}

fn parse(id: &[u8; ID_BYTES]) -> std::result::Result<UniqueId, Malformed> {
    let mut reader = Reader::new(&id[16..]);
    let job = reader.fixed()?;
    let key = reader.fixed()?;
    let unix_name: [u8; 16] = reader.fixed()?;
    let port = reader.u16()?;
    let counts = reader.u8()?;
    let flags = reader.u8()?;
    let mut addresses = Vec::new();
    for _ in 0..counts & 15 {
        addresses.push(IpAddr::V4(Ipv4Addr::from(reader.fixed::<4>()?)));
    }
    for _ in 0..counts >> 4 {
        addresses.push(IpAddr::V6(Ipv6Addr::from(reader.fixed::<16>()?)));
    }
    let unix_name = (unix_name != [0; 16]).then_some(unix_name);
    Ok(UniqueId { job, key, unix_name, port, addresses, comm_id: flags & FLAG_COMM_ID != 0 })
}

/// The addresses that fit into an id, in order; one of each family comes before a second of either.
fn fit(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let first = |v4: bool| addresses.iter().position(|address| address.is_ipv4() == v4);
    let firsts = [first(true), first(false)];
    let mut order: Vec<usize> = firsts.into_iter().flatten().collect();
    order.extend((0..addresses.len()).filter(|index| !firsts.contains(&Some(*index))));
    let mut room = ADDRESS_BYTES;
    order.retain(|index| {
        let bytes = if addresses[*index].is_ipv4() { 4 } else { 16 };
        let fits = bytes <= room;
        room -= if fits { bytes } else { 0 };
        fits
    });
    order.sort_unstable();
    order.into_iter().map(|index| addresses[index]).collect()
}

fn checksum(id: &[u8; ID_BYTES]) -> [u8; 4] {
    let hash = Sha256::new().chain_update(&id[..12]).chain_update(&id[16..]).finalize();
    [hash[0], hash[1], hash[2], hash[3]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(addresses: Vec<IpAddr>) -> UniqueId {
        UniqueId { job: [1; 16], key: [2; 32], unix_name: Some([3; 16]), port: 4, addresses, comm_id: false }
    }

    fn sum_up(id: &mut [u8; ID_BYTES]) {
        let sum = checksum(id);
        id[12..16].copy_from_slice(&sum);
    }

    #[test]
    fn each_fault_has_its_sentence() {
        let refused = |id: [u8; ID_BYTES]| UniqueId::decode(&id).unwrap_err().message().to_owned();
        assert!(refused([0; ID_BYTES]).contains("all zero"));
        assert!(refused([7; ID_BYTES]).contains("not made by this library"));
        let mut id = sample(vec![]).encode();
        id[50] ^= 1;
        assert!(refused(id).contains("damaged"));
        let mut id = sample(vec![]).encode();
        id[10] = 9;
        sum_up(&mut id);
        assert!(refused(id).contains("another version"));
        let mut id = sample(vec![]).encode();
        id[82] = 0xff;
        sum_up(&mut id);
        assert!(refused(id).contains("addresses make no sense"));
    }

    #[test]
    fn an_id_is_never_shown() {
        let id = sample(vec!["10.0.0.1".parse().unwrap()]);
        assert_eq!(format!("{id:?}"), "UniqueId { candidates: [10.0.0.1:4], .. }");
    }

    #[test]
    fn both_families_find_room() {
        let v4: Vec<IpAddr> = (0..12).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let kept = fit(&[v4.clone(), vec![v6]].concat());
        assert_eq!((kept.len(), kept.last()), (8, Some(&v6)));
        assert_eq!(fit(&v4).len(), 11);
        assert_eq!(fit(&[v6, v6, v6, v4[0]]), [v6, v6, v4[0]]);
    }

    proptest! {
        #[test]
        fn ids_survive_the_journey(
            job: [u8; 16], key: [u8; 32], unix_name: [u8; 16], port: u16, v4: [u8; 4], v6: [u8; 16], comm_id: bool
        ) {
            let addresses = vec![IpAddr::from(v4), IpAddr::from(v6)];
            let unix_name = (unix_name != [0; 16]).then_some(unix_name);
            let id = UniqueId { job, key, unix_name, port, addresses, comm_id };
            prop_assert_eq!(UniqueId::decode(&id.encode()).unwrap(), id);
        }

        #[test]
        fn random_bytes_are_refused_without_panic(mut id in proptest::array::uniform32(any::<[u8; 4]>()), tagged: bool) {
            if tagged {
                (id[0], id[1]) = (*b"OxCC", *b"L id");
            }
            let mut bytes = [0; ID_BYTES];
            bytes.copy_from_slice(id.as_flattened());
            prop_assert!(UniqueId::decode(&bytes).is_err());
            if tagged {
                // With the checksum right, the parser itself sees the noise.
                bytes[8..12].copy_from_slice(&[0xff, 0xff, 1, 0]);
                sum_up(&mut bytes);
                let _ = UniqueId::decode(&bytes);
            }
        }
    }
}
