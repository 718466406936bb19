/* Versions and texts: pure functions, the same under both names. */
#include "returns.h"
#include <oxccl.h>

int main(void) {
  int version = 0, again = 0;
  RETURNS(ncclSuccess, ncclGetVersion(&version));
  RETURNS(ncclSuccess, pncclGetVersion(&again));
  EXPECT(version == 22809 && again == version && version == NCCL_VERSION_CODE);
  EXPECT(strcmp(ncclGetLastError(NULL), "") == 0);

  RETURNS(ncclInvalidArgument, ncclGetVersion(NULL));
  SAYS("version is NULL");
  /* Reading does not clear, and an unknown communicator asks for the process. */
  SAYS("version is NULL");
  EXPECT(strstr(ncclGetLastError((ncclComm_t)(void *)&version), "version is NULL") != NULL);

  /* Every code has a text of its own; unknown codes share one. */
  const char *unknown = ncclGetErrorString((ncclResult_t)1000);
  EXPECT(unknown != NULL && strlen(unknown) > 0);
  for (int code = 0; code < ncclNumResults; code++) {
    const char *text = ncclGetErrorString((ncclResult_t)code);
    EXPECT(text != NULL && strlen(text) > 0 && strcmp(text, unknown) != 0);
    EXPECT(text == pncclGetErrorString((ncclResult_t)code));
    for (int other = 0; other < code; other++) {
      EXPECT(strcmp(text, ncclGetErrorString((ncclResult_t)other)) != 0);
    }
  }
  EXPECT(ncclGetErrorString((ncclResult_t)-1) == unknown);
  EXPECT(ncclGetErrorString((ncclResult_t)0x7fffffff) == unknown);

  EXPECT(strlen(oxcclVersion()) >= strlen("0.0.0"));
  EXPECT(strstr(oxcclLibraryPath(), "libnccl.so") != NULL);
  EXPECT(ncclLLA2ACalcSlots(3, 8) == 3 && ncclLLA2ACalcSlots(3, 9) == 6 && ncclLLA2ACalcSlots(0, 8) == 0);
  EXPECT(pncclLLA2ACalcSlots(5, 1) == 5);
  return EXPECT_STATUS();
}
