//! What the host passes to kernels, and how the memory that ranks share is laid out.
//!
//! `kernels/work.h` is generated from this file (tests/headers.rs compares), so Rust and device code share one definition. Everything
//! here is plain data of fixed size. All layout values depend on the number of ranks alone, so all ranks agree on them without asking.
//!
//! A communicator has, per rank, one **base region** (state, mailboxes, LL slots), made at init, and, once a path is used, one **stage region**
//! (slots of the Simple protocol for collectives) and per sending peer one **p2p region** (slots for large messages). A rank allocates the memory that
//! others write *to it*; peers map it. Where a pair of ranks cannot reach each other's GPU memory, the same layouts live in host memory.

/// Most blocks a collective kernel runs with; each block owns the channel of its number.
pub const MAX_CHANNELS: u32 = 64;
/// Most channels that one direction of a peer pair uses for one point-to-point message.
pub const MAX_P2P_CHANNELS: u32 = 8;
/// Slots of an LL FIFO: two suffice where each side waits for the other, else the sender waits for an acknowledgement.
pub const LL_SLOTS: u32 = 2;
/// Slots of an LL FIFO for point-to-point messages.
pub const P2P_LL_SLOTS: u32 = 4;
/// Slots of a Simple FIFO.
pub const SIMPLE_SLOTS: u32 = 4;
/// FIFOs of the Simple protocol per ordered pair and channel: contributions, and results.
pub const WAYS: u32 = 2;
/// Fingerprint lines kept per sender: more than a sender can run ahead of a receiver (the deepest FIFO has 4 slots).
pub const HEADER_SLOTS: u32 = 16;
/// Peers whose addresses travel inside the launch; the rest are read from `CommArgs::table`.
pub const INLINE_PEERS: usize = 8;

/// Bytes between the mailboxes of two senders.
pub const MAILBOX_STRIDE: u32 = 4096;

/// What `sender` writes for one receiver, at `base + CommArgs::mailbox_offset + sender * MAILBOX_STRIDE` of the receiver's base region.
///
/// Sequence numbers are 32-bit, count steps of one FIFO from 1, and wrap; 0 is the memory's first content.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Mailbox {
    /// Fingerprint lines {fp.lo, seq, fp.hi, seq} of collectives; operation `seq` uses line `seq % HEADER_SLOTS`.
    pub headers: [[u32; 4]; HEADER_SLOTS as usize],
    /// The same for messages to the receiver, by the message's number on its ordered pair.
    pub p2p_headers: [[u32; 4]; HEADER_SLOTS as usize],
    /// Simple: last step the sender has filled (release), per way and channel.
    pub tail: [[u32; MAX_CHANNELS as usize]; WAYS as usize],
    /// Simple: last step of the *receiver's* own data that the sender has consumed (release), per way and channel.
    pub head: [[u32; MAX_CHANNELS as usize]; WAYS as usize],
    /// LL: last step of the receiver's own data that the sender has consumed, per channel.
    pub ll_ack: [u32; MAX_CHANNELS as usize],
    pub p2p_tail: [u32; MAX_P2P_CHANNELS as usize],
    pub p2p_head: [u32; MAX_P2P_CHANNELS as usize],
    /// LL messages use one channel.
    pub p2p_ll_ack: u32,
    /// Written by the probe kernel when a path is tried.
    pub probe: u32,
    pub reserved: [u32; 2],
}

/// Counters of one FIFO pair: what this rank knows of the traffic with one peer on one channel. Lives in the rank's own GPU memory, is read
/// at the start of an operation and written at its end by the block that owns the channel.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct FifoState {
    /// Steps this rank has sent to the peer.
    pub sent: u32,
    /// Steps this rank has consumed from the peer.
    pub received: u32,
    /// Steps of `sent` that the peer is known to have consumed without looking at its acknowledgement word.
    pub known: u32,
    pub reserved: u32,
}

/// The last word on what went wrong on the device, in the communicator's host block and in each rank's base region.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceError {
    /// 0 none, else an `ERROR_*` value. Written last, by compare-exchange from 0, so the first error stays.
    pub code: u32,
    /// Rank whose call disagrees, or that was waited for.
    pub peer: u32,
    /// Rank that found it.
    pub finder: u32,
    pub sequence: u32,
    /// Fingerprint of the finder's call.
    pub own: u64,
    /// Fingerprint of the peer's call.
    pub theirs: u64,
}

/// The host asked for an end: abort, a dead peer, or a failure elsewhere (the host knows which).
pub const ERROR_ABORTED: u32 = 1;
/// A peer's call has another fingerprint.
pub const ERROR_MISMATCH: u32 = 2;

/// Host memory that the GPU can read and write, one per communicator and rank (a memfd, so that a reader can attach after a crash).
#[repr(C)]
#[derive(Debug)]
pub struct HostBlock {
    /// Nonzero ends every wait of this communicator's kernels. Written by the host, polled only after many failed spins.
    pub abort: u32,
    pub reserved: [u32; 15],
    pub error: DeviceError,
    /// Operations that kernels have finished: `channel 0`'s operation counter, stored by block 0 at the end of each operation.
    pub completed: u32,
    pub reserved2: [u32; 7],
}

/// Where one peer's memory is, in this rank's address space. 0 where a region is not set up.
#[repr(C)]
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

/// The communicator's part of a launch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CommArgs {
    pub rank: u32,
    pub nranks: u32,
    /// Payload bytes of an LL slot of collectives (multiple of 16); the slot takes twice that.
    pub ll_chunk: u32,
    /// Bytes of a slot of the stage region (multiple of 16).
    pub simple_chunk: u32,
    /// Payload bytes of an LL slot of messages.
    pub p2p_ll_chunk: u32,
    /// Bytes of a slot of the p2p region.
    pub p2p_chunk: u32,
    /// Offsets in a base region.
    pub mailbox_offset: u32,
    /// LL slots: `+ ((sender_index * MAX_CHANNELS… see `Layout`) …`.
    pub ll_offset: u32,
    pub p2p_ll_offset: u32,
    /// Channels that the LL and stage areas have room for.
    pub ll_channels: u32,
    pub simple_channels: u32,
    pub reserved: u32,
    /// This rank's state area (GPU memory, not shared): see `StateLayout`.
    pub state: u64,
    /// `HostBlock`, device address.
    pub host: u64,
    /// `DeviceError` in this rank's base region, polled together with the abort word.
    pub error: u64,
    /// `PeerArgs[nranks]` in GPU memory, for peers from `INLINE_PEERS` on.
    pub table: u64,
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
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CollectiveWork {
    pub comm: CommArgs,
    pub send: u64,
    pub recv: u64,
    /// Elements: of the whole vector for AllReduce, Broadcast, Reduce; per rank for AllGather, ReduceScatter.
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
    /// Bytes that one step of one channel moves per rank at most; a multiple of 16, no more than the protocol's slot.
    pub chunk: u32,
}

/// One message, or a copy within the rank (peer == own rank).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Message {
    pub buffer: u64,
    pub bytes: u64,
    /// Copy within the rank: the source.
    pub source: u64,
    pub reserved: u64,
}

/// What one block does: the messages `first .. first + count` with one peer in one direction on one channel, in order.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Lane {
    pub peer: u32,
    /// 1 send, 0 receive.
    pub is_send: u32,
    pub channel: u32,
    pub first: u32,
    pub count: u32,
    pub reserved: [u32; 3],
}

/// Lanes and messages that travel inside the launch; larger groups put both into memory that kernels can read.
pub const INLINE_LANES: usize = 24;
pub const INLINE_MESSAGES: usize = 64;

/// A group of messages: one launch, one block per lane.
#[repr(C)]
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

/// Tries the way to each peer: stores `token + peer` into `Mailbox::probe` of every peer with an address.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ProbeWork {
    pub comm: CommArgs,
    pub token: u32,
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<Mailbox>() <= MAILBOX_STRIDE as usize);
    // The limit for parameters of a kernel before sm_70's large ones (CUDA 12.1, driver 530).
    assert!(size_of::<CollectiveWork>() <= 4096 && size_of::<MessageWork>() <= 4096);
};
