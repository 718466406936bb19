/* One macro for the C tests: says what failed and where, and goes on to the end, so that one run shows all faults. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>

static int expect_failures = 0;

#define EXPECT(condition)                                                       \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
      expect_failures++;                                                        \
    }                                                                           \
  } while (0)

#define EXPECT_STATUS() (expect_failures ? 1 : 0)

#endif
