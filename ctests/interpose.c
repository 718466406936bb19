/* A profiler's way in: it defines ncclX itself, does its own work, and calls pncclX. The library's own calls must not
 * come back to it, or it would recurse without end. */
#include <nccl.h>

#include "expect.h"

static int calls = 0;

ncclResult_t ncclGetVersion(int* version) {
  calls++;
  if (calls > 10) return ncclInternalError;
  return pncclGetVersion(version);
}

int main(void) {
  int version = 0;
  EXPECT(ncclGetVersion(&version) == ncclSuccess);
  EXPECT(calls == 1);
  EXPECT(version == NCCL_VERSION_CODE);
  return EXPECT_STATUS();
}
