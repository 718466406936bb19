// ReduceScatter: every rank pushes to each other the part that is its own; each reduces its part.
#pragma once

#include "arith.h"
#include "prims_ll.h"
#include "prims_simple.h"

template <class A>
FN void reduce_scatter_ll(const CollectiveWork& work) {
  Collective op(work);
  A arith(work);
  uint64_t bytes = work.count * type_size(work.datatype);
  Span span = block_span(bytes, work.grid);
  uint32_t rounds = ll_steps(span, work.chunk);
  open(op);
  for (uint32_t k = 0; k < rounds; k++) {
    LlStep s = ll_mutual_step(span, work.chunk, k);
    for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
      uint64_t at = s.at + 8ull * i;
      for (uint32_t p = 0; p < op.c.nranks; p++) {
        if (p == op.c.rank) continue;
        ll_push(op, p, k, i, arith.prepare(load_pack<2>(work.send + p * bytes + at, bytes - at)), true);
      }
    }
    if (k == 0) check_headers(op, ALL_PEERS);
    for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
      uint64_t at = s.at + 8ull * i;
      Pack<2> own = arith.prepare(load_pack<2>(work.send + op.c.rank * bytes + at, bytes - at));
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
FN void reduce_scatter_simple(const CollectiveWork& work) {
  two_shot<FN_REDUCE_SCATTER, A>(work);
}
