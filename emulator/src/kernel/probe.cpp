// Kernels that exercise the runtime itself. The unit tests run them, and so may tests of the emulated driver, under
// the names of the table at the end.
#include "emulator.h"

namespace {

struct Fill {
  uint32_t* data;
  uint64_t count;
  uint32_t value;
};

// Every thread of every block writes its share: data[i] = value + i.
void fill(const void* arg) {
  const Fill* fill = static_cast<const Fill*>(arg);
  const uint64_t threads = uint64_t(emu_grid_size()) * emu_block_size();
  for (uint64_t i = uint64_t(emu_block_id()) * emu_block_size() + emu_thread_id(); i < fill->count; i += threads) {
    const uint32_t value = fill->value + uint32_t(i);
    emu_store(fill->data + i, &value, 4, EMU_WEAK);
  }
}

struct Spin {
  uint32_t* flag;     // left when it equals `until`
  uint32_t until;
  uint32_t* started;  // counts threads that have begun, may be null
};

void spin(const void* arg) {
  const Spin* spin = static_cast<const Spin*>(arg);
  if (spin->started) emu_add(spin->started, 1);
  for (;;) {
    uint32_t seen;
    emu_load(spin->flag, &seen, 4, EMU_ACQ_REL);
    if (seen == spin->until) return;
    emu_relax();
  }
}

struct Rounds {
  uint32_t* out;  // one word per block: mistakes seen
  uint32_t rounds;
};

// In every round each thread writes its cell of shared memory, and after a barrier reads those of all others; even
// threads then meet at a barrier of their own.
void barriers(const void* arg) {
  const Rounds* rounds = static_cast<const Rounds*>(arg);
  uint32_t* cells = static_cast<uint32_t*>(emu_shared());
  const uint32_t size = emu_block_size(), me = emu_thread_id();
  uint32_t mistakes = 0;
  for (uint32_t round = 1; round <= rounds->rounds; ++round) {
    cells[me] = round * 2048 + me;
    emu_barrier(0, size);
    for (uint32_t i = 0; i < size; ++i) mistakes += cells[i] != round * 2048 + i;
    if (me % 2 == 0) emu_barrier(3, (size + 1) / 2);
    emu_barrier(1, size);
  }
  if (mistakes) emu_add(rounds->out + emu_block_id(), mistakes);
}

struct Order {
  uint32_t* order;  // one word per thread: thread ids in the order in which they left the barrier
  uint32_t* next;
};

void order(const void* arg) {
  const Order* order = static_cast<const Order*>(arg);
  emu_barrier(0, emu_block_size());
  const uint32_t me = emu_thread_id();
  emu_store(order->order + emu_add(order->next, 1), &me, 4, EMU_RELAXED);
}

// Thread 0 waits at a barrier to which nobody else comes.
void stuck(const void*) {
  if (emu_thread_id() == 0) emu_barrier(5, emu_block_size());
}

struct OutOfBounds {
  void* p;
  uint32_t block;  // the block that stores; all others wait for ever
  uint32_t read;
};

void out_of_bounds(const void* arg) {
  const OutOfBounds* bad = static_cast<const OutOfBounds*>(arg);
  if (emu_block_id() != bad->block)
    for (;;) emu_relax();
  if (bad->read) {
    volatile uint32_t sink = *static_cast<volatile uint32_t*>(bad->p);
    (void)sink;
  } else {
    *static_cast<volatile uint32_t*>(bad->p) = 1;
  }
}

void shared_overrun(const void*) {
  static_cast<volatile uint8_t*>(emu_shared())[256] = 1;
}

void trap(const void*) { __builtin_trap(); }

// Needs more stack than a fiber has. `levels` is huge.
struct Deep {
  uint64_t levels;
  uint64_t result;
};

__attribute__((noinline)) uint64_t descend(uint64_t levels) {
  volatile uint64_t frame[64];
  frame[levels % 64] = levels;
  return levels == 0 ? 0 : descend(levels - 1) + frame[levels % 64];
}

void deep(const void* arg) {
  const Deep* deep = static_cast<const Deep*>(arg);
  const_cast<Deep*>(deep)->result = descend(deep->levels);
}

struct Litmus {
  uint32_t* data;
  uint32_t* flag;
  uint32_t* stale;  // counts readers that saw the flag without the data
  uint32_t* done;
  uint32_t rounds;
  uint32_t release;  // 0: relaxed flag, 1: release store, 2: relaxed flag after a fence
};

// Message passing between party 0 and party 1. They are two blocks, or two threads of one block.
void message_passing(const void* arg) {
  const Litmus* litmus = static_cast<const Litmus*>(arg);
  const uint32_t party = emu_grid_size() > 1 ? emu_block_id() : emu_thread_id();
  if (party > 1 || (emu_grid_size() > 1 && emu_thread_id() != 0)) return;
  for (uint32_t round = 1; round <= litmus->rounds; ++round) {
    uint32_t seen;
    if (party == 0) {
      emu_store(litmus->data, &round, 4, EMU_WEAK);
      if (litmus->release == 2) emu_fence();
      emu_store(litmus->flag, &round, 4, litmus->release == 1 ? EMU_ACQ_REL : EMU_RELAXED);
      for (emu_load(litmus->done, &seen, 4, EMU_ACQ_REL); seen != round; emu_load(litmus->done, &seen, 4, EMU_ACQ_REL))
        emu_relax();
    } else {
      for (emu_load(litmus->flag, &seen, 4, EMU_ACQ_REL); seen != round; emu_load(litmus->flag, &seen, 4, EMU_ACQ_REL))
        emu_relax();
      emu_load(litmus->data, &seen, 4, EMU_RELAXED);
      if (seen != round) emu_add(litmus->stale, 1);
      emu_store(litmus->done, &round, 4, EMU_ACQ_REL);
    }
  }
}

// Thread 0 of block 0 stores the data, the last thread stores the flag behind a barrier, with a fence of its own or not.
void barrier_passing(const void* arg) {
  const Litmus* litmus = static_cast<const Litmus*>(arg);
  const uint32_t threads = emu_block_size(), last = threads - 1;
  for (uint32_t round = 1; round <= litmus->rounds; ++round) {
    uint32_t seen;
    if (emu_block_id() == 0) {
      if (emu_thread_id() == 0) emu_store(litmus->data, &round, 4, EMU_WEAK);
      emu_barrier(0, threads);
      // The block itself sees it.
      emu_load(litmus->data, &seen, 4, EMU_WEAK);
      if (seen != round) emu_add(litmus->stale, 1000);
      if (emu_thread_id() == last) {
        if (litmus->release == 2) emu_fence();
        emu_store(litmus->flag, &round, 4, litmus->release == 1 ? EMU_ACQ_REL : EMU_RELAXED);
        for (emu_load(litmus->done, &seen, 4, EMU_ACQ_REL); seen != round; emu_load(litmus->done, &seen, 4, EMU_ACQ_REL))
          emu_relax();
      }
      emu_barrier(0, threads);
    } else if (emu_thread_id() == 0) {
      for (emu_load(litmus->flag, &seen, 4, EMU_ACQ_REL); seen != round; emu_load(litmus->flag, &seen, 4, EMU_ACQ_REL))
        emu_relax();
      emu_load(litmus->data, &seen, 4, EMU_RELAXED);
      if (seen != round) emu_add(litmus->stale, 1);
      emu_store(litmus->done, &round, 4, EMU_ACQ_REL);
    }
  }
}

struct Forward {
  uint8_t* data;       // 16 bytes, aligned, zero
  uint32_t* mistakes;
};

// A thread sees its own stores at once, whatever parts of them it reads.
void forwarding(const void* arg) {
  const Forward* forward = static_cast<const Forward*>(arg);
  uint8_t model[16] = {};
  uint32_t state = 1 + emu_block_id(), mistakes = 0;
  for (int step = 0; step < 2000; ++step) {
    state = state * 1664525 + 1013904223;
    const uint32_t bytes = 1u << (state >> 24) % 5;
    const uint32_t at = (state >> 16) % (16 / bytes) * bytes;
    uint8_t value[16];
    if (state >> 31) {
      for (uint32_t i = 0; i < bytes; ++i) model[at + i] = value[i] = uint8_t(step + i);
      emu_store(forward->data + at, value, bytes, EMU_WEAK);
    } else {
      emu_load(forward->data + at, value, bytes, EMU_WEAK);
      for (uint32_t i = 0; i < bytes; ++i) mistakes += value[i] != model[at + i];
    }
    if (state % 61 == 0) {
      uint32_t word;
      __builtin_memcpy(&word, model + 4, 4);
      mistakes += emu_exchange(reinterpret_cast<uint32_t*>(forward->data + 4), word + 1) != word;
      word += 1;
      __builtin_memcpy(model + 4, &word, 4);
    }
  }
  emu_add(forward->mistakes, mistakes);
}

}  // namespace

extern "C" {
extern const EmuKernel emu_probe_kernels[];
extern const uint32_t emu_probe_kernel_count;

const EmuKernel emu_probe_kernels[] = {
    {"emu_probe_fill", fill, sizeof(Fill), 0, 1024},
    {"emu_probe_spin", spin, sizeof(Spin), 0, 1024},
    {"emu_probe_barriers", barriers, sizeof(Rounds), 4096, 1024},
    {"emu_probe_order", order, sizeof(Order), 0, 1024},
    {"emu_probe_stuck", stuck, 0, 0, 1024},
    {"emu_probe_out_of_bounds", out_of_bounds, sizeof(OutOfBounds), 0, 1024},
    {"emu_probe_shared_overrun", shared_overrun, 0, 256, 1024},
    {"emu_probe_trap", trap, 0, 0, 1024},
    {"emu_probe_deep", deep, sizeof(Deep), 0, 1024},
    {"emu_probe_message_passing", message_passing, sizeof(Litmus), 0, 1024},
    {"emu_probe_barrier_passing", barrier_passing, sizeof(Litmus), 0, 1024},
    {"emu_probe_forwarding", forwarding, sizeof(Forward), 0, 1024},
};
const uint32_t emu_probe_kernel_count = sizeof(emu_probe_kernels) / sizeof(emu_probe_kernels[0]);
}
