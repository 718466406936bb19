// Modules, functions and launches: loading, attributes, arguments, occupancy, first launches, faults.
#include "kernels.h"

static void modules(void) {
  start();
  CUmodule module = NULL, found = NULL;
  CUfunction function = NULL, again = NULL;
  TRY(cuModuleLoadData(&module, NULL));
  TRY(cuModuleLoadData(NULL, kernels_ptx));
  TRY(cuModuleLoadData(&module, kernels_ptx));
  TRY(cuModuleGetFunction(&function, module, "no such kernel"));
  TRY(cuModuleGetFunction(NULL, module, "emu_probe_fill"));
  TRY(cuModuleGetFunction(&function, module, NULL));
  TRY(cuModuleGetFunction(&function, module, "emu_probe_fill"));
  TRY(cuModuleGetFunction(&again, module, "emu_probe_fill"));
  say("  the same handle: %s", function == again ? "yes" : "no");
  TRY(cuFuncGetModule(&found, function));
  say("  its module: %s", found == module ? "yes" : "no");
  const char* name = NULL;
  TRY(cuFuncGetName(&name, function));
  say("  %s", name ? name : "NULL");
  size_t offset = 99, size = 99;
  TRY(cuFuncGetParamInfo(function, 0, &offset, &size));
  say("  offset %zu, size %zu", offset, size);
  TRY(cuFuncGetParamInfo(function, 0, &offset, NULL));
  TRY(cuFuncGetParamInfo(function, 1, &offset, &size));
  TRY(cuFuncGetParamInfo(function, 0, NULL, NULL));
  CUfunction trap = kernel(module, "emu_probe_trap");
  TRY(cuFuncGetParamInfo(trap, 0, &offset, &size));
  int loaded = -1;
  TRY(cuFuncIsLoaded(&loaded, function));
  say("  %d", loaded);
  TRY(cuFuncLoad(function));
  TRY(cuFuncIsLoaded(&loaded, function));
  say("  %d", loaded);
  TRY(cuFuncIsLoaded(&loaded, trap));
  say("  %d", loaded);
  TRY(cuFuncLoad(function));
  TRY(cuFuncLoad(NULL));
  TRY(cuModuleUnload(module));
  TRY(cuModuleUnload(NULL));
}

static void attributes(void) {
  start();
  CUfunction function = kernel(kernels_load(), "emu_probe_fill");
  int value = -1;
  TRY(cuFuncGetAttribute(&value, 0, function));
  say("  most threads %d", value);
  TRY(cuFuncGetAttribute(&value, 1, function));
  say("  shared %d", value);
  TRY(cuFuncGetAttribute(&value, 3, function));
  say("  local %d", value);
  TRY(cuFuncGetAttribute(&value, 4, function));
  say("  registers above 0: %s", value > 0 ? "yes" : "no");
  TRY(cuFuncGetAttribute(&value, 8, function));
  say("  dynamic shared %d", value);
  TRY(cuFuncGetAttribute(&value, 100, function));
  TRY(cuFuncGetAttribute(NULL, 0, function));
  TRY(cuFuncGetAttribute(&value, 0, NULL));
  TRY(cuFuncSetAttribute(function, 8, 100 << 10));
  TRY(cuFuncGetAttribute(&value, 8, function));
  say("  dynamic shared %d", value);
  TRY(cuFuncSetAttribute(function, 8, 1 << 20));
  TRY(cuFuncSetAttribute(function, 8, -1));
  TRY(cuFuncSetAttribute(function, 0, 1));
  int blocks = -1;
  TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 1024, 0));
  say("  %d", blocks);
  TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0));
  say("  %d", blocks);
  TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 64, 100 << 10));
  say("  %d", blocks);
  TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 1025, 0));
  say("  %d", blocks);
  TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 0, 0));
  TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, -1, 0));
  TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(NULL, function, 32, 0));
  int grid = -1, block = -1;
  TRY(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, NULL, 0, 0));
  say("  block %d", block);
}

static void arguments(void) {
  start();
  CUfunction function = kernel(kernels_load(), "emu_probe_fill");
  CUstream stream;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  CUdeviceptr words = device_memory(4096);
  Fill arg = {words, 100, 5};
  TRY(launch(function, 0, 32, stream, &arg));
  TRY(launch(function, 1, 0, stream, &arg));
  TRY(launch(function, 1, 1025, stream, &arg));
  TRY(launch(function, 0x80000000u, 32, stream, &arg));
  TRY(launch(NULL, 1, 32, stream, &arg));
  TRY(launch(function, 1, 32, stream, NULL));
  void* parameters[] = {&arg};
  TRY(cuLaunchKernel(function, 1, 0x10000, 1, 32, 1, 1, 0, stream, parameters, NULL));
  TRY(cuLaunchKernel(function, 1, 1, 1, 32, 1, 65, 0, stream, parameters, NULL));
  TRY(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 64 << 10, stream, parameters, NULL));
  TRY(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 40 << 10, stream, parameters, NULL));
  size_t size = sizeof arg;
  void* packed[] = {(void*)1, &arg, (void*)2, &size, (void*)0};
  TRY(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, packed));
  TRY(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, packed));
  size = 8;
  TRY(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, packed));
  TRY(cuStreamSynchronize(stream));
  say("  %u %u", read_word(words), read_word(words + 4 * 99));
  // The launch copies its argument.
  Gate gate = gate_make();
  gate_block(gate, stream, 1);
  arg.value = 70;
  MUST(launch(function, 2, 64, stream, &arg));
  arg.value = 80;
  gate_open(gate, 1);
  MUST(cuStreamSynchronize(stream));
  say("  %u", read_word(words));
}

static uint32_t* flags;
static CUdeviceptr flags_address, words;
static CUstream spinning, stream;
static CUfunction fill, spin;

static void spin_prepare(void) {
  start();
  void* memory;
  MUST(cuMemHostAlloc(&memory, 4096, HOST_DEVICEMAP));
  memset(memory, 0, 4096);
  flags = memory;
  MUST(cuMemHostGetDevicePointer(&flags_address, memory, 0));
  words = device_memory(4096);
  MUST(cuStreamCreate(&spinning, STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  CUmodule module = kernels_load();
  spin = kernel(module, "emu_probe_spin");
  fill = kernel(module, "emu_probe_fill");
  MUST(cuFuncLoad(spin));
}
static void spin_start(void) {
  Spin arg = {flags_address, 1, flags_address + 64};
  MUST(launch(spin, 1, 1, spinning, &arg));
  while (((volatile uint32_t*)flags)[16] == 0) sleep_ms(1);
}
static void spin_stop(void) { *(volatile uint32_t*)flags = 1; }

static _Atomic int launched;
static void* launch_fill(void* context) {
  MUST(cuCtxSetCurrent(context));
  Fill arg = {words, 4, 5};
  MUST(launch(fill, 1, 4, stream, &arg));
  launched = 1;
  return NULL;
}

// A function of a cubin that was never loaded cannot start while a kernel runs, because loading waits for it. PTX comes
// with its module, so that here nothing is left to load.
static void first_launch(void) {
  spin_prepare();
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  spin_start();
  pthread_t thread;
  pthread_create(&thread, NULL, launch_fill, context);
  sleep_ms(500);
  const int done = launched && cuStreamQuery(stream) == 0;
  say("first launch, beside a kernel that runs: %s", done ? "done" : "held up");
  spin_stop();
  pthread_join(thread, NULL);
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamSynchronize(spinning));
  say("  %u", read_word(words));
}

static void loaded_launch(void) {
  spin_prepare();
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  MUST(cuFuncLoad(fill));
  spin_start();
  pthread_t thread;
  pthread_create(&thread, NULL, launch_fill, context);
  pthread_join(thread, NULL);
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamQuery(spinning));
  spin_stop();
  TRY(cuStreamSynchronize(spinning));
}

// The same, beside a stream that waits without a kernel.
static void first_launch_beside_a_wait(void) {
  spin_prepare();
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  MUST(cuStreamWaitValue32(spinning, flags_address, 1, WAIT_EQ));
  pthread_t thread;
  pthread_create(&thread, NULL, launch_fill, context);
  sleep_ms(500);
  const int done = launched && cuStreamQuery(stream) == 0;
  say("first launch, beside a waiting stream: %s", done ? "done" : "held up");
  spin_stop();
  pthread_join(thread, NULL);
  TRY(cuStreamSynchronize(stream));
}

// Kernels of different streams run side by side.
static void side_by_side(void) {
  spin_prepare();
  Spin arg = {flags_address, 1, flags_address + 64};
  MUST(launch(spin, 4, 32, spinning, &arg));
  MUST(launch(spin, 4, 32, stream, &arg));
  for (double end = now() + 10; ((volatile uint32_t*)flags)[16] != 8 * 32 && now() < end;) sleep_ms(1);
  // The emulated driver may run fewer threads per block than were asked for, so only blocks are compared.
  say("both run: %s", ((volatile uint32_t*)flags)[16] >= 8 ? "yes" : "no");
  TRY(cuStreamQuery(spinning));
  spin_stop();
  TRY(cuCtxSynchronize());
}

// What every kind of call says after a kernel has failed.
static void after_fault(const char* name, void* arg) {
  CUcontext context = start();
  CUmodule module = kernels_load();
  CUfunction function = kernel(module, name), other = kernel(module, "emu_probe_fill");
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  words = device_memory(64);
  CUevent event;
  MUST(cuEventCreate(&event, EVENT_DISABLE_TIMING));
  MUST(cuFuncLoad(function));
  MUST(cuFuncLoad(other));
  TRY(launch(function, 1, 1, stream, arg));
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamSynchronize(stream));
  TRY(cuStreamQuery(stream));
  TRY(cuStreamQuery(NULL));
  TRY(cuCtxSynchronize());
  TRY(cuEventRecord(event, stream));
  TRY(cuEventQuery(event));
  TRY(cuEventSynchronize(event));
  CUdeviceptr p;
  void* host;
  uint32_t word;
  size_t n, m;
  TRY(cuMemAlloc(&p, 16));
  TRY(cuMemHostAlloc(&host, 16, 0));
  TRY(cuMemGetInfo(&n, &m));
  TRY(cuMemcpyDtoH(&word, words, 4));
  TRY(cuMemsetD8(words, 0, 4));
  TRY(cuMemsetD8Async(words, 0, 4, stream));
  Fill fill_arg = {words, 1, 1};
  TRY(launch(other, 1, 1, stream, &fill_arg));
  unsigned type;
  TRY(cuPointerGetAttribute(&type, 2, words));
  CUstream fresh;
  TRY(cuStreamCreate(&fresh, STREAM_NON_BLOCKING));
  int status;
  TRY(cuStreamIsCapturing(stream, &status));
  CUcontext current;
  TRY(cuCtxGetCurrent(&current));
  TRY(cuCtxSetCurrent(context));
  TRY(cuEventDestroy(event));
  TRY(cuStreamDestroy(stream));
  TRY(cuMemFree(words));
  TRY(cuDeviceGetCount(&status));
  TRY(cuDevicePrimaryCtxReset(0));
  TRY(cuMemAlloc(&p, 16));
  TRY(cuCtxCreate(&current, 0, 0));
  TRY(cuMemAlloc(&p, 16));
}

static void bad_store(void) {
  OutOfBounds arg = {0x10000, 0, 0};
  after_fault("emu_probe_out_of_bounds", &arg);
}
static void bad_load(void) {
  OutOfBounds arg = {0x10000, 0, 1};
  after_fault("emu_probe_out_of_bounds", &arg);
}
static void trap(void) { after_fault("emu_probe_trap", NULL); }

SECTIONS({"modules", modules}, {"attributes", attributes}, {"arguments", arguments}, {"first launch beside a kernel", first_launch},
         {"loaded launch beside a kernel", loaded_launch}, {"first launch beside a wait", first_launch_beside_a_wait},
         {"side by side", side_by_side}, {"after a bad store", bad_store}, {"after a bad load", bad_load}, {"after a trap", trap})
