// What the conformance programs have in common: sections, and lines that are the same on every driver.
//
// Each section runs in a process of its own, forked before the driver is opened, so that a crash or a hang on one
// driver costs one section and is itself a line of the output. Nothing that depends on time, addresses, or the machine
// is printed. The lines in expected/ must come from a real driver: see run.py.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

typedef struct { const char* name; void (*run)(void); } Section;

static __attribute__((format(printf, 1, 2))) void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
  fflush(stdout);
}

// The names come from this table, not from the driver: a driver's own names are a test of their own.
static const char* result_name(CUresult result) {
  switch (result) {
    case 0: return "SUCCESS";
    case 1: return "INVALID_VALUE";
    case 2: return "OUT_OF_MEMORY";
    case 3: return "NOT_INITIALIZED";
    case 4: return "DEINITIALIZED";
    case 100: return "NO_DEVICE";
    case 101: return "INVALID_DEVICE";
    case 200: return "INVALID_IMAGE";
    case 201: return "INVALID_CONTEXT";
    case 202: return "CONTEXT_ALREADY_CURRENT";
    case 205: return "MAP_FAILED";
    case 206: return "UNMAP_FAILED";
    case 208: return "ALREADY_MAPPED";
    case 211: return "NOT_MAPPED";
    case 217: return "PEER_ACCESS_UNSUPPORTED";
    case 218: return "INVALID_PTX";
    case 300: return "INVALID_SOURCE";
    case 304: return "OPERATING_SYSTEM";
    case 400: return "INVALID_HANDLE";
    case 401: return "ILLEGAL_STATE";
    case 500: return "NOT_FOUND";
    case 600: return "NOT_READY";
    case 700: return "ILLEGAL_ADDRESS";
    case 701: return "LAUNCH_OUT_OF_RESOURCES";
    case 702: return "LAUNCH_TIMEOUT";
    case 704: return "PEER_ACCESS_ALREADY_ENABLED";
    case 705: return "PEER_ACCESS_NOT_ENABLED";
    case 708: return "PRIMARY_CONTEXT_ACTIVE";
    case 709: return "CONTEXT_IS_DESTROYED";
    case 712: return "HOST_MEMORY_ALREADY_REGISTERED";
    case 713: return "HOST_MEMORY_NOT_REGISTERED";
    case 716: return "MISALIGNED_ADDRESS";
    case 719: return "LAUNCH_FAILED";
    case 800: return "NOT_PERMITTED";
    case 801: return "NOT_SUPPORTED";
    case 900: return "STREAM_CAPTURE_UNSUPPORTED";
    case 901: return "STREAM_CAPTURE_INVALIDATED";
    case 902: return "STREAM_CAPTURE_MERGE";
    case 903: return "STREAM_CAPTURE_UNMATCHED";
    case 904: return "STREAM_CAPTURE_UNJOINED";
    case 905: return "STREAM_CAPTURE_ISOLATION";
    case 906: return "STREAM_CAPTURE_IMPLICIT";
    case 907: return "CAPTURED_EVENT";
    case 908: return "STREAM_CAPTURE_WRONG_THREAD";
    case 909: return "TIMEOUT";
    case 910: return "GRAPH_EXEC_UPDATE_FAILURE";
    case 999: return "UNKNOWN";
  }
  static _Thread_local char number[16];
  snprintf(number, sizeof number, "error %d", result);
  return number;
}

// Prints the call as it is written here, and its result.
#define TRY(call) try_result(#call, (call))
static __attribute__((unused)) CUresult try_result(const char* call, CUresult result) {
  say("%s: %s", call, result_name(result));
  return result;
}

// A call that only prepares what a section is about.
#define MUST(call) must_result(#call, (call))
static void must_result(const char* call, CUresult result) {
  if (result == 0) return;
  say("cannot go on, %s: %s", call, result_name(result));
  _Exit(1);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static __attribute__((unused)) double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static __attribute__((unused)) void sleep_ms(int ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) {}
}

// Opens the driver and makes device 0's primary context current.
static __attribute__((unused)) CUcontext start(void) {
  driver_open();
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  return context;
}

// A word of host memory on which a stream can wait, as long as the host likes.
typedef struct { volatile uint32_t* word; CUdeviceptr address; } Gate;

static __attribute__((unused)) Gate gate_make(void) {
  void* memory;
  Gate gate;
  MUST(cuMemHostAlloc(&memory, 4096, HOST_PORTABLE | HOST_DEVICEMAP));
  memset(memory, 0, 4096);
  gate.word = memory;
  MUST(cuMemHostGetDevicePointer(&gate.address, memory, 0));
  return gate;
}
// Everything enqueued after it waits until the gate is opened with this value or a larger one.
static __attribute__((unused)) void gate_block(Gate gate, CUstream stream, uint32_t value) {
  MUST(cuStreamWaitValue32(stream, gate.address, value, WAIT_GEQ));
}
static __attribute__((unused)) void gate_open(Gate gate, uint32_t value) {
  atomic_thread_fence(memory_order_seq_cst);
  *gate.word = value;
}

static __attribute__((unused)) CUdeviceptr device_memory(size_t bytes) {
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, bytes));
  MUST(cuMemsetD8(memory, 0, bytes));
  MUST(cuCtxSynchronize());
  return memory;
}

static __attribute__((unused)) uint32_t read_word(CUdeviceptr address) {
  uint32_t word = 0xdeadbeef;
  MUST(cuMemcpyDtoH(&word, address, 4));
  return word;
}

// Exit code 77: this machine cannot run the program (a second device is missing, say).
static __attribute__((unused)) int sections_run(const Section* sections, size_t count) {
  setvbuf(stdout, NULL, _IOFBF, 1 << 16);
  for (size_t i = 0; i < count; ++i) {
    say("== %s", sections[i].name);
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      // A process group of its own, so that grandchildren end with it.
      setpgid(0, 0);
      alarm(40);
      sections[i].run();
      fflush(stdout);
      _Exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    kill(-child, SIGKILL);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) say("the section hung");
    else if (WIFSIGNALED(status)) say("the section died of signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == 77) return 77;
    else if (WEXITSTATUS(status) != 0) say("the section ended early");
  }
  return 0;
}
#define SECTIONS(...) \
  int main(void) { static const Section all[] = {__VA_ARGS__}; return sections_run(all, COUNT(all)); }
