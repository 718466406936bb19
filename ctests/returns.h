/* Checks of calls by their code and their last error. */
#ifndef RETURNS_H
#define RETURNS_H

#include <nccl.h>
#include <string.h>

#include "expect.h"

/* The call returns this code, and after a failure the last error begins with the function's name. */
#define RETURNS(expected, call) returns_at(__FILE__, __LINE__, #call, expected, call)

/* The last error contains a text. */
#define SAYS(text) says_at(__FILE__, __LINE__, text)

static inline void says_at(const char *file, int line, const char *text) {
  if (strstr(ncclGetLastError(NULL), text) == NULL) {
    fprintf(stderr, "%s:%d: last error \"%s\" does not say \"%s\"\n", file, line, ncclGetLastError(NULL), text);
    expect_failures++;
  }
}

static inline void returns_at(const char *file, int line, const char *call, ncclResult_t expected, ncclResult_t result) {
  const char *said = ncclGetLastError(NULL);
  if (result != expected) {
    fprintf(stderr, "%s:%d: %s returned %d instead of %d (%s)\n", file, line, call, (int)result, (int)expected, said);
    expect_failures++;
  } else if (result != ncclSuccess && result != ncclInProgress) {
    /* Both names of a function report under the plain one. */
    const char *name = call + (strncmp(call, "pnccl", 5) == 0);
    size_t length = strcspn(name, "(");
    if (strncmp(said, name, length) != 0 || said[length] != ':') {
      fprintf(stderr, "%s:%d: %s: last error \"%s\" does not begin with the function's name\n", file, line, call, said);
      expect_failures++;
    }
  }
}

#endif
