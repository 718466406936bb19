// Host memory: pinned, registered, and mapped for devices.
#include "conformance.h"

static void pinned(void) {
  start();
  void* p = NULL;
  unsigned flags = 99;
  CUdeviceptr device = 1;
  TRY(cuMemHostAlloc(&p, 0, 0));
  TRY(cuMemHostAlloc(NULL, 16, 0));
  TRY(cuMemHostAlloc(&p, 16, 0x100));
  TRY(cuMemHostAlloc(&p, (size_t)1 << 60, 0));
  for (unsigned f = 0; f < 8; ++f) {
    CUresult result = cuMemHostAlloc(&p, 4096, f);
    CUresult got = cuMemHostGetFlags(&flags, p);
    CUresult mapped = cuMemHostGetDevicePointer(&device, p, 0);
    say("flags %u: %s, flags %s %u, device pointer %s %s, page aligned %s", f, result_name(result), result_name(got), flags,
        result_name(mapped), device == (CUdeviceptr)(uintptr_t)p ? "the same" : "another", (uintptr_t)p % 4096 == 0 ? "yes" : "no");
    TRY(cuMemFreeHost(p));
  }
  MUST(cuMemAllocHost(&p, 4096));
  MUST(cuMemHostGetFlags(&flags, p));
  say("cuMemAllocHost: flags %u", flags);
  TRY(cuMemHostGetDevicePointer(&device, (char*)p + 8, 0));
  say("  offset kept: %s", device == (CUdeviceptr)(uintptr_t)p + 8 ? "yes" : "no");
  TRY(cuMemHostGetDevicePointer(&device, p, 1));
  TRY(cuMemHostGetDevicePointer(NULL, p, 0));
  TRY(cuMemHostGetDevicePointer(&device, NULL, 0));
  TRY(cuMemHostGetFlags(&flags, (char*)p + 8));
  TRY(cuMemFreeHost((char*)p + 8));
  TRY(cuMemFreeHost(p));
  TRY(cuMemFreeHost(p));
  TRY(cuMemFreeHost(NULL));
  TRY(cuMemHostGetFlags(&flags, p));
  static char unknown[64];
  TRY(cuMemFreeHost(unknown));
  TRY(cuMemHostGetFlags(&flags, unknown));
  TRY(cuMemHostGetDevicePointer(&device, unknown, 0));
}

static void registered(void) {
  start();
  char* p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned flags = 99;
  CUdeviceptr device = 0;
  TRY(cuMemHostRegister(p, 8192, 0));
  TRY(cuMemHostRegister(p, 8192, 0));
  TRY(cuMemHostRegister(p + 4096, 8192, 0));
  TRY(cuMemHostGetFlags(&flags, p));
  say("  %u", flags);
  TRY(cuMemHostGetDevicePointer(&device, p, 0));
  say("  %s", device == (CUdeviceptr)(uintptr_t)p ? "the same" : "another");
  TRY(cuMemHostUnregister(p + 8));
  TRY(cuMemFreeHost(p));
  TRY(cuMemHostUnregister(p));
  TRY(cuMemHostUnregister(p));
  TRY(cuMemHostRegister(p, 0, 0));
  TRY(cuMemHostRegister(NULL, 16, 0));
  TRY(cuMemHostRegister(p, 4096, 0x1000));
  TRY(cuMemHostRegister(p + 3, 10, REGISTER_DEVICEMAP));
  TRY(cuMemHostGetFlags(&flags, p + 3));
  say("  %u", flags);
  // Another range on the same page.
  TRY(cuMemHostRegister(p + 100, 10, REGISTER_DEVICEMAP));
  TRY(cuMemHostUnregister(p + 3));
  TRY(cuMemHostUnregister(p + 100));
  TRY(cuMemHostUnregister(NULL));
  void* alloc;
  MUST(cuMemHostAlloc(&alloc, 4096, 0));
  TRY(cuMemHostRegister(alloc, 4096, 0));
  TRY(cuMemHostUnregister(alloc));
  // Memory that is not there.
  char* hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole, 8192);
  TRY(cuMemHostRegister(hole, 4096, 0));
  // Shared memory without a name, as two processes use it.
  int fd = memfd_create("conformance", MFD_CLOEXEC);
  if (ftruncate(fd, 8192) != 0) return;
  uint32_t* shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  TRY(cuMemHostRegister(shared, 8192, REGISTER_PORTABLE | REGISTER_DEVICEMAP));
  MUST(cuMemHostGetDevicePointer(&device, shared, 0));
  TRY(cuStreamWriteValue32(NULL, device + 4096, 77, 0));
  TRY(cuMemsetD32Async(device, 78, 1, NULL));
  TRY(cuStreamSynchronize(NULL));
  say("  %u %u", shared[1024], shared[0]);
  TRY(cuMemHostUnregister(shared));
  // Read-only memory.
  const char* fixed = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TRY(cuMemHostRegister((void*)fixed, 4096, 0));
}

static void mapped(void) {
  start();
  uint32_t* p;
  MUST(cuMemHostAlloc((void**)&p, 4096, HOST_DEVICEMAP | HOST_PORTABLE));
  CUdeviceptr device;
  MUST(cuMemHostGetDevicePointer(&device, p, 0));
  TRY(cuMemsetD32Async(device, 5, 16, NULL));
  MUST(cuStreamSynchronize(NULL));
  say("  %u", p[15]);
  CUdeviceptr memory = device_memory(64);
  p[0] = 9;
  TRY(cuMemcpyDtoD(memory, device, 4));
  MUST(cuCtxSynchronize());
  say("  %u", read_word(memory));
}

SECTIONS({"pinned", pinned}, {"registered", registered}, {"mapped", mapped})
