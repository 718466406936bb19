//! `NCCL_COMM_ID`: ranks meet at an address that all know beforehand, so that no id has to be carried.
//!
//! Rank 0 listens there when it joins. The key comes from `OXCCL_COMM_KEY`; without it everybody who reaches the port could take
//! part, so then only loopback and private addresses are allowed, with one warning.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::bootstrap::auth::derive;
use crate::bootstrap::dial::{Places, check_abort};
use crate::bootstrap::door::Door;
use crate::bootstrap::id::UniqueId;
use crate::error::{Error, Result};
use crate::param;
use crate::process::service;
use crate::process::service::ActorId;
use crate::sys::Deadline;

/// The id that every rank makes for itself.
pub fn unique_id(text: &str) -> Result<UniqueId> {
    let secret = param::text(param::COMM_KEY);
    let addresses = resolve(text)?;
    if secret.is_none() {
        if let Some(address) = addresses.iter().find(|address| !is_private(&address.ip())) {
            return Err(Error::usage(format!(
                "NCCL_COMM_ID={text}: {address} is a public address, where anyone could join. Set OXCCL_COMM_KEY to the same \
                 secret on all ranks, or use ncclGetUniqueId"
            )));
        }
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(
                target: "BOOTSTRAP",
                "NCCL_COMM_ID without OXCCL_COMM_KEY: whoever can connect to {text} can take part in this job"
            );
        });
    }
    let root = derive(&[0; 32], "NCCL_COMM_ID", &[secret.unwrap_or_default().as_bytes()]);
    let mut job = [0; 16];
    job.copy_from_slice(&derive(&root, "job", &[text.trim().as_bytes()])[..16]);
    Ok(UniqueId {
        job,
        key: derive(&root, "key", &[text.trim().as_bytes()]),
        unix_name: None,
        port: addresses[0].port(),
        addresses: addresses.iter().map(SocketAddr::ip).collect(),
        comm_id: true,
    })
}

/// Where a rank connects; rank 0 opens the rendezvous first, and reaches it through its own door.
pub fn places(
    id: &UniqueId,
    rank: u32,
    door: ActorId,
    name: Option<[u8; 16]>,
    abort: &AtomicBool,
    deadline: Deadline,
) -> Result<Places> {
    let tcp = id.candidates();
    if rank != 0 {
        return Ok(Places { unix_name: None, tcp, patient: true });
    }
    let address = *tcp.first().ok_or_else(|| Error::argument("the unique id has no address"))?;
    loop {
        let own = id.clone();
        if service()?.ask(door, move |door: &mut Door, io| door.open_fixed(io, &own, address))?? {
            return Ok(Places { unix_name: name, tcp, patient: true });
        }
        // The communicator before this one may still be gathering its ranks.
        check_abort(abort)?;
        if deadline.expired() {
            return Err(Error::timeout(format!(
                "NCCL_COMM_ID: rank 0 cannot listen on {address}: it is in use, by another program or by an earlier \
                 communicator whose ranks have not all joined"
            )));
        }
        std::thread::sleep(deadline.slice(Duration::from_millis(10)));
    }
}

/// `host:port`, `address:port` or `[address]:port`; all addresses that a name stands for.
fn resolve(text: &str) -> Result<Vec<SocketAddr>> {
    let family = param::text(param::SOCKET_FAMILY);
    let found = text.trim().to_socket_addrs().map_err(|error| {
        Error::usage(format!("NCCL_COMM_ID={text} must be host:port or [IPv6 address]:port: {error}"))
    })?;
    let fits = |address: &SocketAddr| match family.as_deref() {
        Some("AF_INET") => address.is_ipv4(),
        Some("AF_INET6") => address.is_ipv6(),
        _ => true,
    };
    let addresses: Vec<SocketAddr> = found.filter(fits).collect();
    match addresses.first() {
        Some(first) if first.port() != 0 => Ok(addresses),
        Some(_) => Err(Error::usage(format!("NCCL_COMM_ID={text}: port 0 cannot be connected to"))),
        None => {
            Err(Error::usage(format!("NCCL_COMM_ID={text}: the name has no address of the wanted family")))
        }
    }
}

/// Loopback, link-local, and the ranges that are not routed on the internet.
fn is_private(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            // 100.64.0.0/10 is what carriers and clusters use inside.
            address.is_loopback()
                || address.is_private()
                || address.is_link_local()
                || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_private(&IpAddr::V4(mapped)),
            None => {
                let first = address.segments()[0];
                address.is_loopback() || first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfe80
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_addresses_do_without_a_key() {
        for private in
            ["127.0.0.1", "10.1.2.3", "172.20.0.1", "192.168.1.1", "100.64.0.1", "::1", "fd00::1", "fe80::1"]
        {
            assert!(is_private(&private.parse().unwrap()), "{private}");
        }
        for public in
            ["8.8.8.8", "172.32.0.1", "100.128.0.1", "0.0.0.0", "2001:db8::1", "::ffff:8.8.8.8", "::"]
        {
            assert!(!is_private(&public.parse().unwrap()), "{public}");
        }
        assert!(unique_id("8.8.8.8:4000").unwrap_err().message().contains("OXCCL_COMM_KEY"));
    }

    #[test]
    fn every_rank_makes_the_same_id() {
        let id = unique_id("127.0.0.1:4000").unwrap();
        assert_eq!(unique_id(" 127.0.0.1:4000 ").unwrap(), id);
        assert_ne!(unique_id("127.0.0.1:4001").unwrap().job, id.job);
        assert_eq!(UniqueId::decode(&id.encode()).unwrap(), id);
    }

    #[test]
    fn addresses_of_the_wrong_form_are_explained() {
        for wrong in ["127.0.0.1", "127.0.0.1:port", "[::1:4000", ""] {
            let error = unique_id(wrong).unwrap_err();
            assert!(error.message().contains("must be host:port"), "{wrong}: {error}");
        }
        assert!(unique_id("127.0.0.1:0").unwrap_err().message().contains("port 0"));
    }
}
