//! The collectives: what each one needs, sends and should receive, how it is called, how its bandwidth is counted.
//!
//! Sizes mean what they mean in nccl-tests: the bytes of the larger of a rank's two buffers. Bus bandwidth is the
//! algorithm's bandwidth times a factor that makes it comparable with the hardware's.

use crate::cuda::{DevicePtr, Stream};
use crate::nccl::{Comm, Failure, Nccl};
use crate::types::{DataType, Op, Pattern};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    AllReduce,
    Broadcast,
    SendRecv,
    AllGather,
    ReduceScatter,
    Reduce,
    AllToAll,
    /// All-to-all as one group of sends and receives.
    Exchange,
}

use Collective::*;

/// In the order in which `all` runs them.
pub const ALL: [Collective; 8] =
    [AllReduce, Broadcast, SendRecv, Exchange, AllGather, ReduceScatter, Reduce, AllToAll];

/// One call, as one rank sees it.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub collective: Collective,
    pub t: DataType,
    pub op: Op,
    pub root: usize,
    /// Elements that the table shows and the call is given: of a block where the collective works in blocks.
    pub count: usize,
    pub rank: usize,
    pub nranks: usize,
    pub in_place: bool,
}

/// A stretch of a buffer and what is in it.
pub struct Region {
    pub at: usize,
    pub len: usize,
    pub pattern: Pattern,
    /// Where in the pattern the stretch begins.
    pub start: usize,
    pub slack: bool,
}

impl Collective {
    pub fn name(self) -> &'static str {
        match self {
            AllReduce => "all_reduce",
            Broadcast => "broadcast",
            SendRecv => "sendrecv",
            Exchange => "exchange",
            AllGather => "all_gather",
            ReduceScatter => "reduce_scatter",
            Reduce => "reduce",
            AllToAll => "alltoall",
        }
    }

    pub fn by_name(name: &str) -> Option<Collective> {
        ALL.into_iter().find(|c| c.name() == name)
    }

    pub fn reduces(self) -> bool {
        matches!(self, AllReduce | ReduceScatter | Reduce)
    }

    pub fn has_root(self) -> bool {
        matches!(self, Broadcast | Reduce)
    }

    pub fn can_be_in_place(self) -> bool {
        !matches!(self, SendRecv | Exchange | AllToAll)
    }

    /// Whether a buffer holds one block per rank.
    fn in_blocks(self) -> bool {
        matches!(self, AllGather | ReduceScatter | AllToAll | Exchange)
    }

    /// The call's count for a size in bytes.
    pub fn count(self, bytes: usize, element: usize, nranks: usize) -> usize {
        bytes / element / if self.in_blocks() { nranks } else { 1 }
    }

    /// Bytes that the table shows for a count.
    pub fn bytes(self, count: usize, element: usize, nranks: usize) -> usize {
        count * element * if self.in_blocks() { nranks } else { 1 }
    }

    pub fn bus_factor(self, nranks: usize) -> f64 {
        let n = nranks as f64;
        match self {
            AllReduce => 2.0 * (n - 1.0) / n,
            AllGather | ReduceScatter | AllToAll | Exchange => (n - 1.0) / n,
            Broadcast | Reduce | SendRecv => 1.0,
        }
    }
}

impl Call {
    pub fn send_bytes(&self) -> usize {
        let blocks =
            if matches!(self.collective, ReduceScatter | AllToAll | Exchange) { self.nranks } else { 1 };
        self.count * self.t.size * blocks
    }

    pub fn recv_bytes(&self) -> usize {
        let blocks = if matches!(self.collective, AllGather | AllToAll | Exchange) { self.nranks } else { 1 };
        self.count * self.t.size * blocks
    }

    /// Where the two buffers lie in the common one of an in-place call.
    pub fn in_place_offsets(&self) -> (usize, usize) {
        let own = self.rank * self.count * self.t.size;
        match self.collective {
            AllGather => (own, 0),
            ReduceScatter => (0, own),
            _ => (0, 0),
        }
    }

    /// What this rank puts into its send buffer.
    pub fn inputs(&self, seed: usize) -> Vec<Region> {
        let block = self.count * self.t.size;
        match self.collective {
            AllReduce | ReduceScatter | Reduce => {
                let pattern = Pattern::input(self.t, self.op, self.rank, self.nranks, seed);
                vec![Region { at: 0, len: self.send_bytes(), pattern, start: 0, slack: false }]
            }
            Broadcast | AllGather => vec![raw(0, block, Pattern::raw(self.rank, 0, seed))],
            SendRecv => vec![raw(0, block, Pattern::raw(self.rank, self.next(), seed))],
            AllToAll | Exchange => {
                (0..self.nranks).map(|to| raw(to * block, block, Pattern::raw(self.rank, to, seed))).collect()
            }
        }
    }

    /// What this rank has to find in its receive buffer. Nothing when the call leaves it alone.
    pub fn outputs(&self, seed: usize) -> Vec<Region> {
        let block = self.count * self.t.size;
        let reduced = |start: usize| {
            let pattern = Pattern::result(self.t, self.op, self.nranks, seed);
            vec![Region { at: 0, len: block, pattern, start, slack: self.op.slack(self.nranks) }]
        };
        match self.collective {
            AllReduce => reduced(0),
            ReduceScatter => reduced(self.rank * block),
            Reduce if self.rank == self.root => reduced(0),
            Reduce => Vec::new(),
            Broadcast => vec![raw(0, block, Pattern::raw(self.root, 0, seed))],
            AllGather => {
                (0..self.nranks).map(|from| raw(from * block, block, Pattern::raw(from, 0, seed))).collect()
            }
            SendRecv => vec![raw(0, block, Pattern::raw(self.previous(), self.rank, seed))],
            AllToAll | Exchange => (0..self.nranks)
                .map(|from| raw(from * block, block, Pattern::raw(from, self.rank, seed)))
                .collect(),
        }
    }

    fn next(&self) -> usize {
        (self.rank + 1) % self.nranks
    }

    fn previous(&self) -> usize {
        (self.rank + self.nranks - 1) % self.nranks
    }

    /// Enqueues the call.
    pub fn enqueue(
        &self,
        nccl: &Nccl,
        comm: Comm,
        stream: Stream,
        send: DevicePtr,
        recv: DevicePtr,
    ) -> Result<(), Failure> {
        let f = &nccl.f;
        let (count, t, op, root) = (self.count, self.t.code, self.op.code, self.root as i32);
        let block = (count * self.t.size) as u64;
        // SAFETY: live communicator and stream; the buffers have the sizes of `send_bytes` and `recv_bytes`.
        unsafe {
            let (name, rc) = match self.collective {
                AllReduce => ("ncclAllReduce", (f.all_reduce)(send, recv, count, t, op, comm, stream)),
                Broadcast => ("ncclBroadcast", (f.broadcast)(send, recv, count, t, root, comm, stream)),
                Reduce => ("ncclReduce", (f.reduce)(send, recv, count, t, op, root, comm, stream)),
                AllGather => ("ncclAllGather", (f.all_gather)(send, recv, count, t, comm, stream)),
                ReduceScatter => {
                    ("ncclReduceScatter", (f.reduce_scatter)(send, recv, count, t, op, comm, stream))
                }
                AllToAll => ("ncclAlltoAll", nccl.all_to_all()?(send, recv, count, t, comm, stream)),
                SendRecv => {
                    return nccl.group(comm, || {
                        let rc = (f.send)(send, count, t, self.next() as i32, comm, stream);
                        nccl.check("ncclSend", comm, rc)?;
                        let rc = (f.recv)(recv, count, t, self.previous() as i32, comm, stream);
                        nccl.check("ncclRecv", comm, rc)
                    });
                }
                Exchange => {
                    return nccl.group(comm, || {
                        for peer in 0..self.nranks {
                            let at = peer as u64 * block;
                            let rc = (f.send)(send + at, count, t, peer as i32, comm, stream);
                            nccl.check("ncclSend", comm, rc)?;
                            let rc = (f.recv)(recv + at, count, t, peer as i32, comm, stream);
                            nccl.check("ncclRecv", comm, rc)?;
                        }
                        Ok(())
                    });
                }
            };
            nccl.check(name, comm, rc)
        }
    }
}

fn raw(at: usize, len: usize, pattern: Pattern) -> Region {
    Region { at, len, pattern, start: 0, slack: false }
}
