/* Configuration structs of every version, through ncclCommInitRankConfig. */
#include "returns.h"
#include <stdlib.h>

/* Size and version as the headers of these versions had them. */
static const struct {
  size_t size;
  unsigned int version;
} forms[] = {{24, 21403}, {24, 21602}, {40, 21701}, {48, 21801}, {48, 22505}, {48, 22602}, {72, 22707},
             {80, 22809}, {88, 22902}, {96, 23003}, {96, 23007}, {112, 23102}, {120, 23203}, {136, 23901}};

static ncclUniqueId id;

static ncclResult_t init(ncclConfig_t *config) {
  ncclComm_t comm = NULL;
  ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, config);
  if (result == ncclSuccess) {
    EXPECT(comm != NULL && ncclCommDestroy(comm) == ncclSuccess);
    EXPECT(ncclGetUniqueId(&id) == ncclSuccess);
  } else {
    EXPECT(comm == NULL);
  }
  return result;
}

static void refused(ncclConfig_t config, ncclResult_t code, const char *field) {
  ncclResult_t result = init(&config);
  EXPECT(result == code);
  SAYS(field);
}

int main(void) {
  RETURNS(ncclSuccess, ncclGetUniqueId(&id));
  /* What an untouched configuration gives: success on a machine with a device, else the driver's failure. */
  ncclResult_t usual = init(NULL);
  EXPECT(usual == ncclSuccess || usual == ncclUnhandledCudaError);

  for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
    /* A struct of exactly this size at the end of its own memory, so that tools for memory errors see a read too far. */
    ncclConfig_t newest = NCCL_CONFIG_INITIALIZER;
    char *memory = malloc(forms[i].size);
    ncclConfig_t *config = (ncclConfig_t *)(void *)memory;
    memset(memory, 0xff, forms[i].size);
    memcpy(memory, &newest, forms[i].size < sizeof(newest) ? forms[i].size : sizeof(newest));
    config->size = forms[i].size;
    config->version = forms[i].version;
    if (init(config) != usual) {
      printf("size %zu, version %u: %s\n", forms[i].size, forms[i].version, ncclGetLastError(NULL));
      EXPECT(!"an untouched configuration of this version is taken");
    }
    free(memory);
  }

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 0;
  refused(config, ncclInvalidArgument, "config->magic");
  config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  config.size = 8;
  refused(config, ncclInvalidArgument, "config->size");
  config.size = (size_t)-1;
  refused(config, ncclInvalidArgument, "config->size");
  config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  config.version = 0;
  refused(config, ncclInvalidArgument, "config->version");
  config.version = (unsigned int)-22809;
  refused(config, ncclInvalidArgument, "config->version is -22809");
  config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  config.blocking = 2;
  refused(config, ncclInvalidArgument, "config->blocking");
  config.blocking = 0;
  refused(config, ncclInvalidUsage, "nonblocking");
  config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 8;
  config.maxCTAs = 4;
  refused(config, ncclInvalidArgument, "config->minCTAs is 8");
  config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  config.graphUsageMode = 3;
  refused(config, ncclInvalidArgument, "config->graphUsageMode");
  /* The same value in a struct of 2.28 is not the caller's. */
  config.version = 22809;
  EXPECT(init(&config) == usual);
  return EXPECT_STATUS();
}
