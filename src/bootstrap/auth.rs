//! Proof that both ends of a connection know a key, and protection of what they say afterwards.
//!
//! Both proofs cover the whole exchange before them, nonces included, under labels that differ by role: neither an old exchange nor
//! one's own words can be sent back. Each direction then has a key of its own, and each message a MAC over a counter, so that
//! messages can be neither changed, dropped, repeated nor reordered. Nothing is encrypted.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::bootstrap::wire::{CHALLENGE_BYTES, CHALLENGE_HEAD_BYTES, HELLO_BYTES};

/// Bytes of the MAC of a message.
pub const SEAL_BYTES: usize = 16;

fn mac(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
    // The length keeps a label from running into what follows it.
    mac.update(&[label.len() as u8]);
    mac.update(label.as_bytes());
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// A key for another use, made from one that stays where it is.
pub fn derive(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> [u8; 32] {
    mac(key, label, parts).finalize().into_bytes().into()
}

/// What the one that was connected to proves with.
pub fn server_proof(key: &[u8; 32], hello: &[u8; HELLO_BYTES], head: &[u8]) -> [u8; 32] {
    derive(key, "server", &[hello, head])
}

pub fn check_server(key: &[u8; 32], hello: &[u8; HELLO_BYTES], challenge: &[u8; CHALLENGE_BYTES]) -> bool {
    let (head, proof) = challenge.split_at(CHALLENGE_HEAD_BYTES);
    // Compares in constant time.
    mac(key, "server", &[hello, head]).verify_slice(proof).is_ok()
}

/// What the one that connects proves with.
pub fn client_proof(
    key: &[u8; 32],
    hello: &[u8; HELLO_BYTES],
    challenge: &[u8; CHALLENGE_BYTES],
) -> [u8; 32] {
    derive(key, "client", &[hello, challenge])
}

pub fn check_client(
    key: &[u8; 32],
    hello: &[u8; HELLO_BYTES],
    challenge: &[u8; CHALLENGE_BYTES],
    proof: &[u8],
) -> bool {
    mac(key, "client", &[hello, challenge]).verify_slice(proof).is_ok()
}

/// The seals of the two directions of a connection: from who connects, to who connects.
pub fn seals(key: &[u8; 32], hello: &[u8; HELLO_BYTES], challenge: &[u8; CHALLENGE_BYTES]) -> (Seal, Seal) {
    let seal = |label| Seal { key: derive(key, label, &[hello, challenge]), counter: 0 };
    (seal("from client"), seal("from server"))
}

/// MACs of one direction; each message moves it on.
pub struct Seal {
    key: [u8; 32],
    counter: u64,
}

impl Seal {
    pub fn make(&mut self, parts: &[&[u8]]) -> [u8; SEAL_BYTES] {
        let full = self.next(parts).finalize().into_bytes();
        full[..SEAL_BYTES].try_into().expect("a MAC has 32 bytes")
    }

    pub fn check(&mut self, parts: &[&[u8]], seal: &[u8]) -> bool {
        seal.len() == SEAL_BYTES && self.next(parts).verify_truncated_left(seal).is_ok()
    }

    fn next(&mut self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = mac(&self.key, "message", &[&self.counter.to_le_bytes()]);
        parts.iter().for_each(|part| mac.update(part));
        self.counter += 1;
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_is_the_standard_one() {
        // RFC 4231, test case 2.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let made: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(made, expected);
    }

    #[test]
    fn proofs_depend_on_key_role_and_every_byte() {
        let (key, hello) = ([1; 32], [2; HELLO_BYTES]);
        let mut challenge = [3; CHALLENGE_BYTES];
        let proof = server_proof(&key, &hello, &challenge[..CHALLENGE_HEAD_BYTES]);
        challenge[CHALLENGE_HEAD_BYTES..].copy_from_slice(&proof);
        assert!(check_server(&key, &hello, &challenge));
        assert!(!check_server(&[9; 32], &hello, &challenge));
        assert!(!check_server(&key, &[9; HELLO_BYTES], &challenge));
        let answer = client_proof(&key, &hello, &challenge);
        assert!(check_client(&key, &hello, &challenge, &answer));
        assert!(
            !check_client(&key, &hello, &challenge, &proof),
            "the server's own proof is not the client's"
        );
        assert!(!check_client(&key, &hello, &challenge, &answer[..31]));
        challenge[20] ^= 1;
        assert!(!check_server(&key, &hello, &challenge));
        assert!(!check_client(&key, &hello, &challenge, &answer));
    }

    #[test]
    fn seals_notice_change_repetition_loss_and_reflection() {
        let both = || seals(&[1; 32], &[2; HELLO_BYTES], &[3; CHALLENGE_BYTES]);
        let (mut sender, mut back) = both();
        let (mut receiver, _) = both();
        let (first, second) = (sender.make(&[b"one"]), sender.make(&[b"two"]));
        assert!(!back.check(&[b"one"], &first), "reflected");
        assert!(receiver.check(&[b"one"], &first));
        assert!(!both().0.check(&[b"two"], &second), "the first is lost");
        assert!(!receiver.check(&[b"one"], &first), "repeated");
        let (mut receiver, _) = both();
        assert!(!receiver.check(&[b"One"], &first), "changed");
        assert!(!both().0.check(&[b"one"], &first[..8]), "cut");
    }
}
