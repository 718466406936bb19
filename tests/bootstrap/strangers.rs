//! Whoever else connects: scanners, silent ones, liars, other versions. None may disturb the ranks.
//!
//! The handshake is written out once more here, from docs/bootstrap.md.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;

use hmac::{Hmac, KeyInit, Mac};
use nccl::bootstrap::{Bootstrap, unique_id};
use nccl::error::{Code, Result};
use sha2::Sha256;

use crate::common::*;

/// A connection to the Unix name in an id.
fn unix(id: &Id) -> UnixStream {
    let name = format!("oxccl-{}", hex(&id[64..80]));
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let stream = loop {
        match UnixStream::connect_addr(&address) {
            // The listener's queue is full for the moment.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    stream.set_read_timeout(Some(AMPLE)).unwrap();
    stream
}

/// A connection to the first IPv4 address in an id.
fn tcp(id: &Id) -> TcpStream {
    assert_ne!(id[82] & 15, 0, "the id has an IPv4 address");
    let address = Ipv4Addr::new(id[84], id[85], id[86], id[87]);
    let port = u16::from_le_bytes([id[80], id[81]]);
    let stream = TcpStream::connect(SocketAddr::from((address, port))).unwrap();
    stream.set_read_timeout(Some(AMPLE)).unwrap();
    stream
}

/// Whether the other end has closed the connection.
fn is_closed(stream: &mut impl Read) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0))
        || matches!(stream.read(&mut [0; 1]), Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Rank 0 joins, strangers come, then rank 1 joins.
fn disturbed(id: &Id, strangers: impl FnOnce() + Send) -> [Result<Bootstrap>; 2] {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| join(id, 0, 2));
        strangers();
        let second = join(id, 1, 2);
        [first.join().unwrap(), second]
    })
}

fn hello(id: &Id, rank: u32, nranks: u32, protocol: u16, library: u32) -> [u8; 76] {
    let mut hello = [0; 76];
    hello[..8].copy_from_slice(b"OxCCL/bs");
    hello[8..10].copy_from_slice(&protocol.to_le_bytes());
    hello[10] = 1;
    hello[12..16].copy_from_slice(&library.to_le_bytes());
    hello[16..20].copy_from_slice(&rank.to_le_bytes());
    hello[20..24].copy_from_slice(&nranks.to_le_bytes());
    hello[28..44].copy_from_slice(&id[16..32]);
    hello[44..76].fill(rank as u8 + 1);
    hello
}

/// The version that this library writes into its hello.
fn own_version() -> u32 {
    let mut challenge = [0; 80];
    let id = unique_id().unwrap();
    let mut stream = unix(&id);
    stream.write_all(&hello(&id, 0, 2, 1, 0)).unwrap();
    stream.read_exact(&mut challenge).unwrap();
    u32::from_le_bytes(challenge[12..16].try_into().unwrap())
}

fn mac(key: &[u8], label: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(&[label.len() as u8]);
    mac.update(label.as_bytes());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Plays a rank's handshake; returns the key of the messages that it sends.
fn handshake(stream: &mut (impl Read + Write), id: &Id, hello: &[u8; 76]) -> ([u8; 32], [u8; 32]) {
    stream.write_all(hello).unwrap();
    let mut challenge = [0; 80];
    stream.read_exact(&mut challenge).unwrap();
    let key = &id[32..64];
    assert_eq!(challenge[48..], mac(key, "server", &[hello, &challenge[..48]]), "the server's proof");
    let proof = mac(key, "client", &[hello, &challenge]);
    stream.write_all(&proof).unwrap();
    (mac(key, "from client", &[hello, &challenge]), proof)
}

/// One message, sealed as number `counter`.
fn frame(key: &[u8; 32], counter: u64, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    let seal = mac(key, "message", &[&counter.to_le_bytes(), &length, body]);
    [&length, body, &seal[..16]].concat()
}

#[test]
fn scanners_and_silent_connections_never_block_the_ranks() {
    let id = unique_id().unwrap();
    let mut silent: (Vec<UnixStream>, Vec<TcpStream>) = Default::default();
    let joined = disturbed(&id, || {
        drop((unix(&id), tcp(&id)));
        unix(&id).write_all(b"GET").unwrap();
        tcp(&id).write_all(b"GET").unwrap();
        let _ = unix(&id).write_all(&[7; 4096]);
        let _ = tcp(&id).write_all(&[7; 4096]);
        // Half a hello, kept open.
        let mut half = unix(&id);
        half.write_all(&hello(&id, 1, 2, 1, 0)[..40]).unwrap();
        silent.0.push(half);
        silent.0.extend((0..250).map(|_| unix(&id)));
        silent.1.extend((0..250).map(|_| tcp(&id)));
    });
    for result in joined {
        result.unwrap().leave();
    }
}

#[test]
fn a_flood_of_connections_at_once_never_blocks_the_ranks() {
    let id = unique_id().unwrap();
    let joined = disturbed(&id, || {
        std::thread::scope(|scope| {
            for _ in 0..50 {
                scope.spawn(|| (0..10).map(|_| (unix(&id), tcp(&id))).collect::<Vec<_>>());
            }
        });
    });
    for result in joined {
        result.unwrap().leave();
    }
}

#[test]
fn noise_is_closed_and_other_protocols_are_told_the_version() {
    let id = unique_id().unwrap();
    let mut noise = unix(&id);
    noise.write_all(&[9; 76]).unwrap();
    assert!(is_closed(&mut noise));
    let mut other = tcp(&id);
    other.write_all(&hello(&id, 0, 2, 77, 5)).unwrap();
    let mut challenge = [0; 80];
    other.read_exact(&mut challenge).unwrap();
    assert_eq!((&challenge[..8], challenge[8], challenge[10]), (b"OxCCL/bs".as_slice(), 1, 1));
    assert!(challenge[48..].iter().all(|byte| *byte == 0), "no proof for strangers");
    assert!(is_closed(&mut other));
}

#[test]
fn a_proof_cannot_be_used_again() {
    let id = unique_id().unwrap();
    let hello = hello(&id, 1, 2, 1, own_version());
    let joined = disturbed(&id, || {
        // A true rank of another job would do the same; it vanishes before it joins, so the job is not harmed by its proof alone.
        let mut challenge = [0; 80];
        let mut first = unix(&id);
        first.write_all(&hello).unwrap();
        first.read_exact(&mut challenge).unwrap();
        let proof = mac(&id[32..64], "client", &[&hello, &challenge]);
        drop(first);
        let mut second = unix(&id);
        second.write_all(&hello).unwrap();
        second.read_exact(&mut challenge).unwrap();
        second.write_all(&proof).unwrap();
        assert!(is_closed(&mut second), "the proof of one exchange is worth nothing in another");
    });
    for result in joined {
        result.unwrap().leave();
    }
}

#[test]
fn another_library_version_is_refused_on_every_rank() {
    let id = unique_id().unwrap();
    let version = own_version();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| join(&id, 0, 2).unwrap_err());
        let mut other = unix(&id);
        handshake(&mut other, &id, &hello(&id, 1, 2, 1, version + 1));
        let mut answer = Vec::new();
        // The refusal, then the end.
        other.read_to_end(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("all ranks must load the same"));
        let error = first.join().unwrap();
        assert_eq!(error.code(), Code::InvalidUsage);
        assert!(error.message().starts_with("rank 1 (process "), "{error}");
        assert!(error.message().contains("runs version 0.1.1 of this library"), "{error}");
    });
}

#[test]
fn a_rank_that_breaks_the_rules_is_given_up_and_named() {
    let version = own_version();
    type Breach = fn(&[u8; 32]) -> Vec<u8>;
    let breaches: [(&str, Breach); 4] = [
        ("a message is longer than allowed", |_| [255; 8].to_vec()),
        ("a message is not what was sent", |key| frame(key, 7, &[4])),
        ("a message makes no sense", |key| frame(key, 0, &[99, 1, 2])),
        ("a message came at the wrong time", |key| frame(key, 0, &[22])),
    ];
    for (expected, breach) in breaches {
        let id = unique_id().unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| join(&id, 0, 2).unwrap_err());
            let mut liar = unix(&id);
            let (key, _) = handshake(&mut liar, &id, &hello(&id, 1, 2, 1, version));
            liar.write_all(&breach(&key)).unwrap();
            let error = first.join().unwrap();
            assert_eq!(error.code(), Code::Remote);
            assert!(
                error.message().starts_with("rank 1 died: ") && error.message().contains(expected),
                "{error}"
            );
        });
    }
}
