//! ncclCommSplit: who gets which child, what parent and child may do meanwhile, and how long each lives.
//!
//! One scenario per aspect, chosen by `case`; after each, the parent still works, where it is still there.

use crate::call::{Call, Function};
use crate::check::{Checker, Shift};
use crate::driver::{self, CaptureMode, Outcome, Stream};
use crate::nccl::{Comm, Config, INVALID_ARGUMENT, SUCCESS};
use crate::pattern::{Pattern, Values};
use crate::rank::Rank;
use crate::reference::{Op, Type};
use crate::scenarios::misuse::refused;

const NO_COLOR: i32 = -1;
/// What the handle's variable holds before.
const BEFORE: Comm = Comm(0x5555_0000);

struct Ground<'a> {
    rank: &'a Rank,
    parent: Comm,
    stream: Stream,
    checker: Checker,
}

/// A child with this rank's place in it.
#[derive(Debug, Clone, Copy)]
struct Child {
    comm: Comm,
    rank: usize,
    nranks: usize,
}

pub fn run(rank: &Rank) -> Outcome<String> {
    let stream = rank.enter()?;
    let parent = rank.init()?;
    let checker = Checker::new(rank.nccl, 512 * 1024 * rank.nranks)?;
    let mut ground = Ground { rank, parent, stream, checker };
    let case = rank.arg("case").ok_or("no case")?;
    match case {
        "colors" => colors(&mut ground)?,
        "in_flight" => in_flight(&mut ground)?,
        "interleaved" => interleaved(&mut ground)?,
        "lives" => lives(&mut ground)?,
        "of_a_split" => of_a_split(&mut ground)?,
        "config" => config(&mut ground)?,
        "in_a_group" => in_a_group(&mut ground)?,
        "bad_color" => bad_color(&mut ground)?,
        _ => return Err(format!("there is no case {case}")),
    }
    ground.works(ground.whole(), 77)?;
    rank.destroy(ground.parent)?;
    Ok(format!("checks {}", ground.checker.checks))
}

impl Ground<'_> {
    /// The parent as if it were a child of all.
    fn whole(&self) -> Child {
        Child { comm: self.parent, rank: self.rank.rank, nranks: self.rank.nranks }
    }

    /// Splits `of` by what `wish` says of each of its ranks; none for ranks without a colour.
    fn split(&self, of: Child, wish: impl Fn(usize) -> (i32, i32)) -> Outcome<Option<Child>> {
        let mut comm = BEFORE;
        let (color, key) = wish(of.rank);
        let code = self.rank.nccl.split(of.comm, color, key, &mut comm, None);
        self.rank.nccl.ok("ncclCommSplit", of.comm, code)?;
        self.placed(of, comm, wish)
    }

    /// Checks that a child is what the wishes of its parent's ranks come to.
    fn placed(&self, of: Child, comm: Comm, wish: impl Fn(usize) -> (i32, i32)) -> Outcome<Option<Child>> {
        let nccl = self.rank.nccl;
        let (color, _) = wish(of.rank);
        if color == NO_COLOR {
            crate::ensure!(comm == Comm::NULL, "a rank without a colour got {comm:?}");
            return Ok(None);
        }
        let mut members: Vec<usize> = (0..of.nranks).filter(|rank| wish(*rank).0 == color).collect();
        members.sort_by_key(|rank| (wish(*rank).1, *rank));
        let place = members.iter().position(|rank| *rank == of.rank).ok_or("no place")?;
        crate::ensure!(nccl.count(comm) == (0, members.len() as i32), "count {:?}", nccl.count(comm));
        crate::ensure!(nccl.user_rank(comm) == (0, place as i32), "{:?}, not {place}", nccl.user_rank(comm));
        let device = nccl.cu_device(comm);
        crate::ensure!(device == (0, self.rank.device()? as i32), "device {device:?}");
        Ok(Some(Child { comm, rank: place, nranks: members.len() }))
    }

    /// Every function, small and large, gives the right results.
    fn works(&mut self, of: Child, seed: usize) -> Outcome {
        for (number, function) in Function::ALL.into_iter().enumerate() {
            for count in [3, 2_001, 40_009] {
                let call = Call {
                    function,
                    root: number % of.nranks,
                    ..Call::sum(of.rank, of.nranks, count, seed + number)
                };
                self.checker
                    .run(&call, Shift::default(), of.comm, self.stream)
                    .map_err(|e| format!("rank {} of {}: {e}", of.rank, of.nranks))?;
            }
        }
        Ok(())
    }
}

/// Two colours with keys that turn the order around, one rank without a colour, everybody alone, everybody together.
fn colors(ground: &mut Ground) -> Outcome {
    let last = ground.rank.nranks - 1;
    let wishes: [&dyn Fn(usize) -> (i32, i32); 5] = [
        &|rank| ((rank % 2) as i32, -(rank as i32)),
        &|rank| if rank == last { (NO_COLOR, 9) } else { (7, [5, -3, 5, i32::MIN, i32::MAX][rank % 5]) },
        &|rank| (i32::MAX - rank as i32, 0),
        &|rank| (0, rank as i32),
        &|_| (NO_COLOR, 0),
    ];
    for (number, wish) in wishes.into_iter().enumerate() {
        let whole = ground.whole();
        if let Some(child) = ground.split(whole, wish)? {
            ground.works(child, 10 * number)?;
            ground.rank.destroy(child.comm)?;
        }
    }
    Ok(())
}

/// The parent's operations wait for a rank that splits first, and uses the child, before it joins them.
fn in_flight(ground: &mut Ground) -> Outcome {
    let (rank, nccl) = (ground.rank, ground.rank.nccl);
    let busy = driver::new_stream(false)?;
    const COUNT: usize = 300_000;
    let (t, op) = (Type::Int32, Op::Sum);
    let buffer = driver::alloc(COUNT * 4)?;
    let input = Pattern::input(t, op, rank.rank, rank.nranks, Values::Numbers).bytes(0, COUNT);
    let result = Pattern::result(t, op, rank.nranks, Values::Numbers).bytes(0, COUNT);
    for turn in 0..4 {
        driver::upload(buffer, &input, busy)?;
        let late = rank.rank == turn % rank.nranks;
        let reduce = |ground: &Ground| {
            let code = nccl.all_reduce(buffer, buffer, COUNT, t.code(), op.code(), ground.parent, busy);
            nccl.ok("ncclAllReduce", ground.parent, code)
        };
        if !late {
            reduce(ground)?;
            crate::ensure!(!driver::is_idle(busy)?, "an all-reduce ended without a rank");
        }
        let whole = ground.whole();
        let child = ground.split(whole, |rank| (0, -(rank as i32)))?.ok_or("no child")?;
        ground.works(child, turn)?;
        if late {
            reduce(ground)?;
        }
        let mut got = vec![0; COUNT * 4];
        driver::download(buffer, &mut got, busy)?;
        crate::ensure!(got == result, "the parent's all-reduce in flight, turn {turn}");
        rank.destroy(child.comm)?;
    }
    Ok(())
}

/// Parent and child work at the same time, on a stream each, in opposite orders on even and odd ranks.
fn interleaved(ground: &mut Ground) -> Outcome {
    let (rank, nccl) = (ground.rank, ground.rank.nccl);
    let whole = ground.whole();
    let child = ground.split(whole, |rank| ((rank / 2) as i32, 0))?.ok_or("no child")?;
    let streams = [ground.stream, driver::new_stream(false)?];
    let (t, op) = (Type::Uint64, Op::Sum);
    const COUNT: usize = 1_000;
    let buffers = [driver::alloc(COUNT * 8)?, driver::alloc(COUNT * 8)?];
    for (buffer, stream) in buffers.into_iter().zip(streams) {
        driver::upload(buffer, &1u64.to_le_bytes().repeat(COUNT), stream)?;
    }
    let of = [whole, child];
    let turns = rank.number("turns", 100);
    for _ in 0..turns {
        for step in 0..2 {
            let which = (step + rank.rank) % 2;
            let (buffer, comm) = (buffers[which], of[which].comm);
            let code = nccl.all_reduce(buffer, buffer, COUNT, t.code(), op.code(), comm, streams[which]);
            nccl.ok("ncclAllReduce", comm, code)?;
        }
    }
    for which in 0..2 {
        let mut got = vec![0; COUNT * 8];
        driver::download(buffers[which], &mut got, streams[which])?;
        let value = (of[which].nranks as u64).wrapping_pow(turns as u32);
        crate::ensure!(got == value.to_le_bytes().repeat(COUNT), "after {turns} turns, communicator {which}");
    }
    ground.works(child, 5)?;
    rank.destroy(child.comm)
}

/// A child outlives its parent, and a parent its child; so it is with an abort of either.
fn lives(ground: &mut Ground) -> Outcome {
    let (rank, nccl) = (ground.rank, ground.rank.nccl);
    let pair = |parent: usize| ((parent / 2) as i32, -(parent as i32));
    for abort in [false, true] {
        let end = |comm: Comm| match abort {
            true => nccl.ok("ncclCommAbort", Comm::NULL, nccl.abort(comm)),
            false => rank.destroy(comm),
        };
        // The child ends first.
        let whole = ground.whole();
        let child = ground.split(whole, pair)?.ok_or("no child")?;
        ground.works(child, 1)?;
        rank.barrier()?;
        end(child.comm)?;
        ground.works(whole, 2)?;
        // The parent ends first, with the child unused so far, and with an operation of the child in flight.
        let extra = Child { comm: rank.init()?, ..whole };
        let child = ground.split(extra, pair)?.ok_or("no child")?;
        let fresh = ground.split(extra, |parent| (0, parent as i32))?.ok_or("no child")?;
        let buffer = driver::alloc(4000)?;
        driver::set(buffer, 1, 4000, ground.stream)?;
        let code = nccl.all_reduce(
            buffer,
            buffer,
            4000,
            Type::Uint8.code(),
            Op::Sum.code(),
            child.comm,
            ground.stream,
        );
        nccl.ok("ncclAllReduce", child.comm, code)?;
        rank.barrier()?;
        end(extra.comm)?;
        let mut got = vec![0; 4000];
        driver::download(buffer, &mut got, ground.stream)?;
        crate::ensure!(got == vec![child.nranks as u8; 4000], "the child's operation in flight");
        for (number, child) in [fresh, child].into_iter().enumerate() {
            rank.barrier()?;
            ground.works(child, 3 + number)?;
            rank.destroy(child.comm)?;
        }
    }
    Ok(())
}

/// Down to one rank each, by halves; all generations work in the end, the oldest last.
fn of_a_split(ground: &mut Ground) -> Outcome {
    let mut line = vec![ground.whole()];
    while let Some(of) = line.last().copied().filter(|of| of.nranks > 1) {
        let half = of.nranks.div_ceil(2);
        // The second half is turned around.
        let wish = |rank: usize| ((rank / half) as i32, if rank < half { 0 } else { -(rank as i32) });
        line.push(ground.split(of, wish)?.ok_or("no child")?);
    }
    // Ranks may be at the end after different numbers of halves.
    for (generation, of) in line.iter().enumerate().skip(1).rev() {
        ground.works(*of, generation)?;
    }
    line[1..].iter().try_for_each(|child| ground.rank.destroy(child.comm))
}

/// Without a config a child has its parent's settings, with one only those: seen at the blocks of a large operation.
fn config(ground: &mut Ground) -> Outcome {
    let (rank, nccl, stream) = (ground.rank, ground.rank.nccl, ground.stream);
    const COUNT: usize = 8 << 20;
    let buffer = driver::alloc(COUNT)?;
    let blocks = |comm: Comm| -> Outcome<u32> {
        rank.barrier()?;
        let captured = driver::capture_only(stream, CaptureMode::Relaxed, || {
            let code =
                nccl.all_reduce(buffer, buffer, COUNT, Type::Uint8.code(), Op::Sum.code(), comm, stream);
            nccl.ok("ncclAllReduce", comm, code)
        })?;
        let grids = captured.grids()?;
        captured.destroy()?;
        rank.barrier()?;
        grids.into_iter().max().ok_or("the graph has no kernel".into())
    };
    let usual = blocks(ground.parent)?;
    crate::ensure!(usual > 2, "the usual grid has only {usual} blocks");
    let limited = |max_ctas| Config { max_ctas, ..Config::new() };
    let parent = rank.init_config(&limited(2))?;
    for (what, config, wanted) in [
        ("without a config", None, 2),
        ("with one", Some(limited(1)), 1),
        ("with one of defaults", Some(Config::new()), usual),
    ] {
        let mut child = BEFORE;
        let code = nccl.split(parent, 3, 0, &mut child, config.as_ref());
        nccl.ok("ncclCommSplit", parent, code)?;
        let got = blocks(child)?;
        crate::ensure!(got == wanted, "a split {what} has {got} blocks instead of {wanted}");
        ground.works(Child { comm: child, ..ground.whole() }, 1)?;
        // And it hands them on.
        let mut grandchild = BEFORE;
        nccl.ok("ncclCommSplit", child, nccl.split(child, 0, 0, &mut grandchild, None))?;
        let got = blocks(grandchild)?;
        crate::ensure!(got == wanted, "its own split has {got} blocks instead of {wanted}");
        rank.destroy(child)?;
        rank.destroy(grandchild)?;
    }
    let mut child = BEFORE;
    let bad = Config { magic: 1, ..Config::new() };
    let code = nccl.split(ground.parent, 0, 0, &mut child, Some(&bad));
    refused(rank, "a config without magic", ground.parent, code, &[INVALID_ARGUMENT], &["magic"])?;
    rank.destroy(parent)
}

/// Several splits of two parents in one group, in other orders on other ranks as far as parents go, beside operations.
fn in_a_group(ground: &mut Ground) -> Outcome {
    let (rank, nccl) = (ground.rank, ground.rank.nccl);
    let whole = ground.whole();
    let other = Child { comm: rank.init()?, ..whole };
    type Wish = fn(usize) -> (i32, i32);
    let wishes: [Wish; 3] =
        [|rank| ((rank % 2) as i32, 0), |rank| (0, -(rank as i32)), |rank| (rank as i32 - 1, 0)];
    let bytes = 4096;
    let buffer = driver::alloc(bytes)?;
    for turn in 0..3 {
        let parents = if (rank.rank + turn).is_multiple_of(2) { [whole, other] } else { [other, whole] };
        let mut children = [[BEFORE; 3]; 2];
        driver::set(buffer, 1, bytes, ground.stream)?;
        nccl.ok("ncclGroupStart", Comm::NULL, nccl.group_start())?;
        let (t, op) = (Type::Uint8.code(), Op::Sum.code());
        let code = nccl.all_reduce(buffer, buffer, bytes, t, op, whole.comm, ground.stream);
        nccl.ok("ncclAllReduce", whole.comm, code)?;
        for (parent, children) in parents.iter().zip(&mut children) {
            for (wish, child) in wishes.iter().zip(children) {
                let (color, key) = wish(rank.rank);
                let code = nccl.split(parent.comm, color, key, child, None);
                nccl.ok("ncclCommSplit", parent.comm, code)?;
            }
        }
        nccl.ok("ncclGroupEnd", Comm::NULL, nccl.group_end())?;
        let mut got = vec![0; bytes];
        driver::download(buffer, &mut got, ground.stream)?;
        crate::ensure!(got == vec![rank.nranks as u8; bytes], "the operation beside the splits");
        // All ranks use them in one order.
        for of in [whole, other] {
            let at = parents.iter().position(|parent| parent.comm == of.comm).ok_or("lost a parent")?;
            for (wish, comm) in wishes.iter().zip(children[at]) {
                if let Some(child) = ground.placed(of, comm, wish)? {
                    ground.works(child, turn)?;
                    rank.destroy(child.comm)?;
                }
            }
        }
    }
    rank.destroy(other.comm)
}

/// A colour that no rank may pass, from one rank: all are told who it was, and the parent goes on.
fn bad_color(ground: &mut Ground) -> Outcome {
    let (rank, nccl) = (ground.rank, ground.rank.nccl);
    for (turn, bad) in [-2, i32::MIN, -77].into_iter().enumerate() {
        let culprit = turn % rank.nranks;
        let color = if rank.rank == culprit { bad } else { 0 };
        let mut child = BEFORE;
        let code = nccl.split(ground.parent, color, 0, &mut child, None);
        let words = [format!("rank {culprit}"), bad.to_string(), "color".to_owned()];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        refused(rank, "a bad colour", ground.parent, code, &[INVALID_ARGUMENT], &words)?;
        crate::ensure!(child == BEFORE || child == Comm::NULL, "a handle was written: {child:?}");
        crate::ensure!(nccl.async_error(ground.parent) == SUCCESS, "the parent is in error");
        let whole = ground.whole();
        let child = ground.split(whole, |rank| (0, rank as i32))?.ok_or("no child")?;
        ground.works(child, turn)?;
        rank.destroy(child.comm)?;
    }
    let code = nccl.split(Comm::NULL, 0, 0, &mut BEFORE.clone(), None);
    refused(rank, "a NULL parent", Comm::NULL, code, &[INVALID_ARGUMENT], &["communicator", "NULL"])
}
