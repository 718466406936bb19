//! The words of the bootstrap protocol, as bytes: little-endian, every read checked against what is there.
//!
//! Nothing here trusts its input: a length is only believed as far as bytes follow it, so no message makes us allocate more than
//! it carries. Field order is the format; `PROTOCOL` counts up when it changes.

use crate::bootstrap::PeerEvent;
use crate::bootstrap::peer::PeerInfo;
use crate::error::{Code, Error};

/// Version of everything in this file and of the handshake.
pub const PROTOCOL: u16 = 1;
/// First bytes of every connection, in both directions.
pub const TAG: [u8; 8] = *b"OxCCL/bs";
pub const HELLO_BYTES: usize = 76;
pub const CHALLENGE_BYTES: usize = 80;
/// The part of a challenge that its MAC covers.
pub const CHALLENGE_HEAD_BYTES: usize = 48;
pub const PROOF_BYTES: usize = 32;
/// Most ranks of a communicator.
pub const MAX_RANKS: u32 = 1 << 16;

/// What was read is not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

type Parsed<T> = std::result::Result<T, Malformed>;

/// This library's version as one number.
pub fn library_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// A version number as people write it.
pub fn version_text(version: u32) -> String {
    format!("{}.{}.{}", version / 1_000_000, version / 1_000 % 1_000, version % 1_000)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To become a member of a communicator.
    Join,
    /// To ask something of a rank.
    Request,
}

/// First message of whoever connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub protocol: u16,
    pub library: u32,
    pub purpose: Purpose,
    pub rank: u32,
    pub nranks: u32,
    /// The rank that is asked.
    pub target: u32,
    /// Job id of the unique id to join, session of the communicator to ask.
    pub subject: [u8; 16],
    pub nonce: [u8; 32],
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let purpose = if self.purpose == Purpose::Join { 1 } else { 2 };
        let mut writer = Writer::default();
        writer.fixed(&TAG).u16(self.protocol).u8(purpose).u8(0).u32(self.library);
        writer.u32(self.rank).u32(self.nranks).u32(self.target).fixed(&self.subject).fixed(&self.nonce);
        writer.finish().try_into().expect("a hello has a fixed size")
    }

    /// The layout up to the library version is for ever, so that versions can tell each other apart.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Parsed<Hello> {
        let mut reader = Reader::new(bytes);
        if reader.fixed()? != TAG {
            return Err(Malformed);
        }
        let protocol = reader.u16()?;
        let purpose = match reader.u8()? {
            1 => Purpose::Join,
            2 => Purpose::Request,
            // A later version may know more; its version is answered before its purpose matters.
            _ if protocol != PROTOCOL => Purpose::Join,
            _ => return Err(Malformed),
        };
        reader.u8()?;
        Ok(Hello {
            protocol,
            purpose,
            library: reader.u32()?,
            rank: reader.u32()?,
            nranks: reader.u32()?,
            target: reader.u32()?,
            subject: reader.fixed()?,
            nonce: reader.fixed()?,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Go,
    OtherProtocol,
    UnknownSubject,
}

/// The answer to a hello; only with [`Status::Go`] does a MAC follow that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    pub protocol: u16,
    pub status: Status,
    pub library: u32,
    pub nonce: [u8; 32],
    pub mac: [u8; 32],
}

impl Challenge {
    pub fn encode(&self) -> [u8; CHALLENGE_BYTES] {
        let status = match self.status {
            Status::Go => 0,
            Status::OtherProtocol => 1,
            Status::UnknownSubject => 2,
        };
        let mut writer = Writer::default();
        writer.fixed(&TAG).u16(self.protocol).u8(status).u8(0).u32(self.library);
        writer.fixed(&self.nonce).fixed(&self.mac);
        writer.finish().try_into().expect("a challenge has a fixed size")
    }

    pub fn decode(bytes: &[u8; CHALLENGE_BYTES]) -> Parsed<Challenge> {
        let mut reader = Reader::new(bytes);
        if reader.fixed()? != TAG {
            return Err(Malformed);
        }
        let protocol = reader.u16()?;
        let status = match reader.u8()? {
            0 => Status::Go,
            1 => Status::OtherProtocol,
            2 => Status::UnknownSubject,
            _ => return Err(Malformed),
        };
        reader.u8()?;
        Ok(Challenge {
            protocol,
            status,
            library: reader.u32()?,
            nonce: reader.fixed()?,
            mac: reader.fixed()?,
        })
    }
}

/// Authenticated messages, by their first byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    // From a member to the rendezvous.
    Join(PeerInfo),
    Gather {
        round: u64,
        payload: Vec<u8>,
    },
    Fail {
        code: Code,
        message: String,
    },
    Leave,
    /// Which ranks are waited for?
    Who,
    // From the rendezvous to a member.
    Welcome {
        session: [u8; 16],
    },
    Refused {
        code: Code,
        message: String,
    },
    /// All are there: the rendezvous' process, and the ranks in order.
    Roster {
        hub: [u8; 16],
        peers: Vec<PeerInfo>,
    },
    Gathered {
        round: u64,
        payloads: Vec<Vec<u8>>,
    },
    Event(PeerEvent),
    Missing(Vec<u32>),
    /// A Fail or Leave has been passed on.
    Done,
    // Both ways: for ranks that cannot reach each other, the rendezvous passes questions and answers on. `peer` is the other rank:
    // whom it is for on the way in, whom it is from on the way out.
    Question {
        peer: u32,
        ticket: u64,
        payload: Vec<u8>,
    },
    Reply {
        peer: u32,
        ticket: u64,
        result: std::result::Result<Vec<u8>, (Code, String)>,
    },
    // Between ranks.
    Ask(Vec<u8>),
    /// Descriptors travel with its first byte.
    Answer {
        descriptors: u32,
        result: std::result::Result<Vec<u8>, (Code, String)>,
    },
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Message::Join(info) => info.encode(writer.u8(1)),
            Message::Gather { round, payload } => writer.u8(2).u64(*round).bytes(payload),
            Message::Fail { code, message } => writer.u8(3).u32(*code as u32).bytes(message.as_bytes()),
            Message::Leave => writer.u8(4),
            Message::Who => writer.u8(5),
            Message::Welcome { session } => writer.u8(16).fixed(session),
            Message::Refused { code, message } => writer.u8(17).u32(*code as u32).bytes(message.as_bytes()),
            Message::Roster { hub, peers } => {
                writer.u8(18).fixed(hub).u32(peers.len() as u32);
                peers.iter().fold(&mut writer, |writer, peer| peer.encode(writer))
            }
            Message::Gathered { round, payloads } => {
                writer.u8(19).u64(*round).u32(payloads.len() as u32);
                payloads.iter().fold(&mut writer, |writer, payload| writer.bytes(payload))
            }
            Message::Event(event) => match event {
                PeerEvent::Died { rank, how } => writer.u8(20).u8(0).u32(*rank).bytes(how.as_bytes()),
                PeerEvent::Left { rank } => writer.u8(20).u8(1).u32(*rank).bytes(b""),
                PeerEvent::Failed { rank, message } => {
                    writer.u8(20).u8(2).u32(*rank).bytes(message.as_bytes())
                }
                PeerEvent::RendezvousLost { how } => writer.u8(20).u8(3).u32(0).bytes(how.as_bytes()),
            },
            Message::Missing(ranks) => {
                writer.u8(21).u32(ranks.len() as u32);
                ranks.iter().fold(&mut writer, |writer, rank| writer.u32(*rank))
            }
            Message::Done => writer.u8(22),
            Message::Question { peer, ticket, payload } => {
                writer.u8(24).u32(*peer).u64(*ticket).bytes(payload)
            }
            Message::Reply { peer, ticket, result } => {
                let (code, bytes) = match result {
                    Ok(payload) => (0, payload.as_slice()),
                    Err((code, message)) => (*code as u32, message.as_bytes()),
                };
                writer.u8(25).u32(*peer).u64(*ticket).u32(code).bytes(bytes)
            }
            Message::Ask(payload) => writer.u8(32).bytes(payload),
            Message::Answer { descriptors, result } => match result {
                Ok(payload) => writer.u8(33).u32(*descriptors).u32(0).bytes(payload),
                Err((code, message)) => writer.u8(33).u32(0).u32(*code as u32).bytes(message.as_bytes()),
            },
        };
        writer.finish()
    }

    pub fn decode(bytes: &[u8]) -> Parsed<Message> {
        let mut reader = Reader::new(bytes);
        let message = match reader.u8()? {
            1 => Message::Join(PeerInfo::decode(&mut reader)?),
            2 => Message::Gather { round: reader.u64()?, payload: reader.bytes()?.to_vec() },
            3 => Message::Fail { code: reader.code()?, message: reader.text()? },
            4 => Message::Leave,
            5 => Message::Who,
            16 => Message::Welcome { session: reader.fixed()? },
            17 => Message::Refused { code: reader.code()?, message: reader.text()? },
            18 => Message::Roster { hub: reader.fixed()?, peers: reader.list(PeerInfo::decode)? },
            19 => Message::Gathered {
                round: reader.u64()?,
                payloads: reader.list(|reader| reader.bytes().map(<[u8]>::to_vec))?,
            },
            20 => {
                let (kind, rank, text) = (reader.u8()?, reader.u32()?, reader.text()?);
                Message::Event(match kind {
                    0 => PeerEvent::Died { rank, how: text },
                    1 => PeerEvent::Left { rank },
                    2 => PeerEvent::Failed { rank, message: text },
                    3 => PeerEvent::RendezvousLost { how: text },
                    _ => return Err(Malformed),
                })
            }
            21 => Message::Missing(reader.list(Reader::u32)?),
            22 => Message::Done,
            24 => Message::Question {
                peer: reader.u32()?,
                ticket: reader.u64()?,
                payload: reader.bytes()?.to_vec(),
            },
            25 => Message::Reply { peer: reader.u32()?, ticket: reader.u64()?, result: reader.result()? },
            32 => Message::Ask(reader.bytes()?.to_vec()),
            33 => Message::Answer { descriptors: reader.u32()?, result: reader.result()? },
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(message)
    }
}

fn code_from(raw: u32) -> Parsed<Code> {
    i32::try_from(raw).ok().and_then(Code::from_raw).ok_or(Malformed)
}

#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn u8(&mut self, value: u8) -> &mut Writer {
        self.fixed(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Writer {
        self.fixed(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.fixed(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.fixed(&value.to_le_bytes())
    }

    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A length, then the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(u32::try_from(bytes.len()).expect("payloads are checked against limits far below 4 GiB"))
            .fixed(bytes)
    }

    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn take(&mut self, length: usize) -> Parsed<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn fixed<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("took exactly N bytes"))
    }

    pub fn u8(&mut self) -> Parsed<u8> {
        Ok(self.fixed::<1>()?[0])
    }

    pub fn u16(&mut self) -> Parsed<u16> {
        Ok(u16::from_le_bytes(self.fixed()?))
    }

    pub fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.fixed()?))
    }

    pub fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    pub fn bytes(&mut self) -> Parsed<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub fn text(&mut self) -> Parsed<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    fn code(&mut self) -> Parsed<Code> {
        code_from(self.u32()?)
    }

    /// A code that is 0 for success, then bytes: a payload or a sentence.
    fn result(&mut self) -> Parsed<std::result::Result<Vec<u8>, (Code, String)>> {
        let (code, bytes) = (self.u32()?, self.bytes()?);
        Ok(match code {
            0 => Ok(bytes.to_vec()),
            code => Err((code_from(code)?, String::from_utf8_lossy(bytes).into_owned())),
        })
    }

    /// A count, then the items; every item takes at least one byte, so a false count ends with the bytes.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Reader<'a>) -> Parsed<T>) -> Parsed<Vec<T>> {
        let count = self.u32()?;
        (0..count).map(|_| item(self)).collect()
    }

    /// Nothing may be left.
    pub fn end(&self) -> Parsed<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

impl From<Malformed> for Error {
    fn from(Malformed: Malformed) -> Error {
        Error::internal("a message of the bootstrap protocol makes no sense")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::peer::tests::sample;
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        let text = || "sentence".to_owned();
        let code = Code::Remote;
        vec![
            Message::Join(sample(1)),
            Message::Gather { round: 7, payload: vec![1, 2, 3] },
            Message::Fail { code, message: text() },
            Message::Leave,
            Message::Who,
            Message::Welcome { session: [5; 16] },
            Message::Refused { code, message: text() },
            Message::Roster { hub: [6; 16], peers: vec![sample(0), sample(1)] },
            Message::Gathered { round: 7, payloads: vec![vec![], vec![9; 300]] },
            Message::Event(PeerEvent::Died { rank: 3, how: text() }),
            Message::Event(PeerEvent::Left { rank: 3 }),
            Message::Event(PeerEvent::Failed { rank: 3, message: text() }),
            Message::Event(PeerEvent::RendezvousLost { how: text() }),
            Message::Missing(vec![1, 2]),
            Message::Done,
            Message::Question { peer: 2, ticket: 5, payload: vec![1; 9] },
            Message::Reply { peer: 2, ticket: 5, result: Ok(vec![]) },
            Message::Reply { peer: 2, ticket: 5, result: Err((code, text())) },
            Message::Ask(vec![4; 4]),
            Message::Answer { descriptors: 2, result: Ok(vec![8]) },
            Message::Answer { descriptors: 0, result: Err((Code::Timeout, text())) },
        ]
    }

    #[test]
    fn messages_survive_the_journey_and_no_part_of_one_is_one() {
        for message in messages() {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            for length in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..length]), Err(Malformed), "{message:?} cut to {length}");
            }
            assert_eq!(Message::decode(&[bytes, vec![0]].concat()), Err(Malformed), "{message:?} with more");
        }
    }

    #[test]
    fn a_false_count_allocates_nothing() {
        let mut writer = Writer::default();
        writer.u8(21).u32(u32::MAX);
        assert_eq!(Message::decode(&writer.finish()), Err(Malformed));
        let mut writer = Writer::default();
        writer.u8(32).u32(u32::MAX).fixed(&[0; 16]);
        assert_eq!(Message::decode(&writer.finish()), Err(Malformed));
    }

    proptest! {
        #[test]
        fn hellos_survive_the_journey(
            library: u32, rank: u32, nranks: u32, target: u32, subject: [u8; 16], nonce: [u8; 32], join: bool
        ) {
            let purpose = if join { Purpose::Join } else { Purpose::Request };
            let hello = Hello { protocol: PROTOCOL, library, purpose, rank, nranks, target, subject, nonce };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            let challenge = Challenge { protocol: 9, status: Status::OtherProtocol, library, nonce, mac: nonce };
            prop_assert_eq!(Challenge::decode(&challenge.encode()), Ok(challenge));
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, at in 0usize..4096, change: u8) {
            let _ = Message::decode(&bytes);
            // Messages with one byte changed reach deeper than noise does.
            for message in messages() {
                let mut bytes = message.encode();
                let at = at % bytes.len();
                bytes[at] ^= change;
                let _ = Message::decode(&bytes);
            }
            let mut hello = [0; HELLO_BYTES];
            hello[..8].copy_from_slice(&TAG);
            for (to, from) in hello[8..].iter_mut().zip(&bytes) {
                *to = *from;
            }
            let _ = Hello::decode(&hello);
        }
    }
}
