// Two devices: peer access, copies between them, memory of one mapped for the other.
#include "conformance.h"

static CUcontext a, b;

static void prepare(void) {
  driver_open();
  MUST(cuInit(0));
  int count = 0, reach = 0;
  MUST(cuDeviceGetCount(&count));
  if (count < 2 || cuDeviceCanAccessPeer(&reach, 0, 1) != 0 || !reach) _Exit(77);
  MUST(cuDevicePrimaryCtxRetain(&a, 0));
  MUST(cuDevicePrimaryCtxRetain(&b, 1));
  MUST(cuCtxSetCurrent(a));
}

static void enabling(void) {
  prepare();
  TRY(cuCtxEnablePeerAccess(a, 0));
  TRY(cuCtxDisablePeerAccess(b));
  TRY(cuCtxEnablePeerAccess(b, 1));
  TRY(cuCtxEnablePeerAccess(NULL, 0));
  TRY(cuCtxEnablePeerAccess(b, 0));
  TRY(cuCtxEnablePeerAccess(b, 0));
  TRY(cuCtxDisablePeerAccess(b));
  TRY(cuCtxDisablePeerAccess(b));
  int value = -1;
  for (int attribute = 2; attribute <= 4; ++attribute) {
    CUresult result = cuDeviceGetP2PAttribute(&value, attribute, 0, 1);
    say("P2P attribute %d: %s, %d", attribute, result_name(result), value);
  }
  TRY(cuDeviceGetP2PAttribute(&value, 0, 0, 1));
  TRY(cuDeviceGetP2PAttribute(&value, 2, 0, 0));
  TRY(cuDeviceGetP2PAttribute(NULL, 2, 0, 1));
}

static void copies(void) {
  prepare();
  CUdeviceptr pa = device_memory(64), pb;
  MUST(cuCtxSetCurrent(b));
  pb = device_memory(64);
  MUST(cuMemsetD32(pb, 9, 16));
  MUST(cuCtxSynchronize());
  MUST(cuCtxSetCurrent(a));
  TRY(cuMemcpyDtoD(pa, pb, 64));
  TRY(cuCtxSynchronize());
  say("  %u", read_word(pa));
  TRY(cuMemcpyPeer(pb, b, pa, a, 64));
  TRY(cuMemcpyAsync(pa, pb, 64, NULL));
  TRY(cuMemsetD32(pb, 1, 1));
  TRY(cuStreamWriteValue32(NULL, pb, 5, 0));
  TRY(cuCtxSynchronize());
}

static void writes_with_access(void) {
  prepare();
  MUST(cuCtxEnablePeerAccess(b, 0));
  MUST(cuCtxSetCurrent(b));
  CUdeviceptr pb = device_memory(64);
  MUST(cuCtxSetCurrent(a));
  TRY(cuMemsetD32(pb, 3, 1));
  TRY(cuStreamWriteValue32(NULL, pb + 4, 5, 0));
  TRY(cuCtxSynchronize());
  say("  %u %u", read_word(pb), read_word(pb + 4));
  CUcontext context = NULL;
  int device = -1;
  TRY(cuPointerGetAttribute(&context, 1, pb));
  TRY(cuPointerGetAttribute(&device, 9, pb));
  say("  its own context: %s, device %d", context == b ? "yes" : "no", device);
}

static void virtual(void) {
  prepare();
  const size_t size = 2 << 20;
  CUmemAllocationProp property = {.type = MEM_PINNED, .requestedHandleTypes = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 1}};
  CUmemAccessDesc access[2] = {{{LOCATION_DEVICE, 0}, ACCESS_READ_WRITE}, {{LOCATION_DEVICE, 1}, ACCESS_READ_WRITE}};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr p;
  MUST(cuMemCreate(&handle, size, &property, 0));
  MUST(cuMemAddressReserve(&p, size, 0, 0, 0));
  MUST(cuMemMap(p, size, 0, handle, 0));
  TRY(cuMemSetAccess(p, size, access, 2));
  TRY(cuMemsetD32(p, 7, 1));
  MUST(cuCtxSynchronize());
  MUST(cuCtxSetCurrent(b));
  say("  %u", read_word(p));
  int device = -1;
  TRY(cuPointerGetAttribute(&device, 9, p));
  say("  device %d", device);
  TRY(cuMemSetAccess(p, size, access, 1));
  unsigned long long flags[2] = {99, 99};
  TRY(cuMemGetAccess(&flags[0], &access[0].location, p));
  TRY(cuMemGetAccess(&flags[1], &access[1].location, p));
  say("  %llu %llu", flags[0], flags[1]);
}

static void devices_of_objects(void) {
  prepare();
  CUstream sa, sb;
  CUevent ea, eb;
  MUST(cuStreamCreate(&sa, STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&ea, EVENT_DEFAULT));
  MUST(cuCtxSetCurrent(b));
  MUST(cuStreamCreate(&sb, STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&eb, EVENT_DEFAULT));
  TRY(cuEventRecord(ea, sb));
  TRY(cuEventRecord(eb, sb));
  TRY(cuStreamWaitEvent(sa, eb, 0));
  TRY(cuEventRecord(ea, sa));
  TRY(cuEventSynchronize(ea));
  TRY(cuEventSynchronize(eb));
  float ms;
  TRY(cuEventElapsedTime(&ms, ea, eb));
  // Capture reaches over to the other device.
  CUgraph graph;
  CUdeviceptr pb = device_memory(64);
  MUST(cuStreamBeginCapture(sa, CAPTURE_RELAXED));
  MUST(cuEventRecord(ea, sa));
  TRY(cuStreamWaitEvent(sb, ea, 0));
  TRY(cuMemsetD32Async(pb, 77, 1, sb));
  TRY(cuEventRecord(eb, sb));
  TRY(cuStreamWaitEvent(sa, eb, 0));
  TRY(cuStreamEndCapture(sa, &graph));
  CUgraphExec exec;
  TRY(cuGraphInstantiate(&exec, graph, 0));
  TRY(cuGraphLaunch(exec, sa));
  TRY(cuStreamSynchronize(sa));
  say("  %u", read_word(pb));
}

SECTIONS({"enabling", enabling}, {"copies", copies}, {"writes with access", writes_with_access}, {"virtual memory", virtual},
         {"objects", devices_of_objects})
