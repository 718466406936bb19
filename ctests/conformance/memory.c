// Device memory, copies and sets: arguments, bounds, sizes, and what frees what.
#include "conformance.h"

static void allocation(void) {
  start();
  CUdeviceptr p = 1, q;
  TRY(cuMemAlloc(&p, 0));
  TRY(cuMemAlloc(NULL, 16));
  TRY(cuMemAlloc(&p, (size_t)1 << 60));
  TRY(cuMemAlloc(&p, ~(size_t)0));
  TRY(cuMemAlloc(&p, 1));
  say("  aligned to 256: %s, to 512: %s", p % 256 == 0 ? "yes" : "no", p % 512 == 0 ? "yes" : "no");
  TRY(cuMemAlloc(&q, 1000));
  CUdeviceptr base = 0;
  size_t size = 0;
  TRY(cuMemGetAddressRange(&base, &size, q + 10));
  say("  base: %s, size %zu", base == q ? "exact" : "another", size);
  TRY(cuMemGetAddressRange(&base, NULL, q));
  TRY(cuMemGetAddressRange(NULL, &size, q));
  TRY(cuMemGetAddressRange(NULL, NULL, q));
  TRY(cuMemGetAddressRange(&base, &size, q + 999));
  TRY(cuMemGetAddressRange(&base, &size, q + 1000));
  TRY(cuMemGetAddressRange(&base, &size, 0));
  static char on_host[16];
  TRY(cuMemGetAddressRange(&base, &size, (CUdeviceptr)(uintptr_t)on_host));
  TRY(cuMemFree(q + 8));
  TRY(cuMemFree(q));
  TRY(cuMemFree(q));
  TRY(cuMemFree(0));
  TRY(cuMemFree((CUdeviceptr)(uintptr_t)on_host));
  TRY(cuMemGetAddressRange(&base, &size, q));
  size_t free_bytes, total;
  TRY(cuMemGetInfo(&free_bytes, &total));
  say("  free below total: %s", free_bytes < total ? "yes" : "no");
  TRY(cuMemGetInfo(NULL, &total));
  TRY(cuMemGetInfo(&free_bytes, NULL));
}

static void sets(void) {
  start();
  CUdeviceptr p = device_memory(64);
  TRY(cuMemsetD8(p, 0x11, 4));
  TRY(cuMemsetD16(p + 4, 0x2222, 2));
  TRY(cuMemsetD32(p + 8, 0x33333333, 1));
  uint32_t words[3];
  MUST(cuMemcpyDtoH(words, p, 12));
  say("  %x %x %x", words[0], words[1], words[2]);
  TRY(cuMemsetD8(p, 1, 0));
  TRY(cuMemsetD32(p + 1, 1, 1));
  TRY(cuMemsetD16(p + 1, 1, 1));
  TRY(cuMemsetD8(0, 1, 4));
  TRY(cuMemsetD8(0, 1, 0));
  TRY(cuMemsetD8(p, 1, 65));
  TRY(cuMemsetD8(p + 60, 1, 8));
  static char on_host[16];
  TRY(cuMemsetD8((CUdeviceptr)(uintptr_t)on_host, 1, 4));
  void* pinned;
  MUST(cuMemHostAlloc(&pinned, 64, 0));
  TRY(cuMemsetD8((CUdeviceptr)(uintptr_t)pinned, 7, 4));
  MUST(cuCtxSynchronize());
  say("  %d", ((char*)pinned)[3]);
  CUdeviceptr freed;
  MUST(cuMemAlloc(&freed, 64 << 20));
  MUST(cuMemFree(freed));
  TRY(cuMemsetD8(freed, 1, 4));
  TRY(cuCtxSynchronize());
  TRY(cuMemsetD32Async(p, 1, 1000000000, NULL));
  TRY(cuCtxSynchronize());
}

static void copies(void) {
  start();
  CUdeviceptr p = device_memory(256), q = device_memory(256);
  char host[512], other[512];
  for (int i = 0; i < 512; ++i) host[i] = (char)i;
  TRY(cuMemcpyHtoD(p, host, 256));
  TRY(cuMemcpyDtoD(q, p, 256));
  TRY(cuMemcpyDtoH(other, q, 256));
  say("  equal: %s", memcmp(host, other, 256) == 0 ? "yes" : "no");
  TRY(cuMemcpyHtoD(p, host, 0));
  TRY(cuMemcpyHtoD(0, host, 0));
  TRY(cuMemcpyDtoH(NULL, p, 0));
  TRY(cuMemcpyHtoD(p, NULL, 4));
  TRY(cuMemcpyHtoD(0, host, 4));
  TRY(cuMemcpyDtoH(NULL, p, 4));
  TRY(cuMemcpyDtoD(0, p, 4));
  TRY(cuMemcpyHtoD(p, host, 257));
  TRY(cuMemcpyDtoH(other, p + 200, 100));
  TRY(cuMemcpyDtoD(q, p + 255, 2));
  // Unified addresses: the direction follows from the pointers, and misnamed directions work if the memory is known.
  TRY(cuMemcpy(p, (CUdeviceptr)(uintptr_t)host, 16));
  TRY(cuMemcpy((CUdeviceptr)(uintptr_t)other, (CUdeviceptr)(uintptr_t)host, 16));
  TRY(cuMemcpy(q, p, 16));
  TRY(cuMemcpyHtoD(p, (void*)q, 16));
  TRY(cuMemcpyDtoH((void*)q, p, 16));
  TRY(cuMemcpyDtoD(p, (CUdeviceptr)(uintptr_t)host, 16));
  TRY(cuMemcpyDtoD((CUdeviceptr)(uintptr_t)other, p, 16));
  TRY(cuMemcpyAsync(p, (CUdeviceptr)(uintptr_t)host, 16, NULL));
  TRY(cuMemcpyAsync(0, p, 16, NULL));
  CUcontext context;
  MUST(cuCtxGetCurrent(&context));
  TRY(cuMemcpyPeer(q, context, p, context, 16));
  TRY(cuMemcpyPeer(q, NULL, p, context, 16));
  TRY(cuMemcpyPeerAsync(q, context, p, context, 16, NULL));
  TRY(cuCtxSynchronize());
}

static void pools(void) {
  start();
  CUstream stream;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  CUdeviceptr p = 0;
  TRY(cuMemAllocAsync(&p, 1000, stream));
  TRY(cuMemsetD32Async(p, 5, 250, stream));
  TRY(cuStreamSynchronize(stream));
  say("  %u", read_word(p));
  CUdeviceptr base = 0;
  size_t size = 0;
  TRY(cuMemGetAddressRange(&base, &size, p + 4));
  say("  base: %s, size %zu", base == p ? "exact" : "another", size);
  CUipcMemHandle handle;
  TRY(cuIpcGetMemHandle(&handle, p));
  TRY(cuMemFreeAsync(p, stream));
  TRY(cuStreamSynchronize(stream));
  TRY(cuMemFreeAsync(0, stream));
  TRY(cuMemAllocAsync(&p, 0, stream));
  TRY(cuMemAllocAsync(NULL, 16, stream));
  TRY(cuMemAllocAsync(&p, 1000, stream));
  TRY(cuMemFree(p));
  MUST(cuMemAlloc(&p, 1000));
  TRY(cuMemFreeAsync(p, stream));
  TRY(cuStreamSynchronize(stream));
}

// cuMemFree waits for what is in flight; a free of memory that a stream uses is therefore safe.
static void* open_later(void* gate) {
  sleep_ms(100);
  gate_open(*(Gate*)gate, 1);
  return NULL;
}
static void freeing_waits(void) {
  start();
  Gate gate = gate_make();
  CUstream stream;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  CUdeviceptr p = device_memory(64);
  MUST(cuMemsetD8Async(p, 0, 64, stream));
  MUST(cuStreamSynchronize(stream));
  gate_block(gate, stream, 1);
  MUST(cuMemsetD8Async(p, 1, 64, stream));
  pthread_t thread;
  pthread_create(&thread, NULL, open_later, &gate);
  TRY(cuMemFree(p));
  say("  the stream has ended: %s", cuStreamQuery(stream) == 0 ? "yes" : "no");
  pthread_join(thread, NULL);
  TRY(cuCtxSynchronize());
}

SECTIONS({"allocation", allocation}, {"sets", sets}, {"copies", copies}, {"pools", pools}, {"freeing waits", freeing_waits})
