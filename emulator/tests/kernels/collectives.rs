//! Collectives against the reference.

use super::call::{Call, FUNCTIONS, on_all_ranks};
use super::effort;
use super::gpu::layout::Protocol;
use super::gpu::work::*;
use super::reference::{OPS, Op, Random, TYPES, Type};
use super::world::{World, launch};

fn call(world: &World, function: u32, protocol: Protocol) -> Call {
    Call {
        function,
        protocol,
        kind: Type::F32,
        op: Op::Sum,
        root: 0,
        count: 1,
        grid: 1,
        chunk: world.layout.chunk(protocol),
        in_place: false,
        offsets: (0, 0),
        scalar_in_memory: false,
        seed: 1,
    }
}

fn run_all(world: &World, calls: &[Call]) {
    on_all_ranks(world, |rank| {
        for call in calls {
            call.run(world, rank);
        }
    });
}

#[test]
fn every_function_type_and_operation() {
    for nranks in [1, 2, 3, 5].into_iter().take(effort(4) + 1) {
        let world = World::new(nranks, 0);
        let mut calls = Vec::new();
        for function in FUNCTIONS {
            for protocol in [Protocol::Ll, Protocol::Simple] {
                for kind in TYPES {
                    for op in OPS {
                        let reduces = !matches!(function, FN_BROADCAST | FN_ALL_GATHER);
                        if !reduces && op != Op::Sum || nranks == 1 && function != FN_ALL_REDUCE {
                            continue;
                        }
                        let mut base = call(&world, function, protocol);
                        (base.kind, base.op, base.grid) = (kind, op, 2);
                        base.root = calls.len() as u32 % nranks;
                        base.seed = calls.len() as u64;
                        for count in [1, 37, 700] {
                            calls.push(Call { count, scalar_in_memory: count == 37, ..base });
                        }
                    }
                }
            }
        }
        run_all(&world, &calls);
        assert_eq!(world.completed(0), calls.len() as u32);
    }
}

#[test]
fn counts_around_every_boundary() {
    for nranks in [2, 3] {
        let world = World::new(nranks, 0);
        let mut calls = Vec::new();
        for function in FUNCTIONS {
            for protocol in [Protocol::Ll, Protocol::Simple] {
                let base = call(&world, function, protocol);
                let slots = if protocol == Protocol::Ll { LL_SLOTS } else { SIMPLE_SLOTS } as usize;
                for (kind, chunk) in [(Type::F32, 256), (Type::Bf16, 64), (Type::U8, 16), (Type::F64, 512)] {
                    let full = slots * chunk as usize * 3 / kind.size();
                    let step = chunk as usize / kind.size();
                    for count in
                        [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, step - 1, step, step + 1, full, full + 1]
                    {
                        calls.push(Call { kind, chunk, count: count.max(1), ..base });
                        calls.push(Call {
                            kind,
                            chunk,
                            count: count.max(1),
                            grid: 3,
                            in_place: true,
                            ..base
                        });
                    }
                }
            }
        }
        run_all(&world, &calls);
    }
}

#[test]
fn full_slots_and_many_steps() {
    for nranks in [2, 4] {
        let world = World::new(nranks, 0);
        for function in FUNCTIONS {
            for protocol in [Protocol::Ll, Protocol::Simple] {
                let base = call(&world, function, protocol);
                let count = base.chunk as usize * 9 + 3;
                run_all(
                    &world,
                    &[
                        Call { kind: Type::F32, count: count / 4, ..base },
                        Call { kind: Type::F16, count: count / 4, grid: 2, ..base },
                        Call { kind: Type::U8, count: count / 2, offsets: (1, 3), ..base },
                    ],
                );
            }
        }
    }
}

#[test]
fn any_alignment() {
    let world = World::new(2, 0);
    let mut calls = Vec::new();
    for function in FUNCTIONS {
        for protocol in [Protocol::Ll, Protocol::Simple] {
            let base = call(&world, function, protocol);
            for kind in [Type::U8, Type::Bf16, Type::F32, Type::F64] {
                for offsets in [(0, 1), (1, 0), (1, 1), (3, 2)] {
                    for in_place in [false, true] {
                        calls.push(Call { kind, offsets, in_place, count: 133, ..base });
                    }
                }
            }
        }
    }
    run_all(&world, &calls);
}

/// All bit patterns of the small types go through the conversions.
#[test]
fn every_bit_pattern_of_small_types() {
    for kind in [Type::F16, Type::Bf16, Type::E4m3, Type::E5m2] {
        let world = World::new(2, 0);
        let mut base = call(&world, FN_ALL_REDUCE, Protocol::Simple);
        (base.kind, base.grid) = (kind, 2);
        base.count = if kind.size() == 2 { 1 << 16 } else { 1 << 12 };
        run_all(&world, &OPS.map(|op| Call { op, seed: op as u64 + 77, ..base }));
    }
}

/// Long mixes of operations, grids, protocols and chunks on one communicator: whatever one leaves behind, the next one meets.
fn mixes(nranks: u32, start: u32, operations: usize, seed: u64, most_bytes: usize) {
    let world = World::new(nranks, start);
    let mut random = Random(seed);
    let calls: Vec<Call> =
        (0..effort(operations)).map(|_| Call::random(&world.layout, &mut random, most_bytes)).collect();
    run_all(&world, &calls);
}

#[test]
fn random_mixes() {
    for nranks in 2..=8 {
        let operations = if nranks <= 4 { 200 } else { 60 };
        mixes(nranks, 0, operations, u64::from(nranks), 20_000 / nranks as usize);
    }
}

/// More ranks than addresses travel inside the launch.
#[test]
fn random_mixes_of_many_ranks() {
    mixes(11, 0, 30, 99, 1000);
}

#[test]
fn random_mixes_across_the_wraps() {
    for start in [0x7fff_fff0u32, 0xffff_ffe0, 0xffff_ffff, 0x7fff_ffff] {
        for nranks in [2, 3, 4] {
            mixes(nranks, start, 100, u64::from(start) + u64::from(nranks), 4000);
        }
    }
}

/// The root of a broadcast runs ahead of ranks that are late, and no further than the FIFOs are deep.
#[test]
fn broadcasts_with_a_late_receiver() {
    for protocol in [Protocol::Ll, Protocol::Simple] {
        for nranks in [2, 3] {
            let world = World::new(nranks, 0);
            let base = Call { count: 300, chunk: 256, ..call(&world, FN_BROADCAST, protocol) };
            on_all_ranks(&world, |rank| {
                for i in 0..effort(400) as u64 {
                    if rank == nranks - 1 && i % 50 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(3));
                    }
                    Call { seed: i, ..base }.run(&world, rank);
                }
            });
        }
    }
}

#[test]
fn results_do_not_depend_on_protocol_grid_and_chunk() {
    let world = World::new(3, 0);
    let results = std::sync::Mutex::new(std::collections::HashSet::new());
    for protocol in [Protocol::Ll, Protocol::Simple] {
        for grid in [1, 3, 4] {
            for chunk in [16, 64, world.layout.chunk(protocol)] {
                let call = Call {
                    kind: Type::Bf16,
                    count: 1000,
                    grid,
                    chunk,
                    ..call(&world, FN_ALL_REDUCE, protocol)
                };
                on_all_ranks(&world, |rank| {
                    let result = call.run_unchecked(&world, rank).expect("all ranks have a result");
                    results.lock().unwrap().insert(result);
                });
            }
        }
    }
    assert_eq!(results.into_inner().unwrap().len(), 1);
}

#[test]
fn a_probe_writes_its_token() {
    let world = World::new(3, 0);
    launch(
        super::gpu::layout::KERNEL_PROBE,
        1,
        &ProbeWork { comm: world.comm(1), token: 1000, reserved: [0; 3] },
    );
    assert_eq!([world.probed(0, 1), world.probed(1, 1), world.probed(2, 1)], [1000, 0, 1002]);
    assert_eq!([world.probed(0, 2), world.probed(2, 0)], [0, 0]);
}
