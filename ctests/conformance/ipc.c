// Legacy IPC of device memory: handles, the exporting process itself, another process.
#include "conformance.h"

static CUipcMemHandle handles[2];

static void own_process(void) {
  start();
  CUdeviceptr p = device_memory(4 << 20), opened = 0;
  CUipcMemHandle a, b;
  TRY(cuIpcGetMemHandle(&a, p));
  TRY(cuIpcGetMemHandle(&b, p + 1000));
  say("  the same for an address inside: %s", memcmp(&a, &b, sizeof a) == 0 ? "yes" : "no");
  TRY(cuIpcGetMemHandle(&b, p));
  say("  the same again: %s", memcmp(&a, &b, sizeof a) == 0 ? "yes" : "no");
  TRY(cuIpcGetMemHandle(NULL, p));
  TRY(cuIpcGetMemHandle(&b, 0));
  TRY(cuIpcGetMemHandle(&b, p + (4 << 20)));
  TRY(cuIpcOpenMemHandle(&opened, a, IPC_LAZY_PEER));
  TRY(cuIpcOpenMemHandle(&opened, a, 0));
  TRY(cuIpcOpenMemHandle(NULL, a, IPC_LAZY_PEER));
  TRY(cuIpcCloseMemHandle(p));
  TRY(cuIpcCloseMemHandle(0));
  void* host;
  MUST(cuMemHostAlloc(&host, 4096, 0));
  TRY(cuIpcGetMemHandle(&b, (CUdeviceptr)(uintptr_t)host));
  CUdeviceptr managed;
  MUST(cuMemAllocManaged(&managed, 4096, 1));
  TRY(cuIpcGetMemHandle(&b, managed));
  CUmemAllocationProp property = {.type = MEM_PINNED, .requestedHandleTypes = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 0}};
  CUmemAccessDesc access = {.location = {LOCATION_DEVICE, 0}, .flags = ACCESS_READ_WRITE};
  CUmemGenericAllocationHandle physical;
  CUdeviceptr q;
  MUST(cuMemCreate(&physical, 2 << 20, &property, 0));
  MUST(cuMemAddressReserve(&q, 2 << 20, 0, 0, 0));
  MUST(cuMemMap(q, 2 << 20, 0, physical, 0));
  MUST(cuMemSetAccess(q, 2 << 20, &access, 1));
  TRY(cuIpcGetMemHandle(&b, q));
  MUST(cuMemFree(p));
  TRY(cuIpcGetMemHandle(&b, p));
}

static void importer(int socket) {
  char byte;
  start();
  if (read(socket, handles, sizeof handles) != sizeof handles) _Exit(1);
  CUdeviceptr p = 0, twice = 0, inside = 0, small = 0, base = 0;
  size_t size = 0;
  say("importer");
  TRY(cuIpcOpenMemHandle(&p, handles[0], 0));
  TRY(cuIpcOpenMemHandle(&p, handles[0], 2));
  if (TRY(cuIpcOpenMemHandle(&p, handles[0], IPC_LAZY_PEER)) != 0) return;
  TRY(cuIpcOpenMemHandle(&twice, handles[0], IPC_LAZY_PEER));
  say("  the same address: %s", p == twice ? "yes" : "no");
  (void)inside;
  TRY(cuMemGetAddressRange(&base, &size, p + 100));
  say("  base: %s, size %zu", base == p ? "exact" : "another", size);
  unsigned type = 99;
  int capable = 99, ordinal = 99;
  TRY(cuPointerGetAttribute(&type, 2, p));
  TRY(cuPointerGetAttribute(&capable, 10, p));
  TRY(cuPointerGetAttribute(&ordinal, 9, p));
  say("  type %u, legacy IPC %d, device %d", type, capable & 0xff, ordinal);
  CUipcMemHandle handle;
  TRY(cuIpcGetMemHandle(&handle, p));
  say("  %u", read_word(p));
  TRY(cuMemsetD32(p + 4, 12, 1));
  MUST(cuCtxSynchronize());
  TRY(cuIpcOpenMemHandle(&small, handles[1], IPC_LAZY_PEER));
  say("  %u", read_word(small));
  TRY(cuMemGetAddressRange(&base, &size, small));
  say("  base: %s, size %zu", base == small ? "exact" : "another", size);
  TRY(cuMemFree(p));
  TRY(cuIpcCloseMemHandle(p + 8));
  TRY(cuIpcCloseMemHandle(p));
  say("  %u", read_word(twice));
  TRY(cuIpcCloseMemHandle(twice));
  TRY(cuIpcCloseMemHandle(twice));
  TRY(cuMemsetD32(p, 1, 1));
  memset(&handle, 0x5a, sizeof handle);
  TRY(cuIpcOpenMemHandle(&p, handle, IPC_LAZY_PEER));
  memset(&handle, 0, sizeof handle);
  TRY(cuIpcOpenMemHandle(&p, handle, IPC_LAZY_PEER));
  if (write(socket, "x", 1) != 1 || read(socket, &byte, 1) != 1) _Exit(1);
  // The exporter has freed the memory.
  say("importer, after the exporter's free");
  TRY(cuIpcOpenMemHandle(&p, handles[0], IPC_LAZY_PEER));
}

static void another_process(void) {
  int pair[2];
  char byte;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  pid_t child = fork();
  if (child == 0) {
    close(pair[0]);
    importer(pair[1]);
    fflush(stdout);
    _Exit(0);
  }
  close(pair[1]);
  start();
  CUdeviceptr p = device_memory(4 << 20), small = device_memory(64);
  MUST(cuMemsetD32(p, 11, 1));
  MUST(cuMemsetD32(small, 21, 1));
  MUST(cuCtxSynchronize());
  MUST(cuIpcGetMemHandle(&handles[0], p));
  MUST(cuIpcGetMemHandle(&handles[1], small));
  if (write(pair[0], handles, sizeof handles) != sizeof handles) return;
  if (read(pair[0], &byte, 1) == 1) {
    say("exporter");
    say("  %u", read_word(p + 4));
    TRY(cuMemFree(p));
    if (write(pair[0], "y", 1) != 1) return;
  }
  int status;
  waitpid(child, &status, 0);
  say("importer ended %s", status == 0 ? "well" : "badly");
}

SECTIONS({"the exporting process", own_process}, {"another process", another_process})
