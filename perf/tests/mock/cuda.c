/* A driver of which every call succeeds and device memory is host memory: just enough for oxccl-perf and nccl.c. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int result;

result cuInit(unsigned flags) { return flags ? 1 : 0; }
result cuDeviceGetCount(int* count) { *count = 2; return 0; }
result cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
result cuDeviceGetName(char* name, int len, int device) {
  (void)device;
  strncpy(name, "Mock", (size_t)len);
  return 0;
}
result cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(intptr_t)(device + 1); return 0; }
result cuCtxSetCurrent(void* context) { return context ? 0 : 1; }
result cuMemAlloc_v2(uint64_t* pointer, size_t bytes) {
  *pointer = (uint64_t)(uintptr_t)malloc(bytes);
  return *pointer ? 0 : 2;
}
result cuMemFree_v2(uint64_t pointer) { free((void*)(uintptr_t)pointer); return 0; }
result cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  memcpy((void*)(uintptr_t)to, from, bytes);
  return 0;
}
result cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  memcpy(to, (const void*)(uintptr_t)from, bytes);
  return 0;
}
result cuMemsetD8_v2(uint64_t to, unsigned char value, size_t bytes) {
  memset((void*)(uintptr_t)to, value, bytes);
  return 0;
}
result cuStreamCreate(void** stream, unsigned flags) { *stream = malloc(1 + flags); return 0; }
result cuStreamSynchronize(void* stream) { (void)stream; return 0; }
/* Work is done while it is "captured"; a launch has nothing left to do. */
result cuStreamBeginCapture_v2(void* stream, int mode) { (void)mode; return stream ? 0 : 1; }
result cuStreamEndCapture(void* stream, void** graph) { *graph = stream; return 0; }
result cuGraphInstantiateWithFlags(void** exec, void* graph, uint64_t flags) { *exec = graph; return flags ? 1 : 0; }
result cuGraphLaunch(void* exec, void* stream) { return exec == stream ? 0 : 1; }
result cuGraphDestroy(void* graph) { return graph ? 0 : 1; }
result cuGraphExecDestroy(void* exec) { return exec ? 0 : 1; }
result cuGetErrorName(int code, const char** name) { (void)code; *name = "MOCK_ERROR"; return 0; }
