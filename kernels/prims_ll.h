// LL: lines {data, flag, data, flag} of 8 payload bytes, stored into the receiver's memory; data and arrival are one store.
//
// A step of a FIFO is up to `ll_chunk` payload bytes. A line belongs to the same thread in every step of an operation, for
// pushing and for reading alike; that is what makes a line's arrival say that its place in the step before is free.
#pragma once

#include "op.h"

FN uint32_t ll_flag(uint32_t step) { return (step & 0x7fffffff) + 1; }
// Steps after which flags repeat: the receiver clears the FIFO, the sender waits for it.
FN bool ll_wraps(uint32_t step) { return (step & 0x7fffffff) == 0; }

FN uint64_t ll_slot(const CommArgs& c, uint64_t base, uint32_t sender, uint32_t channel, uint32_t step) {
  return base + c.ll_offset + (((uint64_t)sender * c.ll_channels + channel) * LL_SLOTS + step % LL_SLOTS) * (2 * c.ll_chunk);
}
FN uint64_t ll_slot_of_peer(const Op& op, uint32_t p, uint32_t step) {
  return ll_slot(op.c, remote_base(op.c, p), sender_index(op.c.rank, p), op.channel, step);
}
FN uint64_t ll_slot_from_peer(const Op& op, uint32_t p, uint32_t step) {
  return ll_slot(op.c, local_base(op.c, p), sender_index(p, op.c.rank), op.channel, step);
}

FN void put_line(uint64_t slot, uint32_t line, uint32_t flag, const Pack<2>& v) {
  uint32_t words[4] = {v.w[0], flag, v.w[1], flag};
  store_line(slot + 16ull * line, words);
}

FN bool line_is(const uint32_t (&words)[4], uint32_t flag) { return words[1] == flag && words[3] == flag; }

// The lines of one step of a block's span: `at` is the step's place in the vector, of `bytes` bytes.
struct LlStep {
  uint64_t at;
  uint32_t lines;
};

FN LlStep ll_step(const Span& span, uint32_t chunk, uint32_t k) {
  uint64_t at = span.low + (uint64_t)k * chunk, rest = span.high - at;
  return {at, (uint32_t)(((rest < chunk ? rest : chunk) + 7) / 8)};
}

FN uint32_t ll_steps(const Span& span, uint32_t chunk) {
  return (uint32_t)((span.high - span.low + chunk - 1) / chunk);
}

// The same in a mutual operation. A last step with fewer lines than the one before it says nothing of that step's other lines, which
// other threads read: they come together first, so that its arrival says that all of the step before was read.
FN LlStep ll_mutual_step(const Span& span, uint32_t chunk, uint32_t k) {
  LlStep s = ll_step(span, chunk, k);
  if (k > 0 && s.lines < (chunk + 7) / 8) barrier();
  return s;
}

// Whether the place of step `step` to peer p is free, for this thread, waiting if not known. `sent` are the steps before this operation.
// Where every rank receives from all it sends to (`mutual`), all but an operation's first step are known to be free.
FN void ll_credit(Collective& op, uint32_t p, const FifoState& f, uint32_t step, bool mutual) {
  bool wrapped = ll_wraps(step - 1);
  if (mutual && !wrapped && step != f.sent + 1) return;
  uint32_t wanted = wrapped ? step - 1 : step - LL_SLOTS;
  if (reached(f.known, wanted)) return;
  // The word may be as old as the last wrap; only numbers between what is known and what was sent mean something.
  const uint32_t* ack = &mailbox_from(op.c, p)->ll_ack[op.channel];
  uint32_t turns = 0;
  while (!op.failed) {
    uint32_t value = load_relaxed(ack);
    if (value - f.known <= step - 1 - f.known && reached(value, wanted)) return;
    spin_for_ack(op, p, turns);
  }
}

FN void ll_push(Collective& op, uint32_t p, uint32_t k, uint32_t line, const Pack<2>& v, bool mutual) {
  FifoState f = load_fifo(op.c, FIFO_LL, p, op.channel);
  uint32_t step = f.sent + 1 + k;
  // A thread's first line stands for all of its lines in this step.
  if (line == tid()) ll_credit(op, p, f, step, mutual);
  if (!op.failed) put_line(ll_slot_of_peer(op, p, step), line, ll_flag(step), v);
}

FN uint32_t ll_received(const Op& op, uint32_t p) { return load_fifo(op.c, FIFO_LL, p, op.channel).received; }

// Where line `line` of round k from peer p arrives.
FN uint64_t ll_place(const Op& op, uint32_t p, uint32_t k, uint32_t line) {
  return ll_slot_from_peer(op, p, ll_received(op, p) + 1 + k) + 16ull * line;
}

// Reads it.
FN Pack<2> ll_pull(Collective& op, uint32_t p, uint32_t k, uint32_t line) {
  uint32_t flag = ll_flag(ll_received(op, p) + 1 + k);
  uint64_t place = ll_place(op, p, k, line);
  uint32_t words[4], turns = 0;
  load_line(place, words);
  while (!line_is(words, flag) && !op.failed) {
    spin(op, p, turns);
    load_line(place, words);
  }
  return {{words[0], words[2]}};
}

FN void ll_acknowledge(Collective& op, uint32_t p, uint32_t k) {
  if (op.failed) return;
  store_ack(&mailbox_to(op.c, p)->ll_ack[op.channel], ll_received(op, p) + 1 + k);
}

// Called by all threads when they have read round k from peer p. Returns whether that step's number is one after which flags repeat,
// and has then cleared the FIFO and acknowledged the step. Costs a comparison otherwise.
FN bool ll_clear_if_wrapped(Collective& op, uint32_t p, uint32_t k) {
  uint32_t step = ll_received(op, p) + 1 + k;
  if (!ll_wraps(step)) return false;
  barrier();
  if (!op.failed) {
    uint64_t first = ll_slot_from_peer(op, p, 0);
    uint32_t zero[4] = {0, 0, 0, 0};
    for (uint32_t i = tid(); i < LL_SLOTS * op.c.ll_chunk / 8; i += nthreads()) store_line(first + 16ull * i, zero);
  }
  fence();
  barrier();
  if (tid() == 0) ll_acknowledge(op, p, k);
  return true;
}

// Called by all threads when they have read round k from peer p, in operations that are not mutual: acknowledges it.
FN void ll_consumed(Collective& op, uint32_t p, uint32_t k) {
  if (ll_clear_if_wrapped(op, p, k)) return;
  barrier();
  if (tid() == 0) ll_acknowledge(op, p, k);
}

// Reduces line `line` of round k over all ranks, in rank order; `own` is this rank's contribution.
template <class A>
FN Pack<2> ll_reduce(Collective& op, const A& arith, uint32_t k, uint32_t line, const Pack<2>& own) {
  typename A::template Accumulator<2> sum = {};
  uint32_t n = op.c.nranks;
  NOT_UNROLLED
  for (uint32_t first = 0; first < n; first += A::GROUP) {
    uint32_t words[A::GROUP][4];
    // Ask for all, then wait for each.
    UNROLLED
    for (uint32_t j = 0; j < A::GROUP; j++) {
      uint32_t p = first + j;
      if (p < n && p != op.c.rank) load_line(ll_place(op, p, k, line), words[j]);
    }
    UNROLLED
    for (uint32_t j = 0; j < A::GROUP; j++) {
      uint32_t p = first + j, turns = 0;
      if (p < n) {
        Pack<2> v = own;
        if (p != op.c.rank) {
          uint32_t flag = ll_flag(ll_received(op, p) + 1 + k);
          while (!line_is(words[j], flag) && !op.failed) {
            spin(op, p, turns);
            load_line(ll_place(op, p, k, line), words[j]);
          }
          v.w[0] = words[j][0];
          v.w[1] = words[j][2];
        }
        arith.add(sum, v, p == 0);
      }
    }
  }
  return arith.finish(sum);
}

// A mutual operation of one step per round in both directions of every pair: ends with all but the last step known to be consumed.
FN void ll_close_mutual(Collective& op, uint32_t rounds) {
  close(op, [&](uint32_t p) {
    if (!rounds) return;
    FifoState f = load_fifo(op.c, FIFO_LL, p, op.channel);
    store_fifo(op.c, FIFO_LL, p, op.channel, f.sent + rounds, f.received + rounds, later(f.known, f.sent + rounds - 1));
  });
}

// Any other: `sent` steps to the peer or peers `to`, `received` steps from `from`.
FN void ll_close(Collective& op, uint32_t sent, uint32_t to, uint32_t received, uint32_t from) {
  close(op, [&](uint32_t p) {
    uint32_t out = to == ALL_PEERS || to == p ? sent : 0, in = from == ALL_PEERS || from == p ? received : 0;
    if (!out && !in) return;
    FifoState f = load_fifo(op.c, FIFO_LL, p, op.channel);
    uint32_t known = out ? later(f.known, f.sent + out - LL_SLOTS) : f.known;
    store_fifo(op.c, FIFO_LL, p, op.channel, f.sent + out, f.received + in, known);
  });
}
