/* Every size and offset of nccl.h, as compiled programs have them (src/capi/types/layout.rs asserts the same in Rust). */
#include <nccl.h>

/* C99 and C++ have no common static assertion: an array with a negative length is an error in both. */
#define ASSERT(name, condition) typedef char assert_##name[(condition) ? 1 : -1]
#define SIZE(type, size) ASSERT(size_of_##type, sizeof(type) == (size))
#define OFFSET(type, field, offset) ASSERT(type##_##field, offsetof(type, field) == (offset))

SIZE(ncclUniqueId, 128);
OFFSET(ncclUniqueId, internal, 0);

SIZE(ncclConfig_t, 120);
OFFSET(ncclConfig_t, size, 0);
OFFSET(ncclConfig_t, magic, 8);
OFFSET(ncclConfig_t, version, 12);
OFFSET(ncclConfig_t, blocking, 16);
OFFSET(ncclConfig_t, cgaClusterSize, 20);
OFFSET(ncclConfig_t, minCTAs, 24);
OFFSET(ncclConfig_t, maxCTAs, 28);
OFFSET(ncclConfig_t, netName, 32);
OFFSET(ncclConfig_t, splitShare, 40);
OFFSET(ncclConfig_t, trafficClass, 44);
OFFSET(ncclConfig_t, commName, 48);
OFFSET(ncclConfig_t, collnetEnable, 56);
OFFSET(ncclConfig_t, CTAPolicy, 60);
OFFSET(ncclConfig_t, shrinkShare, 64);
OFFSET(ncclConfig_t, nvlsCTAs, 68);
OFFSET(ncclConfig_t, nChannelsPerNetPeer, 72);
OFFSET(ncclConfig_t, nvlinkCentricSched, 76);
OFFSET(ncclConfig_t, graphUsageMode, 80);
OFFSET(ncclConfig_t, numRmaCtx, 84);
OFFSET(ncclConfig_t, maxP2pPeers, 88);
OFFSET(ncclConfig_t, graphStreamOrdering, 92);
OFFSET(ncclConfig_t, launchOrderImplicit, 96);
OFFSET(ncclConfig_t, numRmaSig, 100);
OFFSET(ncclConfig_t, rmaEagerInit, 104);
OFFSET(ncclConfig_t, hostCftMode, 108);
OFFSET(ncclConfig_t, nvlsHostMode, 112);

SIZE(ncclConfigExt_t, 24);
OFFSET(ncclConfigExt_t, next, 0);
OFFSET(ncclConfigExt_t, key, 8);
OFFSET(ncclConfigExt_t, val, 16);

SIZE(ncclConfigExtKey, 8);
OFFSET(ncclConfigExtKey, vendorId, 0);
OFFSET(ncclConfigExtKey, optionId, 4);

SIZE(ncclCollConfig_t, 72);
OFFSET(ncclCollConfig_t, size, 0);
OFFSET(ncclCollConfig_t, magic, 8);
OFFSET(ncclCollConfig_t, version, 12);
OFFSET(ncclCollConfig_t, ext, 16);
OFFSET(ncclCollConfig_t, minCTAs, 24);
OFFSET(ncclCollConfig_t, maxCTAs, 28);
OFFSET(ncclCollConfig_t, nvlsCTAs, 32);
OFFSET(ncclCollConfig_t, cgaClusterSize, 36);
OFFSET(ncclCollConfig_t, algSelection, 40);
OFFSET(ncclCollConfig_t, forceAlgSelection, 48);
OFFSET(ncclCollConfig_t, CTAPolicy, 52);
OFFSET(ncclCollConfig_t, userProfilerTag, 56);
OFFSET(ncclCollConfig_t, launchCompletionEvent, 64);

SIZE(ncclSimInfo_t, 24);
OFFSET(ncclSimInfo_t, size, 0);
OFFSET(ncclSimInfo_t, magic, 8);
OFFSET(ncclSimInfo_t, version, 12);
OFFSET(ncclSimInfo_t, estimatedTime, 16);

SIZE(ncclWaitSignalDesc_t, 16);
OFFSET(ncclWaitSignalDesc_t, opCnt, 0);
OFFSET(ncclWaitSignalDesc_t, peer, 4);
OFFSET(ncclWaitSignalDesc_t, sigIdx, 8);
OFFSET(ncclWaitSignalDesc_t, ctx, 12);

SIZE(ncclEncryptionConfig_t, 32);
OFFSET(ncclEncryptionConfig_t, size, 0);
OFFSET(ncclEncryptionConfig_t, magic, 8);
OFFSET(ncclEncryptionConfig_t, version, 12);
OFFSET(ncclEncryptionConfig_t, mode, 16);
OFFSET(ncclEncryptionConfig_t, psk, 24);

SIZE(ncclTeam, 12);
OFFSET(ncclTeam, nRanks, 0);
OFFSET(ncclTeam, rank, 4);
OFFSET(ncclTeam, stride, 8);

SIZE(ncclMultimemHandle, 8);
OFFSET(ncclMultimemHandle, mcBasePtr, 0);

SIZE(ncclLsaBarrierHandle, 8);
OFFSET(ncclLsaBarrierHandle, bufHandle, 0);
OFFSET(ncclLsaBarrierHandle, nBarriers, 4);

SIZE(ncclGinBarrierHandle, 8);
OFFSET(ncclGinBarrierHandle, signal0, 0);
OFFSET(ncclGinBarrierHandle, unused, 4);

SIZE(ncclCftBarrierHandle, 8);
OFFSET(ncclCftBarrierHandle, bufHandle, 0);
OFFSET(ncclCftBarrierHandle, nBarriers, 4);

SIZE(ncclLLA2AHandle, 8);
OFFSET(ncclLLA2AHandle, bufHandle, 0);
OFFSET(ncclLLA2AHandle, nSlots, 4);

SIZE(ncclWindow_vidmem, 96);
OFFSET(ncclWindow_vidmem, winHost, 0);
OFFSET(ncclWindow_vidmem, lsaFlatBase, 8);
OFFSET(ncclWindow_vidmem, lsaRank, 16);
OFFSET(ncclWindow_vidmem, worldRank, 20);
OFFSET(ncclWindow_vidmem, stride4G, 24);
OFFSET(ncclWindow_vidmem, mcOffset4K, 28);
OFFSET(ncclWindow_vidmem, ginOffset4K, 32);
OFFSET(ncclWindow_vidmem, winFlags, 36);
OFFSET(ncclWindow_vidmem, ginWinsDefaultBackend, 40);
OFFSET(ncclWindow_vidmem, ginMultiSegmentWins, 72);
OFFSET(ncclWindow_vidmem, numSegments, 80);
OFFSET(ncclWindow_vidmem, cftFlatRank, 84);
OFFSET(ncclWindow_vidmem, ucLeIdBase, 88);

SIZE(ncclResourceWindow_vidmem, 16);
OFFSET(ncclResourceWindow_vidmem, lsaFlatBase, 0);
OFFSET(ncclResourceWindow_vidmem, stride4G, 8);
OFFSET(ncclResourceWindow_vidmem, mcOffset4K, 12);

SIZE(ncclDevCommWindowTable, 776);
OFFSET(ncclDevCommWindowTable, entries, 0);
OFFSET(ncclDevCommWindowTable, next, 768);

SIZE(ncclDevComm, 248);
OFFSET(ncclDevComm, magic, 0);
OFFSET(ncclDevComm, version, 4);
OFFSET(ncclDevComm, rank, 8);
OFFSET(ncclDevComm, nRanks, 12);
OFFSET(ncclDevComm, nRanks_rcp32, 16);
OFFSET(ncclDevComm, lsaRank, 20);
OFFSET(ncclDevComm, lsaSize, 24);
OFFSET(ncclDevComm, lsaSize_rcp32, 28);
OFFSET(ncclDevComm, windowTable, 32);
OFFSET(ncclDevComm, resourceWindow, 40);
OFFSET(ncclDevComm, resourceWindow_inlined, 48);
OFFSET(ncclDevComm, hybridDenseGinBarrier, 64);
OFFSET(ncclDevComm, lsaMultimem, 72);
OFFSET(ncclDevComm, lsaBarrier, 80);
OFFSET(ncclDevComm, railGinBarrier, 88);
OFFSET(ncclDevComm, ginConnectionCount, 96);
OFFSET(ncclDevComm, backendIndex, 97);
OFFSET(ncclDevComm, ginNetDeviceTypes, 98);
OFFSET(ncclDevComm, ginHandles, 104);
OFFSET(ncclDevComm, ginSignalCount, 136);
OFFSET(ncclDevComm, ginCounterCount, 140);
OFFSET(ncclDevComm, ginSignalShadows, 144);
OFFSET(ncclDevComm, ginContextCount, 152);
OFFSET(ncclDevComm, ginConnectionStride, 156);
OFFSET(ncclDevComm, ginContextStride, 160);
OFFSET(ncclDevComm, ginStrongLegacySignals, 164);
OFFSET(ncclDevComm, abortFlag, 168);
OFFSET(ncclDevComm, hybridLsaBarrier, 176);
OFFSET(ncclDevComm, hybridRailGinBarrier, 184);
OFFSET(ncclDevComm, worldGinBarrier, 192);
OFFSET(ncclDevComm, ginConnectionStride_rcp32, 200);
OFFSET(ncclDevComm, cftRank, 204);
OFFSET(ncclDevComm, cftSize, 208);
OFFSET(ncclDevComm, cftMultimemRank, 212);
OFFSET(ncclDevComm, cftMultimemSize, 216);
OFFSET(ncclDevComm, cftMultimemSize_rcp32, 220);
OFFSET(ncclDevComm, ucLeId, 224);
OFFSET(ncclDevComm, mcLeId, 228);
OFFSET(ncclDevComm, cftBarrier, 232);
OFFSET(ncclDevComm, cftMultimemBarrier, 240);

SIZE(ncclDevResourceRequirements, 56);
OFFSET(ncclDevResourceRequirements, next, 0);
OFFSET(ncclDevResourceRequirements, bufferSize, 8);
OFFSET(ncclDevResourceRequirements, bufferAlign, 16);
OFFSET(ncclDevResourceRequirements, outBufferHandle, 24);
OFFSET(ncclDevResourceRequirements, ginSignalCount, 32);
OFFSET(ncclDevResourceRequirements, ginCounterCount, 36);
OFFSET(ncclDevResourceRequirements, outGinSignalStart, 40);
OFFSET(ncclDevResourceRequirements, outGinCounterStart, 48);

SIZE(ncclTeamRequirements, 32);
OFFSET(ncclTeamRequirements, next, 0);
OFFSET(ncclTeamRequirements, team, 8);
OFFSET(ncclTeamRequirements, multimem, 20);
OFFSET(ncclTeamRequirements, outMultimemHandle, 24);

SIZE(ncclDevCommRequirements, 120);
OFFSET(ncclDevCommRequirements, size, 0);
OFFSET(ncclDevCommRequirements, magic, 8);
OFFSET(ncclDevCommRequirements, version, 12);
OFFSET(ncclDevCommRequirements, resourceRequirementsList, 16);
OFFSET(ncclDevCommRequirements, teamRequirementsList, 24);
OFFSET(ncclDevCommRequirements, lsaMultimem, 32);
OFFSET(ncclDevCommRequirements, barrierCount, 36);
OFFSET(ncclDevCommRequirements, lsaBarrierCount, 40);
OFFSET(ncclDevCommRequirements, railGinBarrierCount, 44);
OFFSET(ncclDevCommRequirements, lsaLLA2ABlockCount, 48);
OFFSET(ncclDevCommRequirements, lsaLLA2ASlotCount, 52);
OFFSET(ncclDevCommRequirements, ginForceEnable, 56);
OFFSET(ncclDevCommRequirements, ginContextCount, 60);
OFFSET(ncclDevCommRequirements, ginSignalCount, 64);
OFFSET(ncclDevCommRequirements, ginCounterCount, 68);
OFFSET(ncclDevCommRequirements, ginConnectionType, 72);
OFFSET(ncclDevCommRequirements, ginExclusiveContexts, 76);
OFFSET(ncclDevCommRequirements, ginQueueDepth, 80);
OFFSET(ncclDevCommRequirements, ginTrafficClass, 84);
OFFSET(ncclDevCommRequirements, worldGinBarrierCount, 88);
OFFSET(ncclDevCommRequirements, ginStrongSignalsRequired, 92);
OFFSET(ncclDevCommRequirements, ginVaSignalsRequired, 93);
OFFSET(ncclDevCommRequirements, ginCustomStride, 96);
OFFSET(ncclDevCommRequirements, ginType, 100);
OFFSET(ncclDevCommRequirements, useRuntimeVersion, 104);
OFFSET(ncclDevCommRequirements, cftCaps, 108);
OFFSET(ncclDevCommRequirements, cftBarrierCount, 112);

SIZE(ncclCommProperties, 152);
OFFSET(ncclCommProperties, size, 0);
OFFSET(ncclCommProperties, magic, 8);
OFFSET(ncclCommProperties, version, 12);
OFFSET(ncclCommProperties, rank, 16);
OFFSET(ncclCommProperties, nRanks, 20);
OFFSET(ncclCommProperties, cudaDev, 24);
OFFSET(ncclCommProperties, nvmlDev, 28);
OFFSET(ncclCommProperties, deviceApiSupport, 32);
OFFSET(ncclCommProperties, multimemSupport, 33);
OFFSET(ncclCommProperties, ginType, 36);
OFFSET(ncclCommProperties, nLsaTeams, 40);
OFFSET(ncclCommProperties, hostRmaSupport, 44);
OFFSET(ncclCommProperties, railedGinType, 48);
OFFSET(ncclCommProperties, commHash, 56);
OFFSET(ncclCommProperties, ginMinStride, 64);
OFFSET(ncclCommProperties, ginConnectionType, 68);
OFFSET(ncclCommProperties, ginSupport, 72);
OFFSET(ncclCommProperties, devCommRuntimeVersionSize, 136);
OFFSET(ncclCommProperties, cftSupport, 144);
OFFSET(ncclCommProperties, cftMulticastSupport, 145);
OFFSET(ncclCommProperties, cftCountedSupport, 146);

/* Enums travel as int. */
SIZE(ncclResult_t, 4);
SIZE(ncclRedOp_t, 4);
SIZE(ncclDataType_t, 4);
SIZE(ncclScalarResidence_t, 4);
SIZE(ncclCommMemStat_t, 4);
SIZE(ncclEncryptionMode_t, 4);
SIZE(ncclHostCftMode_t, 4);
SIZE(ncclNvlsHostMode_t, 4);
SIZE(ncclGinConnectionType_t, 4);
SIZE(ncclGinType_t, 4);
SIZE(ncclCftTeamMode_t, 4);
SIZE(ncclCftCap_t, 4);

SIZE(ncclComm_t, 8);
SIZE(ncclWindow_t, 8);
SIZE(ncclParamHandle_t, 8);
SIZE(bool, 1);

/* Two names of one value, and the values that mark an end. */
ASSERT(char_is_int8, (int)ncclChar == (int)ncclInt8);
ASSERT(int_is_int32, (int)ncclInt == (int)ncclInt32);
ASSERT(half_is_float16, (int)ncclHalf == (int)ncclFloat16);
ASSERT(float_is_float32, (int)ncclFloat == (int)ncclFloat32);
ASSERT(double_is_float64, (int)ncclDouble == (int)ncclFloat64);
ASSERT(results, ncclNumResults == 9 && ncclInvalidArgument == 4 && ncclInProgress == 7);
ASSERT(operations, ncclNumOps == 5 && ncclAvg == 4 && ncclMaxRedOp == 0x7fffffff);
ASSERT(types, ncclNumTypes == 12 && ncclBfloat16 == 9 && ncclFloat8e5m2 == 11);
ASSERT(host_cft, ncclHostCftDefault == NCCL_CONFIG_UNDEF_INT);
ASSERT(nvls_default, ncclNvlsHostModeDefault == NCCL_CONFIG_UNDEF_INT && ncclNvlsHostModeDisable == INT_MAX);
ASSERT(version, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);
ASSERT(old_version, NCCL_VERSION(2, 8, 4) == 2804 && NCCL_VERSION(2, 32, 3) == 23203);

/* The initialisers fill the structs whole and in order. */
static ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static ncclCollConfig_t call = NCCL_COLLCONFIG_INITIALIZER;
static ncclSimInfo_t simulated = NCCL_SIM_INFO_INITIALIZER;
static ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
static ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
static ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;

int main(void) {
  int version = 0;
  int right = config.size == 120 && config.magic == 0xcafebeef && config.version == 23203 &&
              config.blocking == NCCL_CONFIG_UNDEF_INT && config.netName == NULL && config.commName == NULL &&
              config.nvlsHostMode == NCCL_CONFIG_UNDEF_INT;
  right = right && call.size == 72 && call.forceAlgSelection == 1 && call.launchCompletionEvent == NULL;
  right = right && simulated.magic == 0x74685283 && simulated.estimatedTime < 0;
  right = right && encryption.size == 32 && encryption.psk == NULL;
  right = right && properties.size == 152 && properties.rank == -1 && !properties.cftCountedSupport;
  right = right && requirements.size == 120 && requirements.ginContextCount == 4 &&
          requirements.ginVaSignalsRequired && requirements.ginCustomStride == 1;
  if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) {
    right = 0;
  }
#ifdef __cplusplus
  right = right && ncclTeamCft(NULL).nRanks == 0;
#endif
  return right ? 0 : 1;
}
