// Small kernels: the probe of a path, and the arithmetic of one rank.
#pragma once

#include "arith.h"
#include "op.h"

FN void probe(const ProbeWork& work) {
  for (uint32_t p = tid(); p < work.comm.nranks; p += nthreads()) {
    if (p != work.comm.rank && remote_base(work.comm, p)) store_release(&mailbox_to(work.comm, p)->probe, work.token + p);
  }
}

// recv = what a reduction over one rank makes of send, or a copy. Any grid; takes no channel.
FN void local(const CollectiveWork& work) {
  AnyArith arith(work);
  uint32_t launch = 0;
  if (block_id() == 0 && tid() == 0) launch = 1 + add_relaxed_device(&state_of(work.comm)->launches, 1);
  uint64_t bytes = work.count * type_size(work.datatype);
  uint64_t first = (uint64_t)block_id() * nthreads() + tid(), stride = (uint64_t)grid_size() * nthreads();
  for (uint64_t at = 16 * first; at < bytes; at += 16 * stride) {
    store_pack<4>(work.recv + at, bytes - at, arith.prepare(load_pack<4>(work.send + at, bytes - at)));
  }
  if (block_id() == 0 && tid() == 0) store_relaxed(&host_of(work.comm)->completed, launch);
}
