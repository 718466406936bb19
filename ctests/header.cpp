// The header is C++ as well, and its functions have C linkage: that this links is the test.
#include <nccl.h>

int main() {
  int version = 0;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id = {};
  (void)id;
  return ncclGetVersion(&version) == ncclSuccess && pncclGetVersion(&version) == ncclSuccess && config.size > 0 ? 0 : 1;
}
