// AllGather: every rank pushes its part to all others, who copy it out (Simple) or read it where it came (LL).
#pragma once

#include "arith.h"
#include "prims_ll.h"
#include "prims_simple.h"

FN void all_gather_ll(const CollectiveWork& work) {
  Collective op(work);
  uint64_t bytes = work.count * type_size(work.datatype);
  Span span = block_span(bytes, work.grid);
  uint32_t rounds = ll_steps(span, work.chunk);
  uint64_t own = work.recv + op.c.rank * bytes;
  open(op);
  for (uint32_t k = 0; k < rounds; k++) {
    LlStep s = ll_mutual_step(span, work.chunk, k);
    for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
      uint64_t at = s.at + 8ull * i;
      Pack<2> v = load_pack<2>(work.send + at, bytes - at);
      for (uint32_t p = 0; p < op.c.nranks; p++) {
        if (p != op.c.rank) ll_push(op, p, k, i, v, true);
      }
      if (work.send != own && !op.failed) store_pack<2>(own + at, bytes - at, v);
    }
    if (k == 0) check_headers(op, ALL_PEERS);
    for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
      uint64_t at = s.at + 8ull * i;
      for (uint32_t p = 0; p < op.c.nranks; p++) {
        if (p == op.c.rank) continue;
        Pack<2> v = ll_pull(op, p, k, i);
        if (!op.failed) store_pack<2>(work.recv + p * bytes + at, bytes - at, v);
      }
    }
    for (uint32_t p = 0; p < op.c.nranks; p++) {
      if (p != op.c.rank) ll_clear_if_wrapped(op, p, k);
    }
  }
  ll_close_mutual(op, rounds);
}

struct AllGather {
  Collective& op;
  uint64_t send, recv, bytes;
  Span span;
  uint32_t rounds;

  METHOD explicit AllGather(Collective& o) : op(o) {
    const CollectiveWork& w = op.work;
    send = w.send;
    recv = w.recv;
    bytes = w.count * type_size(w.datatype);
    span = block_span(bytes, w.grid);
    rounds = (uint32_t)((span.high - span.low + w.chunk - 1) / w.chunk);
  }

  METHOD Roles roles() const { return {2, 0, 2}; }
  METHOD uint32_t headers_from() const { return ALL_PEERS; }
  METHOD uint64_t at(uint32_t k) const { return span.low + (uint64_t)k * op.work.chunk; }
  METHOD uint32_t length(uint32_t k) const {
    uint64_t rest = span.high - at(k);
    return rest < op.work.chunk ? (uint32_t)rest : op.work.chunk;
  }

  METHOD bool push(const Group& g, uint32_t k) {
    if (!wait_for_peers(op, g, [&](uint32_t p) { wait_slot(op, 0, p, k); })) return false;
    uint64_t from = send + at(k), own = recv + op.c.rank * bytes + at(k);
    uint32_t bytes_k = length(k);
    bool keep = from != own;
    constexpr uint32_t U = 4;
    for_packs<U>(
        g, (from | own) & 15 ? 0 : bytes_k / 16, (bytes_k + 15) / 16,
        [&](uint32_t i) {
          Pack<4> v[U];
          UNROLLED
          for (uint32_t j = 0; j < U; j++) load16(from + 16ull * i + 16 * WARP * j, v[j].w);
          NOT_UNROLLED
          for (uint32_t p = 0; p < op.c.nranks; p++) {
            if (p == op.c.rank && !keep) continue;
            uint64_t to = (p == op.c.rank ? own : slot_of_peer(op, 0, p, k)) + 16ull * i;
            UNROLLED
            for (uint32_t j = 0; j < U; j++) store16(to + 16 * WARP * j, v[j].w);
          }
        },
        [&](uint32_t i) {
          Pack<4> v = load_pack<4>(from + 16ull * i, bytes_k - 16 * i);
          NOT_UNROLLED
          for (uint32_t p = 0; p < op.c.nranks; p++) {
            if (p != op.c.rank) store16(slot_of_peer(op, 0, p, k) + 16ull * i, v.w);
          }
          if (keep) store_pack<4>(own + 16ull * i, bytes_k - 16 * i, v);
        });
    signal_peers(op, g, [&](uint32_t p) { signal_data(op, 0, p, k); });
    return true;
  }

  METHOD bool work(const Group&, uint32_t) { return true; }

  METHOD bool copy(const Group& g, uint32_t k) {
    if (!wait_for_peers(op, g, [&](uint32_t p) { wait_data(op, 0, p, k); })) return false;
    for (uint32_t p = 0; p < op.c.nranks; p++) {
      if (p != op.c.rank) copy_from_slot(g, recv + p * bytes + at(k), slot_from_peer(op, 0, p, k), length(k));
    }
    g.sync();
    for (uint32_t p = g.tid; p < op.c.nranks; p += g.size) {
      if (p != op.c.rank) signal_free(op, 0, p, k);
    }
    return true;
  }
};

FN void all_gather_simple(const CollectiveWork& work) {
  Collective op(work);
  AllGather engine(op);
  open(op);
  if (!op.failed) run_rounds(op, engine, engine.rounds);
  close(op, [&](uint32_t p) { advance_way(op, 0, p, engine.rounds, engine.rounds); });
}
