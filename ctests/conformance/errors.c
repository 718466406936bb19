// Error names and strings, calls before cuInit, bad ordinals and NULL arguments of the device functions.
//
// Some functions of the real driver write to where a NULL points (cuGetErrorName, cuGetErrorString) or before a buffer
// of no length (cuDeviceGetName). Nobody can rely on that, so it is not asked for.
#include "conformance.h"

static void names(void) {
  driver_open();
  const char* name = "?";
  for (int code = 0; code < 1000; ++code)
    if (cuGetErrorName(code, &name) == 0) say("%d %s", code, name);
  TRY(cuGetErrorName(-1, &name));
  say("  %s", name ? name : "NULL");
  name = "?";
  TRY(cuGetErrorName(1000, &name));
  say("  %s", name ? name : "NULL");
}

static void strings(void) {
  driver_open();
  // What they say is the driver's affair; every error that has a name has one, on one line.
  int named = 0, described = 0, bad = 0;
  for (int code = 0; code < 1000; ++code) {
    const char *name = NULL, *text = NULL;
    CUresult a = cuGetErrorName(code, &name), b = cuGetErrorString(code, &text);
    if (a != b) say("%d: %s, %s", code, result_name(a), result_name(b));
    named += a == 0 && name && *name;
    described += b == 0 && text && *text;
    bad += text && strchr(text, '\n') != NULL;
  }
  say("as many as names: %s, with line breaks: %d", named == described ? "yes" : "no", bad);
  const char* text = "?";
  TRY(cuGetErrorString(-1, &text));
  say("  %s", text ? text : "NULL");
}

static void before_init(void) {
  driver_open();
  int number = -1;
  CUdevice device;
  CUcontext context;
  CUdeviceptr memory;
  CUstream stream;
  TRY(cuDriverGetVersion(&number));
  say("  at least 12.0: %s", number >= 12000 ? "yes" : "no");
  TRY(cuDriverGetVersion(NULL));
  TRY(cuDeviceGetCount(&number));
  TRY(cuDeviceGet(&device, 0));
  TRY(cuCtxGetCurrent(&context));
  TRY(cuDevicePrimaryCtxRetain(&context, 0));
  TRY(cuMemAlloc(&memory, 16));
  TRY(cuStreamCreate(&stream, 0));
  TRY(cuStreamQuery(NULL));
  TRY(cuCtxSynchronize());
  TRY(cuPointerGetAttribute(&number, 2, 4096));
  int mode = 2;
  TRY(cuThreadExchangeStreamCaptureMode(&mode));
  TRY(cuInit(1));
  TRY(cuInit(0));
  TRY(cuInit(0));
  TRY(cuInit(1));
}

static void without_context(void) {
  driver_open();
  MUST(cuInit(0));
  CUcontext context = (CUcontext)1;
  CUdeviceptr memory;
  CUstream stream;
  CUevent event;
  void* host;
  int number;
  size_t n, m;
  TRY(cuCtxGetCurrent(&context));
  say("  %s", context ? "a context" : "NULL");
  CUdevice device;
  unsigned flags;
  TRY(cuCtxGetDevice(&device));
  TRY(cuCtxGetFlags(&flags));
  TRY(cuCtxSynchronize());
  TRY(cuCtxPopCurrent(&context));
  TRY(cuMemAlloc(&memory, 16));
  TRY(cuMemFree(0));
  TRY(cuMemGetInfo(&n, &m));
  TRY(cuMemHostAlloc(&host, 16, 0));
  TRY(cuStreamCreate(&stream, 0));
  TRY(cuStreamQuery(NULL));
  TRY(cuStreamSynchronize(STREAM_PER_THREAD));
  TRY(cuEventCreate(&event, 0));
  TRY(cuPointerGetAttribute(&number, 2, (CUdeviceptr)(uintptr_t)&number));
  CUmemAllocationProp property = {.type = MEM_PINNED, .requestedHandleTypes = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 0}};
  TRY(cuMemGetAllocationGranularity(&n, &property, 0));
  say("  %zu", n);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  CUmemAccessDesc access = {.location = {LOCATION_DEVICE, 0}, .flags = ACCESS_READ_WRITE};
  TRY(cuMemCreate(&handle, n, &property, 0));
  TRY(cuMemAddressReserve(&address, n, 0, 0, 0));
  CUgraph graph;
  TRY(cuGraphCreate(&graph, 0));
  (void)access;
}

static void devices(void) {
  driver_open();
  MUST(cuInit(0));
  CUdevice device = -1;
  TRY(cuDeviceGetCount(NULL));
  TRY(cuDeviceGet(&device, 0));
  say("  %d", device);
  TRY(cuDeviceGet(&device, -1));
  TRY(cuDeviceGet(&device, 1000));
  TRY(cuDeviceGet(NULL, 0));
  char text[64];
  TRY(cuDeviceGetName(text, sizeof text, 0));
  say("  a name: %s", strnlen(text, sizeof text) > 4 ? "yes" : "no");
  TRY(cuDeviceGetName(text, 4, 0));
  say("  length %zu", strnlen(text, sizeof text));
}

static void identities(void) {
  driver_open();
  MUST(cuInit(0));
  char text[64];
  TRY(cuDeviceGetName(text, sizeof text, 1000));
  CUuuid uuid = {{0}}, zero = {{0}};
  TRY(cuDeviceGetUuid(&uuid, 0));
  say("  not zero: %s", memcmp(&uuid, &zero, sizeof uuid) ? "yes" : "no");
  TRY(cuDeviceGetUuid(&uuid, 1000));
  size_t size;
  TRY(cuDeviceTotalMem(&size, 0));
  TRY(cuDeviceTotalMem(&size, -1));
  TRY(cuDeviceGetPCIBusId(text, sizeof text, 0));
  int domain, bus, slot, function, length = 0;
  int fields = sscanf(text, "%x:%x:%x.%x%n", &domain, &bus, &slot, &function, &length);
  say("  fields %d, length %d, upper case: %s", fields, length, strpbrk(text, "abcdef") ? "no" : "yes");
  CUdevice found = -1;
  TRY(cuDeviceGetByPCIBusId(&found, text));
  say("  %d", found);
  TRY(cuDeviceGetByPCIBusId(&found, "ffff:ff:ff.0"));
  TRY(cuDeviceGetByPCIBusId(&found, "nonsense"));
  TRY(cuDeviceGetPCIBusId(text, 13, 0));
  int number = -1;
  TRY(cuDeviceGetAttribute(&number, 10, 0));
  TRY(cuDeviceGetAttribute(&number, 0, 0));
  TRY(cuDeviceGetAttribute(&number, 100000, 0));
  TRY(cuDeviceGetAttribute(&number, 10, 1000));
  CUcontext context;
  TRY(cuDevicePrimaryCtxRetain(&context, 1000));
  TRY(cuDeviceCanAccessPeer(&number, 0, 0));
  say("  %d", number);
  TRY(cuDeviceCanAccessPeer(&number, 0, 1000));
}

// One section each: should the driver write to it, only this one ends.
static void null_uuid(void) { driver_open(); MUST(cuInit(0)); TRY(cuDeviceGetUuid(NULL, 0)); }
static void null_size(void) { driver_open(); MUST(cuInit(0)); TRY(cuDeviceTotalMem(NULL, 0)); }
static void null_bus_id(void) {
  driver_open();
  MUST(cuInit(0));
  CUdevice found;
  TRY(cuDeviceGetByPCIBusId(&found, NULL));
  TRY(cuDeviceGetByPCIBusId(NULL, "0000:00:00.0"));
}
static void null_attribute(void) { driver_open(); MUST(cuInit(0)); TRY(cuDeviceGetAttribute(NULL, 10, 0)); }
static void null_context(void) { driver_open(); MUST(cuInit(0)); TRY(cuDevicePrimaryCtxRetain(NULL, 0)); }
static void null_reach(void) { driver_open(); MUST(cuInit(0)); TRY(cuDeviceCanAccessPeer(NULL, 0, 0)); }

// Attributes on which the library relies, of a data-centre GPU. What the machine decides (DMA_BUF_SUPPORTED) is left out.
static void attributes(void) {
  driver_open();
  MUST(cuInit(0));
  static const struct { int number; const char* name; } list[] = {
      {1, "MAX_THREADS_PER_BLOCK"}, {2, "MAX_BLOCK_DIM_X"}, {5, "MAX_GRID_DIM_X"}, {6, "MAX_GRID_DIM_Y"}, {8, "MAX_SHARED_MEMORY_PER_BLOCK"},
      {9, "TOTAL_CONSTANT_MEMORY"}, {10, "WARP_SIZE"}, {12, "MAX_REGISTERS_PER_BLOCK"}, {18, "INTEGRATED"}, {19, "CAN_MAP_HOST_MEMORY"},
      {20, "COMPUTE_MODE"}, {31, "CONCURRENT_KERNELS"}, {39, "MAX_THREADS_PER_MULTIPROCESSOR"}, {41, "UNIFIED_ADDRESSING"},
      {78, "STREAM_PRIORITIES_SUPPORTED"}, {83, "MANAGED_MEMORY"}, {86, "HOST_NATIVE_ATOMIC_SUPPORTED"}, {89, "CONCURRENT_MANAGED_ACCESS"},
      {90, "COMPUTE_PREEMPTION_SUPPORTED"}, {91, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"}, {94, "CAN_USE_STREAM_WAIT_VALUE_NOR_V1"},
      {95, "COOPERATIVE_LAUNCH"}, {97, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"}, {98, "CAN_FLUSH_REMOTE_WRITES"}, {99, "HOST_REGISTER_SUPPORTED"},
      {102, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"}, {103, "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"},
      {104, "HANDLE_TYPE_WIN32_HANDLE_SUPPORTED"}, {106, "MAX_BLOCKS_PER_MULTIPROCESSOR"}, {111, "RESERVED_SHARED_MEMORY_PER_BLOCK"},
      {115, "MEMORY_POOLS_SUPPORTED"}, {122, "CAN_USE_64_BIT_STREAM_MEM_OPS"}, {125, "IPC_EVENT_SUPPORTED"},
      {129, "UNIFIED_FUNCTION_POINTERS"}};
  for (size_t i = 0; i < COUNT(list); ++i) {
    int value = -1;
    CUresult result = cuDeviceGetAttribute(&value, list[i].number, 0);
    say("%s: %s, %d", list[i].name, result_name(result), value);
  }
}

static void forked(void) {
  start();
  pid_t child = fork();
  if (child == 0) {
    int number;
    CUdeviceptr memory;
    TRY(cuInit(0));
    TRY(cuDeviceGetCount(&number));
    TRY(cuMemAlloc(&memory, 16));
    TRY(cuStreamQuery(NULL));
    _Exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  TRY(cuCtxSynchronize());
}

SECTIONS({"names", names}, {"strings", strings}, {"before cuInit", before_init}, {"without a context", without_context},
         {"devices", devices}, {"attributes", attributes}, {"in a forked child", forked}, {"identities", identities},
         {"NULL for a UUID", null_uuid}, {"NULL for a size", null_size}, {"NULL for a bus id", null_bus_id},
         {"NULL for an attribute", null_attribute}, {"NULL for a context", null_context}, {"NULL for an answer", null_reach})
