// Contexts: the primary context's state and references, the stack of current contexts, handles across contexts.
#include "conformance.h"

static void say_primary(const char* what) {
  unsigned flags = 99;
  int active = 99;
  CUresult result = cuDevicePrimaryCtxGetState(0, &flags, &active);
  say("  %s: %s, flags %u, active %d", what, result_name(result), flags, active);
}

static void primary(void) {
  driver_open();
  MUST(cuInit(0));
  say_primary("at first");
  TRY(cuDevicePrimaryCtxRelease(0));
  TRY(cuDevicePrimaryCtxSetFlags(0, 4));
  say_primary("flags set");
  TRY(cuDevicePrimaryCtxSetFlags(0, 3));
  TRY(cuDevicePrimaryCtxSetFlags(0, 1 << 20));
  TRY(cuDevicePrimaryCtxSetFlags(0, 0));
  CUcontext a = NULL, b = NULL, current = (CUcontext)1;
  TRY(cuDevicePrimaryCtxRetain(&a, 0));
  TRY(cuDevicePrimaryCtxRetain(&b, 0));
  say("  the same: %s", a == b ? "yes" : "no");
  say_primary("retained twice");
  TRY(cuCtxGetCurrent(&current));
  say("  current: %s", current ? "some" : "NULL");
  TRY(cuDevicePrimaryCtxSetFlags(0, 4));
  say_primary("flags set while active");
  MUST(cuCtxSetCurrent(a));
  CUdeviceptr memory;
  TRY(cuMemAlloc(&memory, 64));
  TRY(cuDevicePrimaryCtxRelease(0));
  say_primary("released once");
  TRY(cuMemsetD8(memory, 0, 64));
  TRY(cuDevicePrimaryCtxRelease(0));
  say_primary("released twice");
  TRY(cuCtxGetCurrent(&current));
  say("  current: %s", current == a ? "the primary context" : current ? "another" : "NULL");
  TRY(cuCtxSynchronize());
  TRY(cuMemAlloc(&memory, 64));
  TRY(cuDevicePrimaryCtxRelease(0));
  TRY(cuDevicePrimaryCtxRetain(&b, 0));
  say("  the same handle again: %s", a == b ? "yes" : "no");
  TRY(cuMemAlloc(&memory, 64));
}

static void reset(void) {
  CUcontext context = start();
  CUdeviceptr memory;
  CUstream stream;
  MUST(cuMemAlloc(&memory, 64));
  MUST(cuStreamCreate(&stream, 0));
  TRY(cuDevicePrimaryCtxReset(0));
  say_primary("reset");
  TRY(cuCtxSynchronize());
  TRY(cuMemAlloc(&memory, 64));
  say_primary("then");
  TRY(cuDevicePrimaryCtxRelease(0));
  TRY(cuDevicePrimaryCtxRetain(&context, 0));
  TRY(cuMemAlloc(&memory, 64));
}

static void stack(void) {
  CUcontext primary = start(), own = NULL, popped = NULL, current = NULL;
  TRY(cuCtxCreate(&own, 0, 0));
  TRY(cuCtxGetCurrent(&current));
  say("  current: %s", current == own ? "the new one" : "another");
  TRY(cuCtxPopCurrent(&popped));
  say("  popped: %s", popped == own ? "the new one" : "another");
  TRY(cuCtxGetCurrent(&current));
  say("  current: %s", current == primary ? "the primary context" : "another");
  TRY(cuCtxPushCurrent(own));
  TRY(cuCtxPushCurrent(own));
  TRY(cuCtxPushCurrent(NULL));
  TRY(cuCtxSetCurrent(primary));
  TRY(cuCtxPopCurrent(NULL));
  TRY(cuCtxGetCurrent(&current));
  say("  current: %s", current == own ? "the new one" : "another");
  TRY(cuCtxSetCurrent(NULL));
  TRY(cuCtxGetCurrent(&current));
  say("  current: %s", current == NULL ? "NULL" : current == primary ? "the primary context" : "the new one");
  TRY(cuCtxSetCurrent(NULL));
  TRY(cuCtxSetCurrent(NULL));
  TRY(cuCtxPopCurrent(&popped));
  TRY(cuCtxGetCurrent(NULL));
  TRY(cuCtxCreate(NULL, 0, 0));
  TRY(cuCtxCreate(&current, 0, 1000));
  TRY(cuCtxCreate(&current, 1 << 20, 0));
  MUST(cuCtxSetCurrent(own));
  unsigned flags = 99;
  CUdevice device = 99;
  TRY(cuCtxGetFlags(&flags));
  TRY(cuCtxGetDevice(&device));
  say("  device %d", device);
  TRY(cuCtxGetDevice(NULL));
  unsigned long long id = 0, other = 0;
  TRY(cuCtxGetId(NULL, &id));
  TRY(cuCtxGetId(primary, &other));
  say("  ids differ: %s", id != other ? "yes" : "no");
  TRY(cuCtxDestroy(primary));
  TRY(cuCtxDestroy(NULL));
  TRY(cuCtxDestroy(own));
  TRY(cuCtxGetCurrent(&current));
  say("  current after destroying it: %s", current == NULL ? "NULL" : current == own ? "the destroyed one" : "another");
}

static void* read_current(void* out) {
  CUcontext current = (CUcontext)1;
  cuCtxGetCurrent(&current);
  *(CUcontext*)out = current;
  return NULL;
}

static void threads(void) {
  start();
  CUcontext seen = (CUcontext)1;
  pthread_t thread;
  pthread_create(&thread, NULL, read_current, &seen);
  pthread_join(thread, NULL);
  say("current in a new thread: %s", seen ? "some" : "NULL");
}

static void across(void) {
  CUcontext a = start(), b;
  CUstream stream_a, stream_b;
  CUevent event_a, event_b;
  CUdeviceptr memory_a, memory_b;
  MUST(cuStreamCreate(&stream_a, STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event_a, EVENT_DEFAULT));
  memory_a = device_memory(64);
  MUST(cuCtxCreate(&b, 0, 0));
  MUST(cuStreamCreate(&stream_b, STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event_b, EVENT_DEFAULT));
  memory_b = device_memory(64);
  say("b is current");
  CUcontext found;
  TRY(cuStreamGetCtx(stream_a, &found));
  say("  %s", found == a ? "a" : found == b ? "b" : "?");
  TRY(cuMemsetD8Async(memory_a, 1, 64, stream_a));
  TRY(cuMemsetD8Async(memory_a, 1, 64, stream_b));
  TRY(cuMemsetD8(memory_a, 2, 64));
  TRY(cuMemcpyDtoD(memory_a, memory_b, 64));
  TRY(cuMemcpyAsync(memory_b, memory_a, 64, stream_a));
  TRY(cuEventRecord(event_a, stream_a));
  TRY(cuEventRecord(event_b, stream_a));
  TRY(cuEventRecord(event_a, NULL));
  TRY(cuStreamWaitEvent(stream_b, event_a, 0));
  TRY(cuStreamWaitEvent(NULL, event_a, 0));
  TRY(cuStreamSynchronize(stream_a));
  TRY(cuEventSynchronize(event_a));
  TRY(cuEventQuery(event_a));
  TRY(cuEventRecord(event_b, stream_b));
  TRY(cuEventSynchronize(event_b));
  float ms;
  TRY(cuEventElapsedTime(&ms, event_a, event_b));
  TRY(cuStreamWriteValue32(stream_a, memory_b, 1, 0));
  TRY(cuStreamSynchronize(stream_a));
  TRY(cuStreamDestroy(stream_a));
  TRY(cuEventDestroy(event_a));
  TRY(cuMemFree(memory_a));
  say("nothing is current");
  MUST(cuCtxSetCurrent(NULL));
  CUcontext popped;
  while (cuCtxPopCurrent(&popped) == 0) {}
  TRY(cuMemsetD8Async(memory_b, 1, 64, stream_b));
  TRY(cuMemsetD8(memory_b, 1, 64));
  TRY(cuEventRecord(event_b, stream_b));
  TRY(cuStreamSynchronize(stream_b));
  TRY(cuEventSynchronize(event_b));
  TRY(cuStreamWaitEvent(stream_b, event_b, 0));
  TRY(cuStreamSynchronize(NULL));
  int status;
  TRY(cuStreamIsCapturing(stream_b, &status));
  CUdeviceptr base;
  size_t size;
  TRY(cuMemGetAddressRange(&base, &size, memory_b));
  TRY(cuMemFree(memory_b));
  TRY(cuEventDestroy(event_b));
  TRY(cuStreamDestroy(stream_b));
}

// A primary context that ends and begins again keeps its handle: is there anything to tell the two by?
static void lives(void) {
  CUcontext context = start(), again = NULL;
  unsigned long long first = 0, second = 0, third = 0;
  MUST(cuCtxGetId(NULL, &first));
  MUST(cuDevicePrimaryCtxRelease(0));
  TRY(cuCtxGetId(context, &second));
  MUST(cuDevicePrimaryCtxRetain(&again, 0));
  TRY(cuCtxGetId(again, &second));
  say("  handle %s, id %s", again == context ? "kept" : "changed", second == first ? "kept" : "changed");
  MUST(cuDevicePrimaryCtxReset(0));
  MUST(cuDevicePrimaryCtxRetain(&again, 0));
  TRY(cuCtxGetId(again, &third));
  say("  after a reset: handle %s, id %s", again == context ? "kept" : "changed", third == second ? "kept" : "changed");
}

SECTIONS({"primary", primary}, {"reset", reset}, {"stack", stack}, {"threads", threads}, {"across contexts", across},
         {"lives of a primary context", lives})
