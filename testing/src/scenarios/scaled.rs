//! Sums whose contributions are scaled first (ncclRedOpCreatePreMulSum): every type, each rank with a factor of its own, in
//! host and in device memory; how long an operation lives; operations that are none.

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::{self, CaptureMode, Outcome, Stream};
use crate::nccl::{Comm, Config, INVALID_ARGUMENT, INVALID_USAGE, Residence};
use crate::pattern::{Values, factor, mix};
use crate::rank::Rank;
use crate::reference::{Op, Type};
use crate::scenarios::misuse::refused;

const FUNCTIONS: [Function; 3] = [Function::AllReduce, Function::Reduce, Function::ReduceScatter];

/// Where factors lie on this rank.
struct Factors<'a> {
    rank: &'a Rank,
    stream: Stream,
    device: u64,
}

impl<'a> Factors<'a> {
    fn new(rank: &'a Rank, stream: Stream) -> Outcome<Factors<'a>> {
        Ok(Factors { rank, stream, device: driver::alloc(64)? })
    }

    /// Makes this rank's operation. What lies where the factor is read too early or too late is another factor.
    fn make(&self, t: Type, residence: Residence, comm: Comm) -> Outcome<i32> {
        let right = factor(t, self.rank.rank).to_le_bytes();
        let wrong = t.encode(0.25).to_le_bytes();
        let (code, op) = match residence {
            Residence::Host => {
                let mut scalar = right;
                let at = scalar.as_ptr() as usize;
                let made = self.rank.nccl.make_op(at, t.code(), Residence::Host as i32, comm);
                scalar = std::hint::black_box(wrong);
                std::hint::black_box(&mut scalar);
                made
            }
            Residence::Device => {
                driver::upload(self.device, &wrong, self.stream)?;
                let at = self.device as usize;
                let made = self.rank.nccl.make_op(at, t.code(), Residence::Device as i32, comm);
                driver::upload(self.device, &right, self.stream)?;
                made
            }
        };
        self.rank.nccl.ok("ncclRedOpCreatePreMulSum", comm, code)?;
        Ok(op)
    }

    fn destroy(&self, op: i32, comm: Comm) -> Outcome {
        self.rank.nccl.ok("ncclRedOpDestroy", comm, self.rank.nccl.destroy_op(op, comm))
    }
}

/// Functions, types, counts; ranks differ in where their factor is.
pub fn run(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let comms = [rank.init()?, rank.init_config(&Config { max_ctas: 1, ..Config::new() })?];
    let factors = Factors::new(rank, stream)?;
    let large = if rank.arg("large") == Some("simple") { 3 * 4 * (64 << 10) } else { 3 * 2 * (8 << 10) };
    let mut checker = Checker::new(nccl, (large + 64).max(512 << 10) * rank.nranks)?;
    let mut number = 0;
    for t in Type::ALL {
        for function in FUNCTIONS {
            for values in [Values::Numbers, Values::Specials] {
                for count in [0, 1, 17, 257, large / t.size() + 1] {
                    number += 1;
                    if count > 257 && rank.is_small() && !mix(number).is_multiple_of(4) {
                        continue;
                    }
                    // One rank alone copies NaN bits as they are where nothing is calculated.
                    let random = mix(number << 8 | rank.rank as u64) as usize;
                    let residence = if random & 1 == 0 { Residence::Host } else { Residence::Device };
                    let comm = comms[mix(number) as usize % 2];
                    let call = Call {
                        function,
                        t,
                        op: Op::Scaled,
                        made_op: factors.make(t, residence, comm)?,
                        root: mix(number) as usize / 4 % rank.nranks,
                        values,
                        in_place: mix(number) & 2 == 2,
                        ..Call::sum(rank.rank, rank.nranks, count, number as usize)
                    };
                    let shift = Shift { send: random / 2 % 17, recv: random / 64 % 17 };
                    let destroy_early = random & 1024 == 0;
                    checker.run_with(&call, shift, stream, |checker, send, recv| {
                        call.enqueue(nccl, comm, stream, send, recv)?;
                        if destroy_early {
                            factors.destroy(call.made_op, comm)?;
                        }
                        checker.settle(comm, stream)
                    })?;
                    if !destroy_early {
                        factors.destroy(call.made_op, comm)?;
                    }
                }
            }
        }
    }
    in_groups(rank, &factors, comms[0], &mut checker)?;
    in_graphs(rank, &factors, comms[0], &mut checker)?;
    comms.into_iter().try_for_each(|comm| rank.destroy(comm))?;
    Ok(format!("checks {}", checker.checks))
}

/// Made, used and destroyed inside an open group, which launches afterwards.
fn in_groups(rank: &Rank, factors: &Factors, comm: Comm, checker: &mut Checker) -> Outcome {
    let (nccl, stream) = (rank.nccl, factors.stream);
    for (number, t) in [Type::Float32, Type::Bfloat16, Type::Int8, Type::Float64].into_iter().enumerate() {
        for residence in [Residence::Host, Residence::Device] {
            for count in [33, 50_001] {
                let call = Call { t, op: Op::Scaled, ..Call::sum(rank.rank, rank.nranks, count, number) };
                checker.run_with(&call, Shift::default(), stream, |checker, send, recv| {
                    nccl.group(comm, || {
                        let made_op = factors.make(t, residence, comm)?;
                        Call { made_op, ..call }.enqueue(nccl, comm, stream, send, recv)?;
                        factors.destroy(made_op, comm)
                    })?;
                    checker.settle(comm, stream)
                })?;
            }
        }
    }
    Ok(())
}

/// A graph keeps the operation and a factor in host memory; one in device memory is read at each launch.
fn in_graphs(rank: &Rank, factors: &Factors, comm: Comm, checker: &mut Checker) -> Outcome {
    let (nccl, stream) = (rank.nccl, factors.stream);
    for residence in [Residence::Host, Residence::Device] {
        for count in [100, 70_001] {
            let t = Type::Float16;
            let made_op = factors.make(t, residence, comm)?;
            let call = |seed: usize| Call {
                t,
                op: Op::Scaled,
                made_op,
                ..Call::sum(rank.rank, rank.nranks, count, 1 + 2 * seed)
            };
            let mut graph = None;
            for launch in 0..3 {
                checker.run_with(&call(launch), Shift::default(), stream, |checker, send, recv| {
                    if graph.is_none() {
                        let right = factor(t, rank.rank).to_le_bytes();
                        driver::upload(factors.device, &t.encode(0.25).to_le_bytes(), stream)?;
                        let captured = driver::capture(stream, CaptureMode::ThreadLocal, || {
                            call(0).enqueue(nccl, comm, stream, send, recv)
                        })?;
                        driver::upload(factors.device, &right, stream)?;
                        factors.destroy(made_op, comm)?;
                        graph = Some(captured);
                    }
                    graph.as_ref().ok_or("no graph")?.launch(stream)?;
                    checker.settle(comm, stream)
                })?;
            }
        }
    }
    Ok(())
}

/// Operations of another communicator, destroyed ones, invented ones, built-in ones, and makings that cannot be.
pub fn misuse(rank: &Rank) -> Outcome<String> {
    let nccl = rank.nccl;
    let stream = rank.enter()?;
    let (comm, other) = (rank.init()?, rank.init()?);
    let factors = Factors::new(rank, stream)?;
    let name = format!("rank {}", rank.rank);
    let buffer = driver::alloc(4096)?;
    let (t, f32, f64) = (Type::Float32, Type::Float32.code(), Type::Float64.code());
    let one = 1.0f64;
    let at = std::ptr::from_ref(&one) as usize;
    let argument = |what: &str, comm: Comm, code: i32, words: &[&str]| {
        let words: Vec<&str> = words.iter().copied().chain([name.as_str()]).collect();
        refused(rank, what, comm, code, &[INVALID_ARGUMENT, INVALID_USAGE], &words)
    };
    let reduce = |op: i32, t: i32, comm: Comm| nccl.all_reduce(buffer, buffer, 100, t, op, comm, stream);
    let op = factors.make(t, Residence::Host, comm)?;
    let number = op.to_string();
    argument("another communicator's op", other, reduce(op, f32, other), &["op", &number])?;
    argument("its end there", other, nccl.destroy_op(op, other), &["op", &number])?;
    argument("another type", comm, reduce(op, f64, comm), &["ncclFloat32", "ncclFloat64"])?;
    argument("another type, no elements", comm, nccl.all_reduce(0, 0, 0, f64, op, comm, stream), &[&number])?;
    factors.destroy(op, comm)?;
    argument("a destroyed op", comm, reduce(op, f32, comm), &["op", &number])?;
    argument("a second end", comm, nccl.destroy_op(op, comm), &["op", &number, "destroyed"])?;
    let next = factors.make(t, Residence::Host, comm)?;
    crate::ensure!(next != op, "the number {op} was used again");
    for garbage in [5, 4711, -1, i32::MIN, i32::MAX] {
        if garbage == next {
            continue;
        }
        let number = garbage.to_string();
        argument("an invented op", comm, reduce(garbage, f32, comm), &["op", &number])?;
        argument("its end", comm, nccl.destroy_op(garbage, comm), &["op", &number])?;
    }
    for builtin in 0..5 {
        argument("a built-in op", comm, nccl.destroy_op(builtin, comm), &["built in|built-in"])?;
    }
    let host = Residence::Host as i32;
    argument("no type", comm, nccl.make_op(at, 12, host, comm).0, &["datatype", "12"])?;
    argument("no residence", comm, nccl.make_op(at, f64, 2, comm).0, &["residence", "2"])?;
    argument("no scalar", comm, nccl.make_op(0, f64, host, comm).0, &["scalar", "NULL"])?;
    let code = nccl.make_op(at, f64, Residence::Device as i32, comm).0;
    argument("a scalar on the stack, said to be in device memory", comm, code, &["scalar", "host"])?;
    for bad in [Comm::NULL, Comm(0x1234)] {
        let code = nccl.make_op(at, f64, host, bad).0;
        refused(rank, "no communicator", Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator"])?;
        let code = nccl.destroy_op(next, bad);
        refused(rank, "no communicator", Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator"])?;
    }
    // Refusals cost nothing: both work.
    let mut checker = Checker::new(nccl, 1 << 16)?;
    let call = Call { t, op: Op::Scaled, made_op: next, ..Call::sum(rank.rank, rank.nranks, 500, 3) };
    checker.run(&call, Shift::default(), comm, stream)?;
    checker.run(&Call::sum(rank.rank, rank.nranks, 500, 3), Shift::default(), other, stream)?;
    // A communicator takes its operations with it.
    rank.destroy(comm)?;
    let code = nccl.destroy_op(next, comm);
    refused(rank, "a destroyed communicator", Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator"])?;
    argument("its op elsewhere", other, reduce(next, f32, other), &["op"])?;
    rank.destroy(other)?;
    Ok(format!("checks {}", checker.checks + 30))
}
