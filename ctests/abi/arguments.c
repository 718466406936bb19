/* Arguments that no call may have: NULL, dead and invented communicators, values outside of their enums. Each gets NCCL's code and a
 * sentence; nothing crashes, and output arguments keep what they held. */
#include "returns.h"

static float buffer[4];
static int number = 77;
static void *pointer = &number;
static ncclUniqueId id;
static ncclWindow_t window;
static ncclRedOp_t op = ncclSum;

/* What every function that takes a communicator does with one that does not exist. */
static void no_such_communicator(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  ncclComm_t child = NULL;
  ncclWaitSignalDesc_t wait = {1, 0, 0, 0};
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevComm_t device;
  ncclDevResourceRequirements_t resource;
  ncclGinBarrierHandle_t barrier;
  uint64_t bytes = 77;
  int excluded = 0;

  RETURNS(ncclInvalidArgument, ncclCommCount(comm, &number));
  RETURNS(ncclInvalidArgument, ncclCommCuDevice(comm, &number));
  RETURNS(ncclInvalidArgument, ncclCommUserRank(comm, &number));
  RETURNS(ncclInvalidArgument, ncclCommGetAsyncError(comm, &state));
  RETURNS(ncclInvalidArgument, ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclBroadcast(buffer, buffer, 1, ncclFloat, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclBcast(buffer, 1, ncclFloat, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclReduce(buffer, buffer, 1, ncclFloat, ncclSum, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclAllGather(buffer, buffer, 1, ncclFloat, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclReduceScatter(buffer, buffer, 1, ncclFloat, ncclSum, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclAlltoAll(buffer, buffer, 1, ncclFloat, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclGather(buffer, buffer, 1, ncclFloat, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclScatter(buffer, buffer, 1, ncclFloat, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclAllReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclBroadcastConfig(buffer, buffer, 1, ncclFloat, 0, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclReduceConfig(buffer, buffer, 1, ncclFloat, ncclSum, 0, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclAllGatherConfig(buffer, buffer, 1, ncclFloat, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclReduceScatterConfig(buffer, buffer, 1, ncclFloat, ncclSum, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclAlltoAllConfig(buffer, buffer, 1, ncclFloat, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclGatherConfig(buffer, buffer, 1, ncclFloat, 0, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclScatterConfig(buffer, buffer, 1, ncclFloat, 0, comm, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclSend(buffer, 1, ncclFloat, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclRecv(buffer, 1, ncclFloat, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&op, buffer, ncclFloat, ncclScalarHostImmediate, comm));
  RETURNS(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm));
  RETURNS(ncclInvalidArgument, ncclRedOpDestroy((ncclRedOp_t)ncclNumOps, comm));
  RETURNS(ncclInvalidArgument, ncclCommRegister(comm, buffer, sizeof(buffer), &pointer));
  RETURNS(ncclInvalidArgument, ncclCommDeregister(comm, NULL));
  RETURNS(ncclInvalidArgument, ncclCommWindowRegister(comm, buffer, sizeof(buffer), &window, NCCL_WIN_DEFAULT));
  RETURNS(ncclInvalidArgument, ncclCommWindowDeregister(comm, NULL));
  RETURNS(ncclInvalidArgument, ncclWinGetUserPtr(comm, NULL, &pointer));
  RETURNS(ncclInvalidArgument, ncclCommSplit(comm, 0, 0, &child, NULL));
  RETURNS(ncclInvalidArgument, ncclCommShrink(comm, &excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  RETURNS(ncclInvalidArgument, ncclCommGetUniqueId(comm, &id));
  RETURNS(ncclInvalidArgument, ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  RETURNS(ncclInvalidArgument, ncclCommResume(comm));
  RETURNS(ncclInvalidArgument, ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
  RETURNS(ncclInvalidArgument, ncclPutSignal(buffer, 1, ncclFloat, 0, NULL, 0, 0, 0, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclSignal(0, 0, 0, 0, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclWaitSignal(1, &wait, comm, NULL));
  RETURNS(ncclInvalidArgument, ncclCommQueryProperties(comm, &properties));
  RETURNS(ncclInvalidArgument, ncclDevCommCreate(comm, &requirements, &device));
  RETURNS(ncclInvalidArgument, ncclDevCommDestroy(comm, &device));
  RETURNS(ncclInvalidArgument, ncclGinBarrierCreateRequirement(comm, ncclTeamWorld(comm), 1, &barrier, &resource));
  SAYS(comm == NULL ? "NULL" : "does not exist");
  EXPECT(number == 77 && bytes == 77 && pointer == &number && state == ncclInProgress);
  EXPECT(window == NULL && child == NULL && op == ncclSum);

  /* Functions without a code: a value that stands for none. */
  ncclTeam_t team = {4, 1, 2};
  EXPECT(ncclTeamWorld(comm).nRanks == 0 && ncclTeamLsa(comm).nRanks == 0 && ncclTeamRail(comm).nRanks == 0);
  EXPECT(ncclTeamCftMultimem(comm).nRanks == 0 && pncclTeamCft(comm, NCCL_CFT_TEAM_FLAT).nRanks == 0);
  EXPECT(ncclTeamRankToWorld(comm, team, 0) == -1 && ncclTeamRankToLsa(comm, team, 0) == -1);
}

static void ends_of_life(void) {
  /* NULL is nothing to end; what never was one is an error. */
  RETURNS(ncclSuccess, ncclCommFinalize(NULL));
  RETURNS(ncclSuccess, ncclCommDestroy(NULL));
  RETURNS(ncclSuccess, ncclCommAbort(NULL));
  RETURNS(ncclSuccess, ncclCommRevoke(NULL, NCCL_REVOKE_DEFAULT));
  RETURNS(ncclSuccess, ncclCommRevoke(NULL, 5));
  ncclComm_t invented = (ncclComm_t)pointer;
  RETURNS(ncclInvalidArgument, ncclCommFinalize(invented));
  RETURNS(ncclInvalidArgument, ncclCommDestroy(invented));
  RETURNS(ncclInvalidArgument, ncclCommAbort(invented));
  RETURNS(ncclInvalidArgument, ncclCommRevoke(invented, NCCL_REVOKE_DEFAULT));
}

static void creation(void) {
  ncclComm_t comm = (ncclComm_t)pointer, untouched = comm;
  RETURNS(ncclInvalidArgument, ncclGetUniqueId(NULL));
  RETURNS(ncclSuccess, ncclGetUniqueId(&id));
  RETURNS(ncclInvalidArgument, ncclCommInitRank(NULL, 1, id, 0));
  RETURNS(ncclInvalidArgument, ncclCommInitRank(&comm, 0, id, 0));
  SAYS("nranks is 0");
  RETURNS(ncclInvalidArgument, ncclCommInitRank(&comm, -3, id, 0));
  RETURNS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 2));
  SAYS("rank is 2");
  RETURNS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, -1));
  RETURNS(ncclInvalidArgument, ncclCommInitRankConfig(NULL, 1, id, 0, NULL));
  RETURNS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 1, NULL));
  RETURNS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 1, 0, 1, NULL, NULL));
  RETURNS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 2, 0, 3, &id, NULL));
  SAYS("nId is 3");
  RETURNS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 2, 0, 0, &id, NULL));
  RETURNS(ncclInvalidArgument, ncclCommInitAll(NULL, 1, NULL));
  RETURNS(ncclInvalidArgument, ncclCommInitAll(&comm, 0, NULL));
  SAYS("ndev is 0");
  RETURNS(ncclInvalidArgument, ncclCommGrow(NULL, 2, NULL, 1, &comm, NULL));
  RETURNS(ncclInvalidArgument, ncclCommGrow(NULL, 2, &id, -1, &comm, NULL));
  RETURNS(ncclInvalidArgument, ncclCommGrow(untouched, 2, NULL, -1, &comm, NULL));
  EXPECT(comm == untouched);
}

static void calls_without_communicator(void) {
  ncclSimInfo_t simulated = NCCL_SIM_INFO_INITIALIZER;
  ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  ncclMultimemHandle_t multimem = {NULL};
  ncclTeam_t team = {1, 0, 1};
  ncclDevResourceRequirements_t resource;
  ncclLsaBarrierHandle_t barrier;
  ncclCftLeId endpoint = 0;
  const char *text = NULL;
  size_t offset = 0;

  RETURNS(ncclInvalidArgument, ncclMemAlloc(NULL, 64));
  RETURNS(ncclSuccess, ncclMemFree(NULL));
  RETURNS(ncclInvalidUsage, ncclGroupSimulateEnd(&simulated));
  SAYS("without ncclGroupStart");
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclInvalidUsage, ncclGroupSimulateEnd(&simulated));
  SAYS("not finished");
  simulated.magic = 1;
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclInvalidArgument, ncclGroupSimulateEnd(&simulated));
  RETURNS(ncclInvalidUsage, ncclGroupEnd());
  RETURNS(ncclSuccess, ncclSetEncryption(NULL));
  encryption.magic = 1;
  RETURNS(ncclInvalidArgument, ncclSetEncryption(&encryption));
  RETURNS(ncclInvalidArgument, ncclParamBind(NULL, "NCCL_DEBUG"));
  RETURNS(ncclInvalidArgument, ncclParamBind((ncclParamHandle_t *)(void *)&pointer, NULL));
  RETURNS(ncclInvalidArgument, ncclParamGetI32(NULL, &number));
  RETURNS(ncclInvalidArgument, ncclParamGetStr(NULL, &text));
  RETURNS(ncclInvalidArgument, ncclParamGetParameter(NULL, &text, &number));
  RETURNS(ncclInvalidArgument, ncclParamGetAllParameterKeys(NULL, &number));
  RETURNS(ncclInvalidArgument, ncclGetLsaDevicePointer(NULL, 0, 0, &pointer));
  RETURNS(ncclInvalidArgument, ncclGetPeerDevicePointer(NULL, 0, 0, &pointer));
  RETURNS(ncclInvalidArgument, ncclGetLsaMultimemDevicePointer(NULL, 0, &pointer));
  RETURNS(ncclInvalidArgument, ncclGetMultimemDevicePointer(NULL, 0, multimem, &pointer));
  RETURNS(ncclInvalidArgument, ncclGetPeerDeviceLeInfo(NULL, 0, 0, &endpoint, &offset));
  RETURNS(ncclInvalidArgument, ncclGetMultimemDeviceLeInfo(NULL, 0, &endpoint, &offset));
  RETURNS(ncclInvalidArgument, ncclGetCftDeviceLeInfo(NULL, 0, 0, team, &endpoint, &offset));
  RETURNS(ncclInvalidArgument, ncclLsaBarrierCreateRequirement(team, 1, NULL, &resource));
  RETURNS(ncclInvalidArgument, ncclLsaBarrierCreateRequirement(team, 1, &barrier, NULL));
  RETURNS(ncclInvalidArgument, ncclLLA2ACreateRequirement(1, 1, NULL, &resource));
  RETURNS(ncclInvalidArgument, ncclGinOutboxCreateRequirement(1, 1, NULL, &resource));
  RETURNS(ncclInvalidArgument, ncclGinInboxA2ACreateRequirement(team, 1, 1, NULL, &resource));
  EXPECT(number == 77 && pointer == &number);
  /* Returns nothing and must not crash. */
  ncclResetDebugInit();
}

int main(void) {
  no_such_communicator(NULL);
  no_such_communicator((ncclComm_t)pointer);
  no_such_communicator((ncclComm_t)(uintptr_t)1);
  no_such_communicator((ncclComm_t)(uintptr_t)-1);
  /* Inside the range from which handles come. */
  no_such_communicator((ncclComm_t)(uintptr_t)0x0cc100000000);
  no_such_communicator((ncclComm_t)(uintptr_t)0x0cc100000008);
  ends_of_life();
  creation();
  calls_without_communicator();
  return EXPECT_STATUS();
}
