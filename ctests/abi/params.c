/* Settings by handle and by key: types, texts, raw bytes, and what is refused. */
#define _POSIX_C_SOURCE 200809L
#include "returns.h"
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static void handles(void) {
  ncclParamHandle_t number = NULL, choice = NULL, on = NULL, again = NULL, text = NULL;
  ncclParamHandle_t untouched = (ncclParamHandle_t)(void *)&number;
  unsigned char raw[16];
  const char *value = NULL, *other = NULL;
  int64_t i64 = 0;
  int32_t i32 = 0;
  uint64_t u64 = 0;
  int length = 7;

  RETURNS(ncclSuccess, ncclParamBind(&number, "NCCL_BUFFSIZE"));
  RETURNS(ncclSuccess, ncclParamBind(&choice, "NCCL_NTHREADS"));
  RETURNS(ncclSuccess, ncclParamBind(&on, "NCCL_P2P_DISABLE"));
  RETURNS(ncclSuccess, ncclParamBind(&text, "NCCL_DEBUG_TIMESTAMP_FORMAT"));
  RETURNS(ncclSuccess, pncclParamBind(&again, "NCCL_BUFFSIZE"));
  EXPECT(number != NULL && again == number && number != text);
  RETURNS(ncclInvalidArgument, ncclParamBind(&untouched, "nccl_buffsize"));
  SAYS("nccl_buffsize");
  EXPECT(untouched == (ncclParamHandle_t)(void *)&number);

  RETURNS(ncclSuccess, ncclParamGetI64(number, &i64));
  EXPECT(i64 == 123456);
  RETURNS(ncclSuccess, ncclParamGetI64(choice, &i64));
  EXPECT(i64 == -2);
  RETURNS(ncclInvalidArgument, ncclParamGetI32(number, &i32));
  SAYS("NCCL_BUFFSIZE is int64_t, not int32_t: ncclParamGetI64");
  RETURNS(ncclInvalidArgument, ncclParamGetU64(number, &u64));
  RETURNS(ncclInvalidArgument, ncclParamGetI64(on, &i64));
  RETURNS(ncclInvalidArgument, ncclParamGetStr(number, &value));
  RETURNS(ncclSuccess, ncclParamGetStr(text, &value));
  EXPECT(strcmp(value, "[%F %T] ") == 0);

  RETURNS(ncclSuccess, ncclParamGet(on, raw, sizeof raw, &length));
  EXPECT(length == 1 && raw[0] == 1);
  RETURNS(ncclSuccess, ncclParamGet(number, raw, sizeof raw, &length));
  memcpy(&i64, raw, sizeof i64);
  EXPECT(length == 8 && i64 == 123456);
  RETURNS(ncclSuccess, ncclParamGet(text, raw, sizeof raw, &length));
  EXPECT(length == 9 && strcmp((char *)raw, "[%F %T] ") == 0);
  RETURNS(ncclInvalidArgument, ncclParamGet(number, raw, 7, &length));
  SAYS("8 bytes");
  EXPECT(length == 0);
  length = 7;
  RETURNS(ncclInvalidArgument, ncclParamGet(number, raw, 0, &length));
  RETURNS(ncclInvalidArgument, ncclParamGet(number, raw, -1, &length));
  EXPECT(length == 7);

  RETURNS(ncclInvalidArgument, ncclParamGetI64((ncclParamHandle_t)(void *)&number, &i64));
  SAYS("is no handle of ncclParamBind");
  RETURNS(ncclInvalidArgument, ncclParamGetI64((ncclParamHandle_t)(void *)((char *)number + 1), &i64));
  RETURNS(ncclInvalidArgument, ncclParamGetStr((ncclParamHandle_t)(void *)((char *)number + (1 << 20)), &other));
}

static void keys(void) {
  const char **table = NULL, *value = "", *first = NULL;
  int count = 0, length = 7, buffsize = 0;

  RETURNS(ncclSuccess, ncclParamGetParameter("NCCL_P2P_DISABLE", &value, &length));
  EXPECT(strcmp(value, "TRUE") == 0 && length == 4);
  RETURNS(ncclSuccess, ncclParamGetParameter("NCCL_BUFFSIZE", &value, &length));
  EXPECT(strcmp(value, "123456") == 0 && length == 6);
  RETURNS(ncclSuccess, ncclParamGetParameter("OXCCL_COMM_KEY", &value, &length));
  EXPECT(strcmp(value, "(set)") == 0);
  RETURNS(ncclInvalidArgument, ncclParamGetParameter("NCCL_NO_SUCH_SETTING", &value, &length));
  SAYS("NCCL_NO_SUCH_SETTING");
  EXPECT(value == NULL && length == 0);

  RETURNS(ncclSuccess, ncclParamGetAllParameterKeys(&table, &count));
  EXPECT(count > 20);
  for (int key = 0; key < count; key++) {
    buffsize += strcmp(table[key], "NCCL_BUFFSIZE") == 0;
    RETURNS(ncclSuccess, ncclParamGetParameter(table[key], &value, &length));
    EXPECT(value != NULL && (int)strlen(value) == length);
    first = first == NULL ? table[key] : first;
  }
  EXPECT(buffsize == 1 && strcmp(first, "NCCL_DEBUG") == 0);
}

/* What the dump prints on the standard output. */
static void dump(void) {
  static char printed[1 << 16];
  FILE *file = tmpfile();
  EXPECT(file != NULL);
  if (file == NULL) {
    return;
  }
  fflush(stdout);
  int saved = dup(1);
  dup2(fileno(file), 1);
  ncclParamDumpAll();
  dup2(saved, 1);
  close(saved);
  rewind(file);
  printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
  fclose(file);
  EXPECT(strstr(printed, "=== ncclParam Registry Dump ===") == printed);
  EXPECT(strstr(printed, "NCCL_BUFFSIZE (int64_t)") != NULL);
  EXPECT(strstr(printed, "Current value=123456 (environment), default=(automatic)") != NULL);
  EXPECT(strstr(printed, "Current value=300 (default), default=300") != NULL);
  EXPECT(strstr(printed, "secret-of-the-job") == NULL);
}

int main(void) {
  setenv("NCCL_BUFFSIZE", "123456", 1);
  setenv("NCCL_P2P_DISABLE", "yes", 1);
  setenv("OXCCL_COMM_KEY", "secret-of-the-job", 1);
  unsetenv("NCCL_NTHREADS");
  unsetenv("NCCL_DEBUG_TIMESTAMP_FORMAT");
  handles();
  keys();
  dump();
  return EXPECT_STATUS();
}
