// Broadcast. LL: the root pushes to every rank. Simple: the root sends each rank a piece, which that rank passes on (two_shot.h). The
// root does not wait for ranks that are late: it runs ahead by as many steps as the FIFOs have slots.
#pragma once

#include "arith.h"
#include "prims_ll.h"
#include "two_shot.h"

FN void broadcast_ll(const CollectiveWork& work) {
  Collective op(work);
  uint64_t bytes = work.count * type_size(work.datatype);
  Span span = block_span(bytes, work.grid);
  uint32_t rounds = ll_steps(span, work.chunk);
  bool is_root = op.c.rank == work.root;
  open(op);
  for (uint32_t k = 0; k < rounds; k++) {
    LlStep s = ll_step(span, work.chunk, k);
    if (is_root) {
      for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
        uint64_t at = s.at + 8ull * i;
        Pack<2> v = load_pack<2>(work.send + at, bytes - at);
        for (uint32_t p = 0; p < op.c.nranks; p++) {
          if (p != op.c.rank) ll_push(op, p, k, i, v, false);
        }
        if (work.send != work.recv && !op.failed) store_pack<2>(work.recv + at, bytes - at, v);
      }
    } else {
      if (k == 0) check_headers(op, work.root);
      for (uint32_t i = tid(); i < s.lines; i += nthreads()) {
        uint64_t at = s.at + 8ull * i;
        Pack<2> v = ll_pull(op, work.root, k, i);
        if (!op.failed) store_pack<2>(work.recv + at, bytes - at, v);
      }
      ll_consumed(op, work.root, k);
    }
  }
  ll_close(op, is_root ? rounds : 0, ALL_PEERS, is_root ? 0 : rounds, work.root);
}

FN void broadcast_simple(const CollectiveWork& work) { two_shot<FN_BROADCAST, NoArith>(work); }
