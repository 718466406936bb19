//! Random programs, one after the other, on the same ranks: every byte of a rank's memory is compared after each phase.
//!
//! All memory is allocated before the first program: ranks that share a GPU must not free or allocate while another's
//! kernel may wait. The memory of a phase is an image of canaries in which buffers lie at places of the rank's own choice.

use std::time::{Duration, Instant};

use crate::call::{Call, Function};
use crate::check::{trace, trace_text};
use crate::driver::{self, CaptureMode, Event, Graph, Outcome, Stream};
use crate::nccl::{Comm, Config, Residence};
use crate::pattern::{factor, mix};
use crate::program::{ARENA, Communicators, Phase, Planned, Program, Random, Step, Way};
use crate::rank::Rank;
use crate::reference::Op;

const CANARY: u8 = 0xa5;
const GAP: usize = 64;
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
/// What may come and go by itself: descriptors or threads, and bytes.
const FEW: usize = 8;
const LITTLE: usize = 24 << 20;

struct Runner<'a> {
    rank: &'a Rank,
    streams: [Stream; 3],
    events: [Event; 4],
    arena: u64,
    image: Vec<u8>,
    got: Vec<u8>,
    /// Results compared.
    checks: u64,
}

/// A communicator of a program, as this rank has it.
#[derive(Clone, Copy)]
struct Member {
    comm: Comm,
    rank: usize,
    nranks: usize,
}

/// A call of this rank with its place in the memory.
struct Placed<'a> {
    planned: &'a Planned,
    member: Member,
    stream: Stream,
    call: Call,
    /// Of the send and receive buffer; the same in place.
    send: usize,
    recv: usize,
    /// Offset of the send and receive buffer in the one of a call in place.
    within: Option<(usize, usize)>,
    scalar: usize,
}

fn config(max_ctas: Option<i32>) -> Config {
    max_ctas.map_or(Config::new(), |max_ctas| Config { max_ctas, ..Config::new() })
}

/// Runs the programs of the seeds `first` to `first` + `programs`, `passes` times, and looks for growth between passes.
pub fn run(rank: &Rank) -> Outcome<String> {
    let main = rank.enter()?;
    let streams = [main, driver::new_stream(false)?, driver::new_stream(false)?];
    let events = [driver::new_event()?, driver::new_event()?, driver::new_event()?, driver::new_event()?];
    let arena = driver::alloc(ARENA)?;
    let mut runner = Runner { rank, streams, events, arena, image: Vec::new(), got: Vec::new(), checks: 0 };
    let first = rank.number("first", 0) as u64;
    let count = rank.number("programs", 1) as u64;
    let end =
        rank.arg("seconds").map(|_| Instant::now() + Duration::from_secs(rank.number("seconds", 1) as u64));
    let mut usages = Vec::new();
    let mut done = 0u64;
    for _ in 0..rank.number("passes", 1) {
        rank.barrier()?;
        let world = rank.init()?;
        for seed in first..first + count {
            if let Some(end) = end {
                let go = rank.from_root(|| Ok(vec![u8::from(Instant::now() < end)]))?;
                if go != [1] {
                    break;
                }
            }
            rank.mark(&seed.to_string())?;
            let program = Program::new(seed, rank.nranks);
            runner.program(&program, world).map_err(|e| format!("program {seed}: {e}"))?;
            done += 1;
        }
        rank.destroy(world)?;
        usages.push(usage(rank, usages.last())?);
    }
    trace_text(&format!("{usages:?}"));
    if let [.., before, after] = usages[..] {
        let grew = |what: &str, before: usize, after: usize, slack: usize| {
            crate::ensure!(
                after <= before + slack,
                "{what} grew from {before} to {after} in {count} programs"
            );
            Ok(())
        };
        grew("descriptors", before.descriptors, after.descriptors, FEW)?;
        grew("threads", before.threads, after.threads, FEW)?;
        grew("host memory", before.host, after.host, LITTLE)?;
        grew("GPU memory in use", before.gpu, after.gpu, LITTLE)?;
    }
    Ok(format!("checks {} programs {}", runner.checks, if rank.rank == 0 { done } else { 0 }))
}

#[derive(Debug, Clone, Copy)]
struct Usage {
    descriptors: usize,
    threads: usize,
    host: usize,
    gpu: usize,
}

/// What the process and its device use, once what is given back later had its time.
fn usage(rank: &Rank, before: Option<&Usage>) -> Outcome<Usage> {
    rank.barrier()?;
    let look = || -> Outcome<Usage> {
        let count = |dir| std::fs::read_dir(dir).map_or(0, Iterator::count);
        let statm = std::fs::read_to_string("/proc/self/statm").map_err(|e| e.to_string())?;
        let pages: usize = statm.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        Ok(Usage {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            host: pages * 4096,
            gpu: (1 << 60) - driver::free_memory()?,
        })
    };
    let limit = Instant::now() + Duration::from_secs(5);
    let mut now = look()?;
    let is_more = |now: &Usage| {
        before.is_none_or(|before| {
            now.descriptors > before.descriptors + FEW
                || now.threads > before.threads + FEW
                || now.host > before.host + LITTLE
                || now.gpu > before.gpu + LITTLE
        })
    };
    while Instant::now() < limit && is_more(&now) {
        std::thread::sleep(Duration::from_millis(if before.is_none() { 500 } else { 20 }));
        now = look()?;
        if before.is_none() {
            break;
        }
    }
    rank.barrier()?;
    Ok(now)
}

impl Runner<'_> {
    fn program(&mut self, program: &Program, world: Comm) -> Outcome {
        let (rank, nccl) = (self.rank, self.rank.nccl);
        let mut comms = Communicators::new(rank.nranks);
        let mut mine = vec![Some(Member { comm: world, rank: rank.rank, nranks: rank.nranks })];
        let mut graphs = Vec::new();
        for (number, step) in program.steps.iter().enumerate() {
            let told = |e: String| format!("step {number}: {e}");
            match step {
                Step::Init { max_ctas } => {
                    let comm = rank.init_config(&config(*max_ctas))?;
                    comms.add((0..rank.nranks).collect());
                    mine.push(Some(Member { comm, rank: rank.rank, nranks: rank.nranks }));
                }
                Step::Split { of, colors, keys, max_ctas } => {
                    let children = comms.children(*of, colors, keys);
                    let made = match mine[*of] {
                        Some(parent) => {
                            let (color, key) = (colors[parent.rank], keys[parent.rank]);
                            let mut comm = Comm(1);
                            let config = max_ctas.map(|max| config(Some(max)));
                            let code = nccl.split(parent.comm, color, key, &mut comm, config.as_ref());
                            nccl.ok("ncclCommSplit", parent.comm, code).map_err(told)?;
                            Some((color, comm))
                        }
                        None => None,
                    };
                    for (color, members) in children {
                        let place = members.iter().position(|member| *member == rank.rank);
                        let own = made.filter(|(own, _)| *own == color).zip(place);
                        mine.push(own.map(|((_, comm), place)| Member {
                            comm,
                            rank: place,
                            nranks: members.len(),
                        }));
                        if let Some(Some(member)) = mine.last() {
                            let told = nccl.user_rank(member.comm);
                            crate::ensure!(told == (0, member.rank as i32), "step {number}: {told:?}");
                        }
                        comms.add(members);
                    }
                }
                Step::Destroy { comm } => {
                    if let Some(member) = mine[*comm].take() {
                        rank.destroy(member.comm).map_err(told)?;
                    }
                }
                Step::Work(phase) => {
                    let graph = self.phase(phase, &mine).map_err(told)?;
                    graphs.extend(graph);
                }
            }
        }
        let mut random = Random::new(program.seed ^ 0xdead);
        while mine.len() > 1 {
            let at = 1 + random.below(mine.len() - 1);
            if let Some(member) = mine.swap_remove(at) {
                rank.destroy(member.comm)?;
            }
        }
        graphs.into_iter().try_for_each(Graph::destroy)
    }

    /// Does the phase's calls as it says; a graph that is to live on is returned.
    fn phase(&mut self, phase: &Phase, mine: &[Option<Member>]) -> Outcome<Option<Graph>> {
        let placed = self.place(phase, mine)?;
        match phase.way {
            Way::Eager => {
                self.fill(&placed, 0)?;
                placed.iter().try_for_each(|placed| self.enqueue(placed))?;
                self.compare(&placed, 0)?;
            }
            Way::Group => {
                self.fill(&placed, 0)?;
                self.group(&placed)?;
                self.compare(&placed, 0)?;
            }
            Way::Graph { mode, grouped, launches, outlives, interleaved } => {
                self.fill(&placed, 0)?;
                let mode = MODES[mode];
                // In the global mode, other ranks of the process can do nothing meanwhile.
                let alone = || if mode == CaptureMode::Global { self.rank.barrier() } else { Ok(()) };
                alone()?;
                let captured = driver::capture_only(self.streams[0], mode, || self.record(&placed, grouped));
                alone()?;
                let graph = captured?.instantiate()?;
                for launch in 0..launches {
                    let told = |e: String| format!("launch {launch}: {e}");
                    self.fill(&placed, 2 * launch)?;
                    graph.launch(self.streams[0])?;
                    self.compare(&placed, 2 * launch).map_err(told)?;
                    if interleaved {
                        self.fill(&placed, 2 * launch + 1)?;
                        placed.iter().try_for_each(|placed| self.enqueue(placed))?;
                        self.compare(&placed, 2 * launch + 1)
                            .map_err(|e| format!("calls after launch {launch}: {e}"))?;
                    }
                }
                if outlives {
                    return Ok(Some(graph));
                }
                graph.destroy()?;
            }
        }
        Ok(None)
    }

    /// Gives this rank's calls places in the memory.
    fn place<'p>(&self, phase: &'p Phase, mine: &[Option<Member>]) -> Outcome<Vec<Placed<'p>>> {
        let mut at = GAP;
        let mut all = Vec::new();
        for planned in &phase.calls {
            let Some(member) = mine[planned.comm] else { continue };
            let mut random = Random::new(planned.random ^ (self.rank.rank as u64) << 40);
            let call = Call {
                function: planned.function,
                t: planned.t,
                op: planned.op,
                made_op: -1,
                root: planned.root,
                count: planned.count,
                rank: member.rank,
                nranks: member.nranks,
                in_place: planned.in_place,
                values: planned.values,
                seed: planned.seed,
            };
            let size = call.t.size();
            let mut take = |elements: usize| {
                // Anywhere, or where 16 bytes begin.
                let start =
                    at.next_multiple_of(16) + if random.one_in(2) { 0 } else { random.below(17) * size };
                at = start + elements * size + GAP;
                start
            };
            let within = call.in_place_offsets();
            let (send, recv) = match within {
                Some(_) => {
                    let start = take(call.send_count().max(call.recv_count()));
                    (start, start)
                }
                None => (take(call.send_count()), take(call.recv_count())),
            };
            let scalar = at.next_multiple_of(8);
            at = scalar + 8 + GAP;
            let stream = self.streams[random.below(3)];
            all.push(Placed { planned, member, stream, call, send, recv, within, scalar });
        }
        if at > ARENA {
            return Err(format!("the phase needs {at} bytes"));
        }
        Ok(all)
    }

    /// Writes the inputs of the `turn`-th time into the memory, and canaries everywhere else.
    fn fill(&mut self, all: &[Placed], turn: usize) -> Outcome {
        let end = all.last().map_or(GAP, |last| last.scalar + 8 + GAP);
        self.image.clear();
        self.image.resize(end, CANARY);
        for placed in all {
            let (size, call) = (placed.call.t.size(), placed.at(turn));
            let base = placed.send + placed.within.map_or(0, |(send, _)| send * size);
            for region in call.inputs() {
                let from = base + region.at * size;
                region.pattern.fill(region.start, &mut self.image[from..from + region.count * size]);
            }
            if call.op == Op::Scaled {
                let bits = factor(call.t, call.rank).to_le_bytes();
                self.image[placed.scalar..placed.scalar + 8].copy_from_slice(&bits);
            }
        }
        driver::upload(self.arena, &self.image, self.streams[0])
    }

    /// Waits for all streams and compares the whole memory with what the `turn`-th time must give.
    fn compare(&mut self, all: &[Placed], turn: usize) -> Outcome {
        let nccl = self.rank.nccl;
        self.streams.iter().try_for_each(|stream| driver::synchronize(*stream))?;
        for placed in all {
            let (size, call) = (placed.call.t.size(), placed.at(turn));
            let base = placed.recv + placed.within.map_or(0, |(_, recv)| recv * size);
            for region in call.outputs() {
                let from = base + region.at * size;
                region.pattern.fill(region.start, &mut self.image[from..from + region.count * size]);
            }
            let comm = placed.member.comm;
            nccl.ok(&format!("state after {call:?}"), comm, nccl.async_error(comm))?;
            self.checks += 1;
        }
        self.got.resize(self.image.len(), 0);
        driver::download(self.arena, &mut self.got, self.streams[0])?;
        if self.got == self.image {
            return Ok(());
        }
        let wrong = |at: &usize| self.got[*at] != self.image[*at];
        let first = (0..self.image.len()).find(wrong).unwrap_or(0);
        let many = (0..self.image.len()).filter(wrong).count();
        let place = all.iter().rfind(|placed| placed.send <= first + GAP).map(|placed| {
            format!(
                "near {:?}, which sends from {} (starts at {}) and receives at {}",
                placed.at(turn),
                placed.send,
                all[0].send,
                placed.recv
            )
        });
        Err(format!(
            "{many} bytes are wrong, the first at {first}: {:#x} instead of {:#x}, {}",
            self.got[first],
            self.image[first],
            place.unwrap_or_default()
        ))
    }

    /// Makes one call, with an operation of its own where it scales.
    fn enqueue(&self, placed: &Placed) -> Outcome {
        let nccl = self.rank.nccl;
        let comm = placed.member.comm;
        let mut call = placed.call;
        let size = call.t.size();
        let address = |at: usize, within: usize| self.arena + (at + within * size) as u64;
        let within = placed.within.unwrap_or((0, 0));
        let (mut send, mut recv) = (address(placed.send, within.0), address(placed.recv, within.1));
        // A side that this rank does not use may be NULL.
        if placed.within.is_none() && mix(placed.planned.random ^ 77).is_multiple_of(2) {
            send = if call.uses_send() { send } else { 0 };
            recv = if call.uses_recv() { recv } else { 0 };
        }
        if call.op == Op::Scaled {
            let on_device = mix(placed.planned.random ^ call.rank as u64).is_multiple_of(2);
            let bits = factor(call.t, call.rank).to_le_bytes();
            let (scalar, residence) = match on_device {
                true => (self.arena as usize + placed.scalar, Residence::Device),
                false => (bits.as_ptr() as usize, Residence::Host),
            };
            let (code, op) = nccl.make_op(scalar, call.t.code(), residence as i32, comm);
            nccl.ok("ncclRedOpCreatePreMulSum", comm, code)?;
            call.made_op = op;
        }
        trace(&call);
        for _ in 0..placed.planned.repeats {
            call.enqueue(nccl, comm, placed.stream, send, recv)?;
        }
        if call.op == Op::Scaled {
            nccl.ok("ncclRedOpDestroy", comm, nccl.destroy_op(call.made_op, comm))?;
        }
        Ok(())
    }

    /// All calls as one group, in an order of this rank's own as far as NCCL leaves it free.
    fn group(&self, all: &[Placed]) -> Outcome {
        self.rank.nccl.group(Comm::NULL, || {
            order(all, self.rank.rank).into_iter().try_for_each(|placed| self.enqueue(placed))
        })
    }

    /// Puts the calls into a graph: other streams fork from the captured one and come back.
    fn record(&self, all: &[Placed], grouped: bool) -> Outcome {
        let [main, others @ ..] = self.streams;
        driver::record(self.events[0], main)?;
        others.iter().try_for_each(|stream| driver::wait(*stream, self.events[0]))?;
        if grouped {
            self.group(all)?;
        } else {
            all.iter().try_for_each(|placed| self.enqueue(placed))?;
        }
        for (stream, event) in others.into_iter().zip(&self.events[1..]) {
            driver::record(*event, stream)?;
            driver::wait(main, *event)?;
        }
        Ok(())
    }
}

impl Placed<'_> {
    /// The call of the `turn`-th time. An exchange's sizes depend on the seed: steps of 4 leave them alone.
    fn at(&self, turn: usize) -> Call {
        Call { seed: self.planned.seed + 4 * turn, ..self.call }
    }

    /// Whether the library may treat it as messages, which keep their order among themselves.
    fn has_messages(&self) -> bool {
        use Function::*;
        matches!(self.call.function, SendRecv | Exchange | AllToAll | Gather | Scatter)
    }
}

/// Collectives of a communicator keep their order, and so do its messages; how all these mix is a rank's own choice.
fn order<'a, 'p>(all: &'a [Placed<'p>], rank: usize) -> Vec<&'a Placed<'p>> {
    let mut lines: Vec<((usize, bool), Vec<&Placed>)> = Vec::new();
    for placed in all.iter().rev() {
        let key = (placed.planned.comm, placed.has_messages());
        match lines.iter_mut().find(|(known, _)| *known == key) {
            Some((_, line)) => line.push(placed),
            None => lines.push((key, vec![placed])),
        }
    }
    let seed = all.first().map_or(0, |placed| placed.planned.random);
    let mut random = Random::new(seed ^ 0x0de2 ^ (rank as u64) << 32);
    let mut ordered = Vec::new();
    while !lines.is_empty() {
        let at = random.below(lines.len());
        ordered.extend(lines[at].1.pop());
        lines.retain(|(_, line)| !line.is_empty());
    }
    ordered
}
