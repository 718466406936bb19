/* Group rules that need no device. */
#include "returns.h"
#include <pthread.h>

static ncclComm_t none = NULL;
static float value;

static ncclResult_t reduce(void) {
  return ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, none, NULL);
}

static void *other_thread(void *unused) {
  (void)unused;
  /* Groups belong to a thread: the main thread has one open. */
  RETURNS(ncclInvalidUsage, ncclGroupEnd());
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclSuccess, ncclGroupEnd());
  return NULL;
}

int main(void) {
  int count = 0;
  pthread_t thread;

  RETURNS(ncclInvalidUsage, ncclGroupEnd());
  SAYS("ncclGroupStart");
  RETURNS(ncclInvalidUsage, pncclGroupEnd());

  /* Empty groups, nested ones too, also with both names mixed. */
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclSuccess, ncclGroupEnd());
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclSuccess, pncclGroupStart());
  RETURNS(ncclSuccess, ncclGroupEnd());
  RETURNS(ncclSuccess, pncclGroupEnd());
  RETURNS(ncclInvalidUsage, ncclGroupEnd());

  /* A call that fails tells at once, and the end tells again; the next group is clean. */
  RETURNS(ncclSuccess, ncclGroupStart());
  EXPECT(reduce() == ncclInvalidArgument);
  RETURNS(ncclInvalidArgument, ncclGroupEnd());
  SAYS("ncclAllReduce");
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclSuccess, ncclGroupEnd());

  /* From a nested group it reaches the outermost end, and the first failure wins. */
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclSuccess, ncclGroupStart());
  EXPECT(reduce() == ncclInvalidArgument);
  ncclGroupEnd();
  EXPECT(ncclRecv(&value, 1, ncclFloat, 0, none, NULL) == ncclInvalidArgument);
  RETURNS(ncclInvalidArgument, ncclGroupEnd());
  SAYS("ncclAllReduce");
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclSuccess, ncclGroupEnd());

  /* A question that fails is no part of the group. */
  RETURNS(ncclSuccess, ncclGroupStart());
  RETURNS(ncclInvalidArgument, ncclCommCount(none, &count));
  RETURNS(ncclSuccess, ncclGroupEnd());

  /* Groups of two threads are two groups. */
  RETURNS(ncclSuccess, ncclGroupStart());
  EXPECT(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  EXPECT(pthread_join(thread, NULL) == 0);
  RETURNS(ncclSuccess, ncclGroupEnd());
  return EXPECT_STATUS();
}
