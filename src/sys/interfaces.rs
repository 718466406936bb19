//! Network interfaces, and which of them to use.
//!
//! Matching is a pure function of the interfaces found and the user's wishes. Every interface that is not used has a reason, so
//! that the error of an empty choice can list what was seen.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use nix::net::if_::InterfaceFlags;

use crate::error::{Error, Result};
use crate::param;
use crate::sys::fork;

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub address: IpAddr,
    pub up: bool,
    pub loopback: bool,
}

/// What the user asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// As in `NCCL_SOCKET_IFNAME`.
    pub names: Option<String>,
    pub family: Option<Family>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// The addresses to use, best first, and why the others are not used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    pub used: Vec<Interface>,
    pub rejected: Vec<(Interface, &'static str)>,
}

/// The interfaces of this network namespace, by the settings. An error only when the user names interfaces and none fits.
pub fn choose() -> Result<Choice> {
    let wish = Wish {
        names: param::text(param::SOCKET_IFNAME),
        family: param::text(param::SOCKET_FAMILY).map(|family| match family.as_str() {
            "AF_INET6" => Family::V6,
            _ => Family::V4,
        }),
    };
    let found = enumerate().or_else(|error| match wish.names {
        Some(_) => Err(error),
        // A sandbox that hides the interfaces does not keep ranks of one host apart.
        None => Ok(Vec::new()),
    })?;
    let choice = select(found, &wish);
    match (choice.used.is_empty(), &wish.names) {
        (true, Some(names)) => Err(Error::usage(format!(
            "NCCL_SOCKET_IFNAME={names}: no network interface fits. Found here: {}. Correct the name, or unset the variable \
             to let the library choose",
            Rejected(&choice.rejected)
        ))),
        _ => Ok(choice),
    }
}

pub fn enumerate() -> Result<Vec<Interface>> {
    // The C library opens a socket for it, which a child forked meanwhile would keep.
    let found = fork::hold(|_| nix::ifaddrs::getifaddrs())
        .map_err(|error| Error::system("listing the network interfaces", error))?;
    let interfaces = found.filter_map(|item| {
        let address = item.address?;
        let address = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => IpAddr::V6(v6.ip()),
            _ => return None,
        };
        Some(Interface {
            name: item.interface_name,
            address,
            up: item.flags.contains(InterfaceFlags::IFF_UP),
            loopback: item.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        })
    });
    Ok(interfaces.collect())
}

/// Chooses by name, family and use.
///
/// Without names: InfiniBand (ib…) first, then others; bridges that containers and virtual machines make come last, loopback
/// only when there is nothing else. With names the order is that of the list.
pub fn select(found: Vec<Interface>, wish: &Wish) -> Choice {
    let names = wish.names.as_deref().map(Names::parse);
    let mut used = Vec::new();
    let mut rejected = Vec::new();
    for interface in found {
        let family = if interface.address.is_ipv4() { Family::V4 } else { Family::V6 };
        let named = names.as_ref().map(|names| names.position(&interface.name));
        let reason = if named == Some(None) {
            Some("its name does not fit")
        } else if !interface.up {
            Some("it is down")
        } else if wish.family.is_some_and(|wanted| wanted != family) {
            Some("its address is of the other family")
        } else if is_link_local(&interface.address) {
            Some("its address is valid on its link only")
        } else {
            None
        };
        match reason {
            Some(reason) => rejected.push((interface, reason)),
            None => {
                let position = match named.flatten() {
                    Some(position) => position,
                    None => preference(&interface),
                };
                used.push((position, interface));
            }
        }
    }
    used.sort_by_key(|(position, interface)| (*position, interface.address.is_ipv6()));
    let explicit = names.as_ref().is_some_and(|names| !names.excludes);
    let outside = used.iter().any(|(_, interface)| !interface.loopback);
    let mut choice = Choice { used: Vec::new(), rejected };
    for (_, interface) in used {
        match interface.loopback && outside && !explicit {
            true => choice.rejected.push((interface, "it is loopback, and there are others")),
            false => choice.used.push(interface),
        }
    }
    choice
}

fn preference(interface: &Interface) -> usize {
    let name = interface.name.as_str();
    match name {
        _ if interface.loopback => 3,
        _ if ["docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "lxc"]
            .iter()
            .any(|p| name.starts_with(p)) =>
        {
            2
        }
        _ if name.starts_with("ib") => 0,
        _ => 1,
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => is_v6_link_local(address),
    }
}

fn is_v6_link_local(address: &Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

/// `NCCL_SOCKET_IFNAME` taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    excludes: bool,
    exact: bool,
    list: Vec<String>,
}

impl Names {
    fn parse(text: &str) -> Names {
        let text = text.trim();
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest.trim_start()));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        // A port may follow a name in NCCL's syntax for other variables; here only the name counts.
        let names =
            text.split(',').map(|name| name.trim().trim_start_matches('=')).filter(|name| !name.is_empty());
        Names { excludes, exact, list: names.map(str::to_owned).collect() }
    }

    /// Place of the first entry that `name` fits, by which interfaces are ordered; `None` when it is not to be used.
    fn position(&self, name: &str) -> Option<usize> {
        let fits = |entry: &String| match self.exact {
            true => name == entry,
            false => name.starts_with(entry.as_str()),
        };
        match (self.list.iter().position(fits), self.excludes) {
            (found, false) => found,
            (Some(_), true) => None,
            (None, true) => Some(0),
        }
    }
}

/// Interfaces with the reasons against them, for an error.
#[derive(Debug)]
pub struct Rejected<'a>(pub &'a [(Interface, &'static str)]);

impl fmt::Display for Rejected<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return formatter.write_str("no interface with an IP address");
        }
        for (index, (interface, reason)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(formatter, "{comma}{} {} ({reason})", interface.name, interface.address)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Vec<Interface> {
        let item = |name: &str, address: &str| Interface {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            up: name != "eno3",
            loopback: name == "lo",
        };
        vec![
            item("lo", "127.0.0.1"),
            item("lo", "::1"),
            item("docker0", "172.17.0.1"),
            item("eth0", "10.0.0.5"),
            item("eth0", "fe80::1"),
            item("eth0", "2001:db8::5"),
            item("eth01", "10.0.1.5"),
            item("eno1", "192.168.0.5"),
            item("eno3", "192.168.3.5"),
            item("ib0", "10.9.0.5"),
        ]
    }

    fn used(names: Option<&str>, family: Option<Family>) -> Vec<String> {
        let choice = select(found(), &Wish { names: names.map(str::to_owned), family });
        assert_eq!(
            choice.used.len() + choice.rejected.len(),
            found().len(),
            "every interface is accounted for"
        );
        choice.used.iter().map(|interface| format!("{}/{}", interface.name, interface.address)).collect()
    }

    #[test]
    fn names_are_matched_as_nccl_documents() {
        let eth = ["eth0/10.0.0.5", "eth01/10.0.1.5", "eth0/2001:db8::5"];
        assert_eq!(used(Some("eth"), None), eth);
        assert_eq!(used(Some(" eth "), None), eth);
        assert_eq!(used(Some("=eth0"), None), ["eth0/10.0.0.5", "eth0/2001:db8::5"]);
        assert_eq!(
            used(Some("eno1,eth0"), Some(Family::V4)),
            ["eno1/192.168.0.5", "eth0/10.0.0.5", "eth01/10.0.1.5"]
        );
        assert_eq!(used(Some("=eth01, =eno1"), None), ["eth01/10.0.1.5", "eno1/192.168.0.5"]);
        assert_eq!(used(Some("lo"), None), ["lo/127.0.0.1", "lo/::1"]);
        assert_eq!(used(Some("^docker,eth,eno"), None), ["ib0/10.9.0.5"]);
        assert_eq!(
            used(Some("^=eth0,docker0,ib0"), Some(Family::V4)),
            ["eth01/10.0.1.5", "eno1/192.168.0.5"]
        );
        assert_eq!(used(Some("wlan"), None), Vec::<String>::new());
        assert_eq!(used(Some("=eth"), None), Vec::<String>::new());
    }

    #[test]
    fn without_names_the_likely_ones_come_first() {
        let all = used(None, None);
        assert_eq!(all.first().map(String::as_str), Some("ib0/10.9.0.5"));
        assert_eq!(all.last().map(String::as_str), Some("docker0/172.17.0.1"));
        assert!(!all.iter().any(|name| name.starts_with("lo/") || name.starts_with("eno3/")));
        assert_eq!(used(None, Some(Family::V6)), ["eth0/2001:db8::5"]);
    }

    #[test]
    fn loopback_serves_when_there_is_nothing_else() {
        let only: Vec<Interface> = found().into_iter().take(2).collect();
        let choice = select(only, &Wish::default());
        assert_eq!(choice.used.len(), 2);
        let link_local: Vec<Interface> =
            found().into_iter().filter(|i| i.address.to_string() == "fe80::1").collect();
        let choice = select(link_local, &Wish::default());
        assert_eq!(choice.used, []);
        assert_eq!(
            Rejected(&choice.rejected).to_string(),
            "eth0 fe80::1 (its address is valid on its link only)"
        );
        assert_eq!(Rejected(&[]).to_string(), "no interface with an IP address");
    }
}
