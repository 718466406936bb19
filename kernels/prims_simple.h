// Simple: FIFOs of plain bytes with counters beside them.
//
// The sender stores a step's bytes into a slot of the receiver's memory, then the step's number into the receiver's `tail`; the receiver
// reads them and stores the number into the sender's `head`. Steps are moved by groups of threads: one waits for each peer, a
// barrier spreads the news, all move bytes, a barrier collects them, one signals each peer behind a fence.
//
// Between two waits of a group lies its second barrier; therefore all its threads see the same outcome of a wait.
#pragma once

#include "op.h"

// Threads of a block that move steps together: all of them, or whole warps.
struct Group {
  uint32_t tid, size, id;
  bool whole;

  METHOD void sync() const {
    if (whole) {
      barrier();
    } else {
      barrier(1 + id, size);
    }
  }
};

FN Group whole_block() { return {tid(), nthreads(), 0, true}; }

// Packs loaded before the first of them is stored.
constexpr uint32_t COPY_UNROLL = 4;

// Runs `wait(p)` for every peer p, and tells all threads of the group whether to go on.
template <class Wait>
FN bool wait_for_peers(Collective& op, const Group& g, Wait wait) {
  uint32_t& failed = shared<Shared>().group_failed[g.id];
  NOT_UNROLLED
  for (uint32_t p = g.tid; p < op.c.nranks; p += g.size) {
    if (p != op.c.rank) wait(p);
  }
  if (op.failed) failed = 1;
  g.sync();
  if (failed) op.failed = true;
  return !op.failed;
}

// Runs `signal(p)` for every peer p when all threads of the group have come; what they stored is seen before a signal.
template <class Signal>
FN void signal_peers(Collective& op, const Group& g, Signal signal) {
  g.sync();
  if (g.tid >= op.c.nranks) return;
  fence();
  NOT_UNROLLED
  for (uint32_t p = g.tid; p < op.c.nranks; p += g.size) {
    if (p != op.c.rank) signal(p);
  }
}

FN uint64_t stage_offset(const CommArgs& c, uint32_t sender, uint32_t way, uint32_t channel, uint32_t step) {
  uint64_t slot = (((uint64_t)sender * WAYS + way) * c.simple_channels + channel) * SIMPLE_SLOTS + step % SIMPLE_SLOTS;
  return slot * c.simple_chunk;
}
FN uint64_t slot_of_peer(const Op& op, uint32_t way, uint32_t p, uint32_t k) {
  uint32_t step = load_fifo(op.c, FIFO_WAY + way, p, op.channel).sent + 1 + k;
  return remote_stage(op.c, p) + stage_offset(op.c, sender_index(op.c.rank, p), way, op.channel, step);
}
FN uint64_t slot_from_peer(const Op& op, uint32_t way, uint32_t p, uint32_t k) {
  uint32_t step = load_fifo(op.c, FIFO_WAY + way, p, op.channel).received + 1 + k;
  return local_stage(op.c, p) + stage_offset(op.c, sender_index(p, op.c.rank), way, op.channel, step);
}

// This thread waits until round k's slot at peer p is free.
FN void wait_slot(Collective& op, uint32_t way, uint32_t p, uint32_t k) {
  FifoState f = load_fifo(op.c, FIFO_WAY + way, p, op.channel);
  uint32_t wanted = f.sent + 1 + k - SIMPLE_SLOTS, turns = 0;
  if (reached(f.known, wanted)) return;
  const uint32_t* head = &mailbox_from(op.c, p)->head[way][op.channel];
  while (!op.failed && !reached(load_acquire(head), wanted)) spin_for_ack(op, p, turns);
}

// This thread waits until round k from peer p has come.
FN void wait_data(Collective& op, uint32_t way, uint32_t p, uint32_t k) {
  uint32_t wanted = load_fifo(op.c, FIFO_WAY + way, p, op.channel).received + 1 + k, turns = 0;
  const uint32_t* tail = &mailbox_from(op.c, p)->tail[way][op.channel];
  while (!op.failed && !reached(load_acquire(tail), wanted)) spin(op, p, turns);
}

FN void signal_data(Collective& op, uint32_t way, uint32_t p, uint32_t k) {
  store_relaxed(&mailbox_to(op.c, p)->tail[way][op.channel], load_fifo(op.c, FIFO_WAY + way, p, op.channel).sent + 1 + k);
}
FN void signal_free(Collective& op, uint32_t way, uint32_t p, uint32_t k) {
  store_ack(&mailbox_to(op.c, p)->head[way][op.channel], load_fifo(op.c, FIFO_WAY + way, p, op.channel).received + 1 + k);
}

// The counters of a pair's FIFO after `sent` and `received` more steps.
FN void advance_way(const Op& op, uint32_t way, uint32_t p, uint32_t sent, uint32_t received) {
  if (!sent && !received) return;
  FifoState f = load_fifo(op.c, FIFO_WAY + way, p, op.channel);
  uint32_t known = sent ? later(f.known, f.sent + sent - SIMPLE_SLOTS) : f.known;
  store_fifo(op.c, FIFO_WAY + way, p, op.channel, f.sent + sent, f.received + received, known);
}

// Runs `bulk(i)` for packs i, i + WARP, ... (U of them) while whole blocks of packs last, then `rest(i)` for each pack that is left, of
// `total`; the last `total - whole` are not whole. Neighbouring threads move neighbouring packs, and a thread's U packs have fixed
// distances, which costs one address.
template <uint32_t U, class Bulk, class Rest>
FN void for_packs(const Group& g, uint32_t whole, uint32_t total, Bulk bulk, Rest rest) {
  uint32_t blocks = 0;
  if constexpr (U > 1) {
    blocks = g.size % WARP ? 0 : whole / (U * WARP);
    NOT_UNROLLED
    for (uint32_t b = g.tid / WARP; b < blocks; b += g.size / WARP) bulk(b * (U * WARP) + g.tid % WARP);
  }
  NOT_UNROLLED
  for (uint32_t i = blocks * (U * WARP) + g.tid; i < total; i += g.size) rest(i);
}

// Copies `bytes` from a slot to the user's memory.
FN void copy_from_slot(const Group& g, uint64_t to, uint64_t slot, uint32_t bytes) {
  for_packs<COPY_UNROLL>(
      g, to & 15 ? 0 : bytes / 16, (bytes + 15) / 16,
      [&](uint32_t i) {
        Pack<4> v[COPY_UNROLL];
        UNROLLED
        for (uint32_t j = 0; j < COPY_UNROLL; j++) load16_shared(slot + 16ull * i + 16 * WARP * j, v[j].w);
        UNROLLED
        for (uint32_t j = 0; j < COPY_UNROLL; j++) store16(to + 16ull * i + 16 * WARP * j, v[j].w);
      },
      [&](uint32_t i) { store_pack<4>(to + 16ull * i, bytes - 16 * i, load_slot(slot + 16ull * i, Pack<4>{})); });
}

// Copies `bytes` of the user's memory to a slot, in packs of W words, each changed by `prepare`.
template <uint32_t W, class Prepare>
FN void copy_to_slot(const Group& g, uint64_t slot, uint64_t from, uint32_t bytes, Prepare prepare) {
  constexpr uint32_t SIZE = 4 * W, U = W == 4 ? COPY_UNROLL : 1;
  for_packs<U>(
      g, from & (SIZE - 1) ? 0 : bytes / SIZE, (bytes + SIZE - 1) / SIZE,
      [&](uint32_t i) {
        Pack<W> v[U];
        UNROLLED
        for (uint32_t j = 0; j < U; j++) v[j] = load_whole(from + (uint64_t)SIZE * i + SIZE * WARP * j, v[j]);
        UNROLLED
        for (uint32_t j = 0; j < U; j++) store_whole(slot + (uint64_t)SIZE * i + SIZE * WARP * j, prepare(v[j]));
      },
      [&](uint32_t i) { store_whole(slot + (uint64_t)SIZE * i, prepare(load_pack<W>(from + (uint64_t)SIZE * i, bytes - SIZE * i))); });
}

// A type of its own, not a function pointer.
struct Unchanged {
  METHOD Pack<4> operator()(const Pack<4>& v) const { return v; }
};

// Which of its steps a rank does in an operation, as quarters of a block's threads that do them when each has threads of its own.
struct Roles {
  uint32_t push, work, copy;
};

// Runs the rounds of an operation whose steps follow one another: push, then work, then copy. Each step is a member of `engine` that
// takes a group and a round and returns false to give up; `roles` says which there are. With enough threads each has warps of its
// own; with few, one loop does all, each step some rounds after the one before, so that peers' steps overlap.
//
// Neither can deadlock. Loop: a step waits for the step before it, `LAG` iterations ago at all ranks, and for slots that were freed at
// least one iteration ago: with a lag of half the slots per step, the data of round k is consumed in iteration k + LAG at the latest and
// its slot is wanted in iteration k + slots. So the rank that is least far can go on. Roles: push(k) waits for the consumer of
// round k - slots, work(k) for push(k) and copy(k - slots), copy(k) for what it consumes.
template <class Engine>
FN void run_rounds(Collective& op, Engine& engine, uint32_t rounds) {
  constexpr uint32_t LAG = SIMPLE_SLOTS / 2;
  Roles roles = engine.roles();
  uint32_t quarter = nthreads() % WARP ? 0 : nthreads() / 4 / WARP * WARP;
  if (quarter > 0 && rounds > 1) {
    uint32_t push = roles.push * quarter, work = roles.work * quarter, rest = nthreads() - 4 * quarter, t = tid();
    // Threads that are no quarter's go to the last role.
    if (roles.copy == 0) {
      if (work) {
        work += rest;
      } else {
        push += rest;
      }
    }
    check_headers(op, engine.headers_from());
    if (t < push) {
      Group g = {t, push, 0, push == nthreads()};
      for (uint32_t k = 0; k < rounds && engine.push(g, k); k++) {
      }
    } else if (t < push + work) {
      Group g = {t - push, work, 1, work == nthreads()};
      for (uint32_t k = 0; k < rounds && engine.work(g, k); k++) {
      }
    } else {
      uint32_t copy = nthreads() - push - work;
      Group g = {t - push - work, copy, 2, copy == nthreads()};
      for (uint32_t k = 0; k < rounds && engine.copy(g, k); k++) {
      }
    }
    return;
  }
  Group g = whole_block();
  uint32_t before_work = roles.push ? LAG : 0, before_copy = before_work + (roles.work ? LAG : 0);
  for (uint32_t k = 0; k < rounds + before_copy; k++) {
    if (roles.push && k < rounds && !engine.push(g, k)) return;
    if (k == 0) check_headers(op, engine.headers_from());
    if (roles.work && k >= before_work && k - before_work < rounds && !engine.work(g, k - before_work)) return;
    if (roles.copy && k >= before_copy && !engine.copy(g, k - before_copy)) return;
  }
}
