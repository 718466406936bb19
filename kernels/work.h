// Generated from src/gpu/work.rs by tests/work_header.rs: do not edit.

#pragma once

/// Most blocks a collective kernel runs with; each block owns the channel of its number.
constexpr const uintptr_t MAX_CHANNELS = 64;

/// Most channels that one direction of a peer pair uses for one point-to-point message.
constexpr const uintptr_t MAX_P2P_CHANNELS = 8;

/// Slots of an LL FIFO of collectives.
constexpr const uint32_t LL_SLOTS = 2;

/// Slots of an LL FIFO for point-to-point messages.
constexpr const uint32_t P2P_LL_SLOTS = 4;

/// Slots of a Simple FIFO.
constexpr const uint32_t SIMPLE_SLOTS = 4;

/// FIFOs of the Simple protocol per ordered pair and channel: contributions, and results.
constexpr const uintptr_t WAYS = 2;

/// Fingerprint lines kept per sender. A reader that comes too late for a line takes the newer one in its place as passed.
constexpr const uintptr_t HEADER_SLOTS = 16;

/// Peers whose addresses travel inside the launch; the rest are read from `CommArgs::table`.
constexpr const uintptr_t INLINE_PEERS = 8;

/// Most threads per block of any kernel (`__launch_bounds__`).
constexpr const uint32_t MAX_THREADS = 512;

/// Bytes between the mailboxes of two senders.
constexpr const uint32_t MAILBOX_STRIDE = 4096;

/// The value of an operation counter that a running kernel holds. Counting skips it.
constexpr const uint32_t COUNTER_BUSY = 4294967295;

/// The host asked for an end: abort, a dead peer, or a failure elsewhere (the host knows which).
constexpr const uint32_t ERROR_ABORTED = 1;

/// A peer's collective has another fingerprint.
constexpr const uint32_t ERROR_MISMATCH = 2;

/// The fingerprints of this collective agree, those of an earlier one did not.
constexpr const uint32_t ERROR_DIVERGED = 3;

/// Sender and receiver of a message named different sizes.
constexpr const uint32_t ERROR_MESSAGE_SIZE = 4;

/// FIFOs of collectives per pair and channel: LL, and each way of Simple.
constexpr const uintptr_t FIFOS = (1 + WAYS);

/// Functions as kernels and fingerprints name them.
constexpr const uint32_t FN_ALL_REDUCE = 0;

constexpr const uint32_t FN_BROADCAST = 1;

constexpr const uint32_t FN_REDUCE = 2;

constexpr const uint32_t FN_ALL_GATHER = 3;

constexpr const uint32_t FN_REDUCE_SCATTER = 4;

/// Operations as kernels name them: NCCL's numbers, then the scaled sum.
constexpr const uint32_t OP_SUM = 0;

constexpr const uint32_t OP_PROD = 1;

constexpr const uint32_t OP_MAX = 2;

constexpr const uint32_t OP_MIN = 3;

constexpr const uint32_t OP_AVG = 4;

/// Each contribution is multiplied by its rank's scalar, rounded to the element type, then summed.
constexpr const uint32_t OP_PREMUL_SUM = 5;

/// Collectives that one launch of a group carries.
constexpr const uintptr_t GROUP_ITEMS = 40;

/// Lanes and messages that travel inside the launch; larger groups put both into memory that kernels can read.
constexpr const uintptr_t INLINE_LANES = 24;

constexpr const uintptr_t INLINE_MESSAGES = 64;

/// The first word on what went wrong on the device.
struct ALIGNED(16) DeviceError {
  /// 0 none, else an `ERROR_*` value. Written last (release). Each copy of the record has one writer, who writes once.
  uint32_t code;
  /// Rank whose call disagrees, or that was waited for.
  uint32_t peer;
  /// Rank that found it.
  uint32_t finder;
  /// The finder's operation (collectives), or the number of the message on its ordered pair.
  uint32_t sequence;
  /// Fingerprint of the finder's call; for messages its bytes.
  uint64_t own;
  /// Fingerprint of the peer's call; for messages its bytes.
  uint64_t theirs;
};

/// What `sender` writes for one receiver, at `base + CommArgs::mailbox_offset + sender * MAILBOX_STRIDE` of the receiver's base region.
///
/// Sequence numbers are 32-bit, count steps of one FIFO from 1, and wrap; 0 is the memory's first content.
struct ALIGNED(16) Mailbox {
  /// Fingerprint lines of collectives, operation `seq` in line `seq % HEADER_SLOTS`:
  /// {fp.lo, seq16 << 16 | chain.lo16, fp.hi, seq16 << 16 | chain.hi16}.
  uint32_t headers[HEADER_SLOTS][4];
  /// The same for messages to the receiver, by the message's number on its ordered pair; fp is the number of bytes, chain is 0.
  uint32_t p2p_headers[HEADER_SLOTS][4];
  /// Simple: last step the sender has filled (release), per way and channel.
  uint32_t tail[WAYS][MAX_CHANNELS];
  /// Simple: last step of the *receiver's* own data that the sender has consumed (release), per way and channel.
  uint32_t head[WAYS][MAX_CHANNELS];
  /// LL: last step of the receiver's own data that the sender has consumed, where that is acknowledged, per channel.
  uint32_t ll_ack[MAX_CHANNELS];
  uint32_t p2p_tail[MAX_P2P_CHANNELS];
  uint32_t p2p_head[MAX_P2P_CHANNELS];
  /// LL messages use one channel.
  uint32_t p2p_ll_ack;
  /// Written by the probe kernel when a path is tried.
  uint32_t probe;
  /// In the receiver's own mailbox (sender == receiver), which peers write: rank + 1 of one who filled its `error`.
  uint32_t told;
  uint32_t reserved;
  /// What the sender found wrong with the receiver's calls.
  DeviceError error;
};

/// Counters of one FIFO pair of collectives: what this rank knows of the traffic with one peer on one channel. Lives in the rank's own GPU
/// memory, is read at the start of an operation and written at its end by the block that owns the channel.
struct ALIGNED(16) FifoState {
  /// Steps this rank has sent to the peer.
  uint32_t sent;
  /// Steps this rank has consumed from the peer.
  uint32_t received;
  /// Steps of `sent` that the peer is known to have consumed.
  uint32_t known;
  uint32_t reserved;
};

/// Counters of one lane: messages to, or from, one peer on one channel.
struct ALIGNED(16) LaneState {
  /// Launches that used the lane; `COUNTER_BUSY` while one does.
  uint32_t counter;
  /// Messages so far. Counted by channel 0, which every message uses.
  uint32_t messages;
  /// Steps sent or consumed of the Simple FIFO, and, for a sender, those known to be consumed.
  uint32_t steps;
  uint32_t known;
  /// The same of the LL FIFO.
  uint32_t ll_steps;
  uint32_t ll_known;
  uint32_t reserved[2];
};

/// Head of the state area. Behind it lie `FifoState[FIFOS][nranks][MAX_CHANNELS]` (LL, contributions, results), then
/// `LaneState[2][nranks][MAX_P2P_CHANNELS]` (receive, send).
struct ALIGNED(16) State {
  /// Collectives that used each channel; `COUNTER_BUSY` while one does. Channel 0's numbers the collectives.
  uint32_t channels[MAX_CHANNELS];
  /// Hash over the fingerprints of the collectives so far, and the number of the last of them. One 8-byte access: who read both knows
  /// of which collective the hash is.
  uint32_t chain;
  uint32_t chain_sequence;
  /// Launches of kernels of this communicator on this rank that have begun.
  uint32_t launches;
  /// Set by compare-exchange by the one who may fill `error`. Polled beside the host's abort word.
  uint32_t claimed;
  DeviceError error;
};

/// Host memory that the GPU can read and write, one per communicator and rank (a memfd, so that a reader can attach after a crash).
struct HostBlock {
  /// Nonzero ends every wait of this communicator's kernels. Written by the host, polled only after many failed spins.
  uint32_t abort;
  uint32_t reserved[15];
  DeviceError error;
  /// Launches that have ended: stored by block 0 at the end of every launch of a collective, message or local kernel. Launches of one
  /// rank are counted whatever they are, so ranks differ in it.
  uint32_t completed;
  uint32_t reserved2[7];
};

/// Where one peer's memory is, in this rank's address space. 0 where a region is not set up.
struct ALIGNED(16) PeerArgs {
  /// The peer's base region, written by this rank.
  uint64_t remote_base;
  /// This rank's own base region that the peer writes (in GPU memory, or in host memory for peers behind host memory).
  uint64_t local_base;
  uint64_t remote_stage;
  uint64_t local_stage;
  /// The peer's p2p region for messages from this rank.
  uint64_t remote_p2p;
  /// This rank's p2p region for messages from that peer.
  uint64_t local_p2p;
};

/// The communicator's part of a launch. `Layout::comm_args` fills all but the addresses.
struct ALIGNED(16) CommArgs {
  uint32_t rank;
  uint32_t nranks;
  /// Payload bytes of an LL slot of collectives (multiple of 16); the slot takes twice that.
  uint32_t ll_chunk;
  /// Bytes of a slot of the stage region (multiple of 16).
  uint32_t simple_chunk;
  /// Payload bytes of an LL slot of messages; the slot takes twice that.
  uint32_t p2p_ll_chunk;
  /// Bytes of a slot of the p2p region.
  uint32_t p2p_chunk;
  /// Offsets in a base region. With s the sender's index among the receiver's peers (its rank, less one if above the receiver's):
  uint32_t mailbox_offset;
  /// LL slot: `ll_offset + ((s * ll_channels + channel) * LL_SLOTS + step % LL_SLOTS) * 2 * ll_chunk`.
  uint32_t ll_offset;
  /// LL slot of messages: `p2p_ll_offset + (s * P2P_LL_SLOTS + step % P2P_LL_SLOTS) * 2 * p2p_ll_chunk`.
  uint32_t p2p_ll_offset;
  /// Channels that the LL and stage areas have room for. A slot of the stage region is at
  /// `(((s * WAYS + way) * simple_channels + channel) * SIMPLE_SLOTS + step % SIMPLE_SLOTS) * simple_chunk`, one of a p2p region at
  /// `(channel * SIMPLE_SLOTS + step % SIMPLE_SLOTS) * p2p_chunk`.
  uint32_t ll_channels;
  uint32_t simple_channels;
  uint32_t reserved;
  /// This rank's `State` and what follows it (GPU memory, not shared).
  uint64_t state;
  /// `HostBlock`, device address.
  uint64_t host;
  /// `PeerArgs[nranks]` in GPU memory, read for peers from `INLINE_PEERS` on.
  uint64_t table;
  uint64_t reserved2;
  PeerArgs peers[INLINE_PEERS];
};

/// A collective: one launch.
struct ALIGNED(16) CollectiveWork {
  CommArgs comm;
  uint64_t send;
  uint64_t recv;
  /// Elements: of the whole vector for AllReduce, Broadcast, Reduce; per rank for AllGather, ReduceScatter. Not 0.
  uint64_t count;
  /// Over function, type, operation, root and count; equal on all ranks of a correct program.
  uint64_t fingerprint;
  uint32_t function;
  /// ncclDataType_t.
  uint32_t datatype;
  uint32_t op;
  uint32_t root;
  /// PREMUL_SUM: the scalar's bits in the element type, or, with `scalar_is_address`, where in device-readable memory it is.
  uint64_t scalar;
  uint32_t scalar_is_address;
  /// Bytes that one step of one channel moves per rank at most; a multiple of 16, at least 16, no more than the protocol's slot.
  uint32_t chunk;
  /// Blocks that take part: those of the lowest numbers. The launch's own grid, but in a `GroupWork`.
  uint32_t grid;
  uint32_t reserved[3];
};

/// The fields of a `CollectiveWork` behind `comm`, as they are.
struct ALIGNED(16) GroupItem {
  uint64_t words[10];
};

/// Collectives of a group that go by LL, in order: one launch. Each block goes through those that it takes part in, so that a call
/// has the same channels and steps in a group as alone.
struct ALIGNED(16) GroupWork {
  CommArgs comm;
  uint32_t count;
  uint32_t reserved[3];
  GroupItem items[GROUP_ITEMS];
};

/// One message, or a copy within the rank (peer == own rank).
struct ALIGNED(16) Message {
  uint64_t buffer;
  uint64_t bytes;
  /// Copy within the rank: the source.
  uint64_t source;
  /// `layout::message_channels(bytes)`: the lanes of channels 0 .. channels of the peer and direction all name this message.
  uint32_t channels;
  /// 1: LL, on channel 0 (`layout::message_is_ll(bytes)`); 0: Simple.
  uint32_t is_ll;
};

/// What one block does: the messages `first .. first + count` with one peer in one direction on one channel, in order.
struct ALIGNED(16) Lane {
  uint32_t peer;
  /// 1 send, 0 receive. Not used where the peer is the rank itself.
  uint32_t is_send;
  uint32_t channel;
  uint32_t first;
  uint32_t count;
  uint32_t reserved[3];
};

/// A group of messages: one launch, one block per lane, no two lanes alike in peer, direction and channel.
struct ALIGNED(16) MessageWork {
  CommArgs comm;
  /// `Lane[grid]`; 0: the inline array.
  uint64_t lanes;
  /// `Message[]`; 0: the inline array.
  uint64_t messages;
  Lane inline_lanes[INLINE_LANES];
  Message inline_messages[INLINE_MESSAGES];
};

/// Tries the way to each peer: stores `token + peer` into `Mailbox::probe` of every peer with an address. One block.
struct ALIGNED(16) ProbeWork {
  CommArgs comm;
  uint32_t token;
  uint32_t reserved[3];
};
