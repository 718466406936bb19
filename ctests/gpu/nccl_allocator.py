"""An allocator for torch.cuda.MemPool on ncclMemAlloc and ncclMemFree of the library that serves the process."""

import os
import subprocess
import tempfile

import torch

SOURCE = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

static void* function(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found) found = dlsym(dlopen("libnccl.so.2", RTLD_NOW), name);
  return found;
}

void* pool_alloc(ssize_t size, int device, void* stream) {
  (void)device, (void)stream;
  void* memory = NULL;
  int result = ((int (*)(void**, size_t))function("ncclMemAlloc"))(&memory, (size_t)size);
  if (result) fprintf(stderr, "ncclMemAlloc of %zd bytes: %d\\n", size, result);
  return memory;
}

void pool_free(void* memory, ssize_t size, int device, void* stream) {
  (void)size, (void)device, (void)stream;
  ((int (*)(void*))function("ncclMemFree"))(memory);
}
"""


def build():
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "pool.c"), os.path.join(folder, "pool.so")
        with open(source, "w") as file:
            file.write(SOURCE)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
        # Loaded here, so that the file may go.
        return torch.cuda.memory.CUDAPluggableAllocator(library, "pool_alloc", "pool_free")
