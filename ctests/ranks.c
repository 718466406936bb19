/* What an unmodified program does: one process per rank, the id through a pipe, collectives on a stream of its own,
 * every result checked. Uses the driver API alone, so that it runs on the emulated driver and on GPUs. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <nccl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

enum { RANKS = 4, COUNT = 10007 };
#define CHECK(call) EXPECT((call) == 0)

static struct {
  int (*cuInit)(unsigned);
  int (*cuDeviceGetCount)(int*);
  int (*cuDeviceGet)(int*, int);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuCtxSetCurrent)(void*);
  int (*cuCtxGetCurrent)(void**);
  int (*cuMemAlloc_v2)(uint64_t*, size_t);
  int (*cuMemFree_v2)(uint64_t);
  int (*cuMemcpyHtoD_v2)(uint64_t, const void*, size_t);
  int (*cuMemcpyDtoH_v2)(void*, uint64_t, size_t);
  int (*cuStreamCreate)(void**, unsigned);
  int (*cuStreamSynchronize)(void*);
} cu;

static int load_driver(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return 0;
#define LOAD(name) \
  if (!(*(void**)&cu.name = dlsym(library, #name))) return 0
  LOAD(cuInit);
  LOAD(cuDeviceGetCount);
  LOAD(cuDeviceGet);
  LOAD(cuDevicePrimaryCtxRetain);
  LOAD(cuCtxSetCurrent);
  LOAD(cuCtxGetCurrent);
  LOAD(cuMemAlloc_v2);
  LOAD(cuMemFree_v2);
  LOAD(cuMemcpyHtoD_v2);
  LOAD(cuMemcpyDtoH_v2);
  LOAD(cuStreamCreate);
  LOAD(cuStreamSynchronize);
  return cu.cuInit(0) == 0;
}

static int32_t value(int rank, int index) { return (rank + 1) * 1000 + index % 997; }

static int32_t send[COUNT], recv[COUNT];
static uint64_t send_buffer, recv_buffer;

static void fill(uint64_t buffer, int rank) {
  for (int i = 0; i < COUNT; i++) send[i] = value(rank, i);
  CHECK(cu.cuMemcpyHtoD_v2(buffer, send, sizeof send));
}

/* How many results differ from sum over `from`..`to` of their values. */
static int wrong(void* stream, uint64_t buffer, int from, int to) {
  int differ = 0;
  CHECK(cu.cuStreamSynchronize(stream));
  memset(recv, 0, sizeof recv);
  CHECK(cu.cuMemcpyDtoH_v2(recv, buffer, sizeof recv));
  for (int i = 0; i < COUNT; i++) {
    int32_t want = 0;
    for (int rank = from; rank <= to; rank++) want += value(rank, i);
    differ += recv[i] != want;
  }
  return differ;
}

static int rank_main(int rank, ncclUniqueId id) {
  int devices = 0, device = 0, number = -1;
  void *context = NULL, *stream = NULL, *current = NULL;
  ncclComm_t comm = NULL;
  ncclResult_t state = ncclSuccess;

  alarm(120); /* whatever hangs, ends */
  if (!load_driver()) {
    fprintf(stderr, "no usable libcuda.so.1\n");
    return 1;
  }
  CHECK(cu.cuDeviceGetCount(&devices));
  CHECK(cu.cuDeviceGet(&device, devices ? rank % devices : 0));
  CHECK(cu.cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cu.cuCtxSetCurrent(context));
  CHECK(cu.cuStreamCreate(&stream, 1));
  CHECK(cu.cuMemAlloc_v2(&send_buffer, sizeof send));
  CHECK(cu.cuMemAlloc_v2(&recv_buffer, sizeof recv));
  CHECK(ncclCommInitRank(&comm, RANKS, id, rank));
  if (expect_failures) {
    fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(NULL));
    return 1;
  }
  CHECK(ncclCommCount(comm, &number));
  EXPECT(number == RANKS);
  CHECK(ncclCommUserRank(comm, &number));
  EXPECT(number == rank);

#define SEND ((void*)(uintptr_t)send_buffer)
#define RECV ((void*)(uintptr_t)recv_buffer)
  for (int round = 0; round < 3; round++) {
    fill(send_buffer, rank);
    CHECK(ncclAllReduce(SEND, RECV, COUNT, ncclInt32, ncclSum, comm, stream));
    EXPECT(wrong(stream, recv_buffer, 0, RANKS - 1) == 0);
    CHECK(ncclAllReduce(SEND, SEND, COUNT, ncclInt32, ncclSum, comm, stream));
    EXPECT(wrong(stream, send_buffer, 0, RANKS - 1) == 0);

    for (int root = 0; root < RANKS; root++) {
      fill(send_buffer, rank);
      CHECK(ncclBroadcast(SEND, RECV, COUNT, ncclInt32, root, comm, stream));
      EXPECT(wrong(stream, recv_buffer, root, root) == 0);
    }

    fill(send_buffer, rank);
    CHECK(ncclGroupStart());
    CHECK(ncclSend(SEND, COUNT, ncclInt32, (rank + 1) % RANKS, comm, stream));
    CHECK(ncclRecv(RECV, COUNT, ncclInt32, (rank + RANKS - 1) % RANKS, comm, stream));
    CHECK(ncclGroupEnd());
    EXPECT(wrong(stream, recv_buffer, (rank + RANKS - 1) % RANKS, (rank + RANKS - 1) % RANKS) == 0);
  }

  CHECK(ncclCommGetAsyncError(comm, &state));
  EXPECT(state == ncclSuccess);
  CHECK(ncclCommDestroy(comm));
  CHECK(cu.cuCtxGetCurrent(&current));
  EXPECT(current == context);
  CHECK(cu.cuMemFree_v2(send_buffer));
  CHECK(cu.cuMemFree_v2(recv_buffer));
  return EXPECT_STATUS();
}

int main(void) {
  ncclUniqueId id;
  int pipes[RANKS][2], failed = 0;
  pid_t children[RANKS];
  /* Four ranks must also do on fewer GPUs. */
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  for (int rank = 0; rank < RANKS; rank++) {
    if (pipe(pipes[rank])) return 1;
    children[rank] = fork();
    if (children[rank] == 0) {
      if (read(pipes[rank][0], &id, sizeof id) != (ssize_t)sizeof id) _exit(1);
      int status = rank_main(rank, id);
      fflush(NULL);
      _exit(status);
    }
  }
  /* The id after the forks: making it starts the service that answers the ranks, which threads do not survive. */
  if (ncclGetUniqueId(&id)) return 1;
  for (int rank = 0; rank < RANKS; rank++) {
    if (write(pipes[rank][1], &id, sizeof id) != (ssize_t)sizeof id) return 1;
  }
  for (int rank = 0; rank < RANKS; rank++) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (status) {
      fprintf(stderr, "rank %d ended with status %x\n", rank, (unsigned)status);
      failed = 1;
    }
  }
  return failed;
}
