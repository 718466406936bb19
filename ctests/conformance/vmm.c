// Virtual memory management: sizes, mapping, access, export to another process by file descriptor.
#include "conformance.h"

enum { GRANULE = 2 << 20 };
static CUmemAllocationProp property = {.type = MEM_PINNED, .requestedHandleTypes = HANDLE_POSIX_FD, .location = {LOCATION_DEVICE, 0}};
static CUmemAccessDesc everything = {.location = {LOCATION_DEVICE, 0}, .flags = ACCESS_READ_WRITE};

static void granularity(void) {
  start();
  size_t size = 0;
  TRY(cuMemGetAllocationGranularity(&size, &property, 0));
  say("  %zu", size);
  TRY(cuMemGetAllocationGranularity(&size, &property, 1));
  say("  %zu", size);
  TRY(cuMemGetAllocationGranularity(&size, &property, 2));
  TRY(cuMemGetAllocationGranularity(NULL, &property, 0));
  TRY(cuMemGetAllocationGranularity(&size, NULL, 0));
  CUmemAllocationProp bad = property;
  bad.type = 0;
  TRY(cuMemGetAllocationGranularity(&size, &bad, 0));
  bad = property;
  bad.location.id = 1000;
  TRY(cuMemGetAllocationGranularity(&size, &bad, 0));
  bad = property;
  bad.requestedHandleTypes = HANDLE_NONE;
  TRY(cuMemGetAllocationGranularity(&size, &bad, 0));
  say("  %zu", size);
}

static void creation(void) {
  start();
  CUmemGenericAllocationHandle handle = 0;
  TRY(cuMemCreate(&handle, 0, &property, 0));
  TRY(cuMemCreate(&handle, 4096, &property, 0));
  TRY(cuMemCreate(&handle, GRANULE + 1, &property, 0));
  TRY(cuMemCreate(NULL, GRANULE, &property, 0));
  TRY(cuMemCreate(&handle, GRANULE, NULL, 0));
  TRY(cuMemCreate(&handle, GRANULE, &property, 1));
  TRY(cuMemCreate(&handle, (size_t)1 << 50, &property, 0));
  CUmemAllocationProp bad = property;
  bad.location.id = 1000;
  TRY(cuMemCreate(&handle, GRANULE, &bad, 0));
  bad = property;
  bad.location.type = 0;
  TRY(cuMemCreate(&handle, GRANULE, &bad, 0));
  bad = property;
  bad.type = 7;
  TRY(cuMemCreate(&handle, GRANULE, &bad, 0));
  TRY(cuMemCreate(&handle, GRANULE, &property, 0));
  CUmemAllocationProp got;
  memset(&got, 0xff, sizeof got);
  TRY(cuMemGetAllocationPropertiesFromHandle(&got, handle));
  say("  type %d, handle types %d, location %d %d, compression %d", got.type, got.requestedHandleTypes, got.location.type,
      got.location.id, got.allocFlags.compressionType);
  TRY(cuMemRelease(handle));
  TRY(cuMemRelease(0));
}

static void addresses(void) {
  start();
  CUdeviceptr p = 0, q = 0;
  TRY(cuMemAddressReserve(&p, 0, 0, 0, 0));
  TRY(cuMemAddressReserve(&p, 4096, 0, 0, 0));
  TRY(cuMemAddressReserve(&p, GRANULE + 4096, 0, 0, 0));
  TRY(cuMemAddressReserve(&p, GRANULE, 3, 0, 0));
  TRY(cuMemAddressReserve(NULL, GRANULE, 0, 0, 0));
  TRY(cuMemAddressReserve(&p, GRANULE, 0, 0, 1));
  TRY(cuMemAddressReserve(&p, 4 * (size_t)GRANULE, 0, 0, 0));
  say("  aligned to the granule: %s", p % GRANULE == 0 ? "yes" : "no");
  TRY(cuMemAddressReserve(&q, GRANULE, (size_t)1 << 30, 0, 0));
  say("  aligned to 1 GiB: %s", q % (1 << 30) == 0 ? "yes" : "no");
  TRY(cuMemAddressFree(q, GRANULE));
  TRY(cuMemAddressFree(p, GRANULE));
  TRY(cuMemAddressFree(p + GRANULE, GRANULE));
  TRY(cuMemAddressFree(p, 4 * (size_t)GRANULE));
  TRY(cuMemAddressFree(p, 4 * (size_t)GRANULE));
  TRY(cuMemAddressFree(0, GRANULE));
}

static void mapping(void) {
  start();
  CUdeviceptr p;
  CUmemGenericAllocationHandle handle, two;
  MUST(cuMemAddressReserve(&p, 8 * (size_t)GRANULE, 0, 0, 0));
  MUST(cuMemCreate(&handle, GRANULE, &property, 0));
  MUST(cuMemCreate(&two, 2 * (size_t)GRANULE, &property, 0));
  TRY(cuMemMap(p, 4096, 0, handle, 0));
  TRY(cuMemMap(p + 4096, GRANULE, 0, handle, 0));
  TRY(cuMemMap(p, GRANULE, 4096, handle, 0));
  TRY(cuMemMap(p, 2 * (size_t)GRANULE, 0, handle, 0));
  TRY(cuMemMap(p, GRANULE, GRANULE, two, 0));
  TRY(cuMemMap(p, GRANULE, 0, two, 0));
  TRY(cuMemMap(p + 8 * (size_t)GRANULE, GRANULE, 0, handle, 0));
  TRY(cuMemMap(p, GRANULE, 0, handle, 1));
  TRY(cuMemMap(0, GRANULE, 0, handle, 0));
  TRY(cuMemMap(p + 4 * (size_t)GRANULE, GRANULE, 0, handle, 0));
  TRY(cuMemMap(p + 4 * (size_t)GRANULE, GRANULE, 0, handle, 0));
  TRY(cuMemMap(p + 5 * (size_t)GRANULE, 2 * (size_t)GRANULE, 0, two, 0));
  say("access");
  const CUdeviceptr q = p + 4 * (size_t)GRANULE;
  unsigned long long flags = 99;
  CUmemLocation location = {LOCATION_DEVICE, 0};
  TRY(cuMemGetAccess(&flags, &location, q));
  say("  %llu", flags);
  TRY(cuMemSetAccess(q, 4096, &everything, 1));
  TRY(cuMemSetAccess(q, GRANULE, &everything, 0));
  TRY(cuMemSetAccess(q, GRANULE, NULL, 1));
  TRY(cuMemSetAccess(p, GRANULE, &everything, 1));
  TRY(cuMemSetAccess(q - GRANULE, 2 * (size_t)GRANULE, &everything, 1));
  CUmemAccessDesc bad = everything;
  bad.flags = 2;
  TRY(cuMemSetAccess(q, GRANULE, &bad, 1));
  bad = everything;
  bad.location.id = 1000;
  TRY(cuMemSetAccess(q, GRANULE, &bad, 1));
  // One call may span several mappings.
  TRY(cuMemSetAccess(q, 3 * (size_t)GRANULE, &everything, 1));
  TRY(cuMemGetAccess(&flags, &location, q + GRANULE));
  say("  %llu", flags);
  TRY(cuMemGetAccess(&flags, &location, p));
  location.id = 1000;
  TRY(cuMemGetAccess(&flags, &location, q));
  TRY(cuMemsetD8(q, 1, 16));
  say("across mappings");
  TRY(cuMemsetD8(q + GRANULE - 8, 2, 16));
  say("  %x", read_word(q + GRANULE));
  TRY(cuMemcpyDtoD(q + GRANULE + 100, q + GRANULE - 8, 16));
  say("  %x", read_word(q + GRANULE + 112));
  say("unmapping");
  TRY(cuMemUnmap(q, 4096));
  TRY(cuMemUnmap(q + GRANULE, GRANULE));
  TRY(cuMemUnmap(p, GRANULE));
  TRY(cuMemRelease(handle));
  TRY(cuMemsetD8(q, 1, 16));
  // The set must not meet memory that is gone.
  MUST(cuCtxSynchronize());
  TRY(cuMemAddressFree(p, 8 * (size_t)GRANULE));
  TRY(cuMemUnmap(q, 3 * (size_t)GRANULE));
  TRY(cuMemUnmap(q, GRANULE));
  TRY(cuMemsetD8(q, 1, 16));
  TRY(cuMemFree(q));
  TRY(cuMemAddressFree(p, 8 * (size_t)GRANULE));
  TRY(cuMemRelease(two));
}

static void no_access_yet(void) {
  start();
  CUdeviceptr p;
  CUmemGenericAllocationHandle handle;
  MUST(cuMemAddressReserve(&p, GRANULE, 0, 0, 0));
  MUST(cuMemCreate(&handle, GRANULE, &property, 0));
  MUST(cuMemMap(p, GRANULE, 0, handle, 0));
  TRY(cuMemsetD8(p, 1, 16));
  TRY(cuCtxSynchronize());
}

static void access_none(void) {
  start();
  CUdeviceptr p;
  CUmemGenericAllocationHandle handle;
  MUST(cuMemAddressReserve(&p, GRANULE, 0, 0, 0));
  MUST(cuMemCreate(&handle, GRANULE, &property, 0));
  MUST(cuMemMap(p, GRANULE, 0, handle, 0));
  MUST(cuMemSetAccess(p, GRANULE, &everything, 1));
  CUmemAccessDesc none = everything, read = everything;
  none.flags = ACCESS_NONE;
  read.flags = ACCESS_READ;
  TRY(cuMemSetAccess(p, GRANULE, &read, 1));
  TRY(cuMemSetAccess(p, GRANULE, &none, 1));
  unsigned long long flags = 99;
  CUmemLocation location = {LOCATION_DEVICE, 0};
  TRY(cuMemGetAccess(&flags, &location, p));
  say("  %llu", flags);
  TRY(cuMemsetD8(p, 1, 16));
  TRY(cuMemFree(p));
}

static void aliases(void) {
  start();
  CUdeviceptr p, base;
  size_t size;
  CUmemGenericAllocationHandle handle, again = 0, other = 0;
  MUST(cuMemAddressReserve(&p, 2 * (size_t)GRANULE, 0, 0, 0));
  MUST(cuMemCreate(&handle, GRANULE, &property, 0));
  MUST(cuMemMap(p, GRANULE, 0, handle, 0));
  TRY(cuMemMap(p + GRANULE, GRANULE, 0, handle, 0));
  MUST(cuMemSetAccess(p, 2 * (size_t)GRANULE, &everything, 1));
  MUST(cuMemsetD32(p, 42, 4));
  MUST(cuCtxSynchronize());
  say("  %u", read_word(p + GRANULE + 8));
  TRY(cuMemGetAddressRange(&base, &size, p + GRANULE + 8));
  say("  base: %s, size %zu", base == p + GRANULE ? "its mapping" : base == p ? "the reservation" : "another", size);
  TRY(cuMemRetainAllocationHandle(&again, (void*)(p + 100)));
  TRY(cuMemRetainAllocationHandle(&other, (void*)(p + GRANULE)));
  say("  the same handle: %s %s", again == handle ? "yes" : "no", other == handle ? "yes" : "no");
  TRY(cuMemRelease(handle));
  TRY(cuMemRelease(again));
  TRY(cuMemRelease(other));
  TRY(cuMemRelease(handle));
  say("  still there: %u", read_word(p + GRANULE));
  CUdeviceptr plain = device_memory(64);
  TRY(cuMemRetainAllocationHandle(&again, (void*)plain));
  TRY(cuMemRetainAllocationHandle(&again, NULL));
}

static void exports(void) {
  start();
  CUmemGenericAllocationHandle handle, plain, imported = 0;
  CUmemAllocationProp no_handle = property;
  no_handle.requestedHandleTypes = HANDLE_NONE;
  MUST(cuMemCreate(&handle, GRANULE, &property, 0));
  MUST(cuMemCreate(&plain, GRANULE, &no_handle, 0));
  int fd = -1, second = -1;
  TRY(cuMemExportToShareableHandle(&fd, plain, HANDLE_POSIX_FD, 0));
  TRY(cuMemExportToShareableHandle(NULL, handle, HANDLE_POSIX_FD, 0));
  TRY(cuMemExportToShareableHandle(&fd, handle, HANDLE_NONE, 0));
  TRY(cuMemExportToShareableHandle(&fd, handle, 4, 0));
  TRY(cuMemExportToShareableHandle(&fd, handle, HANDLE_POSIX_FD, 1));
  TRY(cuMemExportToShareableHandle(&fd, handle, HANDLE_POSIX_FD, 0));
  TRY(cuMemExportToShareableHandle(&second, handle, HANDLE_POSIX_FD, 0));
  say("  two descriptors: %s, close on exec: %s", fd != second ? "yes" : "no", fcntl(fd, F_GETFD) & FD_CLOEXEC ? "yes" : "no");
  TRY(cuMemImportFromShareableHandle(&imported, (void*)(intptr_t)fd, HANDLE_POSIX_FD));
  say("  the same handle: %s", imported == handle ? "yes" : "no");
  say("  the descriptor is still open: %s", fcntl(fd, F_GETFD) >= 0 ? "yes" : "no");
  CUdeviceptr p;
  MUST(cuMemAddressReserve(&p, 2 * (size_t)GRANULE, 0, 0, 0));
  MUST(cuMemMap(p, GRANULE, 0, handle, 0));
  TRY(cuMemMap(p + GRANULE, GRANULE, 0, imported, 0));
  TRY(cuMemSetAccess(p, 2 * (size_t)GRANULE, &everything, 1));
  MUST(cuMemsetD32(p, 43, 4));
  MUST(cuCtxSynchronize());
  say("  %u", read_word(p + GRANULE));
  CUmemAllocationProp got;
  TRY(cuMemGetAllocationPropertiesFromHandle(&got, imported));
  say("  type %d, handle types %d, location %d %d", got.type, got.requestedHandleTypes, got.location.type, got.location.id);
  TRY(cuMemImportFromShareableHandle(&imported, (void*)(intptr_t)-1, HANDLE_POSIX_FD));
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  TRY(cuMemImportFromShareableHandle(&imported, (void*)(intptr_t)null, HANDLE_POSIX_FD));
  TRY(cuMemImportFromShareableHandle(&imported, (void*)(intptr_t)fd, HANDLE_NONE));
  TRY(cuMemImportFromShareableHandle(NULL, (void*)(intptr_t)fd, HANDLE_POSIX_FD));
}

static int send_fd(int socket, int fd) {
  char byte = 'f', control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
}

static int receive_fd(int socket) {
  char byte, control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  int fd;
  if (!header || header->cmsg_type != SCM_RIGHTS) return -1;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

static CUdeviceptr map_handle(CUmemGenericAllocationHandle handle) {
  CUdeviceptr p;
  MUST(cuMemAddressReserve(&p, GRANULE, 0, 0, 0));
  MUST(cuMemMap(p, GRANULE, 0, handle, 0));
  MUST(cuMemSetAccess(p, GRANULE, &everything, 1));
  return p;
}

static void other_process(void) {
  int pair[2];
  char byte;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  pid_t child = fork();
  if (child == 0) {
    close(pair[0]);
    start();
    const int fd = receive_fd(pair[1]);
    CUmemGenericAllocationHandle handle;
    say("importer");
    TRY(cuMemImportFromShareableHandle(&handle, (void*)(intptr_t)fd, HANDLE_POSIX_FD));
    close(fd);
    CUdeviceptr p = map_handle(handle);
    TRY(cuMemRelease(handle));
    say("  %u", read_word(p));
    MUST(cuMemsetD32(p + 4, 8, 1));
    MUST(cuCtxSynchronize());
    CUipcMemHandle ipc;
    TRY(cuIpcGetMemHandle(&ipc, p));
    CUmemGenericAllocationHandle kept;
    TRY(cuMemRetainAllocationHandle(&kept, (void*)p));
    int again = -1;
    TRY(cuMemExportToShareableHandle(&again, kept, HANDLE_POSIX_FD, 0));
    if (write(pair[1], "x", 1) != 1 || read(pair[1], &byte, 1) != 1) _Exit(1);
    // The exporter has unmapped and released its side: this one keeps the memory.
    say("importer");
    say("  %u", read_word(p + 4));
    fflush(stdout);
    _Exit(0);
  }
  close(pair[1]);
  start();
  CUmemGenericAllocationHandle handle;
  MUST(cuMemCreate(&handle, GRANULE, &property, 0));
  CUdeviceptr p = map_handle(handle);
  MUST(cuMemsetD32(p, 7, 1));
  MUST(cuCtxSynchronize());
  int fd;
  MUST(cuMemExportToShareableHandle(&fd, handle, HANDLE_POSIX_FD, 0));
  if (send_fd(pair[0], fd) != 0) return;
  close(fd);
  if (read(pair[0], &byte, 1) == 1) {
    say("exporter");
    say("  %u", read_word(p + 4));
    TRY(cuMemUnmap(p, GRANULE));
    TRY(cuMemRelease(handle));
    if (write(pair[0], "y", 1) != 1) return;
  }
  int status;
  waitpid(child, &status, 0);
  say("importer ended %s", status == 0 ? "well" : "badly");
}

SECTIONS({"granularity", granularity}, {"creation", creation}, {"addresses", addresses}, {"mapping", mapping},
         {"no access yet", no_access_yet}, {"access none", access_none}, {"aliases", aliases}, {"exports", exports}, {"another process", other_process})
