//! Lines that stayed in an LL slot until their flag comes again, 2^31 steps later.
//!
//! Such lines are planted; a call of one step crosses the wrap, after which no line of the FIFO may have a flag. Calls behind it, whose
//! flags the planted lines had, are checked while a rank is late: a receiver then looks at its slots before anything has come.

use std::time::Duration;

use super::call::{Call, FUNCTIONS, on_all_ranks};
use super::gpu::layout::Protocol;
use super::gpu::work::*;
use super::messages::{Planned, run_group};
use super::reference::{Op, Type};
use super::world::{LlFifo, World};

/// The step before a wrap: the first step of a world that begins with it is one after which flags repeat.
const STARTS: [u32; 2] = [0x7fff_ffff, 0xffff_ffff];
const LATE: Duration = Duration::from_millis(5);

/// A world whose every LL FIFO holds lines of the steps that come after the first one, but from 2^31 steps ago.
fn world_with_stale_lines(nranks: u32, start: u32) -> World {
    let mut world = World::new(nranks, start);
    for (receiver, sender) in pairs(nranks) {
        for fifo in [LlFifo::Collectives, LlFifo::Messages] {
            world.plant_stale_lines(receiver, sender, fifo, start.wrapping_add(1));
            assert_ne!(world.flagged_lines(receiver, sender, fifo), 0);
        }
    }
    world
}

fn pairs(nranks: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..nranks).flat_map(move |a| (0..nranks).filter(move |&b| b != a).map(move |b| (a, b)))
}

/// Whether steps go from `sender` to `receiver`.
fn sends(function: u32, root: u32, sender: u32, receiver: u32) -> bool {
    match function {
        FN_BROADCAST => sender == root,
        FN_REDUCE => receiver == root,
        _ => true,
    }
}

fn collective(function: u32, nranks: u32, start: u32, late: u32) {
    let mut world = world_with_stale_lines(nranks, start);
    let chunk = world.layout.chunk(Protocol::Ll);
    let first = Call {
        function,
        protocol: Protocol::Ll,
        kind: Type::U8,
        op: Op::Sum,
        root: 0,
        count: 1,
        grid: 1,
        chunk,
        in_place: false,
        offsets: (0, 0),
        scalar_in_memory: false,
        seed: 1,
    };
    on_all_ranks(&world, |rank| first.run(&world, rank));
    for (receiver, sender) in pairs(nranks) {
        if sends(function, first.root, sender, receiver) {
            let flagged = world.flagged_lines(receiver, sender, LlFifo::Collectives);
            assert_eq!(flagged, 0, "from {sender} to {receiver}, start {start:#x}: {first:?}");
        }
    }
    on_all_ranks(&world, |rank| {
        if rank == late {
            std::thread::sleep(LATE);
        }
        Call { count: chunk as usize * (LL_SLOTS as usize + 1), seed: 2, ..first }.run(&world, rank);
    });
}

#[test]
fn collectives_take_no_line_from_before_a_wrap() {
    for nranks in [2, 3] {
        for start in STARTS {
            for function in FUNCTIONS {
                for late in [0, nranks - 1] {
                    collective(function, nranks, start, late);
                }
            }
        }
    }
}

#[test]
fn messages_take_no_line_from_before_a_wrap() {
    for start in STARTS {
        let mut world = world_with_stale_lines(2, start);
        let message = |bytes| Planned { from: 0, to: 1, bytes, offsets: (0, 0), seed: bytes as u64 };
        on_all_ranks(&world, |rank| run_group(&world, rank, &[message(1)], true));
        assert_eq!(world.flagged_lines(1, 0, LlFifo::Messages), 0, "start {start:#x}");
        // The other direction has had no step yet.
        assert_ne!(world.flagged_lines(0, 1, LlFifo::Messages), 0);
        on_all_ranks(&world, |rank| {
            if rank == 0 {
                std::thread::sleep(LATE);
            }
            let bytes = world.layout.p2p_ll_chunk as usize;
            run_group(&world, rank, &[message(bytes); P2P_LL_SLOTS as usize + 1], true);
        });
    }
}

/// The sender may use a slot as soon as the wrap is acknowledged: what clears the slots must have come to an end by then. The steps
/// behind the wrap, in the same launch, fill all lines of all slots.
#[test]
fn clearing_ends_before_the_next_steps_come() {
    for start in STARTS {
        for turn in 0..super::effort(40) as u64 {
            let world = World::new(2, start);
            let bytes = world.layout.p2p_ll_chunk as usize;
            let message = |bytes, seed| Planned { from: 0, to: 1, bytes, offsets: (0, 0), seed };
            let mut group = vec![message(1, turn)];
            group.extend((0..u64::from(P2P_LL_SLOTS)).map(|step| message(bytes, turn + step)));
            on_all_ranks(&world, |rank| run_group(&world, rank, &group, true));
        }
    }
}
