// Every kernel, by name. gpu::layout::KERNELS has the same list.
#include "all_gather.h"
#include "all_reduce.h"
#include "broadcast.h"
#include "group.h"
#include "probe.h"
#include "reduce.h"
#include "reduce_scatter.h"
#include "send_recv.h"

#define REDUCTION(name)                                                                  \
  KERNEL(oxccl_##name##_sum_f32, CollectiveWork) { name<FloatSum<Single>>(work); }       \
  KERNEL(oxccl_##name##_sum_f16, CollectiveWork) { name<FloatSum<Half>>(work); }         \
  KERNEL(oxccl_##name##_sum_bf16, CollectiveWork) { name<FloatSum<Bfloat>>(work); }      \
  KERNEL(oxccl_##name##_any, CollectiveWork) { name<AnyArith>(work); }

REDUCTION(all_reduce_ll)
REDUCTION(all_reduce_simple)
REDUCTION(reduce_ll)
REDUCTION(reduce_simple)
REDUCTION(reduce_scatter_ll)
REDUCTION(reduce_scatter_simple)
KERNEL(oxccl_broadcast_ll, CollectiveWork) { broadcast_ll(work); }
KERNEL(oxccl_broadcast_simple, CollectiveWork) { broadcast_simple(work); }
KERNEL(oxccl_all_gather_ll, CollectiveWork) { all_gather_ll(work); }
KERNEL(oxccl_all_gather_simple, CollectiveWork) { all_gather_simple(work); }
KERNEL(oxccl_messages, MessageWork) { messages(work); }
KERNEL(oxccl_probe, ProbeWork) { probe(work); }
KERNEL(oxccl_local, CollectiveWork) { local(work); }
KERNEL_OF(oxccl_group, GroupWork, GROUP_THREADS) { group(work); }

#ifndef __CUDACC_RTC__
#define ROW(name, Argument) {#name, name, sizeof(Argument), sizeof(Shared), MAX_THREADS}
#define REDUCTION_ROWS(name)                     \
  ROW(oxccl_##name##_sum_f32, CollectiveWork),   \
      ROW(oxccl_##name##_sum_f16, CollectiveWork), \
      ROW(oxccl_##name##_sum_bf16, CollectiveWork), \
      ROW(oxccl_##name##_any, CollectiveWork)

extern "C" const struct EmuKernel emu_kernels[] = {
    REDUCTION_ROWS(all_reduce_ll),
    REDUCTION_ROWS(all_reduce_simple),
    REDUCTION_ROWS(reduce_ll),
    REDUCTION_ROWS(reduce_simple),
    REDUCTION_ROWS(reduce_scatter_ll),
    REDUCTION_ROWS(reduce_scatter_simple),
    ROW(oxccl_broadcast_ll, CollectiveWork),
    ROW(oxccl_broadcast_simple, CollectiveWork),
    ROW(oxccl_all_gather_ll, CollectiveWork),
    ROW(oxccl_all_gather_simple, CollectiveWork),
    ROW(oxccl_messages, MessageWork),
    ROW(oxccl_probe, ProbeWork),
    ROW(oxccl_local, CollectiveWork),
    {"oxccl_group", oxccl_group, sizeof(GroupWork), sizeof(Shared), GROUP_THREADS},
};
extern "C" const uint32_t emu_kernel_count = sizeof emu_kernels / sizeof emu_kernels[0];
#endif
