// What every operation has: the channel it takes, waits that end, fingerprints, errors. docs/protocols.md has the rules.
//
// A thread that finds a reason to give up sets `Op::failed` and goes on through its loops without touching memory or waiting,
// so that barriers always meet; `close` then leaves without writing counters back.
#pragma once

#include "device.h"
#include "work.h"

static_assert(sizeof(DeviceError) == 32 && sizeof(Mailbox) == 1904 && sizeof(FifoState) == 16, "as in src/gpu/work.rs");
static_assert(sizeof(LaneState) == 32 && sizeof(State) == 304 && sizeof(HostBlock) == 128, "as in src/gpu/work.rs");
static_assert(sizeof(PeerArgs) == 48 && sizeof(CommArgs) == 464 && sizeof(CollectiveWork) == 544, "as in src/gpu/work.rs");
static_assert(sizeof(Message) == 32 && sizeof(Lane) == 32 && sizeof(MessageWork) == 3296, "as in src/gpu/work.rs");
static_assert(sizeof(GroupItem) == 80 && sizeof(GroupWork) == 3680 && sizeof(ProbeWork) == 480, "as in src/gpu/work.rs");

// Thread groups that work on their own steps: at most these many in a block.
constexpr uint32_t MAX_GROUPS = 3;

struct Shared {
  // Of the running operation: its number (a message's on its pair), what this rank calls (a message's bytes), what goes with
  // that (see `header_line`), the launch's number. Here and not in every thread's registers.
  uint32_t sequence;
  uint32_t chain;
  uint64_t own;
  uint32_t launch;
  // What the running lane's counter held when it was taken.
  uint32_t counter;
  // How the block's share is cut (two_shot.h).
  uint64_t low, high;
  uint32_t rounds, piece;
  // The channel or lane could not be taken. Thread 0 writes it before the first barrier, so that all threads see the same.
  uint32_t refused;
  // Any thread of the block gives up. Set at once, so that others see it in their waits.
  uint32_t failed;
  uint32_t group_failed[MAX_GROUPS];
  // Whoever claims them says why.
  uint32_t claimed, code, peer;
  uint64_t theirs;
  // The running collective of a group, and the number of the one after it (group.h).
  CollectiveWork item;
  uint32_t next_item;
};

// ---------------------------------------------------------------------------------------------------- where things are

#define PEER_ADDRESS(name)                                                            \
  FN uint64_t name(const CommArgs& c, uint32_t p) {                                   \
    if (p < INLINE_PEERS) return c.peers[p].name;                                     \
    return load_weak8((uint64_t)&((const PeerArgs*)c.table + p)->name);               \
  }
PEER_ADDRESS(remote_base)
PEER_ADDRESS(local_base)
PEER_ADDRESS(remote_stage)
PEER_ADDRESS(local_stage)
PEER_ADDRESS(remote_p2p)
PEER_ADDRESS(local_p2p)
#undef PEER_ADDRESS

FN State* state_of(const CommArgs& c) { return (State*)c.state; }
FN HostBlock* host_of(const CommArgs& c) { return (HostBlock*)c.host; }

// What `p` writes for this rank, and what this rank writes for `p`.
FN Mailbox* mailbox_from(const CommArgs& c, uint32_t p) {
  return (Mailbox*)(local_base(c, p) + c.mailbox_offset + (uint64_t)p * MAILBOX_STRIDE);
}
FN Mailbox* mailbox_to(const CommArgs& c, uint32_t p) {
  return (Mailbox*)(remote_base(c, p) + c.mailbox_offset + (uint64_t)c.rank * MAILBOX_STRIDE);
}

FN uint32_t sender_index(uint32_t sender, uint32_t receiver) { return sender - (sender > receiver ? 1 : 0); }

enum : uint32_t { FIFO_LL = 0, FIFO_WAY = 1 };

FN uint64_t fifo_address(const CommArgs& c, uint32_t fifo, uint32_t p, uint32_t channel) {
  return c.state + sizeof(State) + (((uint64_t)fifo * c.nranks + p) * MAX_CHANNELS + channel) * sizeof(FifoState);
}
FN FifoState load_fifo(const CommArgs& c, uint32_t fifo, uint32_t p, uint32_t channel) {
  uint32_t v[4];
  load16(fifo_address(c, fifo, p, channel), v);
  return {v[0], v[1], v[2], 0};
}
FN uint64_t lane_address(const CommArgs& c, uint32_t is_send, uint32_t p, uint32_t channel) {
  return c.state + sizeof(State) + (uint64_t)FIFOS * c.nranks * MAX_CHANNELS * sizeof(FifoState) +
         (((uint64_t)is_send * c.nranks + p) * MAX_P2P_CHANNELS + channel) * sizeof(LaneState);
}

// Sequence numbers and steps are compared by signed difference.
FN bool reached(uint32_t value, uint32_t wanted) { return (int32_t)(value - wanted) >= 0; }
FN uint32_t later(uint32_t a, uint32_t b) { return reached(a, b) ? a : b; }

// A thread's view of what runs: a collective, or the messages of a lane.
struct Op {
  const CommArgs& c;
  uint32_t channel;
  bool failed = false;

  METHOD explicit Op(const CommArgs& comm) : c(comm), channel(block_id()) {}
};

struct Collective : Op {
  const CollectiveWork& work;
  METHOD explicit Collective(const CollectiveWork& w) : Op(w.comm), work(w) {}
};

// --------------------------------------------------------------------------------------------------------------- errors

enum : uint32_t { REASON_TOLD = 0x100 };  // + ERROR_*: no error of its own, a peer's record says which

// This thread gives up. The block's first reason stays; it is made public by `raise` when the block leaves.
FN void give_up(Op& op, uint32_t code, uint32_t peer, uint64_t theirs) {
  Shared& s = shared<Shared>();
  op.failed = true;
  if (claim_shared(&s.claimed)) {
    s.code = code;
    s.peer = peer;
    s.theirs = theirs;
  }
  *(volatile uint32_t*)&s.failed = 1;
}

FN void fill_error(DeviceError* e, uint32_t code, uint32_t finder) {
  const Shared& s = shared<Shared>();
  store_relaxed(&e->peer, s.peer);
  store_relaxed(&e->finder, finder);
  store_relaxed(&e->sequence, s.sequence);
  store_relaxed(&e->own, s.own);
  store_relaxed(&e->theirs, s.theirs);
  store_release(&e->code, code);
}

// The rank's first error stays; the peer whose call disagrees is told. No atomics beyond this GPU's memory: they do not exist on
// every path. One thread, after the block's last barrier.
FN void raise(const Op& op) {
  Shared& s = shared<Shared>();
  State* state = state_of(op.c);
  if (!s.claimed || !s.code || compare_exchange_device(&state->claimed, 0, 1) != 0) return;
  uint32_t code = s.code, copies = 2;
  if (code == REASON_TOLD) {
    const DeviceError* e = &mailbox_from(op.c, s.peer)->error;
    code = load_acquire(&e->code);
    s.sequence = load_relaxed(&e->sequence);
    s.own = load_weak8((uint64_t)&e->theirs);
    s.theirs = load_weak8((uint64_t)&e->own);
  } else if (code != ERROR_ABORTED) {
    copies = 3;
  }
  NOT_UNROLLED
  for (uint32_t copy = 0; copy < copies; copy++) {
    DeviceError* e = copy == 0 ? &host_of(op.c)->error : copy == 1 ? &state->error : &mailbox_to(op.c, s.peer)->error;
    fill_error(e, code, op.c.rank);
  }
  // In the mailbox that the peer has no other use for, its own, so that one word says who told.
  if (copies == 3) {
    Mailbox* common = (Mailbox*)(remote_base(op.c, s.peer) + op.c.mailbox_offset + (uint64_t)s.peer * MAILBOX_STRIDE);
    store_release(&common->told, op.c.rank + 1);
  }
}

// --------------------------------------------------------------------------------------------------------- fingerprints

// Order matters, so that calls that disagreed earlier show in every later line.
FN uint32_t chained(uint32_t chain, uint64_t fingerprint) {
  uint32_t h = (chain ^ (uint32_t)fingerprint) * 0x9e3779b1u;
  h = (h ^ h >> 15 ^ (uint32_t)(fingerprint >> 32)) * 0x85ebca77u;
  return h ^ h >> 13;
}

FN void header_line(uint32_t (&line)[4]) {
  const Shared& s = shared<Shared>();
  line[0] = (uint32_t)s.own;
  line[1] = s.sequence << 16 | (s.chain & 0xffff);
  line[2] = (uint32_t)(s.own >> 32);
  line[3] = s.sequence << 16 | s.chain >> 16;
}
FN uint64_t header_place(uint32_t (*lines)[4]) { return (uint64_t)lines[shared<Shared>().sequence % HEADER_SLOTS]; }

// Looks once at peer p's line; false: it has not come. Halves of a line are compared by their own numbers: the sender may be writing
// it. A newer line than wanted means that the sender has passed this operation long ago; what it wrote then is not known, and not
// needed. Another fingerprint than this rank's is an error.
FN bool header_came(Op& op, uint32_t p, uint32_t (*lines)[4], uint32_t mismatch) {
  uint32_t seen[4], own[4];
  load_line(header_place(lines), seen);
  header_line(own);
  int32_t a = (int32_t)((seen[1] & 0xffff0000) - (own[1] & 0xffff0000));
  int32_t b = (int32_t)((seen[3] & 0xffff0000) - (own[3] & 0xffff0000));
  if (a < 0 || b < 0) return false;
  if (a > 0 || b > 0) return true;
  bool same = seen[0] == own[0] && seen[2] == own[2];
  if (!same || seen[1] != own[1] || seen[3] != own[3]) {
    give_up(op, same ? ERROR_DIVERGED : mismatch, p, seen[0] | (uint64_t)seen[2] << 32);
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------------------- waits

// Whether this thread should give up, asked after many failed spins for `peer`: another thread did, the host says so, another block of
// this rank found an error, or a peer tells of one.
FN void look_around(Op& op, uint32_t peer) {
  const HostBlock* host = host_of(op.c);
  if (*(volatile uint32_t*)&shared<Shared>().failed) {
    op.failed = true;
  } else if (load_relaxed(&state_of(op.c)->claimed)) {
    give_up(op, 0, peer, 0);
  } else if (load_relaxed(&host->abort)) {
    give_up(op, ERROR_ABORTED, peer, 0);
  } else if (peer != op.c.rank) {
    Mailbox* common = (Mailbox*)(local_base(op.c, peer) + op.c.mailbox_offset + (uint64_t)op.c.rank * MAILBOX_STRIDE);
    uint32_t told = load_relaxed(&common->told);
    if (told) give_up(op, REASON_TOLD, told - 1, 0);
  }
}

// One failed turn of a wait for `peer`, which ends when `op.failed` is set.
FN void spin(Op& op, uint32_t peer, uint32_t& turns) {
  relax();
  if (++turns % POLL_SPINS == 0) look_around(op, peer);
}

// The same where an acknowledgement is awaited: the peer may not send anything in this operation, so its line is looked at here.
FN void spin_for_ack(Collective& op, uint32_t peer, uint32_t& turns) {
  spin(op, peer, turns);
  if (turns % POLL_SPINS == 0 && op.channel == 0 && !op.failed) header_came(op, peer, mailbox_from(op.c, peer)->headers, ERROR_MISMATCH);
}

// Takes a counter from whoever may still have it (a replay of a graph beside an eager call). One thread.
FN uint32_t take_counter(Op& op, uint32_t* counter) {
  uint32_t turns = 0, value = exchange_acquire_device(counter, COUNTER_BUSY);
  while (value == COUNTER_BUSY && !op.failed) {
    spin(op, op.c.rank, turns);
    value = exchange_acquire_device(counter, COUNTER_BUSY);
  }
  return value;
}
FN uint32_t next_count(uint32_t counter) { return counter + 1 == COUNTER_BUSY ? 0 : counter + 1; }

// ----------------------------------------------------------------------------------------------------------- collective

// The last threads of a block look after fingerprints: whole warps, and no more than the last quarter where there is one (prims_simple.h).
FN uint32_t header_threads() {
  uint32_t quarter = nthreads() / 4 / WARP * WARP;
  uint32_t most = quarter ? quarter : nthreads();
  return most < 32 ? most : 32;
}

FN void prepare_shared() {
  Shared& s = shared<Shared>();
  s.failed = 0;
  s.claimed = 0;
  NOT_UNROLLED
  for (uint32_t g = 0; g < MAX_GROUPS; g++) s.group_failed[g] = 0;
}

// Takes the channel, and tells the peers, by block 0, what this operation is.
FN void open(Collective& op) {
  Shared& s = shared<Shared>();
  State* state = state_of(op.c);
  if (tid() == 0) {
    prepare_shared();
    // All three on their way at a time. The chain may be that of before a kernel which still has the channel; its number tells.
    uint64_t chain = 0, place = (uint64_t)&state->chain;
    uint32_t launches = 0;
    if (op.channel == 0) {
      chain = load_weak8_shared(place);
      launches = add_relaxed_device(&state->launches, 1);
    }
    uint32_t counter = take_counter(op, &state->channels[op.channel]);
    if (op.channel == 0 && (uint32_t)(chain >> 32) != counter) chain = load_weak8_shared(place);
    s.own = op.work.fingerprint;
    s.sequence = next_count(counter);
    s.chain = chained((uint32_t)chain, s.own);
    s.launch = launches + 1;
    s.refused = op.failed;
  }
  barrier();
  op.failed = s.refused != 0;
  // The last threads: the first ones have the first data to push.
  uint32_t helpers = header_threads();
  if (op.channel != 0 || op.failed || tid() + helpers < nthreads()) return;
  uint32_t line[4];
  header_line(line);
  NOT_UNROLLED
  for (uint32_t p = tid() + helpers - nthreads(); p < op.c.nranks; p += helpers) {
    if (p != op.c.rank) store_line(header_place(mailbox_to(op.c, p)->headers), line);
  }
}

// Whose fingerprints to wait for: one rank's, all peers', none's.
constexpr uint32_t ALL_PEERS = 0xffffffff;
constexpr uint32_t NO_PEER = 0xfffffffe;

// Block 0's last threads wait for the fingerprints of those this rank receives from. Called after the first push, so that
// lines and data travel together. A peer writes its line when it starts, whatever it waits for later.
FN void check_headers(Collective& op, uint32_t from) {
  uint32_t helpers = header_threads();
  if (op.channel != 0 || tid() + helpers < nthreads()) return;
  NOT_UNROLLED
  for (uint32_t p = tid() + helpers - nthreads(); p < op.c.nranks; p += helpers) {
    if (p == op.c.rank || (from != ALL_PEERS && p != from)) continue;
    uint32_t turns = 0;
    while (!op.failed && !header_came(op, p, mailbox_from(op.c, p)->headers, ERROR_MISMATCH)) spin(op, p, turns);
  }
}

// Ends a collective. `advance(p)` writes the counters of the FIFOs shared with peer p; it is called only if no thread failed.
template <class Advance>
FN void close(Collective& op, Advance advance) {
  barrier();
  if (shared<Shared>().failed) {
    if (tid() == 0) raise(op);
    return;
  }
  NOT_UNROLLED
  for (uint32_t p = tid(); p < op.c.nranks; p += nthreads()) {
    if (p != op.c.rank) advance(p);
  }
  barrier();
  if (tid() != 0) return;
  State* state = state_of(op.c);
  if (op.channel == 0) {
    const Shared& s = shared<Shared>();
    store_relaxed((uint64_t*)&state->chain, s.chain | (uint64_t)s.sequence << 32);
    store_relaxed(&host_of(op.c)->completed, shared<Shared>().launch);
  }
  store_release_device(&state->channels[op.channel], shared<Shared>().sequence);
}

FN void store_fifo(const CommArgs& c, uint32_t fifo, uint32_t p, uint32_t channel, uint32_t sent, uint32_t received, uint32_t known) {
  uint32_t v[4] = {sent, received, known, 0};
  store16(fifo_address(c, fifo, p, channel), v);
}

// The bytes [low, high) of a vector of `bytes` that this block of `grid` moves: shares of equal size, multiples of 16 but the last.
struct Span {
  uint64_t low, high;
};

FN Span block_span(uint64_t bytes, uint32_t grid) {
  uint64_t units = bytes / 16 + (bytes % 16 ? 1 : 0);
  uint64_t share = (units + grid - 1) / grid * 16;
  uint64_t low = share * block_id(), high = low + share;
  return {low < bytes ? low : bytes, high < bytes ? high : bytes};
}

// Copies lines of 16 bytes of the launch's parameter into shared memory. All threads of the block.
FN void copy_words(uint32_t* to, uint64_t from, uint32_t lines) {
  NOT_UNROLLED
  for (uint32_t i = tid(); i < lines; i += nthreads()) {
    uint32_t v[4];
    load16_anywhere(from + 16ull * i, v);
    UNROLLED
    for (uint32_t j = 0; j < 4; j++) to[4 * i + j] = v[j];
  }
}

// 32 bytes of global memory or of the launch's parameter.
FN void load_pair(uint64_t p, uint32_t (&v)[8]) {
  uint32_t low[4], high[4];
  load16_anywhere(p, low);
  load16_anywhere(p + 16, high);
  UNROLLED
  for (uint32_t i = 0; i < 4; i++) {
    v[i] = low[i];
    v[4 + i] = high[i];
  }
}
