//! Messages between a rank and the coordinator that started it, over an abstract Unix socket: no file, no inherited
//! descriptor, and a rank that dies is a closed connection.
//!
//! A frame is a kind, a length and bytes. Ranks ask for a gather by sending their part; the coordinator answers when all
//! parts are there, or at once with `LOST` when one can no longer come.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use crate::driver::Outcome;

pub const HELLO: u8 = 1;
pub const GATHER: u8 = 2;
pub const MARK: u8 = 3;
pub const REPORT: u8 = 4;
pub const FAILED: u8 = 5;
pub const LOST: u8 = 6;

const LARGEST: usize = 64 << 20;

pub fn write_frame(mut to: &UnixStream, kind: u8, payload: &[u8]) -> Outcome {
    let mut bytes = vec![kind];
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(payload);
    to.write_all(&bytes).map_err(|e| format!("the coordinator's socket: {e}"))
}

pub fn read_frame(mut from: &UnixStream) -> Outcome<(u8, Vec<u8>)> {
    let told = |e: std::io::Error| format!("the coordinator's socket: {e}");
    let mut head = [0; 5];
    from.read_exact(&mut head).map_err(told)?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > LARGEST {
        return Err("a frame is too long".into());
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload).map_err(told)?;
    Ok((head[0], payload))
}

/// One rank's end.
#[derive(Debug)]
pub struct Control {
    stream: UnixStream,
}

impl Control {
    /// Connects to the coordinator's abstract socket as `rank`.
    pub fn connect(name: &str, rank: usize) -> Outcome<Control> {
        let told = |e: std::io::Error| format!("cannot reach the coordinator: {e}");
        let address = SocketAddr::from_abstract_name(name).map_err(told)?;
        let stream = UnixStream::connect_addr(&address).map_err(told)?;
        stream.set_read_timeout(Some(Duration::from_secs(300))).map_err(told)?;
        write_frame(&stream, HELLO, &(rank as u32).to_le_bytes())?;
        Ok(Control { stream })
    }

    /// All ranks' parts in rank order.
    pub fn gather(&self, part: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        write_frame(&self.stream, GATHER, part)?;
        let (kind, payload) = read_frame(&self.stream)?;
        if kind != GATHER {
            return Err("another rank has ended".into());
        }
        unpack(&payload).ok_or_else(|| "the coordinator's answer is cut off".into())
    }

    /// Tells the coordinator how far this rank is; not answered.
    pub fn mark(&self, text: &str) -> Outcome {
        write_frame(&self.stream, MARK, text.as_bytes())
    }

    pub fn report(&self, result: &Outcome<String>) -> Outcome {
        match result {
            Ok(text) => write_frame(&self.stream, REPORT, text.as_bytes()),
            Err(why) => write_frame(&self.stream, FAILED, why.as_bytes()),
        }
    }
}

pub fn pack(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

fn unpack(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        parts.push(part.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_frame() {
        let parts = vec![vec![1, 2, 3], vec![], vec![4]];
        assert_eq!(unpack(&pack(&parts)), Some(parts.clone()));
        assert_eq!(unpack(&pack(&parts)[..5]), None);
    }
}
