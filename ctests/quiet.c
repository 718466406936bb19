/* Loading the library, and asking what needs no GPU, must leave a process as it was: no thread, no descriptor, no
 * driver, no output. It is preloaded into shells and compilers that know nothing of it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expect.h"

static int entries(const char* path) {
  int count = 0;
  DIR* dir = opendir(path);
  if (!dir) return -1;
  while (readdir(dir)) count++;
  closedir(dir);
  return count;
}

static int maps_name(const char* name) {
  char line[4096];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  if (!maps) return -1;
  while (fgets(line, sizeof line, maps)) found += strstr(line, name) != NULL;
  fclose(maps);
  return found;
}

int main(void) {
  /* Output goes into a pipe for a while, to see that there is none. */
  int pipe_ends[2], out = dup(1), err = dup(2);
  EXPECT(pipe(pipe_ends) == 0);
  fflush(stdout);
  dup2(pipe_ends[1], 1);
  dup2(pipe_ends[1], 2);
  int threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");

  void* library = dlopen(getenv("OXCCL_TEST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  int (*get_version)(int*) = NULL;
  const char* (*get_error_string)(int) = NULL;
  int version = 0, status = -1;
  const char* text = NULL;
  if (library) {
    *(void**)&get_version = dlsym(library, "ncclGetVersion");
    *(void**)&get_error_string = dlsym(library, "ncclGetErrorString");
    if (get_version) status = get_version(&version);
    if (get_error_string) text = get_error_string(4);
  }

  int threads_after = entries("/proc/self/task"), descriptors_after = entries("/proc/self/fd");
  dup2(out, 1);
  dup2(err, 2);
  close(pipe_ends[1]);
  char said[512];
  ssize_t length = read(pipe_ends[0], said, sizeof said);

  EXPECT(library != NULL);
  EXPECT(status == 0 && version > 22000);
  EXPECT(text != NULL && *text);
  EXPECT(threads > 0 && threads_after == threads);
  EXPECT(descriptors > 0 && descriptors_after == descriptors);
  EXPECT(maps_name("libnccl.so") > 0);
  EXPECT(maps_name("libcuda") == 0);
  EXPECT(length == 0);
  return EXPECT_STATUS();
}
