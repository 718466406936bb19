//! Calls that disagree, ranks that do not come, and the end of waits.

use std::time::{Duration, Instant};

use super::call::{Call, FUNCTIONS, on_all_ranks};
use super::gpu::layout::{KERNEL_MESSAGES, Protocol, message_channels, message_is_ll};
use super::gpu::work::*;
use super::reference::{Op, Type};
use super::world::{Buffer, World, launch};

fn call(world: &World, function: u32, protocol: Protocol) -> Call {
    Call {
        function,
        protocol,
        kind: Type::F32,
        op: Op::Sum,
        root: 0,
        count: 5000,
        grid: 2,
        chunk: world.layout.chunk(protocol),
        in_place: false,
        offsets: (0, 0),
        scalar_in_memory: false,
        seed: 1,
    }
}

/// Both ranks end, and at least the one that finds the difference says what it is; the other one is told.
fn assert_mismatch(calls: [Call; 2], world: &World) {
    on_all_ranks(world, |rank| {
        // Buffers are as large as this rank's own call says; their guards are checked inside.
        calls[rank as usize].run_unchecked(world, rank);
    });
    let errors = [world.error(0), world.error(1)];
    let found = errors.iter().flatten().find(|e| e.code == ERROR_MISMATCH);
    let found = found.unwrap_or_else(|| panic!("no mismatch in {errors:?}: {calls:?}"));
    let finder = found.finder as usize;
    for (rank, error) in errors.iter().enumerate() {
        let Some(error) = error else { continue };
        assert_eq!(error.code, ERROR_MISMATCH);
        assert_eq!(
            (error.own, error.theirs),
            (calls[rank].fingerprint(), calls[1 - rank].fingerprint()),
            "{finder}"
        );
    }
}

#[test]
fn calls_that_disagree_are_named() {
    for protocol in [Protocol::Ll, Protocol::Simple] {
        let world = World::new(2, 0);
        let base = call(&world, FN_ALL_REDUCE, protocol);
        assert_mismatch([base, Call { count: 70_000, ..base }], &World::new(2, 0));
        assert_mismatch([Call { count: 1, ..base }, base], &World::new(2, 0));
        assert_mismatch([base, Call { kind: Type::I32, ..base }], &World::new(2, 0));
        assert_mismatch([base, Call { op: Op::Max, ..base }], &World::new(2, 0));
        assert_mismatch([base, Call { function: FN_ALL_GATHER, ..base }], &World::new(2, 0));
        assert_mismatch([Call { function: FN_BROADCAST, root: 1, ..base }, base], &World::new(2, 0));
    }
}

#[test]
fn two_roots_are_found_by_the_next_call() {
    for protocol in [Protocol::Ll, Protocol::Simple] {
        let world = World::new(2, 0);
        let base = Call { count: 100, ..call(&world, FN_BROADCAST, protocol) };
        on_all_ranks(&world, |rank| {
            // Neither receives, so both end.
            Call { root: rank, ..base }.run_unchecked(&world, rank);
        });
        assert_eq!((world.error(0), world.error(1)), (None, None));
        on_all_ranks(&world, |rank| {
            Call { function: FN_ALL_REDUCE, ..base }.run_unchecked(&world, rank);
        });
        for rank in 0..2 {
            assert_eq!(world.error(rank).unwrap().code, ERROR_DIVERGED, "rank {rank}");
        }
    }
}

#[test]
fn two_roots_that_go_on_are_found() {
    for protocol in [Protocol::Ll, Protocol::Simple] {
        let world = World::new(2, 0);
        let base = Call { count: 100, ..call(&world, FN_BROADCAST, protocol) };
        on_all_ranks(&world, |rank| {
            for _ in 0..20 {
                Call { root: rank, ..base }.run_unchecked(&world, rank);
            }
        });
        assert!((0..2).all(|rank| world.error(rank).is_some()));
    }
}

#[test]
fn abort_ends_every_wait_and_poisons() {
    for function in FUNCTIONS {
        for protocol in [Protocol::Ll, Protocol::Simple] {
            let world = World::new(3, 0);
            // The root is the rank that does not come, except where only the root waits.
            let root = if function == FN_REDUCE { 0 } else { 2 };
            let base = Call { root, count: 200_000, ..call(&world, function, protocol) };
            std::thread::scope(|scope| {
                for rank in 0..2 {
                    let world = &world;
                    scope.spawn(move || base.run_unchecked(world, rank));
                }
                std::thread::sleep(Duration::from_millis(20));
                world.abort(0);
                world.abort(1);
            });
            let error = world.error(0).expect("rank 0 waited");
            assert_eq!((error.code, error.finder), (ERROR_ABORTED, 0));
            assert_eq!(world.completed(0), 0);
            // What comes later ends at once.
            let before = Instant::now();
            base.run_unchecked(&world, 0);
            assert!(before.elapsed() < Duration::from_secs(5));
        }
    }
}

fn message(world: &World, rank: u32, is_send: bool, bytes: usize) {
    let buffer = Buffer::new(&vec![7u8; bytes], 0);
    let channels = message_channels(bytes as u64, world.layout.nranks);
    let mut work = MessageWork {
        comm: world.comm(rank),
        lanes: 0,
        messages: 0,
        inline_lanes: [Lane::default(); INLINE_LANES],
        inline_messages: [Message::default(); INLINE_MESSAGES],
    };
    for channel in 0..channels {
        work.inline_lanes[channel as usize] = Lane {
            peer: 1 - rank,
            is_send: u32::from(is_send),
            channel,
            first: 0,
            count: 1,
            reserved: [0; 3],
        };
    }
    work.inline_messages[0] = Message {
        buffer: buffer.address(),
        bytes: bytes as u64,
        source: 0,
        channels,
        is_ll: u32::from(message_is_ll(bytes as u64)),
    };
    launch(KERNEL_MESSAGES, channels, &work);
    buffer.assert_guards();
}

#[test]
fn messages_of_different_sizes_are_named() {
    for (sent, received) in [(100, 99), (0, 8), (8, 0), (1 << 20, 100), (100, 1 << 20), (3 << 20, 2 << 20)] {
        let world = World::new(2, 0);
        on_all_ranks(&world, |rank| {
            message(&world, rank, rank == 0, if rank == 0 { sent } else { received })
        });
        let error = world.error(1).expect("the receiver compares");
        assert_eq!((error.code, error.peer, error.finder), (ERROR_MESSAGE_SIZE, 0, 1));
        assert_eq!((error.own, error.theirs), (received as u64, sent as u64));
    }
}

#[test]
fn abort_ends_messages() {
    for (rank, is_send, bytes) in [(0, false, 100), (1, false, 4 << 20), (0, true, 16 << 20)] {
        let world = World::new(2, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| message(&world, rank, is_send, bytes));
            std::thread::sleep(Duration::from_millis(20));
            world.abort(rank);
        });
        assert_eq!(world.error(rank).expect("it waited").code, ERROR_ABORTED);
    }
}
