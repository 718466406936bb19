//! The operations: what each one needs, what it must give, where in place is, and how it is called.
//!
//! A [`Call`] is what one rank sees of an operation. Counts are the ABI's, in elements; regions say what the used parts
//! of the buffers hold before and after.

use crate::driver::{Outcome, Stream};
use crate::nccl::{Comm, Nccl};
use crate::pattern::{Pattern, Values};
use crate::reference::{Op, Type};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    AllReduce,
    ReduceScatter,
    Reduce,
    Broadcast,
    /// ncclBroadcast's older form, always in place.
    Bcast,
    AllGather,
    AllToAll,
    Gather,
    Scatter,
    /// Each rank sends to the next one and receives from the one before.
    SendRecv,
    /// A group of messages between all pairs, itself included, of different sizes and some empty.
    Exchange,
}

use Function::*;

impl Function {
    pub const ALL: [Function; 11] = [
        AllReduce,
        Broadcast,
        SendRecv,
        Exchange,
        Bcast,
        Reduce,
        ReduceScatter,
        AllGather,
        AllToAll,
        Gather,
        Scatter,
    ];

    pub fn reduces(self) -> bool {
        matches!(self, AllReduce | ReduceScatter | Reduce)
    }

    pub fn has_root(self) -> bool {
        matches!(self, Reduce | Broadcast | Bcast | Gather | Scatter)
    }

    fn sends_blocks(self) -> bool {
        matches!(self, ReduceScatter | AllToAll | Scatter | Exchange)
    }

    fn receives_blocks(self) -> bool {
        matches!(self, AllGather | AllToAll | Gather | Exchange)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub function: Function,
    pub t: Type,
    pub op: Op,
    /// The number of a scaled sum.
    pub made_op: i32,
    pub root: usize,
    pub count: usize,
    pub rank: usize,
    pub nranks: usize,
    pub in_place: bool,
    pub values: Values,
    /// Shifts the data; equal on all ranks.
    pub seed: usize,
}

/// A stretch of a buffer, in elements, and what is in it.
#[derive(Debug)]
pub struct Region {
    pub at: usize,
    pub count: usize,
    pub pattern: Pattern,
    /// Number of the pattern's element at `at`.
    pub start: usize,
}

impl Region {
    fn new(at: usize, count: usize, pattern: Pattern, start: usize) -> Region {
        Region { at, count, pattern, start }
    }
}

impl Call {
    /// An all-reduce of 32-bit floats.
    pub fn sum(rank: usize, nranks: usize, count: usize, seed: usize) -> Call {
        Call {
            function: AllReduce,
            t: Type::Float32,
            op: Op::Sum,
            made_op: -1,
            root: 0,
            count,
            rank,
            nranks,
            in_place: false,
            values: Values::Numbers,
            seed,
        }
    }

    /// Elements of the send buffer, whether this rank uses it or not.
    pub fn send_count(&self) -> usize {
        self.count * if self.function.sends_blocks() { self.nranks } else { 1 }
    }

    /// Elements of the receive buffer, whether this rank uses it or not.
    pub fn recv_count(&self) -> usize {
        self.count * if self.function.receives_blocks() { self.nranks } else { 1 }
    }

    fn is_root(&self) -> bool {
        self.rank == self.root
    }

    pub fn uses_send(&self) -> bool {
        self.is_root() || !matches!(self.function, Broadcast | Bcast | Scatter)
    }

    pub fn uses_recv(&self) -> bool {
        self.is_root() || !matches!(self.function, Reduce | Gather)
    }

    /// Where send and receive buffer begin, in elements, inside the one buffer of a call in place; none where this
    /// rank's call is not in place.
    pub fn in_place_offsets(&self) -> Option<(usize, usize)> {
        let own = self.rank * self.count;
        match self.function {
            Bcast => Some((0, 0)),
            _ if !self.in_place => None,
            AllReduce | Reduce | Broadcast => Some((0, 0)),
            ReduceScatter => Some((0, own)),
            AllGather => Some((own, 0)),
            Gather if self.is_root() => Some((own, 0)),
            Scatter if self.is_root() => Some((0, own)),
            _ => None,
        }
    }

    fn start(&self) -> usize {
        self.seed * 131
    }

    fn next(&self) -> usize {
        (self.rank + 1) % self.nranks
    }

    fn previous(&self) -> usize {
        (self.rank + self.nranks - 1) % self.nranks
    }

    /// Elements that `from` sends to `to` in an exchange.
    fn share(&self, from: usize, to: usize) -> usize {
        self.count * ((from * 3 + to * 5 + self.seed) % 4) / 3
    }

    fn raw(&self, from: usize, to: usize) -> Pattern {
        Pattern::raw(from, to, self.t.size())
    }

    /// What the send buffer holds before, and, out of place, after the call.
    pub fn inputs(&self) -> Vec<Region> {
        let (count, start, rank) = (self.count, self.start(), self.rank);
        if !self.uses_send() {
            return Vec::new();
        }
        let blocks = |share: &dyn Fn(usize) -> usize| {
            let block = |to| Region::new(to * count, share(to), self.raw(rank, to), start);
            (0..self.nranks).map(block).collect()
        };
        match self.function {
            AllReduce | Reduce | ReduceScatter => {
                let pattern = Pattern::input(self.t, self.op, rank, self.nranks, self.values);
                vec![Region::new(0, self.send_count(), pattern, start)]
            }
            Broadcast | Bcast | AllGather | Gather => {
                vec![Region::new(0, count, self.raw(rank, rank), start)]
            }
            SendRecv => vec![Region::new(0, count, self.raw(rank, self.next()), start)],
            AllToAll | Scatter => blocks(&|_| count),
            Exchange => blocks(&|to| self.share(rank, to)),
        }
    }

    /// What the receive buffer holds after the call where the call wrote.
    pub fn outputs(&self) -> Vec<Region> {
        let (count, start, rank) = (self.count, self.start(), self.rank);
        if !self.uses_recv() {
            return Vec::new();
        }
        let blocks = |share: &dyn Fn(usize) -> usize, to: &dyn Fn(usize) -> usize| {
            let block = |from| Region::new(from * count, share(from), self.raw(from, to(from)), start);
            (0..self.nranks).map(block).collect()
        };
        let result = |start| {
            let pattern = Pattern::result(self.t, self.op, self.nranks, self.values);
            vec![Region::new(0, count, pattern, start)]
        };
        match self.function {
            AllReduce | Reduce => result(start),
            ReduceScatter => result(start + rank * count),
            Broadcast | Bcast => vec![Region::new(0, count, self.raw(self.root, self.root), start)],
            SendRecv => vec![Region::new(0, count, self.raw(self.previous(), rank), start)],
            Scatter => vec![Region::new(0, count, self.raw(self.root, rank), start)],
            AllGather | Gather => blocks(&|_| count, &|from| from),
            AllToAll => blocks(&|_| count, &|_| rank),
            Exchange => blocks(&|from| self.share(from, rank), &|_| rank),
        }
    }

    /// Makes the call; messages as one group.
    pub fn enqueue(&self, nccl: &Nccl, comm: Comm, stream: Stream, send: u64, recv: u64) -> Outcome {
        let (count, t, root) = (self.count, self.t.code(), self.root as i32);
        let op = if self.op == Op::Scaled { self.made_op } else { self.op.code() };
        let code = match self.function {
            AllReduce => nccl.all_reduce(send, recv, count, t, op, comm, stream),
            ReduceScatter => nccl.reduce_scatter(send, recv, count, t, op, comm, stream),
            Reduce => nccl.reduce(send, recv, count, t, op, root, comm, stream),
            Broadcast => nccl.broadcast(send, recv, count, t, root, comm, stream),
            Bcast => nccl.bcast(recv, count, t, root, comm, stream),
            AllGather => nccl.all_gather(send, recv, count, t, comm, stream),
            AllToAll => nccl.all_to_all(send, recv, count, t, comm, stream),
            Gather => nccl.gather(send, recv, count, t, root, comm, stream),
            Scatter => nccl.scatter(send, recv, count, t, root, comm, stream),
            SendRecv => {
                return nccl.group(comm, || {
                    let sent = nccl.send(send, count, t, self.next() as i32, comm, stream);
                    nccl.ok("ncclSend", comm, sent)?;
                    let received = nccl.recv(recv, count, t, self.previous() as i32, comm, stream);
                    nccl.ok("ncclRecv", comm, received)
                });
            }
            Exchange => return self.exchange(nccl, comm, stream, send, recv),
        };
        nccl.ok(&format!("{self:?}"), comm, code)
    }

    /// Every rank posts in an order of its own.
    fn exchange(&self, nccl: &Nccl, comm: Comm, stream: Stream, send: u64, recv: u64) -> Outcome {
        let (t, size, n) = (self.t.code(), self.t.size(), self.nranks);
        let block = |base: u64, peer: usize| base + (peer * self.count * size) as u64;
        nccl.group(comm, || {
            for turn in 0..n {
                let to = (self.rank * 3 + turn) % n;
                let from = (self.rank + 2 * n - turn) % n;
                let post_send = || {
                    let count = self.share(self.rank, to);
                    let code = nccl.send(block(send, to), count, t, to as i32, comm, stream);
                    nccl.ok("ncclSend", comm, code)
                };
                let post_recv = || {
                    let count = self.share(from, self.rank);
                    let code = nccl.recv(block(recv, from), count, t, from as i32, comm, stream);
                    nccl.ok("ncclRecv", comm, code)
                };
                if (self.rank + self.seed).is_multiple_of(2) {
                    post_send()?;
                    post_recv()?;
                } else {
                    post_recv()?;
                    post_send()?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes out of one rank comes in at another, in every function that moves data.
    #[test]
    fn inputs_and_outputs_agree() {
        for function in Function::ALL.into_iter().filter(|f| !f.reduces()) {
            let call = |rank| Call {
                function,
                t: Type::Uint8,
                op: Op::Sum,
                made_op: -1,
                root: 1,
                count: 12,
                rank,
                nranks: 3,
                in_place: false,
                values: Values::Numbers,
                seed: 5,
            };
            let sent: Vec<Vec<u8>> = (0..3)
                .flat_map(|rank| call(rank).inputs())
                .map(|r| r.pattern.bytes(r.start, r.count))
                .collect();
            for rank in 0..3 {
                for region in call(rank).outputs() {
                    let wanted = region.pattern.bytes(region.start, region.count);
                    assert!(sent.contains(&wanted), "{function:?} rank {rank} at {}", region.at);
                }
            }
        }
    }

    #[test]
    fn in_place_is_where_nccl_says() {
        let call = |function, rank| Call { function, root: 2, in_place: true, ..Call::sum(rank, 4, 10, 0) };
        assert_eq!(call(ReduceScatter, 3).in_place_offsets(), Some((0, 30)));
        assert_eq!(call(AllGather, 3).in_place_offsets(), Some((30, 0)));
        assert_eq!(call(Gather, 2).in_place_offsets(), Some((20, 0)));
        assert_eq!(call(Gather, 1).in_place_offsets(), None);
        assert_eq!(call(AllToAll, 1).in_place_offsets(), None);
    }
}
