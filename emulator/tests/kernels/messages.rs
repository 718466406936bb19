//! Messages between ranks, and copies within one.

use super::call::on_all_ranks;
use super::effort;
use super::gpu::layout::{KERNEL_MESSAGES, message_channels, message_is_ll};
use super::gpu::work::*;
use super::reference::{Random, Type, vector};
use super::world::{Buffer, World, launch};

/// A message of a group; `peer == rank` copies.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    pub from: u32,
    pub to: u32,
    pub bytes: usize,
    pub offsets: (usize, usize),
    pub seed: u64,
}

fn content(message: &Planned) -> Vec<u8> {
    vector(Type::U8, message.bytes, &mut Random(message.seed))
}

/// Launches this rank's side of a group and checks what it received. The rest of the arguments tests what the host may do: arrays
/// inside the launch or in memory.
pub fn run_group(world: &World, rank: u32, group: &[Planned], inline: bool) {
    let nranks = world.layout.nranks;
    let mut buffers = Vec::new();
    let mut lanes = Vec::new();
    let mut messages = Vec::new();
    for peer in 0..nranks {
        for is_send in [1, 0] {
            let mine: Vec<&Planned> = group
                .iter()
                .filter(|m| {
                    if is_send == 1 { (m.from, m.to) == (rank, peer) } else { (m.from, m.to) == (peer, rank) }
                })
                .collect();
            if mine.is_empty() || (peer == rank && is_send == 0) {
                continue;
            }
            let first = messages.len() as u32;
            let mut most = 1;
            for planned in mine {
                let bytes = content(planned);
                let channels = message_channels(planned.bytes as u64, nranks);
                most = most.max(channels);
                let is_copy = peer == rank;
                let source = Buffer::new(&bytes, planned.offsets.0);
                let target = Buffer::new(&vec![0u8; planned.bytes], planned.offsets.1);
                messages.push(Message {
                    buffer: if is_send == 1 && !is_copy { source.address() } else { target.address() },
                    bytes: planned.bytes as u64,
                    source: if is_copy { source.address() } else { 0 },
                    channels,
                    is_ll: u32::from(message_is_ll(planned.bytes as u64)),
                });
                buffers.push((source, target, (is_send == 0 || is_copy).then_some(bytes)));
            }
            for channel in 0..most {
                lanes.push(Lane {
                    peer,
                    is_send,
                    channel,
                    first,
                    count: messages.len() as u32 - first,
                    reserved: [0; 3],
                });
            }
        }
    }
    if lanes.is_empty() {
        return;
    }
    let mut work = MessageWork {
        comm: world.comm(rank),
        lanes: lanes.as_ptr() as u64,
        messages: messages.as_ptr() as u64,
        inline_lanes: [Lane::default(); INLINE_LANES],
        inline_messages: [Message::default(); INLINE_MESSAGES],
    };
    if inline && lanes.len() <= INLINE_LANES && messages.len() <= INLINE_MESSAGES {
        (work.lanes, work.messages) = (0, 0);
        work.inline_lanes[..lanes.len()].copy_from_slice(&lanes);
        work.inline_messages[..messages.len()].copy_from_slice(&messages);
    }
    launch(KERNEL_MESSAGES, lanes.len() as u32, &work);
    assert_eq!(world.error(rank), None);
    for (source, target, expected) in &buffers {
        source.assert_guards();
        target.assert_guards();
        if let Some(expected) = expected {
            assert!(target.content() == expected, "rank {rank}: wrong bytes: {group:?}");
        }
    }
}

#[test]
fn sizes_around_every_boundary() {
    let world = World::new(2, 0);
    let chunk = world.layout.p2p_chunk as usize;
    let ll = world.layout.p2p_ll_chunk as usize;
    for bytes in
        [0, 1, 7, 8, 9, 15, 16, 17, 4095, ll - 1, ll, ll + 1, chunk, 5 * chunk + 3, 8 * 4 * chunk * 2 + 1]
    {
        let group = [
            Planned { from: 0, to: 1, bytes, offsets: (0, 0), seed: 1 },
            Planned { from: 1, to: 0, bytes, offsets: (3, 1), seed: 2 },
        ];
        on_all_ranks(&world, |rank| run_group(&world, rank, &group, true));
    }
}

fn random_groups(nranks: u32, start: u32, groups: usize, seed: u64) {
    let world = World::new(nranks, start);
    let mut random = Random(seed);
    let groups: Vec<(Vec<Planned>, bool)> = (0..effort(groups))
        .map(|_| {
            let group = (0..1 + random.below(3 * u64::from(nranks)))
                .map(|_| Planned {
                    from: random.below(u64::from(nranks)) as u32,
                    to: random.below(u64::from(nranks)) as u32,
                    bytes: match random.below(6) {
                        0 => 0,
                        1 => random.below(20_000) as usize,
                        2 => random.below(600_000) as usize,
                        _ => random.below(500) as usize,
                    },
                    offsets: if random.below(2) == 0 {
                        (0, 0)
                    } else {
                        (random.below(16) as usize, random.below(16) as usize)
                    },
                    seed: random.next(),
                })
                .collect();
            (group, random.below(2) == 0)
        })
        .collect();
    // No barrier between groups: ranks run ahead of each other as far as the FIFOs let them.
    on_all_ranks(&world, |rank| {
        for (group, inline) in &groups {
            run_group(&world, rank, group, *inline);
        }
    });
}

#[test]
fn random_groups_of_messages() {
    for nranks in [1, 2, 3, 5, 8] {
        random_groups(nranks, 0, 40, u64::from(nranks));
    }
    random_groups(10, 0, 15, 10);
}

#[test]
fn random_groups_across_the_wraps() {
    for start in [0x7fff_ffe0u32, 0xffff_ffe0, 0xffff_ffff] {
        random_groups(2, start, 60, u64::from(start));
    }
}
