/* Sizes, offsets and values that compiled programs carry in them. A C compiler checks what the Rust side only mirrors. */
#include <nccl.h>
#include <stddef.h>

#include "expect.h"

#define AT(type, field, offset) EXPECT(offsetof(type, field) == (offset))

int main(void) {
  EXPECT(sizeof(ncclUniqueId) == NCCL_UNIQUE_ID_BYTES && NCCL_UNIQUE_ID_BYTES == 128);
  EXPECT(sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4);
  EXPECT(sizeof(ncclComm_t) == 8 && sizeof(ncclWindow_t) == 8);

  EXPECT(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 && ncclInternalError == 3);
  EXPECT(ncclInvalidArgument == 4 && ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7);
  EXPECT(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4 && ncclNumOps == 5);
  EXPECT(ncclInt8 == 0 && ncclChar == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclInt == 2 && ncclUint32 == 3);
  EXPECT(ncclInt64 == 4 && ncclUint64 == 5 && ncclFloat16 == 6 && ncclHalf == 6 && ncclFloat32 == 7);
  EXPECT(ncclFloat == 7 && ncclFloat64 == 8 && ncclDouble == 8 && ncclBfloat16 == 9);
  EXPECT(ncclFloat8e4m3 == 10 && ncclFloat8e5m2 == 11 && ncclNumTypes == 12);
  EXPECT(NCCL_VERSION(2, 8, 4) == 2804 && NCCL_VERSION(2, 28, 9) == 22809);

  AT(ncclConfig_t, size, 0);
  AT(ncclConfig_t, magic, 8);
  AT(ncclConfig_t, version, 12);
  AT(ncclConfig_t, blocking, 16);
  AT(ncclConfig_t, cgaClusterSize, 20);
  AT(ncclConfig_t, minCTAs, 24);
  AT(ncclConfig_t, maxCTAs, 28);
  AT(ncclConfig_t, netName, 32);
  AT(ncclConfig_t, splitShare, 40);
  AT(ncclConfig_t, trafficClass, 44);
  AT(ncclConfig_t, commName, 48);
  AT(ncclConfig_t, collnetEnable, 56);
  AT(ncclConfig_t, CTAPolicy, 60);
  AT(ncclConfig_t, shrinkShare, 64);
  AT(ncclConfig_t, nvlsCTAs, 68);
  AT(ncclConfig_t, nChannelsPerNetPeer, 72);
  AT(ncclConfig_t, nvlinkCentricSched, 76);

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  EXPECT(config.size == sizeof(ncclConfig_t) && config.magic == 0xcafebeef);
  EXPECT(config.blocking == NCCL_CONFIG_UNDEF_INT && config.netName == NULL);
  return EXPECT_STATUS();
}
