//! Sizes, offsets and rules that host and kernels of all ranks must agree on without asking.
//!
//! Everything here is a function of the number of ranks and of a call's arguments. Memory per rank is bounded: base region <= 2 MiB up to
//! 8 ranks, stage region about 16 MiB, p2p region 2 MiB per sending peer.

use super::work::*;

/// Payload of all of one channel's LL slots of one parity; shared by the peers.
const LL_BYTES: usize = 8 << 10;
const LL_MIN_CHUNK: usize = 256;
const LL_CHANNELS: usize = 32;
const SIMPLE_CHANNELS: usize = 32;
const SIMPLE_MAX_CHUNK: usize = 64 << 10;
const SIMPLE_MIN_CHUNK: usize = 8 << 10;
const STAGE_BYTES: usize = 16 << 20;
const P2P_LL_BYTES: usize = 32 << 10;
const P2P_LL_MAX_CHUNK: usize = 16 << 10;
const P2P_LL_MIN_CHUNK: usize = 256;
const P2P_CHUNK: usize = 64 << 10;
/// Largest message that goes by LL.
const MESSAGE_LL_MAX: u64 = 16 << 10;
/// A message gets one more channel for each of these.
const MESSAGE_CHANNEL_BYTES: u64 = 256 << 10;
/// Most lanes of one direction that a rank drives at a time, so that a group with all peers fits on a GPU.
const MESSAGE_LANES: usize = 64;

/// Where things are in a communicator's memory of `nranks` ranks on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub nranks: u32,
    pub ll_chunk: u32,
    pub ll_channels: u32,
    pub simple_chunk: u32,
    pub simple_channels: u32,
    pub p2p_ll_chunk: u32,
    pub p2p_chunk: u32,
    pub mailbox_offset: u32,
    pub ll_offset: u32,
    pub p2p_ll_offset: u32,
    /// State area: own GPU memory, zeroed.
    pub state_bytes: usize,
    /// Base region: zeroed.
    pub base_bytes: usize,
    /// Stage region: any content.
    pub stage_bytes: usize,
    /// P2p region, per sending peer: any content.
    pub p2p_bytes: usize,
}

fn pow2_floor(value: usize) -> usize {
    1 << value.max(1).ilog2()
}

impl Layout {
    pub fn new(nranks: u32) -> Self {
        let n = nranks.max(1) as usize;
        let peers = (n - 1).max(1);
        let ll_chunk = pow2_floor(LL_BYTES / peers).max(LL_MIN_CHUNK);
        let p2p_ll_chunk = pow2_floor(P2P_LL_BYTES / peers).clamp(P2P_LL_MIN_CHUNK, P2P_LL_MAX_CHUNK);
        // The stage region holds peers x ways x channels x slots x chunk: with more peers the chunk shrinks, then the channels.
        let per_channel = peers * WAYS * SIMPLE_SLOTS as usize;
        let simple_chunk = pow2_floor(STAGE_BYTES / (per_channel * SIMPLE_CHANNELS))
            .clamp(SIMPLE_MIN_CHUNK, SIMPLE_MAX_CHUNK);
        let simple_channels = (STAGE_BYTES / (per_channel * simple_chunk)).clamp(4, SIMPLE_CHANNELS);

        let mailbox_offset = 0;
        let ll_offset = mailbox_offset + n * MAILBOX_STRIDE as usize;
        let p2p_ll_offset = ll_offset + peers * LL_CHANNELS * LL_SLOTS as usize * 2 * ll_chunk;
        let base_bytes = p2p_ll_offset + peers * P2P_LL_SLOTS as usize * 2 * p2p_ll_chunk;
        Self {
            nranks,
            ll_chunk: ll_chunk as u32,
            ll_channels: LL_CHANNELS as u32,
            simple_chunk: simple_chunk as u32,
            simple_channels: simple_channels as u32,
            p2p_ll_chunk: p2p_ll_chunk as u32,
            p2p_chunk: P2P_CHUNK as u32,
            mailbox_offset: mailbox_offset as u32,
            ll_offset: ll_offset as u32,
            p2p_ll_offset: p2p_ll_offset as u32,
            state_bytes: size_of::<State>()
                + n * FIFOS * MAX_CHANNELS * size_of::<FifoState>()
                + n * 2 * MAX_P2P_CHANNELS * size_of::<LaneState>(),
            base_bytes,
            stage_bytes: per_channel * simple_channels * simple_chunk,
            p2p_bytes: MAX_P2P_CHANNELS * SIMPLE_SLOTS as usize * P2P_CHUNK,
        }
    }

    /// The communicator's part of a launch, all addresses 0.
    pub fn comm_args(&self, rank: u32) -> CommArgs {
        CommArgs {
            rank,
            nranks: self.nranks,
            ll_chunk: self.ll_chunk,
            simple_chunk: self.simple_chunk,
            p2p_ll_chunk: self.p2p_ll_chunk,
            p2p_chunk: self.p2p_chunk,
            mailbox_offset: self.mailbox_offset,
            ll_offset: self.ll_offset,
            p2p_ll_offset: self.p2p_ll_offset,
            ll_channels: self.ll_channels,
            simple_channels: self.simple_channels,
            reserved: 0,
            state: 0,
            host: 0,
            table: 0,
            reserved2: 0,
            peers: [PeerArgs::default(); INLINE_PEERS],
        }
    }

    /// First content of the state area when all counters start at `start` (zeroes for 0): a test begins near the wrap-around.
    pub fn initial_state(&self, start: u32) -> Vec<u8> {
        let counter = if start == COUNTER_BUSY { 0 } else { start };
        let mut words = vec![0u32; self.state_bytes / 4];
        words[..MAX_CHANNELS].fill(counter);
        words[std::mem::offset_of!(State, chain_sequence) / 4] = counter;
        let fifos = size_of::<State>() / 4;
        let lanes = fifos + self.nranks as usize * FIFOS * MAX_CHANNELS * size_of::<FifoState>() / 4;
        for fifo in words[fifos..lanes].chunks_exact_mut(size_of::<FifoState>() / 4) {
            fifo[..3].fill(start);
        }
        for lane in words[lanes..].chunks_exact_mut(size_of::<LaneState>() / 4) {
            lane[0] = counter;
            lane[1..6].fill(start);
        }
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// First content of the mailboxes, at `mailbox_offset` of the base region, that goes with `initial_state(start)`.
    pub fn initial_mailboxes(&self, start: u32) -> Vec<u8> {
        let counter = if start == COUNTER_BUSY { 0 } else { start };
        let mut bytes = vec![0u8; self.nranks as usize * MAILBOX_STRIDE as usize];
        for mailbox in bytes.chunks_exact_mut(MAILBOX_STRIDE as usize) {
            let mut fill = |from: usize, count: usize, value: u32| {
                for i in 0..count {
                    mailbox[from + 4 * i..from + 4 * i + 4].copy_from_slice(&value.to_ne_bytes());
                }
            };
            // A line's words 1 and 3 hold its number.
            for line in 0..HEADER_SLOTS {
                for word in [1, 3] {
                    fill(std::mem::offset_of!(Mailbox, headers) + 16 * line + 4 * word, 1, counter << 16);
                    fill(std::mem::offset_of!(Mailbox, p2p_headers) + 16 * line + 4 * word, 1, start << 16);
                }
            }
            fill(std::mem::offset_of!(Mailbox, tail), WAYS * MAX_CHANNELS, start);
            fill(std::mem::offset_of!(Mailbox, head), WAYS * MAX_CHANNELS, start);
            fill(std::mem::offset_of!(Mailbox, ll_ack), MAX_CHANNELS, start);
            fill(std::mem::offset_of!(Mailbox, p2p_tail), MAX_P2P_CHANNELS, start);
            fill(std::mem::offset_of!(Mailbox, p2p_head), MAX_P2P_CHANNELS, start);
            fill(std::mem::offset_of!(Mailbox, p2p_ll_ack), 1, start);
        }
        bytes
    }
}

/// Whether a message goes by LL (`Message::is_ll`). Both sides must decide alike.
pub fn message_is_ll(bytes: u64) -> bool {
    bytes <= MESSAGE_LL_MAX
}

/// Channels, and lanes, of a message (`Message::channels`). Both sides must decide alike.
pub fn message_channels(bytes: u64, nranks: u32) -> u32 {
    if message_is_ll(bytes) {
        return 1;
    }
    let most = (MESSAGE_LANES / nranks.max(1) as usize).clamp(1, MAX_P2P_CHANNELS) as u64;
    bytes.div_ceil(MESSAGE_CHANNEL_BYTES).clamp(1, most) as u32
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Ll,
    Simple,
}

impl Layout {
    /// Channels that a collective's grid may have.
    pub fn channels(&self, protocol: Protocol) -> u32 {
        match protocol {
            Protocol::Ll => self.ll_channels,
            Protocol::Simple => self.simple_channels,
        }
    }

    /// Upper bound of `CollectiveWork::chunk`.
    pub fn chunk(&self, protocol: Protocol) -> u32 {
        match protocol {
            Protocol::Ll => self.ll_chunk,
            Protocol::Simple => self.simple_chunk,
        }
    }

    /// Blocks beyond which a collective over `bytes` (of the whole vector, or per rank where the count is per rank) gains nothing:
    /// LL with two lines of 8 bytes per thread, Simple with 4 KiB pieces.
    pub fn max_useful_grid(&self, protocol: Protocol, function: u32, bytes: u64) -> u32 {
        let pieces = match (protocol, function) {
            (Protocol::Simple, FN_ALL_REDUCE | FN_REDUCE) => u64::from(self.nranks),
            (Protocol::Simple, FN_BROADCAST) => u64::from(self.nranks.saturating_sub(1)),
            _ => 1,
        };
        let per_block = match protocol {
            Protocol::Ll => 4096,
            Protocol::Simple => 4096 * pieces.max(1),
        };
        bytes.div_ceil(per_block).clamp(1, u64::from(self.channels(protocol))) as u32
    }
}

/// What a kernel's one parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    Collective,
    Message,
    Probe,
    Group,
}

impl Argument {
    pub const fn size(self) -> usize {
        match self {
            Self::Collective => size_of::<CollectiveWork>(),
            Self::Message => size_of::<MessageWork>(),
            Self::Probe => size_of::<ProbeWork>(),
            Self::Group => size_of::<GroupWork>(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    pub name: &'static str,
    pub argument: Argument,
    /// Threads per block where the caller has no better idea; any number from 1 to `MAX_THREADS` is right.
    pub threads: u32,
}

const fn kernel(name: &'static str, argument: Argument, threads: u32) -> Kernel {
    Kernel { name, argument, threads }
}

/// Every kernel of kernels/kernels.cu. Reductions have four variants, in the order of `variant`.
pub const KERNELS: [Kernel; 32] = [
    kernel("oxccl_all_reduce_ll_sum_f32", Argument::Collective, 512),
    kernel("oxccl_all_reduce_ll_sum_f16", Argument::Collective, 512),
    kernel("oxccl_all_reduce_ll_sum_bf16", Argument::Collective, 512),
    kernel("oxccl_all_reduce_ll_any", Argument::Collective, 512),
    kernel("oxccl_all_reduce_simple_sum_f32", Argument::Collective, 512),
    kernel("oxccl_all_reduce_simple_sum_f16", Argument::Collective, 512),
    kernel("oxccl_all_reduce_simple_sum_bf16", Argument::Collective, 512),
    kernel("oxccl_all_reduce_simple_any", Argument::Collective, 512),
    kernel("oxccl_reduce_ll_sum_f32", Argument::Collective, 512),
    kernel("oxccl_reduce_ll_sum_f16", Argument::Collective, 512),
    kernel("oxccl_reduce_ll_sum_bf16", Argument::Collective, 512),
    kernel("oxccl_reduce_ll_any", Argument::Collective, 512),
    kernel("oxccl_reduce_simple_sum_f32", Argument::Collective, 512),
    kernel("oxccl_reduce_simple_sum_f16", Argument::Collective, 512),
    kernel("oxccl_reduce_simple_sum_bf16", Argument::Collective, 512),
    kernel("oxccl_reduce_simple_any", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_ll_sum_f32", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_ll_sum_f16", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_ll_sum_bf16", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_ll_any", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_simple_sum_f32", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_simple_sum_f16", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_simple_sum_bf16", Argument::Collective, 512),
    kernel("oxccl_reduce_scatter_simple_any", Argument::Collective, 512),
    kernel("oxccl_broadcast_ll", Argument::Collective, 512),
    kernel("oxccl_broadcast_simple", Argument::Collective, 512),
    kernel("oxccl_all_gather_ll", Argument::Collective, 512),
    kernel("oxccl_all_gather_simple", Argument::Collective, 512),
    kernel("oxccl_messages", Argument::Message, 512),
    kernel("oxccl_probe", Argument::Probe, 32),
    kernel("oxccl_local", Argument::Collective, 512),
    kernel("oxccl_group", Argument::Group, 256),
];

/// Index in `KERNELS` of the messages', the probe's and the one-rank kernel, and of that for groups of collectives. The one-rank kernel
/// does `recv = prepared and reduced send` of one rank (PREMUL_SUM's scaling, else a copy) with any grid.
pub const KERNEL_MESSAGES: usize = 28;
pub const KERNEL_PROBE: usize = 29;
pub const KERNEL_LOCAL: usize = 30;
pub const KERNEL_GROUP: usize = 31;

/// Index in `KERNELS` of the kernel for a collective.
pub fn collective_kernel(function: u32, protocol: Protocol, datatype: u32, op: u32) -> usize {
    const FLOAT16: u32 = 6;
    const FLOAT32: u32 = 7;
    const BFLOAT16: u32 = 9;
    let variant = match (op, datatype) {
        (OP_SUM, FLOAT32) => 0,
        (OP_SUM, FLOAT16) => 1,
        (OP_SUM, BFLOAT16) => 2,
        _ => 3,
    };
    let simple = usize::from(protocol == Protocol::Simple);
    match function {
        FN_ALL_REDUCE => 4 * simple + variant,
        FN_REDUCE => 8 + 4 * simple + variant,
        FN_REDUCE_SCATTER => 16 + 4 * simple + variant,
        FN_BROADCAST => 24 + simple,
        _ => 26 + simple,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_slots_fit() {
        for n in 1..=128u32 {
            let layout = Layout::new(n);
            assert!(n > 8 || layout.base_bytes <= 2 << 20, "{n}: {layout:?}");
            assert!(layout.stage_bytes <= (16 << 20).max(n as usize * (512 << 10)), "{n}: {layout:?}");
            assert_eq!(layout.p2p_bytes, 2 << 20);
            let peers = n.saturating_sub(1).max(1) as usize;
            assert!(peers * 4 * 2 * layout.p2p_ll_chunk as usize <= (256 << 10).max(peers * 2048));
            for chunk in [layout.ll_chunk, layout.simple_chunk, layout.p2p_ll_chunk, layout.p2p_chunk] {
                assert!(chunk >= 16 && chunk % 16 == 0);
            }
            assert!(
                layout.simple_channels as usize <= MAX_CHANNELS
                    && layout.ll_channels as usize <= MAX_CHANNELS
            );
            assert_eq!(layout.base_bytes % 16, 0);
        }
        assert_eq!(Layout::new(2).stage_bytes, 16 << 20);
        assert_eq!(Layout::new(2).ll_chunk, 8 << 10);
    }

    #[test]
    fn kernels_are_found_by_what_they_do() {
        let name = |f, p, t, o| KERNELS[collective_kernel(f, p, t, o)].name;
        assert_eq!(name(FN_ALL_REDUCE, Protocol::Ll, 7, OP_SUM), "oxccl_all_reduce_ll_sum_f32");
        assert_eq!(
            name(FN_REDUCE_SCATTER, Protocol::Simple, 9, OP_SUM),
            "oxccl_reduce_scatter_simple_sum_bf16"
        );
        assert_eq!(name(FN_REDUCE, Protocol::Ll, 9, OP_AVG), "oxccl_reduce_ll_any");
        assert_eq!(name(FN_BROADCAST, Protocol::Simple, 0, 0), "oxccl_broadcast_simple");
        assert_eq!(name(FN_ALL_GATHER, Protocol::Ll, 0, 0), "oxccl_all_gather_ll");
        assert_eq!(KERNELS[KERNEL_MESSAGES].name, "oxccl_messages");
        assert_eq!(KERNELS[KERNEL_PROBE].name, "oxccl_probe");
        assert_eq!(KERNELS[KERNEL_LOCAL].name, "oxccl_local");
        assert_eq!(KERNELS[KERNEL_GROUP].name, "oxccl_group");
    }

    #[test]
    fn a_start_near_the_wrap_reaches_every_counter() {
        let layout = Layout::new(3);
        assert!(layout.initial_state(0).iter().all(|&byte| byte == 0));
        assert!(layout.initial_mailboxes(0).iter().all(|&byte| byte == 0));
        assert_eq!(layout.initial_state(7).len(), layout.state_bytes);
        assert_eq!(layout.initial_mailboxes(7).len(), 3 * MAILBOX_STRIDE as usize);
    }
}
