// The contract between kernels compiled by g++ and the emulated driver that runs them.
//
// Only kernels/device.h uses the functions; only kernels/kernels.cu defines the table. The emulator
// (emulator/src/kernel/) implements the functions and reads the table. One block runs on one OS thread;
// its `emu_block_size()` threads are fibers of that OS thread, one fiber when the block size is 1.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// One row per kernel, in an explicit table: the archive linker drops objects that register themselves.
struct EmuKernel {
  const char* name;                // the name that cuModuleGetFunction is asked for
  void (*entry)(const void* arg);  // runs one thread of one block; `arg` is the launch's own copy of parameter 0
  uint32_t arg_size;               // bytes of the kernel's single parameter; compared at launch
  uint32_t shared_size;            // bytes of static shared memory per block
  uint32_t max_threads;            // __launch_bounds__
};
extern const struct EmuKernel emu_kernels[];
extern const uint32_t emu_kernel_count;

// Position of the calling thread in its launch (one-dimensional grids and blocks only).
uint32_t emu_block_id(void);
uint32_t emu_grid_size(void);
uint32_t emu_thread_id(void);
uint32_t emu_block_size(void);

// The block's static shared memory, zeroed at launch, aligned to 128 bytes, EmuKernel::shared_size bytes.
void* emu_shared(void);

// Waits until `count` threads of the block have reached barrier `id` (0..15). Orders all accesses of those
// threads, like bar.sync. With one fiber per block it returns at once.
void emu_barrier(uint32_t id, uint32_t count);

// Called in every turn of a spin loop: runs the block's other fibers, then gives the CPU away. Never blocks for ever.
void emu_relax(void);

// Memory accesses that other blocks, processes or the host can see. `bytes` is 1, 2, 4, 8 or 16 and `p` is aligned to it.
// A 16-byte access is two 8-byte single-copy-atomic halves, low half first, in no order to each other, which is what
// the LL protocol may rely on. In the weak-memory mode plain and relaxed stores sit in a buffer of the calling thread,
// leave it in a seeded order, and are complete only after the thread's next release store, fence or barrier, or the end of the kernel.
enum EmuOrder { EMU_WEAK = 0, EMU_RELAXED = 1, EMU_ACQ_REL = 2 };
void emu_store(void* p, const void* value, uint32_t bytes, uint32_t order);
void emu_load(const void* p, void* value, uint32_t bytes, uint32_t order);
uint32_t emu_exchange(uint32_t* p, uint32_t value);                      // relaxed
uint32_t emu_compare_exchange(uint32_t* p, uint32_t old, uint32_t value);  // returns what was there; acquire-release
uint32_t emu_add(uint32_t* p, uint32_t value);                           // acquire-release, returns what was there
void emu_fence(void);                                                    // __threadfence_system

// Nonzero when this process runs in weak-memory mode: device.h then routes every store through emu_store,
// otherwise it may use inline atomics of the same order.
extern uint32_t emu_weak_memory;

// Nanoseconds of a monotonic clock (%globaltimer).
uint64_t emu_timer(void);

#ifdef __cplusplus
}
#endif
