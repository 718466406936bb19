//! What the host passes to kernels, and how the memory that ranks share is laid out.
//!
//! `kernels/work.h` is generated from this file (tests/work_header.rs compares), so Rust and device code share one definition. Everything
//! here is plain data of fixed size; `gpu::layout` has the sizes and offsets, which depend on the number of ranks alone.
//!
//! A communicator has, per rank, one **state area** (counters, its own GPU memory), one **base region** (mailboxes, LL slots), both made
//! at init, and, once a path is used, one **stage region** (slots of the Simple protocol for collectives) and per sending peer one
//! **p2p region** (slots for large messages). A rank allocates the memory that others write *to it*; peers map it. Where a pair of ranks
//! cannot reach each other's GPU memory, the same layouts live in host memory. docs/protocols.md says what the fields mean in time.

/// Most blocks a collective kernel runs with; each block owns the channel of its number.
pub const MAX_CHANNELS: usize = 64;
/// Most channels that one direction of a peer pair uses for one point-to-point message.
pub const MAX_P2P_CHANNELS: usize = 8;
/// Slots of an LL FIFO of collectives.
pub const LL_SLOTS: u32 = 2;
/// Slots of an LL FIFO for point-to-point messages.
pub const P2P_LL_SLOTS: u32 = 4;
/// Slots of a Simple FIFO.
pub const SIMPLE_SLOTS: u32 = 4;
/// FIFOs of the Simple protocol per ordered pair and channel: contributions, and results.
pub const WAYS: usize = 2;
/// Fingerprint lines kept per sender. A reader that comes too late for a line takes the newer one in its place as passed.
pub const HEADER_SLOTS: usize = 16;
/// Peers whose addresses travel inside the launch; the rest are read from `CommArgs::table`.
pub const INLINE_PEERS: usize = 8;
/// Most threads per block of any kernel (`__launch_bounds__`).
pub const MAX_THREADS: u32 = 512;

/// Bytes between the mailboxes of two senders.
pub const MAILBOX_STRIDE: u32 = 4096;

/// The value of an operation counter that a running kernel holds. Counting skips it.
pub const COUNTER_BUSY: u32 = 0xffff_ffff;

/// The first word on what went wrong on the device.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceError {
    /// 0 none, else an `ERROR_*` value. Written last (release). Each copy of the record has one writer, who writes once.
    pub code: u32,
    /// Rank whose call disagrees, or that was waited for.
    pub peer: u32,
    /// Rank that found it.
    pub finder: u32,
    /// The finder's operation (collectives), or the number of the message on its ordered pair.
    pub sequence: u32,
    /// Fingerprint of the finder's call; for messages its bytes.
    pub own: u64,
    /// Fingerprint of the peer's call; for messages its bytes.
    pub theirs: u64,
}

/// The host asked for an end: abort, a dead peer, or a failure elsewhere (the host knows which).
pub const ERROR_ABORTED: u32 = 1;
/// A peer's collective has another fingerprint.
pub const ERROR_MISMATCH: u32 = 2;
/// The fingerprints of this collective agree, those of an earlier one did not.
pub const ERROR_DIVERGED: u32 = 3;
/// Sender and receiver of a message named different sizes.
pub const ERROR_MESSAGE_SIZE: u32 = 4;

/// What `sender` writes for one receiver, at `base + CommArgs::mailbox_offset + sender * MAILBOX_STRIDE` of the receiver's base region.
///
/// Sequence numbers are 32-bit, count steps of one FIFO from 1, and wrap; 0 is the memory's first content.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub struct Mailbox {
    /// Fingerprint lines of collectives, operation `seq` in line `seq % HEADER_SLOTS`:
    /// {fp.lo, seq16 << 16 | chain.lo16, fp.hi, seq16 << 16 | chain.hi16}.
    pub headers: [[u32; 4]; HEADER_SLOTS],
    /// The same for messages to the receiver, by the message's number on its ordered pair; fp is the number of bytes, chain is 0.
    pub p2p_headers: [[u32; 4]; HEADER_SLOTS],
    /// Simple: last step the sender has filled (release), per way and channel.
    pub tail: [[u32; MAX_CHANNELS]; WAYS],
    /// Simple: last step of the *receiver's* own data that the sender has consumed (release), per way and channel.
    pub head: [[u32; MAX_CHANNELS]; WAYS],
    /// LL: last step of the receiver's own data that the sender has consumed, where that is acknowledged, per channel.
    pub ll_ack: [u32; MAX_CHANNELS],
    pub p2p_tail: [u32; MAX_P2P_CHANNELS],
    pub p2p_head: [u32; MAX_P2P_CHANNELS],
    /// LL messages use one channel.
    pub p2p_ll_ack: u32,
    /// Written by the probe kernel when a path is tried.
    pub probe: u32,
    /// In the receiver's own mailbox (sender == receiver), which peers write: rank + 1 of one who filled its `error`.
    pub told: u32,
    pub reserved: u32,
    /// What the sender found wrong with the receiver's calls.
    pub error: DeviceError,
}

/// Counters of one FIFO pair of collectives: what this rank knows of the traffic with one peer on one channel. Lives in the rank's own GPU
/// memory, is read at the start of an operation and written at its end by the block that owns the channel.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct FifoState {
    /// Steps this rank has sent to the peer.
    pub sent: u32,
    /// Steps this rank has consumed from the peer.
    pub received: u32,
    /// Steps of `sent` that the peer is known to have consumed.
    pub known: u32,
    pub reserved: u32,
}

/// Counters of one lane: messages to, or from, one peer on one channel.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct LaneState {
    /// Launches that used the lane; `COUNTER_BUSY` while one does.
    pub counter: u32,
    /// Messages so far. Counted by channel 0, which every message uses.
    pub messages: u32,
    /// Steps sent or consumed of the Simple FIFO, and, for a sender, those known to be consumed.
    pub steps: u32,
    pub known: u32,
    /// The same of the LL FIFO.
    pub ll_steps: u32,
    pub ll_known: u32,
    pub reserved: [u32; 2],
}

/// FIFOs of collectives per pair and channel: LL, and each way of Simple.
pub const FIFOS: usize = 1 + WAYS;

/// Head of the state area. Behind it lie `FifoState[FIFOS][nranks][MAX_CHANNELS]` (LL, contributions, results), then
/// `LaneState[2][nranks][MAX_P2P_CHANNELS]` (receive, send).
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub struct State {
    /// Collectives that used each channel; `COUNTER_BUSY` while one does. Channel 0's numbers the collectives.
    pub channels: [u32; MAX_CHANNELS],
    /// Hash over the fingerprints of the collectives so far, and the number of the last of them. One 8-byte access: who read both knows
    /// of which collective the hash is.
    pub chain: u32,
    pub chain_sequence: u32,
    /// Launches of kernels of this communicator on this rank that have begun.
    pub launches: u32,
    /// Set by compare-exchange by the one who may fill `error`. Polled beside the host's abort word.
    pub claimed: u32,
    pub error: DeviceError,
}

/// Host memory that the GPU can read and write, one per communicator and rank (a memfd, so that a reader can attach after a crash).
#[repr(C)]
#[derive(Debug)]
pub struct HostBlock {
    /// Nonzero ends every wait of this communicator's kernels. Written by the host, polled only after many failed spins.
    pub abort: u32,
    pub reserved: [u32; 15],
    pub error: DeviceError,
    /// Launches that have ended: stored by block 0 at the end of every launch of a collective, message or local kernel. Launches of one
    /// rank are counted whatever they are, so ranks differ in it.
    pub completed: u32,
    pub reserved2: [u32; 7],
}

/// Where one peer's memory is, in this rank's address space. 0 where a region is not set up.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct PeerArgs {
    /// The peer's base region, written by this rank.
    pub remote_base: u64,
    /// This rank's own base region that the peer writes (in GPU memory, or in host memory for peers behind host memory).
    pub local_base: u64,
    pub remote_stage: u64,
    pub local_stage: u64,
    /// The peer's p2p region for messages from this rank.
    pub remote_p2p: u64,
    /// This rank's p2p region for messages from that peer.
    pub local_p2p: u64,
}

/// The communicator's part of a launch. `Layout::comm_args` fills all but the addresses.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub struct CommArgs {
    pub rank: u32,
    pub nranks: u32,
    /// Payload bytes of an LL slot of collectives (multiple of 16); the slot takes twice that.
    pub ll_chunk: u32,
    /// Bytes of a slot of the stage region (multiple of 16).
    pub simple_chunk: u32,
    /// Payload bytes of an LL slot of messages; the slot takes twice that.
    pub p2p_ll_chunk: u32,
    /// Bytes of a slot of the p2p region.
    pub p2p_chunk: u32,
    /// Offsets in a base region. With s the sender's index among the receiver's peers (its rank, less one if above the receiver's):
    pub mailbox_offset: u32,
    /// LL slot: `ll_offset + ((s * ll_channels + channel) * LL_SLOTS + step % LL_SLOTS) * 2 * ll_chunk`.
    pub ll_offset: u32,
    /// LL slot of messages: `p2p_ll_offset + (s * P2P_LL_SLOTS + step % P2P_LL_SLOTS) * 2 * p2p_ll_chunk`.
    pub p2p_ll_offset: u32,
    /// Channels that the LL and stage areas have room for. A slot of the stage region is at
    /// `(((s * WAYS + way) * simple_channels + channel) * SIMPLE_SLOTS + step % SIMPLE_SLOTS) * simple_chunk`, one of a p2p region at
    /// `(channel * SIMPLE_SLOTS + step % SIMPLE_SLOTS) * p2p_chunk`.
    pub ll_channels: u32,
    pub simple_channels: u32,
    pub reserved: u32,
    /// This rank's `State` and what follows it (GPU memory, not shared).
    pub state: u64,
    /// `HostBlock`, device address.
    pub host: u64,
    /// `PeerArgs[nranks]` in GPU memory, read for peers from `INLINE_PEERS` on.
    pub table: u64,
    pub reserved2: u64,
    pub peers: [PeerArgs; INLINE_PEERS],
}

/// Functions as kernels and fingerprints name them.
pub const FN_ALL_REDUCE: u32 = 0;
pub const FN_BROADCAST: u32 = 1;
pub const FN_REDUCE: u32 = 2;
pub const FN_ALL_GATHER: u32 = 3;
pub const FN_REDUCE_SCATTER: u32 = 4;

/// Operations as kernels name them: NCCL's numbers, then the scaled sum.
pub const OP_SUM: u32 = 0;
pub const OP_PROD: u32 = 1;
pub const OP_MAX: u32 = 2;
pub const OP_MIN: u32 = 3;
pub const OP_AVG: u32 = 4;
/// Each contribution is multiplied by its rank's scalar, rounded to the element type, then summed.
pub const OP_PREMUL_SUM: u32 = 5;

/// A collective: one launch.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub struct CollectiveWork {
    pub comm: CommArgs,
    pub send: u64,
    pub recv: u64,
    /// Elements: of the whole vector for AllReduce, Broadcast, Reduce; per rank for AllGather, ReduceScatter. Not 0.
    pub count: u64,
    /// Over function, type, operation, root and count; equal on all ranks of a correct program.
    pub fingerprint: u64,
    pub function: u32,
    /// ncclDataType_t.
    pub datatype: u32,
    pub op: u32,
    pub root: u32,
    /// PREMUL_SUM: the scalar's bits in the element type, or, with `scalar_is_address`, where in device-readable memory it is.
    pub scalar: u64,
    pub scalar_is_address: u32,
    /// Bytes that one step of one channel moves per rank at most; a multiple of 16, at least 16, no more than the protocol's slot.
    pub chunk: u32,
    /// Blocks that take part: those of the lowest numbers. The launch's own grid, but in a `GroupWork`.
    pub grid: u32,
    pub reserved: [u32; 3],
}

/// The fields of a `CollectiveWork` behind `comm`, as they are.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupItem {
    pub words: [u64; 10],
}

/// Collectives that one launch of a group carries.
pub const GROUP_ITEMS: usize = 40;

/// Collectives of a group that go by LL, in order: one launch. Each block goes through those that it takes part in, so that a call
/// has the same channels and steps in a group as alone.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub struct GroupWork {
    pub comm: CommArgs,
    pub count: u32,
    pub reserved: [u32; 3],
    pub items: [GroupItem; GROUP_ITEMS],
}

impl GroupItem {
    pub fn of(work: &CollectiveWork) -> GroupItem {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        GroupItem {
            words: [
                work.send,
                work.recv,
                work.count,
                work.fingerprint,
                pair(work.function, work.datatype),
                pair(work.op, work.root),
                work.scalar,
                pair(work.scalar_is_address, work.chunk),
                pair(work.grid, 0),
                0,
            ],
        }
    }
}

/// One message, or a copy within the rank (peer == own rank).
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct Message {
    pub buffer: u64,
    pub bytes: u64,
    /// Copy within the rank: the source.
    pub source: u64,
    /// `layout::message_channels(bytes)`: the lanes of channels 0 .. channels of the peer and direction all name this message.
    pub channels: u32,
    /// 1: LL, on channel 0 (`layout::message_is_ll(bytes)`); 0: Simple.
    pub is_ll: u32,
}

/// What one block does: the messages `first .. first + count` with one peer in one direction on one channel, in order.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct Lane {
    pub peer: u32,
    /// 1 send, 0 receive. Not used where the peer is the rank itself.
    pub is_send: u32,
    pub channel: u32,
    pub first: u32,
    pub count: u32,
    pub reserved: [u32; 3],
}

/// Lanes and messages that travel inside the launch; larger groups put both into memory that kernels can read.
pub const INLINE_LANES: usize = 24;
pub const INLINE_MESSAGES: usize = 64;

/// A group of messages: one launch, one block per lane, no two lanes alike in peer, direction and channel.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub struct MessageWork {
    pub comm: CommArgs,
    /// `Lane[grid]`; 0: the inline array.
    pub lanes: u64,
    /// `Message[]`; 0: the inline array.
    pub messages: u64,
    pub inline_lanes: [Lane; INLINE_LANES],
    pub inline_messages: [Message; INLINE_MESSAGES],
}

/// Tries the way to each peer: stores `token + peer` into `Mailbox::probe` of every peer with an address. One block.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub struct ProbeWork {
    pub comm: CommArgs,
    pub token: u32,
    pub reserved: [u32; 3],
}

const _: () = {
    assert!(size_of::<Mailbox>() <= MAILBOX_STRIDE as usize);
    // The limit for parameters of a kernel before sm_70's large ones (CUDA 12.1, driver 530).
    assert!(size_of::<GroupWork>() <= 4096 && size_of::<MessageWork>() <= 4096);
    assert!(size_of::<CollectiveWork>() == size_of::<CommArgs>() + size_of::<GroupItem>());
    assert!(size_of::<GroupItem>() == 80 && size_of::<GroupWork>() == 3680);
    // The same figures stand in kernels/device.h's user of work.h, kernels/op.h.
    assert!(size_of::<DeviceError>() == 32 && size_of::<Mailbox>() == 1904 && size_of::<FifoState>() == 16);
    assert!(size_of::<LaneState>() == 32 && size_of::<State>() == 304 && size_of::<HostBlock>() == 128);
    assert!(
        size_of::<PeerArgs>() == 48 && size_of::<CommArgs>() == 464 && size_of::<CollectiveWork>() == 544
    );
    assert!(size_of::<Message>() == 32 && size_of::<Lane>() == 32 && size_of::<MessageWork>() == 3296);
    assert!(size_of::<ProbeWork>() == 480);
};

/// Structures without padding, as the bytes that kernels read.
macro_rules! plain_bytes {
    ($($structure:ty),*) => {$(
        impl $structure {
            pub fn bytes(list: &[Self]) -> &[u8] {
                // SAFETY: plain integers without padding (their sizes are asserted above), read as bytes.
                unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), size_of_val(list)) }
            }
        }
    )*};
}

plain_bytes!(PeerArgs, Message, Lane);
