//! What ranks tell each other about where they run.

use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::bootstrap::wire::{Malformed, Reader, Writer};
use crate::error::{Error, Result};
use crate::param;
use crate::process::generation;
use crate::sys::host;

/// One rank's host and process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Random per process, and new in a forked child: tells processes apart across namespaces.
    pub process: [u8; 16],
    pub pid: u32,
    pub uid: u32,
    pub hostname: String,
    /// `NCCL_HOSTID` of the rank; empty when it is not set.
    pub host_id: String,
    pub boot_id: String,
    pub pid_namespace: u64,
    pub net_namespace: u64,
    /// Abstract Unix name under which the rank's process answers requests; zero when it cannot.
    pub unix_name: [u8; 16],
}

impl PeerInfo {
    /// This process, which answers at `unix_name`.
    pub fn of_this_process(unix_name: Option<[u8; 16]>) -> Result<PeerInfo> {
        let identity = host::identity();
        Ok(PeerInfo {
            process: process_token()?,
            pid: identity.pid,
            uid: nix::unistd::geteuid().as_raw(),
            hostname: identity.hostname,
            host_id: param::text(param::HOSTID).unwrap_or_default(),
            boot_id: identity.boot_id,
            pid_namespace: identity.pid_namespace,
            net_namespace: identity.net_namespace,
            unix_name: unix_name.unwrap_or_default(),
        })
    }

    pub fn same_process(&self, other: &PeerInfo) -> bool {
        self.process == other.process
    }

    /// Whether the two run under one kernel, or say so by `NCCL_HOSTID`. A path between them must still be tried before it is used.
    pub fn same_host(&self, other: &PeerInfo) -> bool {
        if !self.host_id.is_empty() || !other.host_id.is_empty() {
            return self.host_id == other.host_id;
        }
        match self.boot_id.is_empty() || other.boot_id.is_empty() {
            true => self.hostname == other.hostname,
            false => self.boot_id == other.boot_id,
        }
    }

    /// Whether process ids mean the same to both.
    pub fn same_pid_namespace(&self, other: &PeerInfo) -> bool {
        self.boot_id == other.boot_id && self.pid_namespace == other.pid_namespace && self.pid_namespace != 0
    }

    pub(super) fn encode<'a>(&self, writer: &'a mut Writer) -> &'a mut Writer {
        writer.fixed(&self.process).u32(self.pid).u32(self.uid).bytes(self.hostname.as_bytes());
        writer.bytes(self.host_id.as_bytes()).bytes(self.boot_id.as_bytes());
        writer.u64(self.pid_namespace).u64(self.net_namespace).fixed(&self.unix_name)
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> std::result::Result<PeerInfo, Malformed> {
        Ok(PeerInfo {
            process: reader.fixed()?,
            pid: reader.u32()?,
            uid: reader.u32()?,
            hostname: reader.text()?,
            host_id: reader.text()?,
            boot_id: reader.text()?,
            pid_namespace: reader.u64()?,
            net_namespace: reader.u64()?,
            unix_name: reader.fixed()?,
        })
    }
}

/// "host node1, process 42".
impl std::fmt::Display for PeerInfo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "host {}, process {}", self.hostname, self.pid)
    }
}

/// The random name of this process, one per generation.
pub fn process_token() -> Result<[u8; 16]> {
    // A lock that is held for a copy only; a child that was forked in that moment gives up on it after a second.
    static TOKEN: LazyLock<Mutex<(u64, [u8; 16])>> = LazyLock::new(|| Mutex::new((0, [0; 16])));
    let Some(mut token) = TOKEN.try_lock_for(std::time::Duration::from_secs(1)) else {
        return Err(Error::internal("this process was forked at a moment that left it without an identity"));
    };
    let now = generation();
    if token.0 != now {
        *token = (now, random()?);
    }
    Ok(token.1)
}

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::system("asking the system for random bytes", error))?;
    Ok(bytes)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn sample(rank: u8) -> PeerInfo {
        PeerInfo {
            process: [rank; 16],
            pid: 40 + u32::from(rank),
            uid: 1000,
            hostname: "node1".to_owned(),
            host_id: String::new(),
            boot_id: "boot".to_owned(),
            pid_namespace: 1,
            net_namespace: 2,
            unix_name: [rank + 1; 16],
        }
    }

    #[test]
    fn hosts_are_told_apart_by_what_the_user_says_then_by_boot() {
        let (one, mut two) = (sample(0), sample(1));
        assert!(one.same_host(&two) && !one.same_process(&two) && one.same_pid_namespace(&two));
        two.hostname = "container".to_owned();
        assert!(one.same_host(&two), "containers of one machine share its kernel");
        two.boot_id = "other".to_owned();
        assert!(!one.same_host(&two) && !one.same_pid_namespace(&two));
        two.boot_id.clear();
        assert!(!one.same_host(&two));
        two.hostname = "node1".to_owned();
        assert!(one.same_host(&two));
        two.host_id = "rack7".to_owned();
        assert!(!one.same_host(&two));
        assert_eq!(one.to_string(), "host node1, process 40");
    }

    #[test]
    fn a_process_keeps_its_token() {
        assert_eq!(process_token().unwrap(), process_token().unwrap());
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
    }
}
