// Two-shot operations of the Simple protocol: each block's span is cut into rounds of one piece per owner; contributions go to a piece's
// owner on way 0 (push), who combines them and sends the result on way 1 (work), from where receivers take it (copy).
//
//                owners        contribute            receive results
// AllReduce      all           all                   all
// Reduce         all           all                   root
// Broadcast      all but root  root                  all but root
// ReduceScatter  all           all                   none: the owner keeps it
//
// On the wire per rank, for n ranks and S bytes: AllReduce 2 S (n - 1) / n in and out; Reduce S (n - 1) / n out, the root twice that in;
// Broadcast S out of the root and into each other rank; ReduceScatter
// S (n - 1) in and out, S being the owner's part.
#pragma once

#include "arith.h"
#include "prims_simple.h"

template <uint32_t F, class A>
struct TwoShot {
  static constexpr uint32_t W = A::WIDTH;
  static constexpr uint64_t SIZE = 4 * W;
  Collective& op;
  const A& arith;
  const CollectiveWork& call;
  const uint32_t &rank, &nranks, &root;

  METHOD TwoShot(Collective& o, const A& a) : op(o), arith(a), call(o.work), rank(o.c.rank), nranks(o.c.nranks), root(o.work.root) {}

  METHOD uint64_t bytes() const { return call.count * type_size(call.datatype); }
  // Owners that share the span.
  METHOD uint32_t owners() const { return F == FN_BROADCAST ? nranks - 1 : F == FN_REDUCE_SCATTER ? 1 : nranks; }

  // Cuts the block's share into rounds of nearly equal size. One thread, before the channel is taken; the result lies in shared memory, for
  // want of registers.
  METHOD void plan() const {
    Shared& s = shared<Shared>();
    Span span = block_span(bytes(), op.work.grid);
    uint64_t length = span.high - span.low, most = (uint64_t)owners() * call.chunk;
    uint32_t rounds = (uint32_t)((length + most - 1) / most);
    uint64_t pieces = (uint64_t)owners() * rounds;
    s.low = span.low;
    s.high = span.high;
    s.rounds = rounds;
    s.piece = rounds ? (uint32_t)(((length + pieces - 1) / pieces + 15) / 16 * 16) : 0;
  }

  METHOD bool owns(uint32_t p) const { return F != FN_BROADCAST || p != root; }
  METHOD bool contributes(uint32_t p) const { return F != FN_BROADCAST || p == root; }
  METHOD bool receives(uint32_t p) const {
    return F == FN_ALL_REDUCE || (F == FN_REDUCE && p == root) || (F == FN_BROADCAST && p != root);
  }
  METHOD bool keeps() const { return F == FN_REDUCE_SCATTER || receives(rank); }
  // Rank p's pieces of this rank's input.
  METHOD uint64_t input(uint32_t p) const { return F == FN_REDUCE_SCATTER ? call.send + p * bytes() : call.send; }
  METHOD Roles roles() const {
    if (F == FN_BROADCAST) return rank == root ? Roles{4, 0, 0} : nranks == 2 ? Roles{0, 4, 0} : Roles{0, 2, 2};
    return receives(rank) ? Roles{1, 2, 1} : Roles{2, 2, 0};
  }
  METHOD uint32_t headers_from() const { return F == FN_BROADCAST && rank == root ? NO_PEER : ALL_PEERS; }

  // Where rank p's piece of round k is in the vector (ReduceScatter: in its part).
  METHOD uint64_t piece_at(uint32_t k, uint32_t p) const {
    uint32_t owner = F == FN_REDUCE_SCATTER ? 0 : F == FN_BROADCAST && p > root ? p - 1 : p;
    return shared<Shared>().low + ((uint64_t)k * owners() + owner) * shared<Shared>().piece;
  }
  METHOD uint32_t piece_bytes(uint64_t at) const {
    const Shared& s = shared<Shared>();
    return at >= s.high ? 0 : s.high - at < s.piece ? (uint32_t)(s.high - at) : s.piece;
  }

  METHOD bool push(const Group& g, uint32_t k) {
    if (!wait_for_peers(op, g, [&](uint32_t p) { wait_slot(op, 0, p, k); })) return false;
    NOT_UNROLLED
    for (uint32_t j = 1; j < nranks; j++) {
      uint32_t p = rank + j < nranks ? rank + j : rank + j - nranks;
      uint64_t at = piece_at(k, p), slot = slot_of_peer(op, 0, p, k);
      uint32_t length = piece_bytes(at);
      if constexpr (F == FN_BROADCAST) {
        if (call.send != call.recv) {
          push_and_keep(g, slot, at, length);
          continue;
        }
      }
      copy_to_slot<W>(g, slot, input(p) + at, length, [&](const Pack<W>& v) { return arith.prepare(v); });
    }
    signal_peers(op, g, [&](uint32_t p) { signal_data(op, 0, p, k); });
    return true;
  }

  // The root's own result is its input.
  METHOD void push_and_keep(const Group& g, uint64_t slot, uint64_t at, uint32_t length) {
    for (uint32_t i = g.tid; 16 * i < length; i += g.size) {
      Pack<4> v = load_pack<4>(call.send + at + 16ull * i, length - 16 * i);
      store16(slot + 16ull * i, v.w);
      store_pack<4>(call.recv + at + 16ull * i, length - 16 * i, v);
    }
  }

  METHOD bool work(const Group& g, uint32_t k) {
    if (!wait_for_peers(op, g, [&](uint32_t p) {
          if (contributes(p)) wait_data(op, 0, p, k);
          if (receives(p)) wait_slot(op, 1, p, k);
        })) {
      return false;
    }
    uint64_t at = piece_at(k, rank);
    uint32_t length = piece_bytes(at), total = (length + (uint32_t)SIZE - 1) / (uint32_t)SIZE;
    constexpr uint32_t U = A::UNROLL;
    bool aligned = !((F == FN_BROADCAST ? call.recv : input(rank) | call.recv) & (SIZE - 1));
    for_packs<U>(
        g, aligned ? length / (uint32_t)SIZE : 0, total, [&](uint32_t i) { combine<U>(k, at, length, i); },
        [&](uint32_t i) { combine<1>(k, at, length, i); });
    signal_peers(op, g, [&](uint32_t p) {
      if (receives(p)) signal_data(op, 1, p, k);
      if (contributes(p)) signal_free(op, 0, p, k);
    });
    return true;
  }

  // Packs i, i + WARP, ... (U of them) of the piece at `at`, over all contributors in rank order.
  template <uint32_t U>
  METHOD void combine(uint32_t k, uint64_t at, uint32_t length, uint32_t i) {
    Pack<W> v[U];
    if constexpr (F == FN_BROADCAST) {
      contribution<U>(k, root, at, length, i, v);
    } else {
      typename A::template Accumulator<W> sum[U];
      if constexpr (A::PREPARES) {
        NOT_UNROLLED
        for (uint32_t p = 0; p < nranks; p++) {
          contribution<U>(k, p, at, length, i, v);
          UNROLLED
          for (uint32_t j = 0; j < U; j++) arith.add(sum[j], v[j], p == 0);
        }
      } else {
        // Two ranks' packs on their way at a time.
        Pack<W> w[U];
        contribution<U>(k, 0, at, length, i, v);
        contribution<U>(k, 1, at, length, i, w);
        UNROLLED
        for (uint32_t j = 0; j < U; j++) arith.add(sum[j], v[j], true);
        UNROLLED
        for (uint32_t j = 0; j < U; j++) arith.add(sum[j], w[j], false);
        NOT_UNROLLED
        for (uint32_t p = 2; p < nranks; p++) {
          contribution<U>(k, p, at, length, i, v);
          UNROLLED
          for (uint32_t j = 0; j < U; j++) arith.add(sum[j], v[j], false);
        }
      }
      UNROLLED
      for (uint32_t j = 0; j < U; j++) v[j] = arith.finish(sum[j]);
    }
    give<U>(k, at, length, i, v);
  }

  template <uint32_t U>
  METHOD void contribution(uint32_t k, uint32_t p, uint64_t at, uint32_t length, uint32_t i, Pack<W>* v) {
    if (p == rank) {
      uint64_t from = input(rank) + at;
      UNROLLED
      for (uint32_t j = 0; j < U; j++) {
        if constexpr (U > 1) {
          v[j] = load_whole(from + SIZE * i + SIZE * WARP * j, v[j]);
        } else {
          v[j] = arith.prepare(load_pack<W>(from + SIZE * i, length - (uint32_t)SIZE * i));
        }
      }
    } else {
      uint64_t slot = slot_from_peer(op, 0, p, k);
      UNROLLED
      for (uint32_t j = 0; j < U; j++) v[j] = load_slot(slot + SIZE * i + SIZE * WARP * j, v[j]);
    }
  }

  // The piece's result, to this rank's output and to the receivers.
  template <uint32_t U>
  METHOD void give(uint32_t k, uint64_t at, uint32_t length, uint32_t i, const Pack<W>* v) {
    if constexpr (F != FN_REDUCE_SCATTER) {
      NOT_UNROLLED
      for (uint32_t p = 0; p < nranks; p++) {
        if (p == rank || !receives(p)) continue;
        uint64_t slot = slot_of_peer(op, 1, p, k);
        UNROLLED
        for (uint32_t j = 0; j < U; j++) store_whole(slot + SIZE * i + SIZE * WARP * j, v[j]);
      }
    }
    if (!keeps()) return;
    UNROLLED
    for (uint32_t j = 0; j < U; j++) {
      if constexpr (U > 1) {
        store_whole(call.recv + at + SIZE * i + SIZE * WARP * j, v[j]);
      } else {
        store_pack<W>(call.recv + at + SIZE * i, length - (uint32_t)SIZE * i, v[j]);
      }
    }
  }

  METHOD bool copy(const Group& g, uint32_t k) {
    if (!wait_for_peers(op, g, [&](uint32_t p) {
          if (owns(p)) wait_data(op, 1, p, k);
        })) {
      return false;
    }
    for (uint32_t p = 0; p < nranks; p++) {
      if (p == rank || !owns(p)) continue;
      uint64_t at = piece_at(k, p);
      copy_from_slot(g, call.recv + at, slot_from_peer(op, 1, p, k), piece_bytes(at));
    }
    g.sync();
    for (uint32_t p = g.tid; p < nranks; p += g.size) {
      if (p != rank && owns(p)) signal_free(op, 1, p, k);
    }
    return true;
  }

  METHOD void finish() {
    uint32_t rounds = shared<Shared>().rounds;
    close(op, [&](uint32_t p) {
      advance_way(op, 0, p, contributes(rank) ? rounds : 0, contributes(p) ? rounds : 0);
      advance_way(op, 1, p, owns(rank) && receives(p) ? rounds : 0, owns(p) && receives(rank) ? rounds : 0);
    });
  }
};

template <uint32_t F, class A>
FN void two_shot(const CollectiveWork& work) {
  Collective op(work);
  A arith(work);
  TwoShot<F, A> engine(op, arith);
  if (tid() == 0) engine.plan();
  open(op);
  if (!op.failed) run_rounds(op, engine, shared<Shared>().rounds);
  engine.finish();
}
