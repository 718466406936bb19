/* A process without a CUDA driver loads the library by name of file, asks it, and is refused with a sentence: no_driver FILE */
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void check(int holds, const char *what) {
  if (!holds) {
    failures++;
    printf("not so: %s\n", what);
  }
}

/* A function of the library; POSIX says that the bits of the pointer are the function's. */
#define LOAD(variable, name) \
  do { \
    void *symbol = dlsym(library, name); \
    check(symbol != NULL, name); \
    memcpy(&variable, &symbol, sizeof(symbol)); \
  } while (0)

int main(int argc, char **argv) {
  ncclResult_t (*get_version)(int *) = NULL;
  ncclResult_t (*get_unique_id)(ncclUniqueId *) = NULL;
  ncclResult_t (*init_rank)(ncclComm_t *, int, ncclUniqueId, int) = NULL;
  ncclResult_t (*init_all)(ncclComm_t *, int, const int *) = NULL;
  const char *(*last_error)(ncclComm_t) = NULL;
  ncclUniqueId id;
  int version = 0, untouched = 0;
  ncclComm_t comm = (ncclComm_t)(void *)&untouched;

  if (dlopen("libcuda.so.1", RTLD_LAZY) != NULL) {
    printf("skipped: this machine has a CUDA driver\n");
    return 77;
  }
  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    printf("not loaded: %s\n", argc == 2 ? dlerror() : "no file named");
    return 1;
  }
  LOAD(get_version, "ncclGetVersion");
  LOAD(get_unique_id, "ncclGetUniqueId");
  LOAD(init_rank, "ncclCommInitRank");
  LOAD(init_all, "ncclCommInitAll");
  LOAD(last_error, "ncclGetLastError");
  if (failures != 0) {
    return 1;
  }
  check(get_version(&version) == ncclSuccess && version == NCCL_VERSION_CODE, "the version is there");
  check(get_unique_id(NULL) == ncclInvalidArgument, "an id needs a place");
  check(get_unique_id(&id) == ncclSuccess, "an id needs no driver");
  check(init_rank(&comm, 1, id, 0) == ncclUnhandledCudaError, "a communicator needs a driver");
  check(comm == (ncclComm_t)(void *)&untouched, "the variable is untouched");
  check(strstr(last_error(NULL), "libcuda") != NULL, "the sentence names the driver's library");
  printf("%s\n", last_error(NULL));
  check(init_all(&comm, 1, NULL) == ncclUnhandledCudaError, "all devices need a driver too");
  check(comm == (ncclComm_t)(void *)&untouched, "the variable is still untouched");
  printf("%d failed\n", failures);
  return failures != 0;
}
