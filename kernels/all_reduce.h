// AllReduce. LL: every rank pushes its vector to all others and reduces by itself: one crossing, for small sizes. Simple: two-shot, see
// two_shot.h.
#pragma once

#include "arith.h"
#include "prims_ll.h"
#include "two_shot.h"

template <class A>
FN void all_reduce_ll(const CollectiveWork& work) {
  Collective op(work);
  A arith(work);
  uint64_t bytes = work.count * type_size(work.datatype);
  Span span = block_span(bytes, work.grid);
  uint32_t rounds = ll_steps(span, work.chunk);
  // The first line is on its way while the channel is taken.
  Pack<2> first = {{0, 0}};
  if (span.low + 8ull * tid() < span.high) first = load_pack<2>(work.send + span.low + 8ull * tid(), bytes - span.low - 8ull * tid());
  first = arith.prepare(first);
  open(op);
  for (uint32_t k = 0; k < rounds; k++) {
    LlStep s = ll_mutual_step(span, work.chunk, k);
    for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
      uint64_t at = s.at + 8ull * i;
      if (i != tid() || k) {
        Pack<2> v = arith.prepare(load_pack<2>(work.send + at, bytes - at));
        for (uint32_t p = 0; p < op.c.nranks; p++) {
          if (p != op.c.rank) ll_push(op, p, k, i, v, true);
        }
        if (i == tid()) first = v;
      } else {
        for (uint32_t p = 0; p < op.c.nranks; p++) {
          if (p != op.c.rank) ll_push(op, p, k, i, first, true);
        }
      }
    }
    if (k == 0) check_headers(op, ALL_PEERS);
    for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
      uint64_t at = s.at + 8ull * i;
      Pack<2> own = first;
      if (i != tid()) own = arith.prepare(load_pack<2>(work.send + at, bytes - at));
      Pack<2> v = ll_reduce(op, arith, k, i, own);
      if (!op.failed) store_pack<2>(work.recv + at, bytes - at, v);
    }
    for (uint32_t p = 0; p < op.c.nranks; p++) {
      if (p != op.c.rank) ll_clear_if_wrapped(op, p, k);
    }
  }
  ll_close_mutual(op, rounds);
}

template <class A>
FN void all_reduce_simple(const CollectiveWork& work) {
  two_shot<FN_ALL_REDUCE, A>(work);
}
