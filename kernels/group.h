// Several collectives of a group by one launch, in order. All go by LL, so that no block waits for another block of its rank: each
// block goes through its own part of every collective, on its own channel, as if they had been launched one by one.
#pragma once

#include "all_gather.h"
#include "all_reduce.h"
#include "broadcast.h"
#include "reduce.h"
#include "reduce_scatter.h"

// Half of the others' threads: code for every function and type needs more registers for each.
constexpr uint32_t GROUP_THREADS = 256;

FN void group(const GroupWork& work) {
  Shared& s = shared<Shared>();
  CollectiveWork& item = s.item;
  copy_words((uint32_t*)&item.comm, (uint64_t)&work.comm, sizeof(CommArgs) / 16);
  if (tid() == 0) s.next_item = 0;
  for (;;) {
    // Nobody reads the one before any more. Which one is next lies in shared memory, for want of registers.
    barrier();
    uint32_t n = s.next_item;
    if (n == work.count) return;
    copy_words((uint32_t*)&item + sizeof(CommArgs) / 4, (uint64_t)&work.items[n], sizeof(GroupItem) / 16);
    barrier();
    if (tid() == 0) s.next_item = n + 1;
    if (block_id() >= item.grid) continue;
    switch (item.function) {
      case FN_ALL_REDUCE: all_reduce_ll<AnyArith>(item); break;
      case FN_REDUCE: reduce_ll<AnyArith>(item); break;
      case FN_REDUCE_SCATTER: reduce_scatter_ll<AnyArith>(item); break;
      case FN_BROADCAST: broadcast_ll(item); break;
      default: all_gather_ll(item); break;
    }
  }
}
