//! Which host, namespaces and process this is, as ranks tell each other.

use std::sync::LazyLock;

/// What decides whether two processes can share memory and sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Changes with every boot, and is the same in all containers of a machine. Empty when the kernel does not tell.
    pub boot_id: String,
    pub hostname: String,
    /// Inode of the PID namespace: equal numbers mean that process ids can be compared. 0 when the kernel does not tell.
    pub pid_namespace: u64,
    /// Inode of the network namespace: equal numbers mean that abstract Unix sockets are shared. 0 when the kernel does not tell.
    pub net_namespace: u64,
    pub pid: u32,
}

/// Read anew each time: a process may enter another namespace or fork.
pub fn identity() -> Identity {
    Identity {
        boot_id: BOOT_ID.clone(),
        hostname: hostname(),
        pid_namespace: namespace("pid"),
        net_namespace: namespace("net"),
        pid: std::process::id(),
    }
}

pub fn hostname() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

static BOOT_ID: LazyLock<String> = LazyLock::new(|| {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
});

fn namespace(kind: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    // The thread's own, as unshare changes the calling thread first.
    std::fs::metadata(format!("/proc/thread-self/ns/{kind}")).map(|data| data.ino()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_an_identity() {
        let identity = identity();
        assert_eq!(identity.boot_id.len(), 36, "{identity:?}");
        assert!(identity.pid_namespace != 0 && identity.net_namespace != 0, "{identity:?}");
        assert!(!identity.hostname.is_empty());
        assert_eq!(identity.pid, std::process::id());
    }
}
