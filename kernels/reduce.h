// Reduce. LL: every rank pushes its vector to the root. Simple: all ranks reduce a piece each for the root (two_shot.h).
#pragma once

#include "arith.h"
#include "prims_ll.h"
#include "two_shot.h"

template <class A>
FN void reduce_ll(const CollectiveWork& work) {
  Collective op(work);
  A arith(work);
  uint64_t bytes = work.count * type_size(work.datatype);
  Span span = block_span(bytes, work.grid);
  uint32_t rounds = ll_steps(span, work.chunk);
  bool is_root = op.c.rank == work.root;
  open(op);
  for (uint32_t k = 0; k < rounds; k++) {
    LlStep s = ll_step(span, work.chunk, k);
    if (is_root && k == 0) check_headers(op, ALL_PEERS);
    for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
      uint64_t at = s.at + 8ull * i;
      Pack<2> own = arith.prepare(load_pack<2>(work.send + at, bytes - at));
      if (is_root) {
        Pack<2> v = ll_reduce(op, arith, k, i, own);
        if (!op.failed) store_pack<2>(work.recv + at, bytes - at, v);
      } else {
        ll_push(op, work.root, k, i, own, false);
      }
    }
    for (uint32_t p = 0; is_root && p < op.c.nranks; p++) {
      if (p != op.c.rank) ll_consumed(op, p, k);
    }
  }
  ll_close(op, is_root ? 0 : rounds, work.root, is_root ? rounds : 0, ALL_PEERS);
}

template <class A>
FN void reduce_simple(const CollectiveWork& work) {
  two_shot<FN_REDUCE, A>(work);
}
