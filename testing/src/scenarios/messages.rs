//! Sends and receives: order, amount, emptiness, messages to oneself.

use crate::driver::{self, Outcome, Stream};
use crate::nccl::Comm;
use crate::pattern::{Pattern, mix};
use crate::rank::Rank;
use crate::reference::Type;

const BYTE: i32 = Type::Uint8 as i32;

/// A buffer that must hold `pattern`.
fn expect(at: u64, pattern: &Pattern, start: usize, count: usize, stream: Stream, what: &str) -> Outcome {
    let mut got = vec![0; count];
    driver::download(at, &mut got, stream)?;
    let wanted = pattern.bytes(start, count);
    match got.iter().zip(&wanted).position(|(got, want)| got != want) {
        None => Ok(()),
        Some(index) => Err(format!("{what}: byte {index} of {count} is wrong")),
    }
}

fn settled(rank: &Rank, comm: Comm, stream: Stream) -> Outcome {
    driver::synchronize(stream)?;
    rank.nccl.ok("the communicator's state", comm, rank.nccl.async_error(comm))
}

/// In one group rank r posts receives first, r+1 sends first, in opposite orders of peers; outside of groups, pairs
/// meet with sends on one side and receives on the other, in both directions in turn. Different sizes go in order.
pub fn opposite(rank: &Rank) -> Outcome<String> {
    let (nccl, n) = (rank.nccl, rank.nranks);
    let stream = rank.enter()?;
    let comm = rank.init()?;
    const SIZES: [usize; 4] = [5, 70_001, 1_000_003, 300];
    let most = SIZES.iter().sum::<usize>();
    let (send, recv) = (driver::alloc(n * most)?, driver::alloc(n * most)?);
    let offset = |peer: usize, k: usize| (peer * most + SIZES[..k].iter().sum::<usize>()) as u64;
    for to in 0..n {
        let bytes = Pattern::raw(rank.rank, to, 1).bytes(0, most);
        driver::upload(send + (to * most) as u64, &bytes, stream)?;
    }
    let post = |is_send: bool, peer: usize, k: usize| {
        let code = if is_send {
            nccl.send(send + offset(peer, k), SIZES[k], BYTE, peer as i32, comm, stream)
        } else {
            nccl.recv(recv + offset(peer, k), SIZES[k], BYTE, peer as i32, comm, stream)
        };
        nccl.ok(if is_send { "ncclSend" } else { "ncclRecv" }, comm, code)
    };
    let mut checks = 0;
    for turn in 0..rank.number("turns", 6) {
        driver::set(recv, 0, n * most, stream)?;
        let sends_first = (rank.rank + turn).is_multiple_of(2);
        nccl.group(comm, || {
            for half in 0..2 {
                for step in 0..n {
                    let peer = if sends_first { step } else { n - 1 - step };
                    // Messages of one pair go in the order of their calls.
                    for k in 0..SIZES.len() {
                        post(sends_first == (half == 0), peer, k)?;
                    }
                }
            }
            Ok(())
        })?;
        settled(rank, comm, stream)?;
        for from in 0..n {
            let pattern = Pattern::raw(from, rank.rank, 1);
            let at = recv + (from * most) as u64;
            expect(at, &pattern, 0, most, stream, &format!("turn {turn}, from rank {from}"))?;
            checks += SIZES.len();
        }
    }
    // Ungrouped: even ranks send up while odd ones receive, then the other way round.
    let partner = rank.rank ^ 1;
    if partner < n {
        for k in 0..SIZES.len() {
            driver::set(recv, 0, n * most, stream)?;
            let first = rank.rank < partner;
            post(first, partner, k)?;
            post(!first, partner, k)?;
            settled(rank, comm, stream)?;
            let before = SIZES[..k].iter().sum();
            let pattern = Pattern::raw(partner, rank.rank, 1);
            expect(recv + offset(partner, k), &pattern, before, SIZES[k], stream, "ungrouped")?;
            checks += 1;
        }
    }
    rank.destroy(comm)?;
    Ok(format!("checks {checks}"))
}

/// Thousands of sends and receives in one group.
pub fn many(rank: &Rank) -> Outcome<String> {
    let (nccl, n) = (rank.nccl, rank.nranks);
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let count = rank.number("messages", 5_000);
    const SIZE: usize = 24;
    let (send, recv) = (driver::alloc(count * SIZE)?, driver::alloc(count * SIZE)?);
    // Message k goes to rank + k, so each pair has many.
    let to = |k: usize| (rank.rank + k) % n;
    let from = |k: usize| (rank.rank + n - k % n) % n;
    let size = |k: usize| if k.is_multiple_of(10) { 0 } else { 1 + k % SIZE };
    let bytes: Vec<u8> =
        (0..count).flat_map(|k| Pattern::raw(rank.rank, to(k), 1).bytes(k * 7, SIZE)).collect();
    driver::upload(send, &bytes, stream)?;
    driver::set(recv, 0, count * SIZE, stream)?;
    nccl.group(comm, || {
        for k in 0..count {
            let at = (k * SIZE) as u64;
            nccl.ok("ncclSend", comm, nccl.send(send + at, size(k), BYTE, to(k) as i32, comm, stream))?;
            nccl.ok("ncclRecv", comm, nccl.recv(recv + at, size(k), BYTE, from(k) as i32, comm, stream))?;
        }
        Ok(())
    })?;
    settled(rank, comm, stream)?;
    let mut got = vec![0; count * SIZE];
    driver::download(recv, &mut got, stream)?;
    for k in 0..count {
        let mut wanted = Pattern::raw(from(k), rank.rank, 1).bytes(k * 7, SIZE);
        wanted[size(k)..].fill(0);
        crate::ensure!(got[k * SIZE..][..SIZE] == wanted, "message {k} of rank {}", from(k));
    }
    rank.destroy(comm)?;
    Ok(format!("checks {count}"))
}

/// Messages of no bytes: NULL buffers, matched like any other, between messages that have some.
pub fn empty(rank: &Rank) -> Outcome<String> {
    let (nccl, n) = (rank.nccl, rank.nranks);
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let (next, previous) = ((rank.rank + 1) % n, (rank.rank + n - 1) % n);
    let (send, recv) = (driver::alloc(64)?, driver::alloc(64)?);
    for turn in 0..50usize {
        driver::upload(send, &Pattern::raw(rank.rank, next, 1).bytes(turn, 33), stream)?;
        nccl.group(comm, || {
            nccl.ok("ncclSend of 0", comm, nccl.send(0, 0, BYTE, next as i32, comm, stream))?;
            nccl.ok("ncclRecv of 0", comm, nccl.recv(0, 0, BYTE, previous as i32, comm, stream))?;
            nccl.ok("ncclSend", comm, nccl.send(send, 33, BYTE, next as i32, comm, stream))?;
            nccl.ok("ncclRecv", comm, nccl.recv(recv, 33, BYTE, previous as i32, comm, stream))?;
            nccl.ok("ncclSend of 0", comm, nccl.send(0, 0, BYTE, next as i32, comm, stream))?;
            nccl.ok("ncclRecv of 0", comm, nccl.recv(0, 0, BYTE, previous as i32, comm, stream))
        })?;
        settled(rank, comm, stream)?;
        expect(recv, &Pattern::raw(previous, rank.rank, 1), turn, 33, stream, &format!("turn {turn}"))?;
    }
    // A group of nothing but empty messages, and an empty group.
    nccl.group(comm, || {
        nccl.ok("ncclSend of 0", comm, nccl.send(0, 0, BYTE, next as i32, comm, stream))?;
        nccl.ok("ncclRecv of 0", comm, nccl.recv(0, 0, BYTE, previous as i32, comm, stream))
    })?;
    nccl.group(comm, || nccl.group(comm, || Ok(())))?;
    settled(rank, comm, stream)?;
    rank.destroy(comm)?;
    Ok("checks 51".into())
}

/// Thousands of exchanges of random sizes, with pairs that skip their turn when there is nothing to send.
pub fn random(rank: &Rank) -> Outcome<String> {
    let (nccl, n) = (rank.nccl, rank.nranks);
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let turns = rank.number("turns", 2_000);
    const MOST: usize = 2048;
    let (send, recv) = (driver::alloc(n * MOST)?, driver::alloc(n * MOST)?);
    let size = |turn: usize, from: usize, to: usize| {
        let random = mix((turn * 64 + from * 8 + to) as u64);
        if random.is_multiple_of(3) { 0 } else { (random >> 8) as usize % MOST }
    };
    for to in 0..n {
        let bytes = Pattern::raw(rank.rank, to, 1).bytes(0, MOST);
        driver::upload(send + (to * MOST) as u64, &bytes, stream)?;
    }
    for turn in 0..turns {
        nccl.group(comm, || {
            for peer in 0..n {
                let at = (peer * MOST) as u64;
                let (out, inward) = (size(turn, rank.rank, peer), size(turn, peer, rank.rank));
                if out > 0 {
                    nccl.ok("ncclSend", comm, nccl.send(send + at, out, BYTE, peer as i32, comm, stream))?;
                }
                if inward > 0 {
                    nccl.ok("ncclRecv", comm, nccl.recv(recv + at, inward, BYTE, peer as i32, comm, stream))?;
                }
            }
            Ok(())
        })?;
        if turn % 50 == 0 || turn + 1 == turns {
            settled(rank, comm, stream)?;
            for from in 0..n {
                let pattern = Pattern::raw(from, rank.rank, 1);
                let what = format!("turn {turn}, from rank {from}");
                expect(recv + (from * MOST) as u64, &pattern, 0, size(turn, from, rank.rank), stream, &what)?;
            }
        }
    }
    rank.destroy(comm)?;
    Ok(format!("checks {turns}"))
}

/// Messages to oneself, alone and beside messages to others.
pub fn own(rank: &Rank) -> Outcome<String> {
    let (nccl, n, me) = (rank.nccl, rank.nranks, rank.rank as i32);
    let stream = rank.enter()?;
    let comm = rank.init()?;
    let (send, recv) = (driver::alloc(1 << 20)?, driver::alloc(1 << 20)?);
    let pattern = Pattern::raw(rank.rank, rank.rank, 1);
    driver::upload(send, &pattern.bytes(0, 1 << 20), stream)?;
    for count in [1, 300, 70_000, 1 << 20] {
        driver::set(recv, 0, 1 << 20, stream)?;
        nccl.group(comm, || {
            nccl.ok("ncclRecv", comm, nccl.recv(recv, count, BYTE, me, comm, stream))?;
            nccl.ok("ncclSend", comm, nccl.send(send, count, BYTE, me, comm, stream))
        })?;
        settled(rank, comm, stream)?;
        expect(recv, &pattern, 0, count, stream, "to itself")?;
    }
    // Two messages to itself and one around the ring, in one group.
    let (next, previous) = ((rank.rank + 1) % n, (rank.rank + n - 1) % n);
    driver::set(recv, 0, 1 << 20, stream)?;
    nccl.group(comm, || {
        nccl.ok("ncclSend", comm, nccl.send(send, 100, BYTE, me, comm, stream))?;
        nccl.ok("ncclSend", comm, nccl.send(send + 500, 100, BYTE, next as i32, comm, stream))?;
        nccl.ok("ncclSend", comm, nccl.send(send + 100, 100, BYTE, me, comm, stream))?;
        nccl.ok("ncclRecv", comm, nccl.recv(recv, 100, BYTE, me, comm, stream))?;
        nccl.ok("ncclRecv", comm, nccl.recv(recv + 100, 100, BYTE, me, comm, stream))?;
        nccl.ok("ncclRecv", comm, nccl.recv(recv + 500, 100, BYTE, previous as i32, comm, stream))
    })?;
    settled(rank, comm, stream)?;
    if n > 1 {
        expect(recv, &pattern, 0, 200, stream, "two to itself")?;
        let from = Pattern::raw(previous, previous, 1);
        expect(recv + 500, &from, 500, 100, stream, "around the ring")?;
    }
    rank.destroy(comm)?;
    Ok("checks 6".into())
}
