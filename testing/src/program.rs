//! Random programs: what all ranks of a team derive from the same seed, so that none has to tell the others.
//!
//! A program makes and splits communicators, and works with those that are there in phases: calls one by one, as a group,
//! or as a graph that is launched several times. All ranks make their calls in one order, as NCCL asks; what NCCL leaves to
//! each rank (streams, alignment, the order of messages among collectives in a group) differs from rank to rank.

use crate::call::Function;
use crate::pattern::{Values, mix};
use crate::reference::{Op, Type};

/// Bytes of a rank's memory that one phase may use.
pub const ARENA: usize = 16 << 20;
/// Bytes that one call of a phase may use; a phase has at most [`MOST_CALLS`].
const CALL_BYTES: usize = 2 << 20;
const LARGE_BYTES: usize = 12 << 20;
const MOST_CALLS: usize = 6;
/// Where slots of the protocols end: the sizes around these are the ones that go wrong.
const BORDERS: [usize; 6] = [16, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10];

#[derive(Debug)]
pub struct Program {
    pub seed: u64,
    pub steps: Vec<Step>,
}

#[derive(Debug)]
pub enum Step {
    /// A communicator of all ranks; it gets the next number.
    Init {
        max_ctas: Option<i32>,
    },
    /// Each colour but -1 gets a child, the smallest first; wishes are in the order of the parent's ranks.
    Split {
        of: usize,
        colors: Vec<i32>,
        keys: Vec<i32>,
        max_ctas: Option<i32>,
    },
    Destroy {
        comm: usize,
    },
    Work(Phase),
}

#[derive(Debug)]
pub struct Phase {
    pub way: Way,
    pub calls: Vec<Planned>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One by one.
    Eager,
    Group,
    Graph {
        /// Number of the capture mode.
        mode: usize,
        grouped: bool,
        launches: usize,
        /// The graph lives on until all communicators of the program have ended.
        outlives: bool,
        /// Between launches the calls are also made one by one.
        interleaved: bool,
    },
}

#[derive(Debug)]
pub struct Planned {
    pub comm: usize,
    pub function: Function,
    pub t: Type,
    pub op: Op,
    pub values: Values,
    pub root: usize,
    pub count: usize,
    pub in_place: bool,
    /// How often the call is made in a row.
    pub repeats: usize,
    pub seed: usize,
    /// What ranks derive their own decisions from.
    pub random: u64,
}

/// Random numbers that depend on the seed alone.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(mix(seed ^ 0x5eed_0000_0000_0000))
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The members of each communicator of a program, in rank order; they are never renumbered.
#[derive(Debug, Clone)]
pub struct Communicators {
    pub members: Vec<Vec<usize>>,
    pub alive: Vec<bool>,
}

impl Communicators {
    /// Number 0 has all ranks and outlives the program.
    pub fn new(nranks: usize) -> Communicators {
        Communicators { members: vec![(0..nranks).collect()], alive: vec![true] }
    }

    pub fn add(&mut self, members: Vec<usize>) {
        self.members.push(members);
        self.alive.push(true);
    }

    /// The members of each child, by colour.
    pub fn children(&self, of: usize, colors: &[i32], keys: &[i32]) -> Vec<(i32, Vec<usize>)> {
        let mut distinct: Vec<i32> = colors.iter().copied().filter(|color| *color >= 0).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let members = |color: i32| {
            let mut places: Vec<usize> = (0..colors.len()).filter(|place| colors[*place] == color).collect();
            places.sort_by_key(|place| (keys[*place], *place));
            (color, places.into_iter().map(|place| self.members[of][place]).collect())
        };
        distinct.into_iter().map(members).collect()
    }

    fn any(&self, random: &mut Random) -> usize {
        let alive: Vec<usize> = (0..self.alive.len()).filter(|comm| self.alive[*comm]).collect();
        alive[random.below(alive.len())]
    }
}

impl Program {
    pub fn new(seed: u64, nranks: usize) -> Program {
        let mut random = Random::new(seed);
        let mut comms = Communicators::new(nranks);
        let mut steps = Vec::new();
        for _ in 0..1 + random.below(5) {
            match random.below(12) {
                0 if comms.members.len() < 6 => {
                    comms.add((0..nranks).collect());
                    steps.push(Step::Init { max_ctas: max_ctas(&mut random) });
                }
                1 | 2 if comms.members.len() < 6 => steps.push(split(&mut random, &mut comms)),
                3 if comms.members.len() > 1 => {
                    let comm = comms.any(&mut random);
                    if comm != 0 {
                        comms.alive[comm] = false;
                        steps.push(Step::Destroy { comm });
                    }
                }
                _ => {}
            }
            steps.push(Step::Work(phase(&mut random, &comms)));
        }
        Program { seed, steps }
    }
}

fn max_ctas(random: &mut Random) -> Option<i32> {
    if random.one_in(2) { Some(1 + random.below(4) as i32) } else { None }
}

fn split(random: &mut Random, comms: &mut Communicators) -> Step {
    let of = comms.any(random);
    let n = comms.members[of].len();
    let kinds = 1 + random.below(3);
    let color = |random: &mut Random| if random.one_in(8) { -1 } else { random.below(kinds) as i32 };
    let colors: Vec<i32> = (0..n).map(|_| color(random)).collect();
    let keys: Vec<i32> = (0..n).map(|_| random.below(7) as i32 - 3).collect();
    for (_, members) in comms.children(of, &colors, &keys) {
        comms.add(members);
    }
    Step::Split { of, colors, keys, max_ctas: max_ctas(random) }
}

fn phase(random: &mut Random, comms: &Communicators) -> Phase {
    let way = match random.below(6) {
        0 | 1 => Way::Eager,
        2..=4 => Way::Group,
        _ => Way::Graph {
            mode: random.below(3),
            grouped: random.one_in(2),
            launches: 1 + random.below(4),
            outlives: random.one_in(4),
            interleaved: random.one_in(2),
        },
    };
    if random.one_in(50) {
        return Phase { way, calls: vec![planned(random, comms, LARGE_BYTES)] };
    }
    let calls = (0..1 + random.below(MOST_CALLS)).map(|_| planned(random, comms, CALL_BYTES)).collect();
    Phase { way, calls }
}

/// A call whose buffers take at most about `most` bytes.
fn planned(random: &mut Random, comms: &Communicators, most: usize) -> Planned {
    let comm = comms.any(random);
    let n = comms.members[comm].len();
    let function = Function::ALL[random.below(Function::ALL.len())];
    let t = Type::ALL[random.below(Type::ALL.len())];
    let op = match random.below(8) {
        number @ 0..5 => Op::ALL[number],
        5 => Op::Scaled,
        _ => Op::Sum,
    };
    let limit = most / (2 * n * t.size());
    let count = match random.below(20) {
        0 => 0,
        1..8 => 1 + random.below(300),
        8..15 => {
            let bytes = BORDERS[random.below(BORDERS.len())] * (1 + random.below(3));
            (bytes / t.size() + random.below(5)).saturating_sub(2)
        }
        15..19 => random.below(limit / 16),
        _ => random.below(limit),
    };
    let count = if most > CALL_BYTES { limit - random.below(limit / 4) } else { count.min(limit) };
    let in_place = random.one_in(3);
    Planned {
        comm,
        function,
        t,
        op: if function.reduces() { op } else { Op::Sum },
        values: if random.one_in(8) && n > 1 { Values::Specials } else { Values::Numbers },
        root: random.below(n),
        count,
        in_place,
        // In place, a second call would start from the first one's result.
        repeats: if !in_place && random.one_in(4) { 1 + random.below(4) } else { 1 },
        seed: random.below(1 << 20),
        random: random.draw(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn programs_depend_on_the_seed_alone_and_have_everything() {
        let mut seen: HashSet<String> = HashSet::new();
        for seed in 0..2000 {
            let program = Program::new(seed, 4);
            assert_eq!(format!("{program:?}"), format!("{:?}", Program::new(seed, 4)));
            for step in &program.steps {
                let kind = match step {
                    Step::Init { .. } => "init".to_string(),
                    Step::Split { .. } => "split".to_string(),
                    Step::Destroy { .. } => "destroy".to_string(),
                    Step::Work(phase) => {
                        for call in &phase.calls {
                            seen.insert(format!("{:?}", call.function));
                            seen.insert(format!("{:?} {}", call.t, call.count == 0));
                            seen.insert(format!("{:?} {}", call.op, call.in_place));
                        }
                        match phase.way {
                            Way::Graph { mode, grouped, .. } => format!("graph {mode} {grouped}"),
                            way => format!("{way:?}"),
                        }
                    }
                };
                seen.insert(kind);
            }
        }
        assert_eq!(seen.len(), 3 + 11 + 24 + 12 + 8, "{seen:?}");
    }

    #[test]
    fn children_are_ordered_by_color_and_key() {
        let comms = Communicators { members: vec![vec![3, 1, 2, 0]], alive: vec![true] };
        let children = comms.children(0, &[5, -1, 0, 5], &[1, 0, 0, -1]);
        assert_eq!(children, [(0, vec![2]), (5, vec![0, 3])]);
    }
}
