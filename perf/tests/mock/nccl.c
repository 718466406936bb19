/* A libnccl whose ranks are threads of one process and whose calls are done when they return. MOCK_FAULT makes it
 * go wrong in one way: `value` spoils one element, `stale` leaves a result out, `overrun` writes past the end,
 * `input` spoils the send buffer, `crash` ends the process, `hang` never returns, `init` refuses the communicator. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RANKS = 8, UNSUPPORTED = 5 };
typedef struct { char bytes[128]; } unique_id;
typedef struct { int rank; } comm;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t turn;
  int nranks, arrived;
  unsigned round;
  const char* send[MAX_RANKS];
  char* recv[MAX_RANKS];
} team = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, {0}, {0}};

static int fault(const char* name) {
  const char* wanted = getenv("MOCK_FAULT");
  return wanted && !strcmp(wanted, name);
}

static void barrier(void) {
  pthread_mutex_lock(&team.lock);
  unsigned round = team.round;
  if (++team.arrived == team.nranks) {
    team.arrived = 0;
    team.round++;
    pthread_cond_broadcast(&team.turn);
  }
  while (round == team.round) pthread_cond_wait(&team.turn, &team.lock);
  pthread_mutex_unlock(&team.lock);
}

int ncclGetVersion(int* version) { *version = 22809; return 0; }
int ncclGetUniqueId(unique_id* id) { memset(id, 7, sizeof *id); return 0; }
const char* ncclGetErrorString(int code) { return code == UNSUPPORTED ? "invalid usage" : "error"; }
const char* ncclGetLastError(void* c) { (void)c; return "the mock does not do this"; }
int ncclCommGetAsyncError(void* c, int* state) { (void)c; *state = 0; return 0; }
int ncclCommDestroy(void* c) { free(c); return 0; }

int ncclCommInitRank(void** out, int nranks, unique_id id, int rank) {
  if (fault("init") || id.bytes[127] != 7 || nranks > MAX_RANKS) return 3;
  comm* c = malloc(sizeof *c);
  c->rank = rank;
  pthread_mutex_lock(&team.lock);
  team.nranks = nranks;
  pthread_mutex_unlock(&team.lock);
  barrier();
  *out = c;
  return 0;
}

/* Only the sum of floats and of bytes. */
int ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, void* c, void* stream) {
  (void)stream;
  int rank = ((comm*)c)->rank;
  if (op != 0 || (type != 7 && type != 1)) return UNSUPPORTED;
  if (fault("crash") && rank == 1) _exit(9);
  if (fault("hang") && rank == 1) pause();
  team.send[rank] = send;
  team.recv[rank] = recv;
  barrier();
  size_t bytes = count * (type == 7 ? 4 : 1);
  char* sum = malloc(bytes + 1);
  for (size_t i = 0; i < count; i++) {
    if (type == 7) {
      float total = 0;
      for (int r = 0; r < team.nranks; r++) total += ((const float*)team.send[r])[i];
      ((float*)sum)[i] = total;
    } else {
      uint8_t total = 0;
      for (int r = 0; r < team.nranks; r++) total += ((const uint8_t*)team.send[r])[i];
      ((uint8_t*)sum)[i] = total;
    }
  }
  barrier();
  if (!(fault("stale") && rank == 1)) memcpy(recv, sum, bytes);
  if (fault("value") && rank == 1 && bytes) ((char*)recv)[bytes - 1] ^= 1;
  if (fault("overrun") && rank == 1) ((char*)recv)[bytes] ^= 1;
  if (fault("input") && rank == 1 && send != recv && bytes) ((char*)send)[0] ^= 1;
  free(sum);
  barrier();
  return 0;
}

int ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, void* c, void* stream) {
  (void)stream;
  static const size_t size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  int rank = ((comm*)c)->rank;
  team.send[rank] = send;
  barrier();
  memmove(recv, team.send[root], count * size[type]);
  barrier();
  return 0;
}

int ncclReduce(void) { return UNSUPPORTED; }
int ncclAllGather(void) { return UNSUPPORTED; }
int ncclReduceScatter(void) { return UNSUPPORTED; }
int ncclSend(void) { return UNSUPPORTED; }
int ncclRecv(void) { return UNSUPPORTED; }
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
