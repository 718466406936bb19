//! One collective as all ranks call it: inputs, launch, expected result.

use std::sync::mpsc::RecvTimeoutError;

use super::gpu::layout::{KERNEL_LOCAL, Layout, Protocol, collective_kernel};
use super::gpu::work::*;
use super::reference::{Op, Random, Type, element, reduce_vectors, vector};
use super::world::{Buffer, World, launch};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub function: u32,
    pub protocol: Protocol,
    pub kind: Type,
    pub op: Op,
    pub root: u32,
    pub count: usize,
    pub grid: u32,
    pub chunk: u32,
    pub in_place: bool,
    /// Offsets of the buffers from an aligned address, in elements.
    pub offsets: (usize, usize),
    pub scalar_in_memory: bool,
    /// Of the inputs.
    pub seed: u64,
}

pub const FUNCTIONS: [u32; 5] = [FN_ALL_REDUCE, FN_BROADCAST, FN_REDUCE, FN_ALL_GATHER, FN_REDUCE_SCATTER];

impl Call {
    pub fn random(layout: &Layout, random: &mut Random, most_bytes: usize) -> Self {
        let kind = random.pick(&super::reference::TYPES);
        let protocol = random.pick(&[Protocol::Ll, Protocol::Simple]);
        let slot = layout.chunk(protocol);
        let chunk = random.pick(&[16, 48, 256, 1024, slot, slot]).min(slot);
        let most = most_bytes / kind.size();
        let count = match random.below(4) {
            0 => 1 + random.below(40) as usize,
            1 => 1 + random.below(600).min(most as u64) as usize,
            _ => 1 + random.below(most as u64) as usize,
        };
        // Many steps of few bytes say no more than some do.
        let count = count.min(chunk as usize * 40 / kind.size());
        Self {
            function: random.pick(&FUNCTIONS),
            protocol,
            kind,
            op: random.pick(&super::reference::OPS),
            root: random.below(u64::from(layout.nranks)) as u32,
            count,
            grid: 1 + random.below(4) as u32,
            chunk,
            in_place: random.below(3) == 0,
            offsets: if random.below(2) == 0 {
                (0, 0)
            } else {
                (random.below(5) as usize, random.below(5) as usize)
            },
            scalar_in_memory: random.below(2) == 0,
            seed: random.next(),
        }
    }

    pub fn fingerprint(&self) -> u64 {
        self.count as u64
            | u64::from(self.function) << 60
            | (self.kind as u64) << 56
            | (self.op as u64) << 52
            | u64::from(self.root) << 44
    }

    fn reduces(&self) -> bool {
        matches!(self.function, FN_ALL_REDUCE | FN_REDUCE | FN_REDUCE_SCATTER)
    }

    fn input(&self, nranks: u32, rank: u32) -> Vec<u8> {
        let count =
            if self.function == FN_REDUCE_SCATTER { self.count * nranks as usize } else { self.count };
        vector(self.kind, count, &mut Random(self.seed ^ (u64::from(rank) << 32)))
    }

    fn scalar(&self, rank: u32) -> u64 {
        element(self.kind, &mut Random(self.seed ^ (0x5ca1_u64 << 40) ^ u64::from(rank)))
    }

    /// What `rank` must find in its output; `None` where it has none.
    fn expected(&self, nranks: u32, rank: u32) -> Option<Vec<u8>> {
        let bytes = self.count * self.kind.size();
        let inputs: Vec<Vec<u8>> = match self.function {
            FN_BROADCAST => return Some(self.input(nranks, self.root)),
            FN_REDUCE if rank != self.root => return None,
            // One rank's reduction is a copy, bit for bit, unless it scales.
            _ if nranks == 1 && self.op != Op::PremulSum => return Some(self.input(1, 0)),
            _ => (0..nranks).map(|peer| self.input(nranks, peer)).collect(),
        };
        if self.function == FN_ALL_GATHER {
            return Some(inputs.concat());
        }
        let part = if self.function == FN_REDUCE_SCATTER { rank as usize * bytes } else { 0 };
        let views: Vec<&[u8]> = inputs.iter().map(|input| &input[part..part + bytes]).collect();
        let scalars: Vec<u64> = (0..nranks).map(|peer| self.scalar(peer)).collect();
        Some(reduce_vectors(self.kind, self.op, &views, &scalars))
    }

    /// Runs the call as `rank` and checks what it has done to this rank's memory.
    pub fn run(&self, world: &World, rank: u32) {
        let result = self.run_unchecked(world, rank);
        assert_eq!(world.error(rank), None, "rank {rank}: {self:?}");
        let nranks = world.layout.nranks;
        if let (Some(expected), Some(result)) = (self.expected(nranks, rank), &result)
            && *result != expected
        {
            let at = result.iter().zip(&expected).position(|(a, b)| a != b).expect("they differ");
            let size = self.kind.size();
            let element = at / size * size;
            panic!(
                "rank {rank} of {nranks}: element {} is {:02x?}, should be {:02x?}: {self:?}",
                at / size,
                &result[element..element + size],
                &expected[element..element + size]
            );
        }
    }

    /// Runs the call; returns the output, if this rank has one.
    pub fn run_unchecked(&self, world: &World, rank: u32) -> Option<Vec<u8>> {
        let nranks = world.layout.nranks;
        let (bytes, size) = (self.count * self.kind.size(), self.kind.size());
        let input = self.input(nranks, rank);
        let scalar = self.scalar(rank);
        let scalar_memory = Buffer::new(&scalar.to_ne_bytes(), 0);
        let is_input_whole = self.function != FN_ALL_GATHER || !self.in_place;
        let send_offset = self.offsets.0 * size % 16;
        let recv_offset = self.offsets.1 * size % 16;
        let send = is_input_whole.then(|| Buffer::new(&input, send_offset));
        let has_output = self.function != FN_REDUCE || rank == self.root;
        let output_bytes = if self.function == FN_ALL_GATHER { bytes * nranks as usize } else { bytes };
        let mut output = vec![0x3cu8; output_bytes];
        if self.function == FN_ALL_GATHER && self.in_place {
            output[rank as usize * bytes..][..bytes].copy_from_slice(&input);
        }
        let own_output = (has_output && (!self.in_place || self.function == FN_ALL_GATHER))
            .then(|| Buffer::new(&output, recv_offset));
        let send_address = send.as_ref().map_or_else(
            || {
                own_output.as_ref().expect("in-place all-gather has one").address()
                    + u64::from(rank) * bytes as u64
            },
            Buffer::address,
        );
        let part = if self.function == FN_REDUCE_SCATTER { rank as usize * bytes } else { 0 };
        let recv_address = match (&own_output, has_output) {
            (_, false) => 0,
            (Some(buffer), true) => buffer.address(),
            (None, true) => send_address + part as u64,
        };
        // A root's input is not read where the rank is not the root of a broadcast.
        let send_argument = if self.function == FN_BROADCAST && rank != self.root && !self.in_place {
            0
        } else {
            send_address
        };
        let work = CollectiveWork {
            comm: world.comm(rank),
            send: send_argument,
            recv: recv_address,
            count: self.count as u64,
            fingerprint: self.fingerprint(),
            function: self.function,
            datatype: self.kind as u32,
            op: if self.reduces() { self.op as u32 } else { 0 },
            root: self.root,
            scalar: if self.scalar_in_memory { scalar_memory.address() } else { scalar },
            scalar_is_address: u32::from(self.scalar_in_memory),
            chunk: self.chunk,
            grid: self.grid,
            reserved: [0; 3],
        };
        let kernel = match nranks {
            1 => KERNEL_LOCAL,
            _ => collective_kernel(self.function, self.protocol, self.kind as u32, work.op),
        };
        launch(kernel, self.grid, &work);
        for buffer in [&send, &own_output].into_iter().flatten() {
            buffer.assert_guards();
        }
        if let (Some(send), true) = (&send, own_output.is_some() || !has_output) {
            assert_eq!(send.content(), input, "rank {rank}: the input was written: {self:?}");
        }
        if !has_output {
            return None;
        }
        let content = own_output.as_ref().or(send.as_ref()).expect("there is an output").content();
        let part = if own_output.is_some() { 0 } else { part };
        Some(content[part..part + output_bytes].to_vec())
    }
}

/// How long the ranks of one test may take, many times what they need.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs `each(rank)` for all ranks at the same time. A rank that panics ends the waits of the others, which may wait for it, and
/// so does the deadline; they then find the error of an abort.
pub fn on_all_ranks(world: &World, each: impl Fn(u32) + Sync) {
    struct AbortIfPanicking<'a>(&'a World);
    impl Drop for AbortIfPanicking<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.abort_all();
            }
        }
    }
    std::thread::scope(|scope| {
        let (running, ended) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            // All ranks have ended when the last of them drops its end.
            if ended.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                world.abort_all();
            }
        });
        for rank in 0..world.layout.nranks {
            let (each, running) = (&each, running.clone());
            scope.spawn(move || {
                let _running = running;
                let _guard = AbortIfPanicking(world);
                each(rank);
            });
        }
        drop(running);
    });
}
