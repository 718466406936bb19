//! Messages over a stream: framed, sealed, never blocking.
//!
//! A frame is a u32 length, that many bytes, and the seal over both. The length is capped, and the buffer grows with what arrives,
//! not with what is promised. The two directions are separate objects, since on a member's side different threads own them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::bootstrap::auth::{SEAL_BYTES, Seal};
use crate::bootstrap::wire::Message;
use crate::sys::fd;
use crate::sys::fork::PrivateFd;

/// Longest message.
pub const MAX_MESSAGE: usize = 1 << 30;
/// What a single rank may contribute or ask.
pub const MAX_PAYLOAD: usize = 16 << 20;
const READ_BYTES: usize = 64 << 10;

pub struct Sender {
    socket: Arc<PrivateFd>,
    seal: Seal,
    queue: VecDeque<Piece>,
}

struct Piece {
    bytes: Arc<[u8]>,
    sent: usize,
    /// Go with the piece's first byte.
    descriptors: Vec<PrivateFd>,
}

impl Sender {
    pub fn new(socket: Arc<PrivateFd>, seal: Seal) -> Sender {
        Sender { socket, seal, queue: VecDeque::new() }
    }

    pub fn push(&mut self, message: &Message) {
        self.push_encoded(message.encode().into(), Vec::new());
    }

    /// For a message that many receive: the bytes are shared, only the seals differ.
    pub fn push_encoded(&mut self, bytes: Arc<[u8]>, descriptors: Vec<PrivateFd>) {
        let length = u32::try_from(bytes.len()).expect("messages are far below 4 GiB").to_le_bytes();
        let seal = self.seal.make(&[&length, &bytes]);
        self.queue.push_back(Piece { bytes: length.as_slice().into(), sent: 0, descriptors });
        self.queue.push_back(Piece { bytes, sent: 0, descriptors: Vec::new() });
        self.queue.push_back(Piece { bytes: seal.as_slice().into(), sent: 0, descriptors: Vec::new() });
    }

    /// Sends what the socket takes; `false` when something is left.
    pub fn flush(&mut self) -> io::Result<bool> {
        while let Some(piece) = self.queue.front_mut() {
            if piece.sent < piece.bytes.len() {
                let passed: Vec<_> = piece.descriptors.iter().map(|fd| fd.as_fd()).collect();
                match fd::send(self.socket.as_fd(), &piece.bytes[piece.sent..], &passed) {
                    Ok(count) => piece.sent += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
                piece.descriptors.clear();
            }
            if piece.sent == piece.bytes.len() {
                self.queue.pop_front();
            }
        }
        Ok(true)
    }
}

pub struct Receiver {
    socket: Arc<PrivateFd>,
    seal: Seal,
    buffer: Vec<u8>,
    /// Longest message that is accepted now.
    limit: usize,
    descriptors: Option<Vec<PrivateFd>>,
}

/// Why nothing more will come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// The other end is gone.
    Ended(String),
    /// The other end, or someone in between, breaks the rules.
    Violation(&'static str),
}

impl std::fmt::Display for Closed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Closed::Ended(how) => formatter.write_str(how),
            Closed::Violation(what) => write!(formatter, "the connection was given up: {what}"),
        }
    }
}

impl Receiver {
    pub fn new(socket: Arc<PrivateFd>, seal: Seal, limit: usize) -> Receiver {
        Receiver { socket, seal, buffer: Vec::new(), limit, descriptors: None }
    }

    pub fn accept_descriptors(&mut self) {
        self.descriptors = Some(Vec::new());
    }

    pub fn take_descriptors(&mut self) -> Vec<PrivateFd> {
        self.descriptors.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub fn socket(&self) -> &Arc<PrivateFd> {
        &self.socket
    }

    /// Reads what is there. Messages that came before the end are still to be taken by [`Receiver::next`].
    pub fn fill(&mut self) -> Result<(), Closed> {
        let mut chunk = [0; READ_BYTES];
        loop {
            match fd::receive(self.socket.as_fd(), &mut chunk, self.descriptors.as_mut()) {
                Ok(0) => return Err(Closed::Ended("its connection was closed".to_owned())),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Closed::Ended(format!("its connection broke ({error})"))),
            }
            if self.buffer.len() > self.limit + READ_BYTES {
                // More than one message at its longest: take that first.
                return Ok(());
            }
        }
    }

    /// The next whole message; `None` when more must arrive first.
    pub fn next(&mut self) -> Result<Option<Message>, Closed> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > self.limit {
            return Err(Closed::Violation("a message is longer than allowed"));
        }
        let Some((body, seal)) = rest.get(..length + SEAL_BYTES).map(|frame| frame.split_at(length)) else {
            return Ok(None);
        };
        if !self.seal.check(&[head, body], seal) {
            return Err(Closed::Violation("a message is not what was sent"));
        }
        let message = Message::decode(body).map_err(|_| Closed::Violation("a message makes no sense"))?;
        self.buffer.drain(..4 + length + SEAL_BYTES);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::auth::seals;
    use crate::bootstrap::wire::{CHALLENGE_BYTES, HELLO_BYTES};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use proptest::prelude::*;

    fn pair(limit: usize) -> (Sender, Receiver, Arc<PrivateFd>) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (left, right) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags).unwrap();
        let seal = || seals(&[1; 32], &[2; HELLO_BYTES], &[3; CHALLENGE_BYTES]).0;
        let (left, right) = (Arc::new(PrivateFd::from(left)), Arc::new(PrivateFd::from(right)));
        (Sender::new(left.clone(), seal()), Receiver::new(right, seal(), limit), left)
    }

    #[test]
    fn messages_larger_than_the_socket_buffer_get_through_in_order() {
        let (mut sender, mut receiver, _) = pair(MAX_MESSAGE);
        let large = Message::Ask((0..3_000_000u32).map(|number| number as u8).collect());
        sender.push(&Message::Who);
        sender.push(&large);
        sender.push(&Message::Leave);
        let mut got = Vec::new();
        while got.len() < 3 {
            sender.flush().unwrap();
            receiver.fill().unwrap();
            while let Some(message) = receiver.next().unwrap() {
                got.push(message);
            }
        }
        assert_eq!(got, [Message::Who, large, Message::Leave]);
        drop(sender);
    }

    #[test]
    fn what_was_sent_before_the_end_is_still_read() {
        let (mut sender, mut receiver, left) = pair(100);
        sender.push(&Message::Leave);
        assert!(sender.flush().unwrap());
        drop((sender, left));
        assert_eq!(receiver.fill(), Err(Closed::Ended("its connection was closed".to_owned())));
        assert_eq!(receiver.next(), Ok(Some(Message::Leave)));
        assert_eq!(receiver.next(), Ok(None));
    }

    #[test]
    fn violations_are_noticed() {
        let (mut sender, mut receiver, _left) = pair(10);
        sender.push(&Message::Ask(vec![0; 100]));
        sender.flush().unwrap();
        receiver.fill().unwrap();
        assert_eq!(receiver.next(), Err(Closed::Violation("a message is longer than allowed")));

        let (_sender, mut receiver, left) = pair(10);
        fd::send(left.as_fd(), &[1, 0, 0, 0, 4], &[]).unwrap();
        fd::send(left.as_fd(), &[0; SEAL_BYTES], &[]).unwrap();
        receiver.fill().unwrap();
        assert_eq!(receiver.next(), Err(Closed::Violation("a message is not what was sent")));
    }

    proptest! {
        #[test]
        fn noise_never_becomes_a_message(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (_sender, mut receiver, left) = pair(64);
            if !noise.is_empty() {
                fd::send(left.as_fd(), &noise, &[]).unwrap();
            }
            receiver.fill().unwrap();
            prop_assert!(!matches!(receiver.next(), Ok(Some(_))));
        }
    }
}
