//! The operations of one communicator, put on their streams.
//!
//! All streams that a batch names are joined before its first launch and held until its last one, which is
//! what NCCL promises for a group. Operations of one communicator run one after the other: an operation on
//! another stream than the last waits for that one's event. Collectives are launched in call order, small
//! ones that follow each other by one launch, then all messages by one launch, so ranks may mix the two in any
//! order inside a group.

use std::sync::Arc;

use super::messages::launch_messages;
use super::{Kind, Message, Operation};
use crate::comm::{Comm, Lists, Needs, Order, Scalar};
use crate::error::{Error, Result};
use crate::gpu::host_block::Record;
use crate::gpu::layout::{KERNEL_GROUP, KERNEL_LOCAL, collective_kernel};
use crate::gpu::stream::{CallerStream, Capture, Event};
use crate::gpu::work::{CollectiveWork, CommArgs, GROUP_ITEMS, GroupItem, GroupWork};
use crate::schedule::Signature;
use crate::schedule::tuning::{Choice, Protocol, choose};

/// What a block of the one-rank kernel is worth being started for, and how many fill a GPU.
const LOCAL_BYTES_PER_BLOCK: u64 = 32 << 10;
const LOCAL_MOST_BLOCKS: u64 = 128;

/// Launches a batch; all operations belong to the communicator of the first.
pub fn launch(operations: Vec<Operation>) -> Result<()> {
    let Some(first) = operations.first() else { return Ok(()) };
    let comm = first.comm.clone();
    comm.check_usable()?;
    let _bound = comm.context().bind()?;
    let _launching = comm.tenant().launching();
    // One batch at a time: another thread's must not come between a wait and its launch.
    let mut order = comm.order().lock();
    let streams = Streams::of(&operations)?;
    streams.join(&comm, &mut order)?;
    let launched = launch_all(&comm, &operations, &streams, &mut order.lists);
    // Also after a failure: what was launched must be waited for.
    let released = streams.release(&comm, &mut order);
    launched.and(released)
}

fn launch_all(
    comm: &Arc<Comm>,
    operations: &[Operation],
    streams: &Streams,
    lists: &mut Lists,
) -> Result<()> {
    let mut messages: Vec<Message> = Vec::new();
    let mut together = Together::default();
    for operation in operations {
        match operation.kind {
            Kind::Copy { from, to, bytes } => streams.main.copy(to, from, bytes as usize)?,
            Kind::Collective { signature, scalar, send, recv } => {
                let collective = Collective { signature, scalar, send, recv };
                let choice = choose(comm.limits(), signature.function, collective.bytes());
                if choice.protocol == Protocol::Ll && operations.len() > 1 {
                    together.add(comm, collective, choice, streams)?;
                } else {
                    // All ranks launch their collectives in call order.
                    together.launch(comm, streams)?;
                    collective.launch(comm, choice, streams)?;
                }
            }
            Kind::Local { signature, scalar, send, recv } => {
                let collective = Collective { signature, scalar, send, recv };
                collective.launch_local(comm, streams)?;
            }
            Kind::Message(message) => messages.push(message),
        }
    }
    together.launch(comm, streams)?;
    launch_messages(comm, &messages, streams, lists)
}

/// Collectives that go by LL, waiting for a common launch.
#[derive(Default)]
struct Together {
    waiting: Vec<(Collective, Choice)>,
}

impl Together {
    fn add(&mut self, comm: &Comm, collective: Collective, choice: Choice, streams: &Streams) -> Result<()> {
        self.waiting.push((collective, choice));
        if self.waiting.len() == GROUP_ITEMS { self.launch(comm, streams) } else { Ok(()) }
    }

    fn launch(&mut self, comm: &Comm, streams: &Streams) -> Result<()> {
        if let [(collective, choice)] = &self.waiting[..] {
            // Alone it has a kernel for its type.
            collective.launch(comm, *choice, streams)?;
        } else if !self.waiting.is_empty() {
            let args = comm.args(&Needs::default())?;
            let mut work = GroupWork {
                comm: args,
                count: self.waiting.len() as u32,
                reserved: [0; 3],
                items: [GroupItem::default(); GROUP_ITEMS],
            };
            let mut grid = 1;
            for ((collective, choice), item) in self.waiting.iter().zip(&mut work.items) {
                let single = collective.work(args, choice.chunk, choice.grid);
                collective.record(comm, &single, streams);
                *item = GroupItem::of(&single);
                grid = grid.max(choice.grid);
            }
            comm.kernels().get(KERNEL_GROUP).launch(grid, &work, streams.main)?;
        }
        self.waiting.clear();
        Ok(())
    }
}

struct Collective {
    signature: Signature,
    scalar: Option<Scalar>,
    send: u64,
    recv: u64,
}

impl Collective {
    fn launch(&self, comm: &Comm, choice: Choice, streams: &Streams) -> Result<()> {
        let Choice { protocol, grid, chunk } = choice;
        let work = self.work(comm.args(&Needs::stage(protocol == Protocol::Simple))?, chunk, grid);
        let kernel = collective_kernel(work.function, protocol, work.datatype, work.op);
        tracing::trace!(
            target: "COLL",
            "rank {}: {} of {} bytes by {protocol:?}, {grid} blocks, {chunk} bytes a step",
            comm.rank(),
            self.signature.function.name(),
            self.bytes()
        );
        self.record(comm, &work, streams);
        comm.kernels().get(kernel).launch(grid, &work, streams.main)
    }

    fn record(&self, comm: &Comm, work: &CollectiveWork, streams: &Streams) {
        let (fingerprint, bytes, grid) = (work.fingerprint, self.bytes(), work.grid);
        comm.record(Record { fingerprint, bytes, grid, ..streams.record() });
    }

    /// A communicator of one rank: only its own data, prepared.
    fn launch_local(&self, comm: &Comm, streams: &Streams) -> Result<()> {
        let bytes = self.bytes();
        let grid = bytes.div_ceil(LOCAL_BYTES_PER_BLOCK).clamp(1, LOCAL_MOST_BLOCKS) as u32;
        let work = self.work(comm.args(&Needs::default())?, 16, grid);
        self.record(comm, &work, streams);
        comm.kernels().get(KERNEL_LOCAL).launch(grid, &work, streams.main)
    }

    fn bytes(&self) -> u64 {
        self.signature.count * self.signature.datatype.size() as u64
    }

    fn work(&self, comm: CommArgs, chunk: u32, grid: u32) -> CollectiveWork {
        let (scalar, scalar_is_address) = match self.scalar {
            None => (0, 0),
            Some(Scalar::Value(bits)) => (bits, 0),
            Some(Scalar::Device(address)) => (address, 1),
        };
        CollectiveWork {
            comm,
            send: self.send,
            recv: self.recv,
            count: self.signature.count,
            fingerprint: self.signature.fingerprint(),
            function: self.signature.function as u32,
            datatype: self.signature.datatype as u32,
            op: self.signature.reduction as u32,
            root: self.signature.root,
            scalar,
            scalar_is_address,
            chunk,
            grid,
            reserved: [0; 3],
        }
    }
}

/// The distinct streams of a batch.
pub(super) struct Streams {
    /// Everything is launched here.
    pub main: CallerStream,
    pub others: Vec<CallerStream>,
    pub capture: Capture,
}

impl Streams {
    fn of(operations: &[Operation]) -> Result<Streams> {
        let main = operations.first().ok_or_else(|| Error::internal("a batch without operations"))?.stream;
        let capture = main.capture()?;
        let mut others = Vec::new();
        for operation in operations {
            let stream = operation.stream;
            if stream == main || others.contains(&stream) {
                continue;
            }
            if stream.capture()? != capture {
                return Err(Error::usage(
                    "the streams of a group are not all captured by the same graph, or not all uncaptured",
                ));
            }
            others.push(stream);
        }
        Ok(Streams { main, others, capture })
    }

    /// What the ring keeps of the place of an operation.
    pub fn record(&self) -> Record {
        let captured = u32::from(matches!(self.capture, Capture::Active { .. }));
        Record { stream: self.main.0, captured, ..Record::default() }
    }

    /// Makes the main stream wait for the others, and for the communicator's last operation if that was
    /// elsewhere.
    fn join(&self, comm: &Arc<Comm>, order: &mut Order) -> Result<()> {
        for other in &self.others {
            // Destroying an event with a pending wait is fine: the driver keeps what it needs.
            let event = Event::new(comm.context())?;
            event.record(*other)?;
            self.main.wait(&event)?;
        }
        match self.capture {
            Capture::None => {
                if order.last.is_some_and(|last| last != self.main || !last.is_unique()) {
                    self.main.wait(&order.event)?;
                }
            }
            Capture::Active { id, graph } => match &order.captured {
                Some((last, stream, event)) if *last == id => {
                    if *stream != self.main {
                        self.main.wait(event)?;
                    }
                }
                // The first operation that this capture sees of the communicator: the graph keeps the
                // communicator's memory.
                _ => {
                    comm.tenant().enter_graph();
                    graph.keep(comm.clone(), Comm::graph_let_go)?;
                }
            },
        }
        Ok(())
    }

    /// Remembers this batch as the communicator's last, and lets the other streams go on after it.
    fn release(&self, comm: &Arc<Comm>, order: &mut Order) -> Result<()> {
        match self.capture {
            Capture::None => {
                order.event.record(self.main)?;
                order.last = Some(self.main);
                for other in &self.others {
                    other.wait(&order.event)?;
                }
            }
            Capture::Active { id, .. } => {
                // An event that was recorded in a capture belongs to it, so each operation needs a new one.
                let event = Event::new(comm.context())?;
                event.record(self.main)?;
                for other in &self.others {
                    other.wait(&event)?;
                }
                order.captured = Some((id, self.main, event));
            }
        }
        Ok(())
    }
}
