/* Runs with abi/profiler.c preloaded: each call passes the profiler once, and the library never calls back into it. */
#define _GNU_SOURCE
#include "returns.h"
#include <dlfcn.h>

int main(void) {
  int version = 0;
  float value = 0;
  /* The profiler's own function: this program is not linked to it. */
  void *symbol = dlsym(RTLD_DEFAULT, "profiled_calls");
  int (*profiled_calls)(void) = NULL;
  memcpy(&profiled_calls, &symbol, sizeof(symbol));
  EXPECT(profiled_calls != NULL);
  if (profiled_calls == NULL) {
    return EXPECT_STATUS();
  }
  EXPECT(profiled_calls() == 0);
  EXPECT(ncclGetVersion(&version) == ncclSuccess && version == NCCL_VERSION_CODE);
  EXPECT(profiled_calls() == 1);
  EXPECT(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, NULL, NULL) == ncclInvalidArgument);
  EXPECT(profiled_calls() == 2);
  /* Not profiled by this profiler, and none of them goes through functions that are. */
  EXPECT(pncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, NULL, NULL) == ncclInvalidArgument);
  EXPECT(ncclAllReduceConfig(&value, &value, 1, ncclFloat, ncclSum, NULL, NULL, NULL) == ncclInvalidArgument);
  EXPECT(ncclReduce(&value, &value, 1, ncclFloat, ncclSum, 0, NULL, NULL) == ncclInvalidArgument);
  EXPECT(profiled_calls() == 2);
  return EXPECT_STATUS();
}
