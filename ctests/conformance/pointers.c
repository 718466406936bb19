// Pointer attributes of every kind of memory, of addresses inside it, behind it and after it was freed.
#include "conformance.h"

enum { GRANULE = 2 << 20 };
static CUcontext primary;

// `base` and `size` describe the memory that `p` should belong to, so that addresses can be told without printing them.
static void describe(const char* what, CUdeviceptr p, CUdeviceptr base) {
  say("%s", what);
#define ATTRIBUTE(number, type, format, ...)                                  \
  do {                                                                        \
    type value;                                                               \
    memset(&value, 0, sizeof value);                                          \
    CUresult result = cuPointerGetAttribute(&value, number, p);               \
    if (result) say("  " #number ": %s", result_name(result));                \
    else say("  " #number ": " format, __VA_ARGS__);                          \
  } while (0)
  enum {
    CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, SYNC_MEMOPS = 6, BUFFER_ID = 7, IS_MANAGED = 8,
    DEVICE_ORDINAL = 9, IS_LEGACY_CUDA_IPC_CAPABLE = 10, RANGE_START_ADDR = 11, RANGE_SIZE = 12, MAPPED = 13,
    ALLOWED_HANDLE_TYPES = 14, ACCESS_FLAGS = 16, MEMPOOL_HANDLE = 17, MAPPING_SIZE = 18, MAPPING_BASE_ADDR = 19,
    MEMORY_BLOCK_ID = 20
  };
  ATTRIBUTE(CONTEXT, CUcontext, "%s", value == NULL ? "NULL" : value == primary ? "primary" : "another");
  ATTRIBUTE(MEMORY_TYPE, unsigned, "%u", value);
  ATTRIBUTE(DEVICE_POINTER, CUdeviceptr, "%s", value == p ? "itself" : value == 0 ? "0" : "another");
  ATTRIBUTE(HOST_POINTER, CUdeviceptr, "%s", value == p ? "itself" : value == 0 ? "0" : "another");
  ATTRIBUTE(SYNC_MEMOPS, unsigned, "%u", value);
  ATTRIBUTE(BUFFER_ID, unsigned long long, "%s", value ? "not 0" : "0");
  ATTRIBUTE(IS_MANAGED, int, "%d", value & 0xff);
  ATTRIBUTE(DEVICE_ORDINAL, int, "%d", value);
  ATTRIBUTE(IS_LEGACY_CUDA_IPC_CAPABLE, int, "%d", value & 0xff);
  ATTRIBUTE(RANGE_START_ADDR, CUdeviceptr, "%s", value == base ? "base" : value == 0 ? "0" : "another");
  ATTRIBUTE(RANGE_SIZE, size_t, "%zu", value);
  ATTRIBUTE(MAPPED, int, "%d", value & 0xff);
  ATTRIBUTE(ALLOWED_HANDLE_TYPES, unsigned long long, "%llu", value);
  ATTRIBUTE(ACCESS_FLAGS, unsigned, "%u", value);
  ATTRIBUTE(MEMPOOL_HANDLE, void*, "%s", value ? "some" : "NULL");
  ATTRIBUTE(MAPPING_SIZE, size_t, "%zu", value);
  ATTRIBUTE(MAPPING_BASE_ADDR, CUdeviceptr, "%s", value == base ? "base" : value == 0 ? "0" : "another");
  ATTRIBUTE(MEMORY_BLOCK_ID, unsigned long long, "%s", value ? "not 0" : "0");
}

static void device(void) {
  primary = start();
  CUdeviceptr p;
  MUST(cuMemAlloc(&p, 4 << 20));
  describe("cuMemAlloc", p, p);
  describe("inside it", p + 1000001, p);
  describe("its last byte", p + (4 << 20) - 1, p);
  MUST(cuMemFree(p));
  describe("freed", p, p);
}

static void host(void) {
  primary = start();
  void* p;
  MUST(cuMemHostAlloc(&p, 8192, 0));
  describe("cuMemHostAlloc", (CUdeviceptr)(uintptr_t)p, (CUdeviceptr)(uintptr_t)p);
  describe("inside it", (CUdeviceptr)(uintptr_t)p + 5000, (CUdeviceptr)(uintptr_t)p);
  MUST(cuMemFreeHost(p));
  describe("freed", (CUdeviceptr)(uintptr_t)p, (CUdeviceptr)(uintptr_t)p);
  char* mapping = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  describe("unknown host memory", (CUdeviceptr)(uintptr_t)mapping, (CUdeviceptr)(uintptr_t)mapping);
  MUST(cuMemHostRegister(mapping + 100, 5000, 0));
  const CUdeviceptr registered = (CUdeviceptr)(uintptr_t)(mapping + 100);
  describe("registered, 5000 bytes at page offset 100", registered, registered);
  describe("before them, on their page", registered - 50, registered);
  describe("behind them, on their last page", registered + 5050, registered);
  describe("behind their last page", registered + 12000, registered);
  MUST(cuMemHostUnregister(mapping + 100));
  describe("unregistered", registered, registered);
}

static void virtual(void) {
  primary = start();
  CUmemAllocationProp property = {.type = MEM_PINNED, .requestedHandleTypes = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 0}};
  CUmemAccessDesc access = {.location = {LOCATION_DEVICE, 0}, .flags = ACCESS_READ_WRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr p;
  MUST(cuMemAddressReserve(&p, 3 * (size_t)GRANULE, 0, 0, 0));
  describe("reserved only", p, p);
  MUST(cuMemCreate(&handle, GRANULE, &property, 0));
  MUST(cuMemMap(p + GRANULE, GRANULE, 0, handle, 0));
  describe("mapped without access", p + GRANULE, p + GRANULE);
  MUST(cuMemSetAccess(p + GRANULE, GRANULE, &access, 1));
  describe("mapped with access", p + GRANULE, p + GRANULE);
  describe("inside it", p + GRANULE + 100, p + GRANULE);
  describe("before it", p + GRANULE - 100, p);
  MUST(cuMemMap(p, GRANULE, 0, handle, 0));
  MUST(cuMemSetAccess(p, GRANULE, &access, 1));
  unsigned long long a = 0, b = 0;
  MUST(cuPointerGetAttribute(&a, 7, p));
  MUST(cuPointerGetAttribute(&b, 7, p + GRANULE));
  say("mapped twice: buffer ids %s", a == b ? "equal" : "differ");
  MUST(cuMemUnmap(p, GRANULE));
  describe("unmapped", p, p);
}

static void others(void) {
  primary = start();
  CUdeviceptr p;
  MUST(cuMemAllocManaged(&p, 4096, 1));
  describe("cuMemAllocManaged", p, p);
  CUstream stream;
  MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
  MUST(cuMemAllocAsync(&p, 1000, stream));
  MUST(cuStreamSynchronize(stream));
  describe("cuMemAllocAsync", p, p);
  describe("0", 0, 0);
  describe("1", 1, 0);
  static int on_host;
  describe("a variable", (CUdeviceptr)(uintptr_t)&on_host, 0);
}

static void ids(void) {
  primary = start();
  CUdeviceptr p;
  unsigned long long a = 0, inside = 0, b = 0;
  MUST(cuMemAlloc(&p, 1 << 20));
  MUST(cuPointerGetAttribute(&a, 7, p));
  MUST(cuPointerGetAttribute(&inside, 7, p + 100));
  MUST(cuMemFree(p));
  CUdeviceptr q;
  MUST(cuMemAlloc(&q, 1 << 20));
  MUST(cuPointerGetAttribute(&b, 7, q));
  say("one id per allocation: %s, a new one at the same size: %s", a == inside ? "yes" : "no", a != b ? "yes" : "no");
}

static void several(void) {
  primary = start();
  CUdeviceptr p;
  MUST(cuMemAlloc(&p, 1 << 20));
  static int attributes[] = {2, 9, 11, 12, 7, 1};
  unsigned type;
  int ordinal;
  CUdeviceptr first;
  size_t size;
  unsigned long long id;
  CUcontext context;
  void* values[] = {&type, &ordinal, &first, &size, &id, &context};
#define SEVERAL(what, address)                                                                                            \
  do {                                                                                                                    \
    type = 99, ordinal = 99, first = 99, size = 99, id = 99, context = (CUcontext)99;                                     \
    CUresult result = cuPointerGetAttributes(COUNT(attributes), attributes, values, address);                            \
    say("%s: %s, type %u, device %d, start %s, size %zu, id %s, context %s", what, result_name(result), type, ordinal,    \
        first == p ? "exact" : first == 0 ? "0" : "another", size, id == 99 ? "untouched" : id ? "not 0" : "0",           \
        context == primary ? "primary" : context ? "another" : "NULL");                                                  \
  } while (0)
  SEVERAL("device memory", p + 5);
  SEVERAL("unknown memory", (CUdeviceptr)(uintptr_t)&type);
  SEVERAL("0", 0);
  MUST(cuMemFree(p));
  SEVERAL("freed", p);
  TRY(cuPointerGetAttributes(0, attributes, values, p));
  TRY(cuPointerGetAttributes(1, NULL, values, p));
  TRY(cuPointerGetAttributes(1, attributes, NULL, p));
  MUST(cuMemAlloc(&p, 1 << 20));
  TRY(cuPointerGetAttribute(NULL, 2, p));
  TRY(cuPointerGetAttribute(&type, 0, p));
  TRY(cuPointerGetAttribute(&type, 1000, p));
  unsigned flag = 1;
  TRY(cuPointerSetAttribute(&flag, 6, p));
  TRY(cuPointerSetAttribute(&flag, 6, p + 8));
  TRY(cuPointerSetAttribute(&flag, 2, p));
  TRY(cuPointerSetAttribute(NULL, 6, p));
  flag = 9;
  TRY(cuPointerGetAttribute(&flag, 6, p + 100));
  say("  %u", flag);
}

SECTIONS({"device memory", device}, {"host memory", host}, {"virtual memory", virtual}, {"other memory", others}, {"ids", ids},
         {"several attributes", several})
